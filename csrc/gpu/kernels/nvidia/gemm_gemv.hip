/* A matrix times one to four rows (sm_90a): what takes the time is B, read once. float16, bfloat16,
 * float32 with exact products; float sums; lines of A and B along k, each at a multiple of 16
 * bytes. Path of a call: chosen where rows are few; launched by gpu/launch_plan.c.
 *
 * A warp has four columns. Its lanes lie along k and load 16 bytes of each column at a time,
 * AT_ONCE of them before the first is multiplied: bytes on their way are what keeps the memory
 * busy. B passes by the first cache, A stays in it. Lanes add their sums up by shuffles; PARTS
 * warps share four columns, each a part of every step of k, and their sums are added in the order
 * of the parts. The bits of a row depend on K alone.
 *
 * A workgroup may begin before the kernel before it is done. Until then it has its first bytes of B
 * come to the last cache, where all memory is coherent. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/ring.h"

typedef this_row row;
typedef run<row::operands> form;

enum {
    WARP = 32,
    COLUMNS = 4, /* of a warp */
    PARTS = row::threads / WARP * COLUMNS / row::tile_n,
    RUN = form::count,   /* elements of 16 bytes */
    ACROSS = WARP * RUN, /* k of one load of a warp */
    AT_ONCE = row::tile_k / (PARTS * ACROSS),
    PITCH = row::tile_n + 4, /* floats of a line of sums in shared memory */
    PART_SUMS = row::tile_m * PITCH,
    LINE = 128, /* bytes of a line of the last cache */
    AT_ONCE_THREADS = row::tile_m == 1 && AT_ONCE == 2 ? 768 : 512, /* of a unit */
};
static_assert(row::layout == LAYOUT_NT, "lines along k");
static_assert(PARTS * row::tile_n == row::threads / WARP * COLUMNS && PARTS > 0, "kernels.def");
static_assert(AT_ONCE * PARTS * ACROSS == row::tile_k && AT_ONCE > 0, "kernels.def");
static_assert(row::tile_n % (4 * COLUMNS) == 0, "half a tile, of a gate, is whole warps");
static_assert(row::lds == PARTS * PART_SUMS * (int)sizeof(float) + TILE_BYTES, "kernels.def");

/* 16 bytes that are read once: not kept in the first cache. In order with the others. */
MMF_DEVICE mmf_uint4 load_once(const char *at)
{
    mmf_uint4 bits;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"((MMF_GLOBAL const char *)at));
    return bits;
}

/* What a lane reads: from its k on, k of the whole runs being below `left`. */
struct lines {
    const char *a[row::tile_m], *b[COLUMNS];
    int left;

    /* Beyond the last row or column of the tile that one stands for it; its sums are not stored. */
    __attribute__((device, always_inline)) void find(const mmf_gemm_args &args, const tile &t,
                                                     int column, int k)
    {
        const bool second = column >= t.columns;
        const int operand = second ? MMF_GEMM_B_UP : MMF_GEMM_B;
        const int n = column - (second ? t.columns : 0);
        const char *const of_b = t.matrix(operand) + k * form::size;
        const char *const of_a = t.matrix(MMF_GEMM_A) + k * form::size;
        MMF_UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            const int mine = n + c < t.cols ? n + c : t.cols - 1;
            b[c] = of_b + (t.n0 + mine) * args.strides[operand].col * form::size;
        }
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            const int mine = m < t.rows ? m : t.rows - 1;
            a[m] = of_a + (long long)mine * args.strides[MMF_GEMM_A].row * form::size;
        }
        left = (int)args.k / RUN * RUN - k;
    }

    __attribute__((device, always_inline)) void prefetch_first(int lane) const
    {
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++)
                if (lane % (LINE / 16) == 0 && i * ACROSS < left)
                    prefetch(b[c] + i * ACROSS * form::size);
        }
    }

    /* The products of one step; Cut: of its runs that there are. */
    template <bool Cut>
    __attribute__((device, always_inline)) void multiply_into(float (&sum)[row::tile_m][COLUMNS])
    {
        mmf_uint4 of_b[AT_ONCE][COLUMNS], of_a[AT_ONCE][row::tile_m];
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            const bool there = !Cut || i * ACROSS < left;
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++) {
                of_b[i][c] = mmf_uint4{};
                if (there)
                    of_b[i][c] = load_once(b[c] + i * ACROSS * form::size);
            }
            MMF_UNROLL
            for (int m = 0; m < row::tile_m; m++) {
                of_a[i][m] = mmf_uint4{};
                if (there)
                    of_a[i][m] = *(const MMF_GLOBAL mmf_uint4 *)(a[m] + i * ACROSS * form::size);
            }
        }
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            mmf_float2 row_of_a[row::tile_m][RUN / 2];
            MMF_UNROLL
            for (int m = 0; m < row::tile_m; m++)
                form::unpack(of_a[i][m], row_of_a[m]);
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++) {
                mmf_float2 column[RUN / 2];
                form::unpack(of_b[i][c], column);
                MMF_UNROLL
                for (int m = 0; m < row::tile_m; m++) {
                    MMF_UNROLL
                    for (int p = 0; p < RUN / 2; p++) {
                        sum[m][c] = fused(row_of_a[m][p].x, column[p].x, sum[m][c]);
                        sum[m][c] = fused(row_of_a[m][p].y, column[p].y, sum[m][c]);
                    }
                }
            }
        }
    }

    /* The elements behind the last whole run, less than one: a lane has one. Pointers are those of
     * find(). */
    __attribute__((device, always_inline)) void
    multiply_last(int last, float (&sum)[row::tile_m][COLUMNS]) const
    {
        typedef typename form::type type;
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            const float x = form::form::template load<float>(((const type *)a[m])[last]);
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++)
                sum[m][c] = fused(x, form::form::template load<float>(((const type *)b[c])[last]),
                                  sum[m][c]);
        }
    }

    __attribute__((device, always_inline)) void advance()
    {
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++)
            a[m] += row::tile_k * form::size;
        MMF_UNROLL
        for (int c = 0; c < COLUMNS; c++)
            b[c] += row::tile_k * form::size;
        left -= row::tile_k;
    }
};

