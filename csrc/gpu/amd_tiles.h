/* The time of the AMD matrix kernels' tiles, modelled, and what those take that read whole
 * chunks of 16 bytes. Path of a call: under supports() and work() of gemm_mfma*, gemm_pingpong,
 * gemm_pingpong_staged, gemm_thin, their forms *_splitk, gemm_gemv, gemm_wmma, gemm_wmma_thin and
 * gemm_simt. */
#ifndef MMF_GPU_AMD_TILES_H
#define MMF_GPU_AMD_TILES_H

#include "gpu/gemm.h"

/* Set *work to one tile whose operations take, at MMF_AMD_GFLOPS, as long as the compute unit
 * with the most tiles. idle: cycles of each phase of products without any. */
#define MMF_AMD_GFLOPS 1000.0
void mmf_amd_tiles_work(double idle, const mmf_kernel *kernel, const mmf_problem *problem,
                        mmf_work *work);

/* The same for so many times the products of the dtype in a cycle. */
void mmf_amd_faster_tiles_work(double faster, double idle, const mmf_kernel *kernel,
                               const mmf_problem *problem, mmf_work *work);

/* The same for tiles of gemm_pingpong and gemm_pingpong_staged. */
void mmf_amd_pingpong_work(const mmf_kernel *kernel, const mmf_problem *problem, mmf_work *work);

/* The same for tiles without phases, whose loads take the time, or their products. */
void mmf_amd_thin_work(const mmf_kernel *kernel, const mmf_problem *problem, mmf_work *work);

/* The same for few rows and lines of B that are multiplied without matrix cores. */
void mmf_amd_gemv_work(const mmf_kernel *kernel, const mmf_problem *problem, mmf_work *work);

/* What gemm_simt's tiles take besides their products, where matrix kernels are modelled. */
void mmf_amd_simt_work(const mmf_kernel *kernel, const mmf_problem *problem, mmf_work *work);

/* supports() of kernels whose A and B come in whole chunks, in the layout of the instance. Those
 * with an instance of layout NP list MMF_FEATURE_PACKED. */
bool mmf_amd_takes_chunks(const mmf_kernel *kernel, const mmf_problem *problem, char *reason);

#endif
