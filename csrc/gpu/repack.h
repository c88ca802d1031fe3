/* Operands that a kernel cannot read, copied to a workspace as lines along k: the launch before the
 * kernel's. Path of a call: under supports(), work(), configure() and bind() of gemm_wgmma. */
#ifndef MMF_GPU_REPACK_H
#define MMF_GPU_REPACK_H

#include "gpu/launch_plan.h"

/* A problem whose operands in the mask (1 << MMF_A, ...) lie in a workspace. */
typedef struct mmf_repacked {
    mmf_problem problem; /* with the strides of the copies */
    unsigned operands;
    int64_t at[MMF_OPERANDS];          /* bytes from the workspace's begin */
    int64_t workspace_bytes, elements; /* elements: that are copied */
} mmf_repacked;

/* False: too many bytes to count. At most one batch axis. */
bool mmf_gpu_repack(const mmf_problem *problem, unsigned operands, mmf_repacked *to);

/* The instance that copies elements of the problem's operands. */
int mmf_gpu_repack_instance(const mmf_problem *problem);

/* Seconds of the launch: what the model counts. */
double mmf_gpu_repack_seconds(const mmf_problem *problem, const mmf_repacked *repacked);

/* Add the launch. */
void mmf_gpu_repack_add(mmf_launch_plan *plan, const mmf_problem *problem,
                        const mmf_repacked *repacked);

/* Put the addresses of a call into the launch's argument, and those of the copies into *moved. */
void mmf_gpu_repack_bind(const mmf_launch_plan *plan, int launch, const mmf_repacked *repacked,
                         const mmf_buffers *buffers, unsigned char *arguments, mmf_buffers *moved);

#endif
