/* What the kernels on Hopper's matrix instructions share: how a tile lies in shared memory, which
 * tiles a workgroup takes, the warp that fills the ring, and how a workgroup begins and ends.
 * Path of a call: gemm_wgmma.hip and the ping-pong kernels, of which a workgroup is two
 * warpgroups that multiply and one whose first warp copies A and B. */
#ifndef MMF_NVIDIA_WGMMA_TILE_H
#define MMF_NVIDIA_WGMMA_TILE_H

#include "gpu/kernels/common/tile.h"
#include "gpu/kernels/nvidia/ring.h"

typedef this_row row;

enum {
    GROUP = 128,                     /* threads of a warpgroup */
    CONSUMERS = MMF_WGMMA_CONSUMERS, /* warpgroups that multiply */
    TALL_ROWS = MMF_WGMMA_TALL_ROWS,
    SWAPPED = row::tile_m < TALL_ROWS,
    FLAT = SWAPPED ? row::tile_m : row::tile_n,
    ROUNDED = row::operands == MMF_GEMM_FLOAT32, /* to 11 bits */
    IN_PLACES = !SWAPPED && !ROUNDED,            /* tiles of a workgroup that stays: place_of() */
    LINE = row::tile_k,                          /* elements */
    STEPS = MMF_WGMMA_LINE / 32,                 /* of k that an instruction takes, in a line */
    STAGES = MMF_WGMMA_STAGES(row::tile_m, row::tile_n),
    STAGE_BYTES = MMF_WGMMA_STAGE_BYTES(row::tile_m, row::tile_n),
    RING = MMF_WGMMA_RING(row::tile_n), /* where the stages are */
    TALL_BYTES = TALL_ROWS * MMF_WGMMA_LINE,
    HALF_N = row::tile_n / 2, /* most columns of B that are loaded at once; gated: of a stream */
    HALF_BYTES = HALF_N * MMF_WGMMA_LINE,
    /* Tiles of these columns are of ping-pong alone, which has no gates. */
    TAKES_GATES = row::tile_n != 112 && row::tile_n != 160 && row::tile_n != 192,
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
static_assert(!ROUNDED || (!SWAPPED && A_ALONG_K && B_ALONG_K), "float32 is multiplied along k");
static_assert(A_ALONG_K || row::tile_m % LINE == 0, "a box of a line along m has 64 rows");
static_assert(row::threads == (CONSUMERS + 1) * GROUP, "kernels.def");
static_assert(row::tile_m * PITCH * 4 <= STAGES * STAGE_BYTES, "a tile of sums fits into the ring");
static_assert(MMF_WGMMA_BYTES(row::tile_m, row::tile_n) <= MMF_WGMMA_SHARED_BYTES, "of a unit");
static_assert(RING % 1024 == 0 && STAGE_BYTES % 1024 == 0 && (!B_ALONG_K || HALF_BYTES % 1024 == 0),
              "swizzled lines repeat every 1024 bytes");
static_assert(2 * STAGES * 8 <= MMF_WGMMA_MATRICES - MMF_WGMMA_BARRIERS, "two for each stage");

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

/* Where a tile lies. The warp that loads the workgroup's tile i writes its place to one of the
 * slots, after the tile's first stage is empty and before it is full; consumers read it until they
 * have finished the tile. Nobody reads the slot's last place by then: the stage was emptied by tile
 * i - STAGES or a later one, and who multiplies a tile has finished those two or more before. */
struct place {
    int m0, n0, batch, unused;
};
static_assert(!IN_PLACES || STAGES + 2 <= MMF_WGMMA_PLACE_COUNT, "above");
static_assert(CONSUMERS * TILE_BYTES <= MMF_WGMMA_PLACES - MMF_WGMMA_MATRICES, "wgmma_args.h");
static_assert(sizeof(place) == MMF_WGMMA_PLACE_BYTES, "wgmma_args.h");

MMF_DEVICE place &place_of(unsigned turn)
{
    return ((place *)(dynamic_shared + MMF_WGMMA_PLACES))[turn % MMF_WGMMA_PLACE_COUNT];
}

/* Which stage of the ring is next, and the parity of its turn. */
struct ring {
    unsigned memory, full, empty, stage, parity;

