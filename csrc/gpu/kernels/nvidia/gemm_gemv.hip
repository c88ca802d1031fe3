/* A matrix times one to four rows (sm_90a): what takes the time is B, read once. float16, bfloat16,
 * float32 with exact products; float sums; lines of A and of B along k, each at a multiple of 16
 * bytes. Path of a call: chosen where rows are few; launched by gpu/launch_plan.c.
 *
 * Lanes load 16 bytes of B at a time, AT_ONCE of them for each column before the first is
 * multiplied: bytes on their way are what keeps the memory busy. B passes by the first cache, A
 * stays in it. The lanes of a warp add their sums up by shuffles; PARTS warps have the same
 * columns, each a part of every step of k, and their sums are added in the order of the parts. For
 * one row of kernels.def the bits depend on K alone.
 *
 * A workgroup may begin before the kernel before it is done. Until then it has its first bytes of B
 * come to the last cache, where all memory is coherent. */
#include "gpu/kernels/nvidia/gemv.h"

/* Of a unit: as registers allow. */
enum { THREADS_AT_ONCE = row::tile_m == 1 && AT_ONCE <= 2 ? 896 : 512 };
static_assert(row::lds == PARTS * PART_SUMS * (int)sizeof(float) + TILE_BYTES, "kernels.def");

/* In every lane the sums of all lanes of its warp. */
MMF_DEVICE void add_lanes(float (&sum)[row::tile_m][COLUMNS])
{
    MMF_UNROLL
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++)
                sum[m][c] += __nvvm_shfl_sync_bfly_f32(~0u, sum[m][c], apart, LANES - 1);
        }
    }
}

MMF_ENTRY MMF_THREADS_AT_ONCE(row::threads,
                              THREADS_AT_ONCE /
                                  row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const sums = (float *)shared;
    tile t = tile_of_workgroup<row>(args, shared);
    t.m0 = 0; /* known to the compiler: no registers */
    t.rows = row::tile_m == 1 ? 1 : (int)args.m;
    t.columns = args.gated ? row::tile_n / 2 : (int)row::tile_n;
    const int warp = thread_id() / LANES, lane = thread_id() % LANES, part = warp % PARTS;
    const int column = warp / PARTS * COLUMNS;
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    float sum[row::tile_m][COLUMNS] = {};
    share_of_lane share;
    share.find(args, t, part, lane, column);
    share.prefetch_first(lane);
    prefetch_bias(args, t);
    wait_for_kernel_before();
    let_next_kernel_begin();
    const int steps = share.steps(args);
    MMF_ROLLED
    for (int i = 0; i < steps; i++) {
        share.multiply_into<false>(sum);
        share.advance();
    }
    share.multiply_rest(args, part, lane, sum);
    const float factor = general ? (float)args.alpha : 1;
    add_lanes(sum);
    add_parts<1>(sum, -lane, part, column, factor, sums);
    if (general)
        finish_sums(args, t, general, sums);
    else
        finish_runs<row, PITCH>(args, t, sums);
}
