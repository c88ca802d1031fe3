/* A matrix times up to 16 rows (sm_90a), by matrix instructions of Ampere: what takes the time is
 * B, read once. float16, bfloat16; float sums; lines of A and of B along k, each at a multiple of
 * 16 bytes and in whole runs of 16 bytes. Path of a call: chosen where rows are few and B is small;
 * launched by gpu/launch_plan.c.
 *
 * Both operands go straight from memory to the registers of the lane that multiplies them: B passes
 * by the first cache, A stays in it. The warps of a workgroup share its columns, each has a part of
 * every step of k; their sums are added in a fixed order, so the bits of a row depend on K alone.
 *
 * A workgroup may begin before the kernel before it is done. Until then it has its first bytes of B
 * come to the last cache, where all memory is coherent. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/few_rows.h"
#include "gpu/kernels/nvidia/mma.h"

typedef this_row row;

enum {
    LANES = 32,
    WARPS = row::threads / LANES,
    RUN = 8,                     /* elements of 16 bytes */
    ACROSS = 4 * RUN,            /* k of a load of a warp: 4 lanes have a line */
    A_BLOCKS = row::tile_m / 16, /* of 16 lines */
    B_BLOCKS = row::tile_n / 8,  /* of 8 lines; gated: half of them of gate, then those of up */
    AT_ONCE = row::tile_k / (WARPS * ACROSS), /* loads of a line */
    PITCH = row::tile_n + 8, /* floats of a line of sums: no two lanes in one bank */
    PAIRS = WARPS / 2,       /* of warps, whose sums lie in one place */
    PAIR_SUMS = row::tile_m * PITCH,
};
static_assert(row::layout == LAYOUT_NT, "lines of A and of B along k");
static_assert(A_BLOCKS * 16 == row::tile_m && B_BLOCKS * 8 == row::tile_n && B_BLOCKS % 2 == 0,
              "blocks of the matrix instruction");
static_assert(AT_ONCE * WARPS * ACROSS == row::tile_k && WARPS % 2 == 0, "kernels.def");
static_assert(row::lds == PAIRS * PAIR_SUMS * (int)sizeof(float) + TILE_BYTES, "kernels.def");

/* What a lane reads: from its k on, k of the runs being below `left`. Words 0 and 1 of a run are
 * the lane's k of one instruction, words 2 and 3 those of a second one. */
struct share_of_lane {
    const char *a[A_BLOCKS][2], *b[B_BLOCKS];
    int left;

    /* Beyond the last row or column of the tile that one stands for it; its sums are not stored. */
    __attribute__((device, always_inline)) void find(const mmf_gemm_args &args, const tile &t,
                                                     int warp, int lane)
    {
        const int k = warp * (AT_ONCE * ACROSS) + lane % 4 * RUN, size = 2;
        MMF_UNROLL
        for (int j = 0; j < B_BLOCKS; j++) {
            const bool second = args.gated && j >= B_BLOCKS / 2;
            const int operand = second ? MMF_GEMM_B_UP : MMF_GEMM_B;
            const int n = j * 8 + lane / 4 - (second ? row::tile_n / 2 : 0);
            const long long line = t.n0 + (n < t.cols ? n : t.cols - 1);
            b[j] = t.matrix(operand) + (line * args.strides[operand].col + k) * size;
        }
        MMF_UNROLL
        for (int i = 0; i < 2 * A_BLOCKS; i++) {
            const int m = i * 8 + lane / 4;
            const long long line = m < t.rows ? m : t.rows - 1;
            a[i / 2][i % 2] =
                t.matrix(MMF_GEMM_A) + (line * args.strides[MMF_GEMM_A].row + k) * size;
        }
        left = (int)args.k - k;
    }

