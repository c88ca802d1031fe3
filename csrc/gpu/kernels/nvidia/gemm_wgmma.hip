/* Matrix instructions of Hopper (sm_90a): float16 and bfloat16 inputs, float sums, A and B each
 * with stride 1 along one axis and a multiple of 16 bytes along the other. Path of a call: chosen
 * before gemm_simt on these GPUs; launched by gpu/launch_plan.c.
 *
 * A workgroup is two warpgroups that multiply, 64 rows of the tile each, and one whose first thread
 * copies A and B to a ring of stages in shared memory. Two workgroups of a cluster take
 * neighbouring tiles along m: each loads half of B's columns for both. Where the epilogue is the
 * one in registers, workgroups stay and take one tile after the other, so that the ring is filled
 * while a tile is finished; the general one needs the ring's memory, and ends the workgroup. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/nvidia/fragment_epilogue.h"
#include "gpu/kernels/nvidia/ring.h"
#include "gpu/kernels/nvidia/wgmma.h"

typedef this_row row;

enum {
    GROUP = 128,                     /* threads of a warpgroup */
    CONSUMERS = MMF_WGMMA_CONSUMERS, /* warpgroups that multiply */
    STAGES = MMF_WGMMA_STAGES,
    STAGE_BYTES = MMF_WGMMA_STAGE_BYTES(row::tile_m, row::tile_n, row::tile_k),
    A_BYTES = row::tile_m * row::tile_k * 2,
    HALF_N = row::tile_n /
        2, /* columns of B that a workgroup of a cluster loads; gated: a stream */
    HALF_BYTES = HALF_N * row::tile_k * 2,
    BOX_BYTES = MMF_WGMMA_LINE * row::tile_k * 2, /* of rows that are not along k */
    SUMS = row::tile_n / 2,                       /* of a thread */
    PITCH = row::tile_n + 4,                      /* floats of a line of sums */
    A_ALONG_K = row::layout == LAYOUT_NN || row::layout == LAYOUT_NT,
    B_ALONG_K = row::layout == LAYOUT_NT || row::layout == LAYOUT_TT,
};
static_assert(row::tile_m == CONSUMERS * 64 && row::tile_k == MMF_WGMMA_LINE && row::lds == 0,
              "kernels.def");
static_assert(row::threads == (CONSUMERS + 1) * GROUP, "kernels.def");
static_assert(row::tile_m * PITCH * 4 <= STAGES * STAGE_BYTES, "a tile of sums fits into the ring");

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

/* Which stage of the ring is next, and the parity of its turn. */
struct ring {
    unsigned memory, full, empty, stage, parity;

    __attribute__((device, always_inline)) void start(unsigned base, unsigned first_parity)
    {
        memory = base;
        full = base + MMF_WGMMA_BARRIERS(row::tile_m, row::tile_n, row::tile_k);
        empty = full + STAGES * 8;
        stage = 0;
        parity = first_parity;
    }

    __attribute__((device, always_inline)) unsigned a() const
    {
        return memory + stage * STAGE_BYTES;
    }

