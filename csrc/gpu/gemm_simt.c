/* The family gemm_simt: the generic kernel. Path of a call: asked by the plan; run() ends in
 * launch_plan.c. */
#include "gpu/amd_tiles.h"
#include "gpu/nvidia_tiles.h"

#define GFLOPS 100 /* of a compute unit: assumed, not measured */

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_amd_simt_work(kernel, p, w);
    mmf_nvidia_add_epilogue(p, w, GFLOPS);
}

const mmf_family mmf_gpu_simt = {
    .name = "gemm_simt",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = mmf_gpu_gemm_supports,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .work = work,
    .rows_independent_of_m = true,
    .gflops_float = GFLOPS,
    .gflops_double = GFLOPS / 2.0,
};
