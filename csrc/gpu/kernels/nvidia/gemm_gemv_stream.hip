/* A matrix times one row (sm_90a), where B is large: lines of B stream through a ring in shared
 * memory, so that bytes on their way need no registers. float16 and bfloat16; float sums; lines of
 * A and of B along k, each at a multiple of 16 bytes. Path of a call: chosen where B is large;
 * launched by gpu/launch_plan.c.
 *
 * A workgroup stays and takes one tile after the other. Its last warp copies; the first one has the
 * epilogue; each of the others multiplies one of the lines of a stage, its lanes along k. The bits
 * depend on K alone.
 *
 * A workgroup may begin before the kernel before it is done, and waits for that before it reads.
 */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/nvidia/few_rows.h"
#include "gpu/kernels/nvidia/stream_args.h"

typedef this_row row;
typedef run<row::operands> form;

enum {
    LANES = 32,
    RUN = form::count,            /* elements of 16 bytes */
    ACROSS = LANES * RUN,         /* k of one load of a warp */
    LOADS = row::tile_k / ACROSS, /* of a line, in a stage */
    LINES = MMF_STREAM_LINES,     /* of a stage */
    WARPS = LINES,                /* that multiply */
    LINE_BYTES = row::tile_k * form::size,
    STAGE_BYTES = MMF_STREAM_STAGE_BYTES(row::tile_k, form::size),
    STAGES = MMF_STREAM_STAGES,
    PITCH = row::tile_n + 4, /* floats of the sums of a tile */
    TILES = 4,               /* whose sums are in memory */
    BARRIERS = 2 * (STAGES + TILES) * 8,
};
static_assert(row::tile_m == 1 && row::layout == LAYOUT_NT && LOADS * ACROSS == row::tile_k &&
                  row::tile_n == 2 * LINES && row::threads == (WARPS + 2) * LANES &&
                  row::lds == BARRIERS + TILES * PITCH * 4 + TILE_BYTES,
              "kernels.def");

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

/* The tiles of this workgroup, and what all of them have. A tile has LINES columns of out: as many
 * lines of B, or of each weight of a gate: tile_n counts those of both. */
struct stream {
    int tiles, step, lines, whole; /* lines: of a tile; whole: k of whole runs */

    __attribute__((device, always_inline)) void find(const mmf_gemm_args &args)
    {
        tiles = (int)((args.n + LINES - 1) / LINES);
        asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(step));
        lines = args.gated ? 2 * LINES : (int)LINES;
        whole = (int)args.k / RUN * RUN;
    }

    /* Columns that the tile has. */
    __attribute__((device, always_inline)) int count(const mmf_gemm_args &args, int tile) const
    {
        const long long left = args.n - (long long)tile * LINES;
        return left < LINES ? (int)left : (int)LINES;
    }

    /* Line i of a tile; gated, those of the second weight follow. */
    __attribute__((device, always_inline)) const char *line(const mmf_gemm_args &args,
                                                            const tile &t, int tile, int i) const
    {
        const int operand = i < LINES ? MMF_GEMM_B : MMF_GEMM_B_UP;
        const long long n = (long long)tile * LINES + i % LINES;
        return t.matrix(operand) + n * args.strides[operand].col * form::size;
    }

    /* Of a line, from k on, in a stage. */
    __attribute__((device, always_inline)) unsigned bytes_from(int k) const
    {
        return (whole - k < row::tile_k ? whole - k : (int)row::tile_k) * form::size;
    }
};

/* Of Count places in a ring, which is next, and the parity of its turn: a place is full once it was
 * written, empty once it was read. */
template <int Count> struct turns_of_ring {
    unsigned full, empty, at, parity;

    __attribute__((device, always_inline)) void start(unsigned barriers, unsigned first_parity)
    {
        full = barriers;
        empty = full + Count * 8;
        at = 0;
        parity = first_parity;
    }

    static __attribute__((device, always_inline)) void init(unsigned barriers, unsigned writers,
                                                            unsigned readers)
    {
        MMF_UNROLL
        for (int i = 0; i < Count; i++) {
            barrier_init(barriers + 8 * i, writers);
            barrier_init(barriers + 8 * (Count + i), readers);
        }
    }

    __attribute__((device, always_inline)) void wait_until_full() const
    {
        wait_for(full + 8 * at, parity);
    }

    __attribute__((device, always_inline)) void wait_until_empty() const
    {
        wait_for(empty + 8 * at, parity);
    }

    __attribute__((device, always_inline)) void advance()
    {
        at = at + 1 == Count ? 0 : at + 1;
        parity ^= at == 0;
    }
};
typedef turns_of_ring<STAGES> stages;
typedef turns_of_ring<TILES> tiles_done; /* whose sums are in memory */

