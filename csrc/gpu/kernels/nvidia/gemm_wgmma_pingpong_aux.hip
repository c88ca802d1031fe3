/* As gemm_wgmma_pingpong, with every operand in registers: C before an activation, a bias per row,
 * preactivation and multiply. Path of a call: chosen where there are such; launched by
 * gpu/launch_plan.c. A kernel of its own: gemm_wgmma_pingpong's tiles take longer with this code
 * among theirs. */
#include "gpu/kernels/nvidia/wgmma_turns.h"

typedef fragment_epilogue<row::operands, FLAT, AUXILIARY> aux_epilogue;

struct consumers : by_turns {
    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        if (takes_turns(args))
            alternating<aux_epilogue>::run(args, r);
        else
            consume_one(args, r);
    }
};

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_wgmma_args args)
{
    run_workgroup<consumers>(args);
}
