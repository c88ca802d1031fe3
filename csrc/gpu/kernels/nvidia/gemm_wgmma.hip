/* Matrix instructions of Hopper (sm_90a): float16, bfloat16, and float32 rounded to 11 bits; float
 * sums; A and B each with stride 1 along one axis and a multiple of 16 bytes along the other. Path
 * of a call: chosen before gemm_simt on these GPUs; launched by gpu/launch_plan.c.
 *
 * A workgroup is two warpgroups that multiply and one whose first thread copies A and B to a ring
 * of stages in shared memory. The instruction's 64 rows are rows of `tall`, its columns those of
 * `flat`. float32 (allow_tf32, both along k) is rounded by those who multiply, and a workgroup has
 * one tile, whose sums go through the ring's memory.
 *
 * Tiles of 128 rows: tall is A. Two workgroups of a cluster take neighbouring tiles along m: each
 * loads half of B's columns for both. Where the epilogue is the one in registers, workgroups stay
 * and take one tile after the other, so that the ring is filled while a tile is finished; the
 * general one needs the ring's memory, and ends the workgroup.
 *
 * Tiles of fewer rows, for a few rows of A and all of B's memory: tall is B. The workgroups of a
 * cluster each take a part of k; the first one adds up their sums. Both epilogues take the sums
 * from the ring's memory, and end the workgroup. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/fragment_epilogue.h"
#include "gpu/kernels/nvidia/ring.h"
#include "gpu/kernels/nvidia/wgmma.h"
#include "gpu/kernels/nvidia/wgmma_rounded.h"

typedef this_row row;

enum {
    GROUP = 128,                     /* threads of a warpgroup */
    CONSUMERS = MMF_WGMMA_CONSUMERS, /* warpgroups that multiply */
    TALL_ROWS = CONSUMERS * 64,
    SWAPPED = row::tile_m < TALL_ROWS,
    FLAT = SWAPPED ? row::tile_m : row::tile_n,
    ROUNDED = row::operands == MMF_GEMM_FLOAT32, /* to 11 bits */
    ONE_TILE = SWAPPED | ROUNDED,                /* a workgroup, its sums by way of the ring */
    LINE = row::tile_k,                          /* elements */
    STAGES = MMF_WGMMA_STAGES(row::tile_m, row::tile_n),
    STAGE_BYTES = MMF_WGMMA_STAGE_BYTES(row::tile_m, row::tile_n),
    TALL_BYTES = TALL_ROWS * MMF_WGMMA_LINE,
    HALF_N = row::tile_n / 2, /* columns of B that are loaded at once; gated: of a stream */
    HALF_BYTES = HALF_N * MMF_WGMMA_LINE,
    BOX_BYTES = 64 * MMF_WGMMA_LINE, /* 64 rows */
    SUMS = FLAT / 2,                 /* of a thread */
    PITCH = row::tile_n + 4,         /* floats of a line of sums */
    A_ALONG_K = row::layout == LAYOUT_NN || row::layout == LAYOUT_NT,
    B_ALONG_K = row::layout == LAYOUT_NT || row::layout == LAYOUT_TT,
    TALL_ALONG_K = SWAPPED ? B_ALONG_K : A_ALONG_K,
    FLAT_ALONG_K = SWAPPED ? A_ALONG_K : B_ALONG_K,
};
static_assert((SWAPPED ? row::tile_n : row::tile_m) == TALL_ROWS && row::lds == 0 &&
                  row::tile_k * sizeof(element<row::operands>::type) == MMF_WGMMA_LINE,
              "kernels.def");
static_assert(!ROUNDED || (!SWAPPED && A_ALONG_K && B_ALONG_K), "what rounded_loop takes");
static_assert(!SWAPPED || A_ALONG_K, "a box of a line along m has 64 rows");
static_assert(row::threads == (CONSUMERS + 1) * GROUP, "kernels.def");
static_assert(row::tile_m * PITCH * 4 <= MMF_WGMMA_RING_BYTES, "a tile of sums fits into the ring");
static_assert(2 * STAGES * 8 <= MMF_WGMMA_MATRICES - MMF_WGMMA_BARRIERS, "two for each stage");

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

/* Which stage of the ring is next, and the parity of its turn. */
struct ring {
    unsigned memory, full, empty, stage, parity;

    __attribute__((device, always_inline)) void start(unsigned base, unsigned first_parity)
    {
        memory = base;
        full = base + MMF_WGMMA_BARRIERS;
        empty = full + STAGES * 8;
        stage = 0;
        parity = first_parity;
    }

