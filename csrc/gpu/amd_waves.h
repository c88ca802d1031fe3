/* A product in two launches where the last wave of tiles would leave many units idle: whole waves
 * of one row's tiles, and the columns that are left by the row of its family that ends first. Path
 * of a call: under work() and configure() of gemm_pingpong and gemm_pingpong_staged. The families
 * *_splitk, which cut K of the columns that are left, use its parts. */
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

/* The time of whole waves and of what is left is given as longer than modelled by this factor: one
 * launch is preferred where the model can hardly tell. */
#define MMF_AMD_DOUBT (33. / 32)

/* The tiles of all matrices, each of all K. */
int64_t mmf_amd_tiles(const mmf_kernel *kernel, const mmf_problem *problem);

/* The time of a launch of them, as tile_flops. */
double mmf_amd_launch_time(mmf_amd_time *tiles, const mmf_kernel *kernel,
                           const mmf_problem *problem);

/* Columns of out in the waves of a kernel's tiles before the last one; 0: there is no other, or the
 * last one is full, or the tiles share units. */
int64_t mmf_amd_whole_waves(const mmf_kernel *kernel, const mmf_problem *problem);

/* From *next on the first row of the family that takes the problem, in the layout and the dtype of
 * `like`; NULL: there is none. *next is put behind it. */
const mmf_kernel *mmf_amd_next_row(const mmf_family *family, const mmf_kernel *like,
                                   const mmf_problem *problem, int *next);

/* The addresses of the columns of out from `column` on. */
void mmf_amd_columns_from(int64_t column, const mmf_problem *problem, const mmf_buffers *buffers,
                          mmf_buffers *part);

#endif
