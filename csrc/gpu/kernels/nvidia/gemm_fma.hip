/* float32 on the fused multiply-adds of NVIDIA GPUs: exact products, any strides and alignment.
 * Path of a call: float32 without allow_tf32, where gemm_simt would do with smaller tiles and
 * single loads; launched by gpu/launch_plan.c.
 *
 * A thread computes 8 x 8 sums (8 x 4 in the smaller tile), in groups of four rows and four
 * columns. Stages of A and B lie in a ring in shared memory, k by k. The sums go to shared memory,
 * from where either epilogue takes them. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/staged_loop.h"

typedef this_row row;
static_assert(row::operands == MMF_GEMM_FLOAT32, "kernels.def");

typedef rows_of_k<4, row::tile_m> a_stage;
typedef rows_of_k<4, row::tile_n> b_stage;
typedef mma_carrier<4, row::tile_m, row::threads, a_stage> a_carrier;
typedef mma_carrier<4, row::tile_n, row::threads, b_stage> b_carrier;

enum {
    ACROSS = 16,                  /* threads along n */
    LANES_N = 8,                  /* of a warp: its loads of B are 128 bytes */
    DOWN = row::threads / ACROSS, /* along m */
    GROUPS_M = row::tile_m / DOWN / 4,
    GROUPS_N = row::tile_n / ACROSS / 4,
    PITCH = row::tile_n + MMF_MMA_PADDING,
};
static_assert(row::lds == 2 * sizeof(regions) + TILE_BYTES && row::tile_k * 4 == MMF_FMA_LINE,
              "kernels.def");

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

typedef mmf_float4 sums[GROUPS_M][4][GROUPS_N];

/* First row and column of this thread's first group. */
MMF_DEVICE int first_row()
{
    enum { WARPS_N = ACROSS / LANES_N };
    return (thread_id() / 32 / WARPS_N * (32 / LANES_N) + thread_id() % 32 / LANES_N) * 4;
}

MMF_DEVICE int first_col()
{
    return (thread_id() / 32 % (ACROSS / LANES_N) * LANES_N + thread_id() % LANES_N) * 4;
}

/* sum += A B over a stage. */
MMF_DEVICE void multiply(const char *stage, sums &sum)
{
    const char *const a_lines = stage + first_row() * 4, *const b_lines = stage + a_stage::BYTES +
                                                                          first_col() * 4;
    MMF_UNROLL
    for (int k = 0; k < row::tile_k; k++) {
        mmf_float4 a[GROUPS_M], b[GROUPS_N];
        MMF_UNROLL
        for (int i = 0; i < GROUPS_M; i++)
            a[i] = *(const mmf_float4 *)(a_lines + k * a_stage::PITCH + i * DOWN * 16);
        MMF_UNROLL
        for (int j = 0; j < GROUPS_N; j++)
            b[j] = *(const mmf_float4 *)(b_lines + k * b_stage::PITCH + j * ACROSS * 16);
        MMF_UNROLL
        for (int i = 0; i < 4 * GROUPS_M; i++) {
            MMF_UNROLL
            for (int j = 0; j < 4 * GROUPS_N; j++)
                sum[i / 4][i % 4][j / 4][j % 4] =
                    fused(a[i / 4][i % 4], b[j / 4][j % 4], sum[i / 4][i % 4][j / 4][j % 4]);
        }
    }
}

/* The sums times a factor as lines of the tile. */
MMF_DEVICE void put_sums(float factor, float *lines, const sums &sum)
{
    float *const mine = lines + first_row() * PITCH + first_col();
    MMF_UNROLL
    for (int i = 0; i < 4 * GROUPS_M; i++) {
        MMF_UNROLL
        for (int j = 0; j < GROUPS_N; j++)
            *(mmf_float4 *)(mine + (i / 4 * DOWN * 4 + i % 4) * PITCH + j * ACROSS * 4) =
                sum[i / 4][i % 4][j] * factor;
    }
}

MMF_ENTRY MMF_THREADS_PAIRED(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const lines = (float *)dynamic_shared;
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    sums sum = {};
    if (args.k > 0) {
        find_regions<row, a_carrier, b_carrier>(args, tile_of_workgroup<row>(args, shared),
                                                (regions *)shared);
        each_stage<row, a_carrier, b_carrier>(args.k, (const regions *)shared,
                                              shared_window(dynamic_shared),
                                              [&](unsigned offset) __attribute__((always_inline)) {
                                                  multiply(dynamic_shared + offset, sum);
                                              });
    }
    /* Once more, not kept in registers. */
    const tile t = tile_of_workgroup<row>(args, shared);
    put_sums(general && args.k > 0 ? (float)args.alpha : 1, lines, sum);
    barrier();
    if (!general)
        return staged_runs<row, row::threads, PITCH>::finish(args, t, 0, row::tile_m, lines);
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<float>(args, all);
}