MMF_DEVICE void copy_run(unsigned to, const char *from, unsigned bytes, unsigned barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"((MMF_GLOBAL const char *)from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* One warp: stages are filled as they become empty. */
MMF_DEVICE void produce(const mmf_gemm_args &args, const stream &s, const tile &t,
                        unsigned barriers)
{
    const int lane = thread_id() % LANES;
    const char *const of_a = t.matrix(MMF_GEMM_A);
    const unsigned memory = shared_address(dynamic_shared);
    stages r;
    r.start(barriers, 1);
    MMF_ROLLED
    for (int i = workgroup_id(); i < s.tiles; i += s.step) {
        MMF_ROLLED
        for (int first = 0; first < s.lines; first += LINES) {
            const int count = s.count(args, i);
            const char *from = lane < count ? s.line(args, t, i, first + lane) : of_a;
            MMF_ROLLED
            for (int k = 0; k < s.whole; k += row::tile_k, from += LINE_BYTES) {
                const unsigned bytes = s.bytes_from(k);
                const unsigned full = r.full + 8 * r.at, to = memory + r.at * STAGE_BYTES;
                r.wait_until_empty();
                if (lane == 0)
                    expect_bytes(full, bytes * (count + 1));
                meet_warp();
                if (lane < count || lane == LINES)
                    copy_run(to + lane * LINE_BYTES, from, bytes, full);
                r.advance();
            }
        }
    }
}

/* The products of a warp's line at a stage, of which `left` k are there. */
MMF_DEVICE void multiply_stage(const char *stage, int line, int lane, int left, float (&sum)[LOADS])
{
    const char *const of_b = stage + line * LINE_BYTES + lane * 16;
    const char *const of_a = stage + LINES * LINE_BYTES + lane * 16;
    MMF_UNROLL
    for (int i = 0; i < LOADS; i++) {
        if (i * ACROSS + lane * RUN >= left)
            break;
        mmf_float2 a[RUN / 2], b[RUN / 2];
        form::unpack(*(const mmf_uint4 *)(of_a + i * LANES * 16), a);
        form::unpack(*(const mmf_uint4 *)(of_b + i * LANES * 16), b);
        MMF_UNROLL
        for (int p = 0; p < RUN / 2; p++) {
            sum[i] = fused(a[p].x, b[p].x, sum[i]);
            sum[i] = fused(a[p].y, b[p].y, sum[i]);
        }
    }
}

/* The product of the element behind the last whole run that this lane has, or 0. */
MMF_DEVICE float last_product(const mmf_gemm_args &args, const stream &s, const tile &t, int tile,
                              int line, int lane)
{
    typedef typename form::type type;
    const int k = s.whole + lane;
    if (k >= (int)args.k || line % LINES >= s.count(args, tile))
        return 0;
    return form::form::template load<float>(((const type *)t.matrix(MMF_GEMM_A))[k]) *
           form::form::template load<float>(((const type *)s.line(args, t, tile, line))[k]);
}

/* A warp that multiplies. */
MMF_DEVICE void consume(const mmf_gemm_args &args, const stream &s, const tile &t, int warp,
                        unsigned barriers, float *sums)
{
    const int lane = thread_id() % LANES;
    const float factor = args.epilogue == MMF_EPILOGUE_GENERAL ? (float)args.alpha : 1;
    stages r;
    tiles_done done;
    r.start(barriers, 0);
    done.start(barriers + 2 * STAGES * 8, 1);
    MMF_ROLLED
    for (int i = workgroup_id(); i < s.tiles; i += s.step) {
        done.wait_until_empty();
        MMF_ROLLED
        for (int line = warp; line < s.lines; line += LINES) {
            float sum[LOADS] = {};
            MMF_ROLLED
            for (int k = 0; k < s.whole; k += row::tile_k) {
                r.wait_until_full();
                multiply_stage(dynamic_shared + r.at * STAGE_BYTES, warp, lane, s.whole - k, sum);
                arrive(r.empty + 8 * r.at);
                r.advance();
            }
            float total = last_product(args, s, t, i, line, lane);
            MMF_UNROLL
            for (int l = 0; l < LOADS; l++)
                total += sum[l];
            MMF_UNROLL
            for (int apart = LANES / 2; apart > 0; apart /= 2)
                total += __nvvm_shfl_sync_bfly_f32(~0u, total, apart, LANES - 1);
            if (lane == 0)
                sums[done.at * PITCH + line] = total * factor;
        }
        if (lane == 0)
            arrive(done.full + 8 * done.at);
        done.advance();
    }
}

/* The first warp: the epilogue of each tile. */
MMF_DEVICE void finish_tiles(const mmf_gemm_args &args, const stream &s, tile t, unsigned barriers,
                             float *sums)
{
    tiles_done done;
    done.start(barriers + 2 * STAGES * 8, 0);
    MMF_ROLLED
    for (int i = workgroup_id(); i < s.tiles; i += s.step) {
        t.n0 = (long long)i * LINES;
        t.cols = s.count(args, i);
        prefetch_bias(args, t);
        done.wait_until_full();
        float *const of_tile = sums + done.at * PITCH;
        if (args.epilogue == MMF_EPILOGUE_GENERAL) {
            const staged<float, LANES, row::tile_n, PITCH, all_rows> all = {of_tile, t, {1}};
            finish_general<float>(args, all);
        } else {
            finish_runs<row, PITCH>(args, t, of_tile);
        }
        meet_warp();
        if (thread_id() == 0)
            arrive(done.empty + 8 * done.at);
        done.advance();
    }
}

MMF_ENTRY MMF_THREADS_PAIRED(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    const int warp = warp_id();
    const unsigned barriers = shared_address(shared);
    float *const sums = (float *)(shared + BARRIERS);
    if (thread_id() == 0) {
        stages::init(barriers, 1, WARPS * LANES);
        tiles_done::init(barriers + 2 * STAGES * 8, WARPS, 1);
        barriers_are_ready();
    }
    stream s;
    s.find(args);
    tile t = tile_at<row>(args, 0, shared);
    t.columns = LINES;
    let_next_kernel_begin();
    wait_for_kernel_before();
    if (warp > WARPS)
        produce(args, s, t, barriers);
    else if (warp > 0)
        consume(args, s, t, warp - 1, barriers, sums);
    else
        finish_tiles(args, s, t, barriers, sums);
}