    __attribute__((device, always_inline)) void start()
    {
        const unsigned shared = shared_address(dynamic_shared);
        memory = shared + RING;
        full = shared + MMF_WGMMA_BARRIERS;
        empty = full + STAGES * 8;
        stage = 0;
        parity = 0;
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

    /* So many stages. */
    __attribute__((device, always_inline)) void skip(unsigned count)
    {
        const unsigned at = stage + count, times = at / STAGES;
        stage = at - times * STAGES;
        parity ^= times & 1;
    }
};

/* Does a workgroup have a part of k? Else those of a cluster share B. */
MMF_DEVICE bool is_parted(const mmf_wgmma_args &args)
{
    return SWAPPED && args.parts_log;
}

MMF_DEVICE bool takes_turns(const mmf_wgmma_args &args)
{
    return MMF_WGMMA_TAKES_TURNS(row::tile_m, row::tile_k, args);
}

/* Workgroups that read a stage: those that a workgroup loads its columns of B for. */
MMF_DEVICE int readers_of(const mmf_wgmma_args &args)
{
    return is_parted(args) ? 1 : 1 << args.cluster_log;
}

/* Columns of B that are loaded at once. */
MMF_DEVICE int half_of(const mmf_wgmma_args &args)
{
    return (SWAPPED & B_ALONG_K) != 0 ? (int)args.width : (int)HALF_N;
}

/* Columns of out of a tile. */
MMF_DEVICE int columns_of(const mmf_wgmma_args &args)
{
    return TAKES_GATES && args.gemm.gated ? half_of(args) : 2 * half_of(args);
}

/* The tile whose first element is [m0, n0], and whose matrices are, or will be, at `matrices`. */
MMF_DEVICE tile tile_from(const mmf_wgmma_args &args, long long m0, long long n0, int batch,
                          char *matrices)
{
    const int columns = columns_of(args);
    const long long rows = args.gemm.m - m0, cols = args.gemm.n - n0;
    return {batch,
            m0,
            n0,
            rows < row::tile_m ? (int)rows : (int)row::tile_m,
            cols < columns ? (int)cols : columns,
            columns,
            (char **)matrices};
}

/* The tiles of this workgroup: first, first + step, ..., and its part of k. */
struct turns {
    long long at, step, end;
    unsigned rank;
    int k_begin, k_end;

    __attribute__((device, always_inline)) void start(const mmf_wgmma_args &args)
    {
        const unsigned log = args.cluster_log;
        unsigned workgroups; /* read each time: no register holds it across products */
        asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(workgroups));
        rank = log ? cluster_rank() : 0;
        end = args.gemm.tiles_m * args.gemm.tiles_n;
        if (args.gemm.batch_ndim)
            end *= args.gemm.batch_shape[0];
        at = (args.gemm.first_tile + workgroup_id()) >> log;
        step = takes_turns(args) ? workgroups >> log : end;
        k_begin = 0;
        k_end = (int)args.gemm.k;
        if (is_parted(args)) {
            const unsigned steps = ((unsigned)k_end + row::tile_k - 1) / row::tile_k;
            k_begin = (int)(steps * rank >> log) * row::tile_k;
            if (rank + 1 < 1u << log)
                k_end = (int)(steps * (rank + 1) >> log) * row::tile_k;
        }
    }

    /* Its turn i; computed anew, instead of registers for it. */
    __attribute__((device, always_inline)) void start_at(const mmf_wgmma_args &args, int i)
    {
        asm volatile("" : "+r"(i));
        start(args);
        at += i * step;
    }

    /* How many tiles those are. */
    __attribute__((device, always_inline)) int count() const
    {
        return at < end ? (int)((unsigned)(end - at - 1) / (unsigned)step) + 1 : 0;
    }

