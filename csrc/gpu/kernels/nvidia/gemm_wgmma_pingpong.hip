/* Matrix instructions of Hopper (sm_90a) on float16 and bfloat16; the epilogue hides behind
 * products. Path of a call: chosen where K is short or the epilogue long; launched by
 * gpu/launch_plan.c.
 *
 * With the epilogue in registers, which has a bias per column and no C, two warpgroups multiply by
 * turns: wgmma_turns.h. */
#include "gpu/kernels/nvidia/wgmma_turns.h"

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_wgmma_args args)
{
    run_workgroup<by_turns<PLAIN>>(args);
}
