/* Pairs of 16-bit elements, as a thread of matrix instructions has them: from and to floats, and
 * from registers to shared memory. Path of a call: the epilogues of gemm_wgmma and its ping-pong
 * kernels. Instructions: the PTX ISA, cvt and stmatrix. */
#ifndef MMF_FRAGMENT_PAIRS_H
#define MMF_FRAGMENT_PAIRS_H

#include "gpu/kernels/common/tile.h"

/* Two floats as a pair of 16-bit elements, and back. */
template <int Dtype> MMF_DEVICE unsigned pack_pair(mmf_float2 value)
{
    unsigned pair;
    if (Dtype == MMF_GEMM_FLOAT16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value.y), "f"(value.x));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value.y), "f"(value.x));
    return pair;
}

template <int Dtype> MMF_DEVICE mmf_float2 unpack_pair(unsigned pair)
{
    typedef element<Dtype> form;
    return (mmf_float2){form::template load<float>((unsigned short)pair),
                        form::template load<float>((unsigned short)(pair >> 16))};
}

/* An element of the bias, of float32 or of A's dtype, from its bits; none: -0, which changes
 * nothing. */
template <int Dtype> MMF_DEVICE float loaded_bias(const mmf_gemm_args &args, unsigned bits)
{
    const int dtype = args.dtype[MMF_GEMM_BIAS];
    return dtype == MMF_GEMM_ABSENT    ? -0.f
           : dtype == MMF_GEMM_FLOAT32 ? float_of(bits)
                                       : element<Dtype>::template load<float>((unsigned short)bits);
}

/* Four 8 x 8 matrices of 16-bit elements, a row of each to the address of one of the 32 lanes. */
MMF_DEVICE void store_matrices(unsigned address, const unsigned bits[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
                 : "memory");
}

#endif
