/* gemm_mma with k split among the workgroups of a cluster (sm_90 and later): float64, few tiles.
 * Path of a call: asked by the plan; launched by gpu/launch_plan.c. */
#include "gpu/kernels/nvidia/mma_products.h"
#include "gpu/kernels/nvidia/split_tile.h"

MMF_ENTRY MMF_THREADS_AT_ONCE(row::threads,
                              AT_ONCE) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    real *const lines = (real *)dynamic_shared;
    sums sum = {};
    part_of_k<row> part;
    part.find(args.k);
    tile t = tile_of_cluster<row>(args, part.parts, shared);
    sum_products<loop>(args, t, part.first, part.count, shared, sum);
    t = ((const kept *)shared)->t; /* sums had the registers */
    put_sums(1, lines, sum);
    split_epilogue<row, PITCH, real>::finish(args, t, cluster_rank(), cluster_size(), lines);
    cluster_barrier(); /* a workgroup that is gone cannot be read */
}