    /* The next one; its matrices will be where those of a workgroup are. */
    __attribute__((device, always_inline)) tile take(const mmf_wgmma_args &args) const
    {
        const place_of_tile p = /* at is below 2^31: gemm_wgmma.c */
            find_place(args.gemm, (unsigned)at, args.group_rows);
        const long long m = is_parted(args) ? p.m : ((long long)p.m << args.cluster_log) + rank;
        return tile_from(args, m * row::tile_m, p.n * (long long)columns_of(args), (int)p.batch,
                         dynamic_shared + MMF_WGMMA_MATRICES);
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
        if (readers_of(args) > 1)
            load_box_for(3, to + i * BOX_BYTES, map, barrier, x, y, batch);
        else
            load_box(to + i * BOX_BYTES, map, barrier, x, y, batch);
    }
}

/* One whole warp: fill stages as they become empty. */
MMF_DEVICE void produce(const mmf_wgmma_args &args, ring r, turns turn, tile t)
{
    r.parity = 1; /* all stages are empty */
    const bool gated = TAKES_GATES && args.gemm.gated;
    const unsigned bytes = STAGE_BYTES - 2 * (HALF_N - half_of(args)) * MMF_WGMMA_LINE;
    MMF_ROLLED
    for (int i = 0;;) {
        const int m = (int)t.m0, n = (int)t.n0, batch = (int)t.batch;
        const int a_batch = args.a_batched ? batch : 0, b_batch = args.b_batched ? batch : 0;
        const bool both = readers_of(args) == 1;
        const int up_batch = (gated ? args.b_up_batched : args.b_batched) ? batch : 0;
        MMF_ROLLED
        for (int k = turn.k_begin; k < turn.k_end; k += row::tile_k) {
            const unsigned full = r.full + 8 * r.stage;
            const unsigned a = SWAPPED ? r.flat() : r.tall(), b = SWAPPED ? r.tall() : r.flat();
            wait_for(r.empty + 8 * r.stage, r.parity);
            if (is_elected()) {
                if (IN_PLACES && k == turn.k_begin)
                    place_of(i) = {m, n, batch, 0};
                expect_bytes(full, bytes);
                if (A_ALONG_K) {
                    load_box(a, args.a, full, k, m, a_batch);
                } else {
                    MMF_UNROLL
                    for (int j = 0; j < row::tile_m / LINE; j++)
                        load_box(a + j * BOX_BYTES, args.a, full, m + j * LINE, k, a_batch);
                }
                if (both || turn.rank == 0)
                    load_half(args, args.b, b, full, n, k, b_batch);
                if (both || turn.rank == 1)
                    load_half(args, gated ? args.b_up : args.b, b + HALF_BYTES, full,
                              gated ? n : n + half_of(args), k, up_batch);
            }
            r.advance();
        }
        turn.start_at(args, ++i);
        if (turn.at >= turn.end)
            break;
        t = turn.take(args);
    }
    /* Workgroups of the cluster say of every stage that it is empty: this one stays as long. */
    MMF_ROLLED
    for (int i = 0; i < STAGES; i++) {
        wait_for(r.empty + 8 * r.stage, r.parity);
        r.advance();
    }
}

/* Of a thread: before these are set, the compiler's share for the threads of a unit. */
enum { PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240 };

/* A workgroup from its beginning to its end. Consumers::run(args, ring) is what the warpgroups that
 * multiply do; Consumers::GIVERS: threads that give sums to another warpgroup;
 * Consumers::readers(args): warpgroups of a workgroup that read a stage. The first tile of the
 * copies is found before the kernel before this one is done. */
template <class Consumers> MMF_DEVICE void run_workgroup(const mmf_wgmma_args &args)
{
    ring r;
    r.start();
    if (thread_id() == 0) {
        prefetch_map(args.a);
        prefetch_map(args.b);
        MMF_UNROLL
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, Consumers::readers(args) * readers_of(args));
        }
        const unsigned sums = shared_address(dynamic_shared) + MMF_WGMMA_SHARED_BARRIER;
        if (Consumers::GIVERS)
            barrier_init(sums, Consumers::GIVERS);
        if (is_parted(args)) { /* sums of the other parts of k: swapped_epilogue.h */
            barrier_init(sums, 1);
            expect_bytes(sums, (row::tile_m * row::tile_n * 4 >> args.cluster_log) *
                                   ((1 << args.cluster_log) - 1));
        }
        barriers_are_ready();
    }
    const int warp = warp_id();
    const bool producer = warp == CONSUMERS * 4;
    turns turn;
    tile t;
    if (producer) {
        turn.start(args);
        t = turn.take(args);
    }
    cluster_barrier();
    wait_for_kernel_before();
    let_next_kernel_begin();
    if (warp >= CONSUMERS * 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (producer)
            produce(args, r, turn, t);
        if (is_parted(args) && !args.out_by_copies)
            cluster_barrier(); /* before the parts of k are added up */
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        Consumers::run(args, r);
    }
    cluster_barrier(); /* a workgroup that is gone cannot be written to or read */
}

/* Until all who multiply are here. */
MMF_DEVICE void meet_consumers()
{
    named_barrier<1, CONSUMERS * GROUP>();
}

/* Until all of one warpgroup are. */
MMF_DEVICE void meet_group(int consumer)
{
    if (consumer)
        named_barrier<3, GROUP>();
    else
        named_barrier<2, GROUP>();
}

/* The matrices of a consumer's tile. */
MMF_DEVICE char *matrices_of(int consumer)
{
    return dynamic_shared + MMF_WGMMA_MATRICES + consumer * TILE_BYTES;
}

/* find_matrices() between products, where its divisions are waited for. Tiles of 256 columns have
 * no registers for a second form. */
MMF_DEVICE void find_matrices_soon(const mmf_gemm_args &args, int batch, char **matrices,
                                   int operand)
{
    if (row::tile_n == 256 || args.batch_ndim != 1)
        find_matrices(args, batch, matrices, operand);
    else if (operand < MMF_GEMM_OPERANDS)
        matrices[operand] = (char *)args.data[operand] + batch * args.strides[operand].batch[0] *
                                                             element_size(args.dtype[operand]);
}

#endif
