/* The family gemm_simt: the generic kernel. Path of a call: asked by the plan; run() ends in
 * launch_plan.c. */
#include "gpu/amd_tiles.h"

const mmf_family mmf_gpu_simt = {
    .name = "gemm_simt",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = mmf_gpu_gemm_supports,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .work = mmf_amd_simt_work,
    .rows_independent_of_m = true,
    .gflops_float = 100, /* of a compute unit: assumed, not measured */
    .gflops_double = 50,
};
