/* A product in two launches where the last wave of tiles would leave many units idle: whole waves
 * of one row's tiles, and the columns that are left by the row of its family that ends first. Path
 * of a call: under work() and configure() of gemm_pingpong and gemm_pingpong_staged. */
#ifndef MMF_GPU_AMD_WAVES_H
#define MMF_GPU_AMD_WAVES_H

#include "gpu/gemm.h"

/* Set *work as `tiles` does of a kernel's tiles, or to that of the two launches, if they take less
 * time. Rows of the family give the same bits, so it does not matter which one a column has. */
typedef void mmf_amd_time(const mmf_kernel *kernel, const mmf_problem *problem, mmf_work *work);
void mmf_amd_waves_work(mmf_amd_time *tiles, const mmf_kernel *kernel, const mmf_problem *problem,
                        mmf_work *work);

/* The launches that mmf_amd_waves_work() told of. */
void mmf_amd_waves_configure(mmf_amd_time *tiles, const mmf_kernel *kernel,
                             const mmf_problem *problem, mmf_config *config);

#endif