/* The bias of the tile's columns comes to the last cache while products are summed. */
MMF_DEVICE void prefetch_bias(const mmf_gemm_args &args, const tile &t)
{
    const int operand = MMF_GEMM_BIAS + thread_id();
    if (thread_id() > args.gated || args.dtype[operand] == MMF_GEMM_ABSENT)
        return;
    const int size = element_size(args.dtype[operand]);
    if (size && args.strides[operand].col == 1)
        prefetch(t.matrix(operand) + t.n0 * size);
}

/* The sums of all lanes and parts, times a factor, into `sums`; seen by all threads. */
MMF_DEVICE void add_up(float (&sum)[row::tile_m][COLUMNS], int part, int column, float factor,
                       float *sums)
{
    enum { FOURS = row::tile_n / 4 };
    MMF_UNROLL
    for (int lane = WARP / 2; lane > 0; lane /= 2) {
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++)
                sum[m][c] += __nvvm_shfl_sync_bfly_f32(~0u, sum[m][c], lane, WARP - 1);
        }
    }
    if (thread_id() % WARP == 0) {
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            const mmf_float4 four = {sum[m][0], sum[m][1], sum[m][2], sum[m][3]};
            *(mmf_float4 *)(sums + part * PART_SUMS + m * PITCH + column) =
                PARTS > 1 ? four : four * factor;
        }
    }
    barrier();
    if (PARTS > 1) {
        MMF_ROLLED
        for (int i = thread_id(); i < row::tile_m * FOURS; i += row::threads) {
            float *const at = sums + i / FOURS * PITCH + i % FOURS * 4;
            mmf_float4 total = *(const mmf_float4 *)at;
            MMF_UNROLL
            for (int p = 1; p < PARTS; p++)
                total += *(const mmf_float4 *)(at + p * PART_SUMS);
            *(mmf_float4 *)at = total * factor;
        }
        barrier();
    }
}

MMF_ENTRY MMF_THREADS_AT_ONCE(row::threads,
                              AT_ONCE_THREADS /
                                  row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const sums = (float *)shared;
    tile t = tile_of_workgroup<row>(args, shared);
    t.m0 = 0; /* known to the compiler: no registers */
    t.rows = row::tile_m == 1 ? 1 : (int)args.m;
    t.columns = args.gated ? row::tile_n / 2 : (int)row::tile_n;
    const int warp = thread_id() / WARP, lane = thread_id() % WARP;
    const int part = warp % PARTS, column = warp / PARTS * COLUMNS;
    const int steps = (int)args.k / RUN * RUN / row::tile_k, last = (int)args.k % RUN;
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    const int k = part * (AT_ONCE * ACROSS) + lane * RUN;
    float sum[row::tile_m][COLUMNS] = {};
    lines of;
    of.find(args, t, column, k);
    of.prefetch_first(lane);
    prefetch_bias(args, t);
    wait_for_kernel_before();
    let_next_kernel_begin();
    MMF_ROLLED
    for (int i = 0; i < steps; i++) {
        of.template multiply_into<false>(sum);
        of.advance();
    }
    if ((int)args.k / RUN * RUN > steps * row::tile_k)
        of.template multiply_into<true>(sum);
    if (part == 0 && lane < last) /* from the line's begin: of.left is the way to the last run */
        of.multiply_last(of.left + lane, sum);
    add_up(sum, part, column, general ? (float)args.alpha : 1, sums);
    if (!general)
        return staged_runs<row, row::threads, PITCH>::finish(args, t, 0, row::tile_m, sums);
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {sums, t, {t.rows}};
    finish_general<float>(args, all);
}
