/* The GPUs' kernels. Path of a call: named by the plan's list. */
#ifndef MMF_GPU_ROWS_H
#define MMF_GPU_ROWS_H

#include "problem/kernel_row.h"

extern const mmf_kernel_row mmf_gpu_mfma; /* matrix cores of gfx942 and gfx950; float16, bfloat16 */
extern const mmf_kernel_row mmf_gpu_simt; /* any layout, any dtype, any GPU: the last row */

#endif