    __attribute__((device, always_inline)) void prefetch_first(int lane) const
    {
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            MMF_UNROLL
            for (int j = 0; j < B_BLOCKS; j++)
                if (lane % 4 == 0 && i * ACROSS < left)
                    prefetch(b[j] + i * ACROSS * 2);
        }
    }

    /* The products of one step; Cut: of its runs that there are. */
    template <bool Cut>
    __attribute__((device, always_inline)) void
    multiply_into(float (&sum)[A_BLOCKS][B_BLOCKS][4]) const
    {
        mmf_uint4 of_b[AT_ONCE][B_BLOCKS], of_a[AT_ONCE][A_BLOCKS][2];
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            const bool there = !Cut || i * ACROSS < left;
            MMF_UNROLL
            for (int j = 0; j < B_BLOCKS; j++) {
                of_b[i][j] = mmf_uint4{};
                if (there)
                    of_b[i][j] = load_once(b[j] + i * ACROSS * 2);
            }
            MMF_UNROLL
            for (int h = 0; h < 2 * A_BLOCKS; h++) {
                of_a[i][h / 2][h % 2] = mmf_uint4{};
                if (there)
                    of_a[i][h / 2][h % 2] =
                        *(const MMF_GLOBAL mmf_uint4 *)(a[h / 2][h % 2] + i * ACROSS * 2);
            }
        }
        MMF_UNROLL
        for (int i = 0; i < 2 * AT_ONCE; i++) {
            const int low = i % 2 * 2, high = low + 1;
            MMF_UNROLL
            for (int m = 0; m < A_BLOCKS; m++) {
                const mmf_uint4 &top = of_a[i / 2][m][0], &bottom = of_a[i / 2][m][1];
                const unsigned left_of[4] = {top[low], bottom[low], top[high], bottom[high]};
                MMF_UNROLL
                for (int j = 0; j < B_BLOCKS; j++) {
                    const unsigned right_of[2] = {of_b[i / 2][j][low], of_b[i / 2][j][high]};
                    matrices<row::operands>::add_to(sum[m][j], left_of, right_of);
                }
            }
        }
    }

    __attribute__((device, always_inline)) void advance()
    {
        MMF_UNROLL
        for (int h = 0; h < 2 * A_BLOCKS; h++)
            a[h / 2][h % 2] += row::tile_k * 2;
        MMF_UNROLL
        for (int j = 0; j < B_BLOCKS; j++)
            b[j] += row::tile_k * 2;
        left -= row::tile_k;
    }
};

/* The sums of all warps, times a factor, into `sums`; seen by all threads. The upper half of the
 * warps leaves its sums, the lower half adds its own, then these are added in their order. */
MMF_DEVICE void add_warps(const float (&sum)[A_BLOCKS][B_BLOCKS][4], int warp, int lane,
                          float factor, float *sums)
{
    enum { FOURS = row::tile_n / 4 };
    float *const mine = sums + warp % PAIRS * PAIR_SUMS + lane / 4 * PITCH + lane % 4 * 2;
    MMF_UNROLL
    for (int lower = 0; lower < 2; lower++) {
        if (lower == (warp < PAIRS)) {
            MMF_UNROLL
            for (int m = 0; m < 2 * A_BLOCKS; m++) {
                MMF_UNROLL
                for (int j = 0; j < B_BLOCKS; j++) {
                    mmf_float2 *const at = (mmf_float2 *)(mine + m * 8 * PITCH + j * 8);
                    const float *const own = sum[m / 2][j] + m % 2 * 2;
                    const mmf_float2 pair = {own[0], own[1]};
                    *at = lower ? pair + *at : pair;
                }
            }
        }
        barrier();
    }
    MMF_ROLLED
    for (int i = thread_id(); i < row::tile_m * FOURS; i += row::threads) {
        float *const at = sums + i / FOURS * PITCH + i % FOURS * 4;
        mmf_float4 total = *(const mmf_float4 *)at;
        MMF_UNROLL
        for (int p = 1; p < PAIRS; p++)
            total += *(const mmf_float4 *)(at + p * PAIR_SUMS);
        *(mmf_float4 *)at = total * factor;
    }
    barrier();
}

MMF_ENTRY MMF_THREADS_PAIRED(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const sums = (float *)shared;
    tile t = tile_of_workgroup<row>(args, shared);
    t.m0 = 0; /* known to the compiler: no registers */
    t.rows = (int)args.m;
    t.columns = args.gated ? row::tile_n / 2 : (int)row::tile_n;
    const int warp = thread_id() / LANES, lane = thread_id() % LANES;
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    float sum[A_BLOCKS][B_BLOCKS][4] = {};
    share_of_lane share;
    share.find(args, t, warp, lane);
    share.prefetch_first(lane);
    prefetch_bias(args, t);
    wait_for_kernel_before();
    let_next_kernel_begin();
    const int steps = (int)args.k / row::tile_k;
    MMF_ROLLED
    for (int i = 0; i < steps; i++) {
        share.multiply_into<false>(sum);
        share.advance();
    }
    if ((int)args.k % row::tile_k)
        share.multiply_into<true>(sum);
    add_warps(sum, warp, lane, general ? (float)args.alpha : 1, sums);
    if (!general)
        return finish_runs<row, PITCH>(args, t, sums);
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {sums, t, {t.rows}};
    finish_general<float>(args, all);
}
