/* A problem to a kernel's argument, grid and launch. Path of a call: from the run() of the GPU
 * rows. */
#ifndef MMF_GPU_LAUNCH_H
#define MMF_GPU_LAUNCH_H

#include "problem/kernel_row.h"

/* Launch an instance (MMF_GPU_...) on problem->stream; does not wait. */
mmf_status mmf_gpu_launch(const mmf_problem *problem, int instance);

#endif
