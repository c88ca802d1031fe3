/* The time of the AMD matrix kernels' tiles, modelled. Path of a call: under work() of gemm_mfma,
 * gemm_pingpong and gemm_pingpong_staged. */
#ifndef MMF_GPU_AMD_TILES_H
#define MMF_GPU_AMD_TILES_H

#include "gpu/gemm.h"

/* Set *work to one tile whose operations take, at MMF_AMD_GFLOPS, as long as the main loops of the
 * compute unit with the most tiles. idle: cycles of each phase of products without any. */
#define MMF_AMD_GFLOPS 1000.0
void mmf_amd_tiles_work(double idle, const mmf_kernel *kernel, const mmf_problem *problem,
                        mmf_work *work);

#endif