    __attribute__((device, always_inline)) unsigned tall() const
    {
        return memory + stage * STAGE_BYTES;
    }

    __attribute__((device, always_inline)) unsigned flat() const
    {
        return tall() + TALL_BYTES;
    }

    __attribute__((device, always_inline)) void advance()
    {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* The tiles of this workgroup: first, first + step, ..., and its part of k. */
struct turns {
    long long at, step, end;
    unsigned rank;
    int k_begin, k_end;

    __attribute__((device, always_inline)) void start(const mmf_wgmma_args &args)
    {
        const unsigned log = args.cluster_log;
        rank = log ? cluster_rank() : 0;
        end = args.gemm.tiles_m * args.gemm.tiles_n;
        for (int axis = 0; axis < args.gemm.batch_ndim; axis++)
            end *= args.gemm.batch_shape[axis];
        at = (args.gemm.first_tile + workgroup_id()) >> log;
        step =
            ONE_TILE || args.gemm.epilogue == MMF_EPILOGUE_GENERAL ? end : workgroup_count() >> log;
        k_begin = 0;
        k_end = (int)args.gemm.k;
        if (SWAPPED) {
            const unsigned steps = ((unsigned)k_end + row::tile_k - 1) / row::tile_k;
            k_begin = (int)(steps * rank >> log) * row::tile_k;
            if (rank + 1 < 1u << log)
                k_end = (int)(steps * (rank + 1) >> log) * row::tile_k;
        }
    }

    __attribute__((device, always_inline)) tile take(const mmf_wgmma_args &args, int *batch) const
    {
        const place_of_tile p = find_place(args.gemm, (unsigned long long)at);
        tile t;
        *batch = (int)p.batch;
        t.columns = args.gemm.gated ? HALF_N : row::tile_n;
        t.m0 = (SWAPPED ? p.m : ((long long)p.m << args.cluster_log) + rank) * row::tile_m;
        t.n0 = (long long)p.n * t.columns;
        const long long rows = args.gemm.m - t.m0, cols = args.gemm.n - t.n0;
        t.rows = rows < row::tile_m ? (int)rows : (int)row::tile_m;
        t.cols = cols < t.columns ? (int)cols : t.columns;
        t.matrices = (char **)(dynamic_shared + MMF_WGMMA_MATRICES);
        return t;
    }
};

/* One half of the columns of B for 64 k: for this workgroup, or for both of a cluster. */
MMF_DEVICE void load_half(const mmf_wgmma_args &args, const mmf_tensor_map &map, unsigned to,
                          unsigned barrier, int n, int k, int batch)
{
    enum { BOXES = B_ALONG_K ? 1 : HALF_N / LINE };
    MMF_UNROLL
    for (int i = 0; i < BOXES; i++) {
        const int x = B_ALONG_K ? k : n + i * LINE, y = B_ALONG_K ? n : k;
        if (!SWAPPED && args.cluster_log)
            load_box_for(3, to + i * BOX_BYTES, map, barrier, x, y, batch);
        else
            load_box(to + i * BOX_BYTES, map, barrier, x, y, batch);
    }
}

/* One thread: fill stages as they become empty. */
MMF_DEVICE void produce(const mmf_wgmma_args &args, ring r)
{
    turns turn;
    turn.start(args);
    r.parity = 1; /* all stages are empty */
    const bool gated = args.gemm.gated;
    const bool first = SWAPPED || !args.cluster_log || turn.rank == 0;
    const bool second = SWAPPED || !args.cluster_log || turn.rank == 1;
    MMF_ROLLED
    for (; turn.at < turn.end; turn.at += turn.step) {
        int batch;
        const tile t = turn.take(args, &batch);
        const int m = (int)t.m0, n = (int)t.n0;
        const int a_batch = args.a_batched ? batch : 0, b_batch = args.b_batched ? batch : 0;
        const int up_batch = (gated ? args.b_up_batched : args.b_batched) ? batch : 0;
        MMF_ROLLED
        for (int k = turn.k_begin; k < turn.k_end; k += row::tile_k) {
            const unsigned full = r.full + 8 * r.stage;
            const unsigned a = SWAPPED ? r.flat() : r.tall(), b = SWAPPED ? r.tall() : r.flat();
            wait_for(r.empty + 8 * r.stage, r.parity);
            expect_bytes(full, STAGE_BYTES);
            if (A_ALONG_K) {
                load_box(a, args.a, full, k, m, a_batch);
            } else {
                MMF_UNROLL
                for (int i = 0; i < CONSUMERS; i++)
                    load_box(a + i * BOX_BYTES, args.a, full, m + i * LINE, k, a_batch);
            }
            if (first)
                load_half(args, args.b, b, full, n, k, b_batch);
            if (second)
                load_half(args, gated ? args.b_up : args.b, b + HALF_BYTES, full,
                          gated ? n : n + HALF_N, k, up_batch);
            r.advance();
        }
    }
    /* Workgroups of the cluster say of every stage that it is empty: this one stays as long. */
    MMF_ROLLED
    for (int i = 0; i < STAGES; i++) {
        wait_for(r.empty + 8 * r.stage, r.parity);
        r.advance();
    }
}

/* Until all who multiply are here. */
MMF_DEVICE void meet_consumers()
{
    named_barrier<1, CONSUMERS * GROUP>();
}

/* sum = the products of a tile and a part of k, this warpgroup's 64 rows of tall. */
template <bool Rounded, int Columns = FLAT> struct products_of_tile {
    static __attribute__((device, always_inline)) void multiply(const mmf_wgmma_args &args, ring &r,
                                                                const turns &turn, int consumer,
                                                                int thread, float (&sum)[SUMS])
    {
        typedef products<FLAT, row::operands, TALL_ALONG_K, FLAT_ALONG_K> product;
        const int readers = SWAPPED ? 1 : 1 << args.cluster_log; /* of a stage: workgroups */
        const int reader = SWAPPED ? (int)turn.rank : thread;
        unsigned before = 0;
        MMF_ROLLED
        for (int k = turn.k_begin; k < turn.k_end; k += row::tile_k) {
            wait_for(r.full + 8 * r.stage, r.parity);
            const unsigned long long tall = describe<TALL_ALONG_K>(r.tall() + consumer * BOX_BYTES),
                                     flat = describe<FLAT_ALONG_K>(r.flat());
            products_begin();
            MMF_UNROLL
            for (int i = 0; i < row::tile_k / 16; i++)
                product::add_to(sum, tall + i * next_k<TALL_ALONG_K>(),
                                flat + i * next_k<FLAT_ALONG_K>(), i > 0 || k > turn.k_begin);
            products_end();
            if (k > turn.k_begin) {
                wait_for_all_but_one();
                if (thread < readers)
                    arrive_at(r.empty + 8 * before, reader);
            }
            before = r.stage;
            r.advance();
        }
        product::wait(sum);
        if (thread < readers)
            arrive_at(r.empty + 8 * before, reader);
    }
};

template <int Columns> struct products_of_tile<true, Columns> {
    static __attribute__((device, always_inline)) void multiply(const mmf_wgmma_args &args, ring &r,
                                                                const turns &turn, int consumer,
                                                                int thread,
                                                                float (&sum)[Columns / 2])
    {
        rounded_loop<ring, Columns, CONSUMERS * GROUP> loop = {
            r, consumer, thread, 1 << args.cluster_log, (turn.k_end + LINE - 1) / LINE, 0, false};
        loop.run(sum);
    }
};

/* z of this warpgroup's rows of tall, lines along n. */
MMF_DEVICE void put_sums(float alpha, float *lines, int consumer, int thread,
                         const float (&sum)[SUMS])
{
    const int tall = consumer * 64 + thread / 32 * 16 + thread % 32 / 4, flat = thread % 4 * 2;
    if (SWAPPED) {
        float *const mine = lines + flat * PITCH + tall;
        MMF_UNROLL
        for (int i = 0; i < SUMS; i++)
            mine[(i / 4 * 8 + i % 2) * PITCH + i / 2 % 2 * 8] = sum[i] * alpha;
    } else {
        float *const mine = lines + tall * PITCH + flat;
        MMF_UNROLL
        for (int i = 0; i < SUMS; i += 2)
            *(mmf_float2 *)(mine + i / 4 * 8 + i / 2 % 2 * 8 * PITCH) =
                (mmf_float2){sum[i], sum[i + 1]} * alpha;
    }
}

/* The tile's matrices, for all who multiply. */
MMF_DEVICE void place_matrices(const mmf_gemm_args &args, const tile &t, int batch)
{
    meet_consumers(); /* the last tile's are not needed any more */
    find_matrices(args, batch, t.matrices);
    meet_consumers();
}

/* The bias of the tile's columns comes to the last cache while products are summed. */
MMF_DEVICE void prefetch_bias(const mmf_gemm_args &args, const tile &t)
{
    enum { LINE = 128, LINES = row::tile_n * 4 / LINE };
    const int operand = MMF_GEMM_BIAS + thread_id() / LINES, at = thread_id() % LINES * LINE;
    if (thread_id() >= (args.gated ? 2 : 1) * LINES || args.dtype[operand] == MMF_GEMM_ABSENT)
        return;
    const int size = element_size(args.dtype[operand]);
    if (args.strides[operand].col == 1 && at < t.cols * size)
        prefetch(t.matrix(operand) + t.n0 * size + at);
}

/* One tile, its sums by way of shared memory. */
MMF_DEVICE void consume_one(const mmf_wgmma_args &args, ring r)
{
    const int thread = thread_id() % GROUP, consumer = thread_id() / GROUP;
    float *const lines = (float *)dynamic_shared;
    const bool general = args.gemm.epilogue == MMF_EPILOGUE_GENERAL;
    const float alpha = general ? (float)args.gemm.alpha : 1;
    turns turn;
    float sum[SUMS];
    int batch;
    turn.start(args);
    const tile t = turn.take(args, &batch);
    some_rows some = {t.rows, 0};
    place_matrices(args.gemm, t, batch);
    prefetch_bias(args.gemm, t);
    products_of_tile<ROUNDED>::multiply(args, r, turn, consumer, thread, sum);
    meet_consumers(); /* nobody reads the ring any more */
    const bool parted = SWAPPED && args.cluster_log;
    put_sums(parted ? 1 : alpha, lines, consumer, thread, sum);
    if (parted) {
        const int share = row::tile_m >> args.cluster_log;
        some.first = share * (int)turn.rank;
        some.count = t.rows - some.first < share ? t.rows - some.first : share;
        meet_consumers();
        if (thread_id() == 0)
            publish_to_cluster(); /* by one thread: it is a fence of the whole GPU */
        cluster_barrier();
        add_parts<CONSUMERS * GROUP, row::tile_n, PITCH>(some, 1 << args.cluster_log, alpha,
                                                         r.memory, lines);
    }
    meet_consumers();
    if (ONE_TILE && !general) {
        staged_runs<row, CONSUMERS * GROUP, PITCH>::finish(args.gemm, t, some.first, some.count,
                                                           lines);
        return;
    }
    const staged<float, CONSUMERS * GROUP, row::tile_n, PITCH, some_rows> all = {
        lines + some.first * PITCH, t, some};
    finish_general<float>(args.gemm, all);
}

/* One tile after the other. */
template <int Columns> MMF_DEVICE void consume_all(const mmf_wgmma_args &args, ring r)
{
    const int thread = thread_id() % GROUP, consumer = thread_id() / GROUP;
    const unsigned stores = r.memory + MMF_WGMMA_STORES + consumer * 2 * MMF_WGMMA_STORE_BYTES;
    const unsigned biases = r.memory + MMF_WGMMA_BIASES + consumer * row::tile_n * 4;
    bool first = true;
    turns turn;
    turn.start(args);
    MMF_ROLLED
    for (; turn.at < turn.end; turn.at += turn.step) {
        int batch;
        const tile t = turn.take(args, &batch);
        if (first || args.gemm.batch_ndim)
            place_matrices(args.gemm, t, batch);
        first = false;
        float sum[Columns / 2];
        fragment_epilogue<row::operands, Columns> epilogue = {
            args, t, {}, {}, 1, thread, consumer * 64, stores, biases, consumer};
        epilogue.start();
        products_of_tile<ROUNDED>::multiply(args, r, turn, consumer, thread, sum);
        epilogue.finish(sum, batch);
    }
    if (thread == 0)
        wait_for_stores<0>();
}

/* Tiles of 128 rows have either form of the epilogue, others share one way. */
template <bool ByLines> struct consumers {
    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        if (args.gemm.epilogue == MMF_EPILOGUE_GENERAL)
            consume_one(args, r);
        else
            consume_all<FLAT>(args, r);
    }
};

template <> struct consumers<true> {
    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        consume_one(args, r);
    }
};

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_wgmma_args args)
{
    ring r;
    r.start(shared_address(dynamic_shared), 0);
    if (thread_id() == 0) {
        prefetch_map(args.a);
        prefetch_map(args.b);
        MMF_UNROLL
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, CONSUMERS * (SWAPPED ? 1 : 1 << args.cluster_log));
        }
        barriers_are_ready();
    }
    cluster_barrier();
    wait_for_kernel_before();
    let_next_kernel_begin();
    if (thread_id() / GROUP == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (thread_id() == CONSUMERS * GROUP)
            produce(args, r);
        if (SWAPPED && args.cluster_log)
            cluster_barrier(); /* before add_parts() */
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consumers<ONE_TILE>::run(args, r);
    }
    cluster_barrier(); /* a workgroup that is gone cannot be written to or read */
}
