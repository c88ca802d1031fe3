/* The families gemm_mma and gemm_mma_split: matrix instructions of NVIDIA GPUs from sm_80 on, for
 * any strides; the latter of float64 where tiles are few, k split in clusters. Path of a call:
 * asked by the plan; run() ends in launch_plan.c. */
#include "gpu/kernels/nvidia/mma_args.h"
#include "gpu/nvidia_tiles.h"

#include <stdio.h>

enum { GFLOPS = 1000 }; /* of a compute unit: what work() counts in */

static uint32_t dynamic_bytes(const mmf_kernel *kernel, const mmf_problem *p)
{
    const int size = mmf_dtypes[mmf_problem_accumulator(p)].size;
    return MMF_MMA_BYTES(kernel->tile_m, kernel->tile_n, size);
}

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (!mmf_nvidia_tiles_supports(kernel, p, dynamic_bytes(kernel, p), reason))
        return false;
    if (p->dtype[MMF_A] == MMF_FLOAT32 && !p->allow_tf32) {
        snprintf(reason, MMF_REASON_TEXT, "rounds float32 to 11 bits, which allow_tf32 allows");
        return false;
    }
    return mmf_dtypes[p->dtype[MMF_A]].size > 2 || mmf_gpu_gemm_may_truncate(p, reason);
}

/* On an H200 at boost clocks. */
static const mmf_tile_time times[] = {
    {MMF_FLOAT16, 128, 128, 1.76, 1.12, 8, 2.8, 2.6, 2},
    {MMF_FLOAT16, 64, 64, 1.0, 0.41, 6, 1.2, 4.2, 2},
    {MMF_FLOAT32, 128, 128, 0.81, 0.81, 8, 2.8, 1.5, 2},
    {MMF_FLOAT32, 64, 64, 0.42, 0.34, 5, 1, 1.6, 3},
    {MMF_FLOAT64, 64, 64, 0.41, 0.31, 4.9, 0.5, 1.1, 3},
    {MMF_FLOAT64, 128, 64, 0.645, 0.645, 7.3, 3, 1.1, 1},
};
enum { TIMES = sizeof times / sizeof *times };

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_nvidia_tiles_work(times, TIMES, GFLOPS, kernel, p, w);
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_nvidia_tiles_configure(kernel, p, dynamic_bytes(kernel, p), config);
}

static bool supports_split(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    return mmf_nvidia_split_supports(times, TIMES, kernel, p, dynamic_bytes(kernel, p), reason);
}

static void work_split(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_nvidia_split_work(times, TIMES, GFLOPS, kernel, p, w);
}

static void configure_split(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_nvidia_split_configure(times, TIMES, kernel, p, dynamic_bytes(kernel, p), config);
}

const mmf_family mmf_gpu_mma = {
    .name = "gemm_mma",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_float = GFLOPS,
    .gflops_double = GFLOPS,
};

const mmf_family mmf_gpu_mma_split = {
    .name = "gemm_mma_split",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports_split,
    .configure = configure_split,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = false, /* k is split where tiles are few */
    .work = work_split,
    .gflops_double = GFLOPS,
};