    __attribute__((device, always_inline)) void advance()
    {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* The tiles of this workgroup: of the clusters' tiles, first, first + step, ... */
struct turns {
    long long at, step, end;
    unsigned rank;

    __attribute__((device, always_inline)) void start(const mmf_wgmma_args &args)
    {
        const unsigned cluster = args.cluster;
        rank = cluster > 1 ? cluster_rank() : 0;
        end = args.gemm.tiles_m * args.gemm.tiles_n;
        for (int axis = 0; axis < args.gemm.batch_ndim; axis++)
            end *= args.gemm.batch_shape[axis];
        at = (args.gemm.first_tile + workgroup_id()) / cluster;
        step = args.gemm.epilogue == MMF_EPILOGUE_GENERAL ? end : workgroup_count() / cluster;
    }

    __attribute__((device, always_inline)) tile take(const mmf_wgmma_args &args, int *batch) const
    {
        const place_of_tile p = find_place(args.gemm, (unsigned long long)at);
        tile t;
        *batch = (int)p.batch;
        t.columns = args.gemm.gated ? HALF_N : row::tile_n;
        t.m0 = ((long long)p.m * args.cluster + rank) * row::tile_m;
        t.n0 = (long long)p.n * t.columns;
        const long long rows = args.gemm.m - t.m0, cols = args.gemm.n - t.n0;
        t.rows = rows < row::tile_m ? (int)rows : (int)row::tile_m;
        t.cols = cols < t.columns ? (int)cols : t.columns;
        t.matrices =
            (char **)(dynamic_shared + MMF_WGMMA_MATRICES(row::tile_m, row::tile_n, row::tile_k));
        return t;
    }
};

/* One half of the columns of B for 64 k: for this workgroup, or for both of a cluster. */
MMF_DEVICE void load_half(const mmf_wgmma_args &args, const mmf_tensor_map &map, unsigned to,
                          unsigned barrier, int n, int k, int batch)
{
    enum { BOXES = B_ALONG_K ? 1 : HALF_N / MMF_WGMMA_LINE };
    MMF_UNROLL
    for (int i = 0; i < BOXES; i++) {
        const int x = B_ALONG_K ? k : n + i * MMF_WGMMA_LINE, y = B_ALONG_K ? n : k;
        if (args.cluster > 1)
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
    MMF_ROLLED
    for (; turn.at < turn.end; turn.at += turn.step) {
        int batch;
        const tile t = turn.take(args, &batch);
        const int m = (int)t.m0, n = (int)t.n0, k_end = (int)args.gemm.k;
        const int a_batch = args.a_batched ? batch : 0, b_batch = args.b_batched ? batch : 0;
        MMF_ROLLED
        for (int k = 0; k < k_end; k += row::tile_k) {
            const unsigned a = r.a(), b = a + A_BYTES, full = r.full + 8 * r.stage;
            wait_for(r.empty + 8 * r.stage, r.parity);
            expect_bytes(full, STAGE_BYTES);
            if (A_ALONG_K) {
                load_box(a, args.a, full, k, m, a_batch);
            } else {
                MMF_UNROLL
                for (int i = 0; i < CONSUMERS; i++)
                    load_box(a + i * BOX_BYTES, args.a, full, m + i * MMF_WGMMA_LINE, k, a_batch);
            }
            if (args.cluster == 1 || turn.rank == 0)
                load_half(args, args.b, b, full, n, k, b_batch);
            if (args.cluster == 1 || turn.rank == 1)
                load_half(args, args.gemm.gated ? args.b_up : args.b, b + HALF_BYTES, full,
                          args.gemm.gated ? n : n + HALF_N, k, b_batch);
            r.advance();
        }
    }
}

/* sum = the products of a tile, this warpgroup's 64 rows. */
MMF_DEVICE void multiply(const mmf_wgmma_args &args, ring &r, int consumer, int thread,
                         float (&sum)[SUMS])
{
    typedef products<row::tile_n, row::operands, A_ALONG_K, B_ALONG_K> product;
    const int k_end = (int)args.gemm.k;
    const unsigned cluster = args.cluster;
    unsigned before = 0;
    MMF_ROLLED
    for (int k = 0; k < k_end; k += row::tile_k) {
        wait_for(r.full + 8 * r.stage, r.parity);
        const unsigned long long a = describe<A_ALONG_K>(r.a() + consumer * BOX_BYTES),
                                 b = describe<B_ALONG_K>(r.a() + A_BYTES);
        products_begin();
        MMF_UNROLL
        for (int i = 0; i < row::tile_k / 16; i++)
            product::add_to(sum, a + i * next_k<A_ALONG_K>(), b + i * next_k<B_ALONG_K>(),
                            i > 0 || k > 0);
        products_end();
        if (k > 0) {
            wait_for_all_but_one();
            if (thread < (int)cluster)
                arrive_at(r.empty + 8 * before, thread);
        }
        before = r.stage;
        r.advance();
    }
    product::wait(sum);
    if (thread < (int)cluster)
        arrive_at(r.empty + 8 * before, thread);
}

/* z of this warpgroup's rows, for the general epilogue. */
MMF_DEVICE void put_sums(const mmf_gemm_args &args, float *lines, int consumer, int thread,
                         const float (&sum)[SUMS])
{
    const float alpha = (float)args.alpha;
    float *const mine =
        lines + (consumer * 64 + thread / 32 * 16 + thread % 32 / 4) * PITCH + thread % 4 * 2;
    MMF_UNROLL
    for (int i = 0; i < SUMS; i += 2)
        *(mmf_float2 *)(mine + i / 4 * 8 + i / 2 % 2 * 8 * PITCH) =
            (mmf_float2){sum[i], sum[i + 1]} * alpha;
}

MMF_DEVICE void consume(const mmf_wgmma_args &args, ring r)
{
    const int thread = thread_id() % GROUP, consumer = thread_id() / GROUP;
    const unsigned stores = r.memory + MMF_WGMMA_STORES(row::tile_m, row::tile_n, row::tile_k) +
                            consumer * 2 * MMF_WGMMA_STORE_BYTES;
    const unsigned biases = r.memory + MMF_WGMMA_BIASES(row::tile_m, row::tile_n, row::tile_k) +
                            consumer * row::tile_n * 4;
    const bool general = args.gemm.epilogue == MMF_EPILOGUE_GENERAL;
    turns turn;
    turn.start(args);
    bool first = true;
    MMF_ROLLED
    for (; turn.at < turn.end; turn.at += turn.step) {
        int batch;
        const tile t = turn.take(args, &batch);
        if (first || args.gemm.batch_ndim) {
            named_barrier<1, CONSUMERS * GROUP>(); /* the last tile's are not needed any more */
            find_matrices(args.gemm, batch, t.matrices);
            named_barrier<1, CONSUMERS * GROUP>();
        }
        first = false;
        float sum[SUMS];
        fragment_epilogue<row::operands, row::tile_n> epilogue = {
            args, t, {}, {}, 1, thread, consumer * 64, stores, biases, consumer};
        if (!general)
            epilogue.start();
        multiply(args, r, consumer, thread, sum);
        if (!general) {
            epilogue.finish(sum, batch);
            continue;
        }
        named_barrier<1, CONSUMERS * GROUP>(); /* nobody reads the ring any more */
        put_sums(args.gemm, (float *)dynamic_shared, consumer, thread, sum);
        named_barrier<1, CONSUMERS * GROUP>();
        const staged<float, CONSUMERS * GROUP, row::tile_n, PITCH, all_rows> all = {
            (float *)dynamic_shared, t, {t.rows}};
        finish_general<float>(args.gemm, all);
    }
    if (thread == 0)
        wait_for_stores<0>();
}

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_wgmma_args args)
{
    ring r;
    r.start(shared_address(dynamic_shared), 0);
    if (thread_id() == 0) {
        MMF_UNROLL
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, CONSUMERS * args.cluster);
        }
        barriers_are_ready();
    }
    cluster_barrier();
    if (thread_id() / GROUP == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (thread_id() == CONSUMERS * GROUP)
            produce(args, r);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume(args, r);
    }
    cluster_barrier(); /* a workgroup that is gone cannot be written to */
}
