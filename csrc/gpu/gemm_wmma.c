/* The families gemm_wmma and, for few rows, gemm_wmma_thin: matrix instructions of RDNA3 and RDNA4.
 * Path of a call: asked by the plan; run() ends in launch_plan.c. */
#include "gpu/amd_tiles.h"
#include "gpu/instances.h"

/* Their sums are not known to be rounded: on gfx1151 addends were seen that lose a unit in the last
 * place of the sum (github.com/ROCm/rocm-systems/issues/12056). */
static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    return mmf_amd_takes_chunks(kernel, p, reason) && mmf_gpu_gemm_may_truncate(p, reason);
}

/* Cycles of a part of a step, half of its products, that the instructions beside them cost: a guess
 * as long as nothing was measured. Half a cycle for each line of A and of B that a wave reads: as
 * the instructions in the loops of docs/amd_objects.md. */
static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    const int waves = mmf_gpu_instances[kernel->instance].threads / 32;
    const int rows = kernel->tile_m > 128 ? 64 : kernel->tile_m / 2; /* of a wave */
    const int columns = kernel->tile_m / rows * kernel->tile_n / waves;
    mmf_amd_tiles_work((rows + columns) / 2., kernel, p, w);
}

const mmf_family mmf_gpu_wmma = {
    .name = "gemm_wmma",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_float = MMF_AMD_GFLOPS,
};

const mmf_family mmf_gpu_wmma_thin = {
    .name = "gemm_wmma_thin",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .work = mmf_amd_thin_work,
    .gflops_float = MMF_AMD_GFLOPS,
};
