/* The families gemm_fma and gemm_fma_split: float32 on the fused multiply-adds of NVIDIA GPUs, in
 * large tiles; the latter where they are few, k split in clusters. Path of a call: asked by the
 * plan; run() ends in launch_plan.c. */
#include "gpu/kernels/nvidia/mma_args.h"
#include "gpu/nvidia_tiles.h"

enum { GFLOPS = 400 }; /* of a compute unit: what work() counts in */

/* On an H200 at boost clocks. */
static const mmf_tile_time times[] = {
    {MMF_FLOAT32, 128, 128, 0.71, 0.664, 6, 6, 1.05, 2},
    {MMF_FLOAT32, 128, 64, 0.41, 0.345, 5, 3, 1.05, 2},
    {MMF_FLOAT32, 64, 64, 0.26, 0.2, 4, 0.5, 1.05, 4},
};
enum { TIMES = sizeof times / sizeof *times };

static uint32_t dynamic_bytes(const mmf_kernel *kernel)
{
    return MMF_FMA_BYTES(kernel->tile_m, kernel->tile_n, kernel->tile_k);
}

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    return mmf_nvidia_tiles_supports(kernel, p, dynamic_bytes(kernel), reason);
}

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_nvidia_tiles_work(times, TIMES, GFLOPS, kernel, p, w);
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_nvidia_tiles_configure(kernel, p, dynamic_bytes(kernel), config);
}

static bool supports_split(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    return mmf_nvidia_split_supports(times, TIMES, kernel, p, dynamic_bytes(kernel), reason);
}

static void work_split(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_nvidia_split_work(times, TIMES, GFLOPS, kernel, p, w);
}

static void configure_split(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_nvidia_split_configure(times, TIMES, kernel, p, dynamic_bytes(kernel), config);
}

const mmf_family mmf_gpu_fma = {
    .name = "gemm_fma",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_float = GFLOPS,
};

const mmf_family mmf_gpu_fma_split = {
    .name = "gemm_fma_split",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports_split,
    .configure = configure_split,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = false, /* k is split where tiles are few */
    .work = work_split,
    .gflops_float = GFLOPS,
};
