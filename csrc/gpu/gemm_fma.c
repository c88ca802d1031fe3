/* The family gemm_fma: float32 on the fused multiply-adds of NVIDIA GPUs, in large tiles. Path of a
 * call: asked by the plan; run() ends in launch_plan.c. */
#include "gpu/kernels/nvidia/mma_args.h"
#include "gpu/nvidia_tiles.h"

enum { GFLOPS = 400 }; /* of a compute unit: what work() counts in */

/* On an H200 at boost clocks. */
static const mmf_tile_time times[] = {
    {MMF_FLOAT32, 128, 128, 4.3, 3.1, 8, 1.9, 1.1},
    {MMF_FLOAT32, 64, 64, 2.1, 0.92, 8, 0.5, 1.1},
};

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_nvidia_tiles_work(times, sizeof times / sizeof *times, GFLOPS, kernel, p, w);
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_nvidia_tiles_configure(kernel, p, MMF_MMA_BYTES(kernel->tile_m, kernel->tile_n, 4), config);
}

const mmf_family mmf_gpu_fma = {
    .name = "gemm_fma",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = mmf_nvidia_tiles_supports,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_float = GFLOPS,
};
