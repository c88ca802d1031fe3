/* The family gemm_thin: matrix cores of CDNA for few rows of A. Path of a call: asked by the plan;
 * run() ends in launch_plan.c. */
#include "gpu/amd_tiles.h"

const mmf_family mmf_gpu_thin = {
    .name = "gemm_thin",
    .features = MMF_GPU_EPILOGUE_FEATURES | MMF_HAS(MMF_FEATURE_PACKED),
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = mmf_amd_takes_chunks,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .work = mmf_amd_thin_work,
    .gflops_float = MMF_AMD_GFLOPS,
    .gflops_double = MMF_AMD_GFLOPS,
};
