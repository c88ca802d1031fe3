/* What the kernels for few rows of A share: B by loads that pass by the first cache, and what comes
 * to the last cache before its turn. Path of a call: under gemm_gemv and gemm_mma_thin. */
#ifndef MMF_FEW_ROWS_H
#define MMF_FEW_ROWS_H

#include "gpu/kernels/common/tile.h"
#include "gpu/kernels/nvidia/ring.h"

/* 16 bytes that are read once: not kept in the first cache. In order with the others. */
MMF_DEVICE mmf_uint4 load_once(const char *at)
{
    mmf_uint4 bits;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"((MMF_GLOBAL const char *)at));
    return bits;
}

/* The bias of the tile's columns comes to the last cache while products are summed. */
MMF_DEVICE void prefetch_bias(const mmf_gemm_args &args, const tile &t)
{
    const int operand = MMF_GEMM_BIAS + thread_id();
    if (thread_id() > args.gated || args.dtype[operand] == MMF_GEMM_ABSENT)
        return;
    const int size = element_size(args.dtype[operand]);
    if (size && args.strides[operand].col == 1)
        prefetch(t.matrix(operand) + t.n0 * size);
}

#endif
