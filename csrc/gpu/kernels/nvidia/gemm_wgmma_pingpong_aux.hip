/* As gemm_wgmma_pingpong, with every operand in registers: C before an activation, a bias per row,
 * preactivation and multiply. Path of a call: chosen where there are such; launched by
 * gpu/launch_plan.c. A kernel of its own: gemm_wgmma_pingpong's tiles take longer with this code
 * among theirs. */
#include "gpu/kernels/nvidia/wgmma_turns.h"

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_wgmma_args args)
{
    run_workgroup<by_turns<AUXILIARY>>(args);
}
