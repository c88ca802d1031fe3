/* Fragments of 16 lines by 32 k of A and B, and the matrix instructions that multiply them.
 * Path of a call: the main loops of kernels for CDNA. */
#ifndef MMF_CDNA_FRAGMENT_H
#define MMF_CDNA_FRAGMENT_H

#include "gpu/kernels/cdna/lds.h"

typedef mmf_float4 block; /* this lane's part of 16 x 16 sums */

/* Two blocks are 32 lines: lane i of 16 holds line 8 (i / 4) + i % 4 of the even block, and the
 * line 4 below of the odd one. Of a product B A^T it then has eight neighbouring n: four in either
 * block of B. */
MMF_DEVICE constexpr int block_line(int b)
{
    return b / 2 * 32 + b % 2 * 4;
}

MMF_DEVICE int lane_line(int lane)
{
    return (lane & 12) * 2 + (lane & 3);
}

/* Every lane holds 8 k of a line of A and of a line of B: a lane's sums are 4 n of one m. The
 * instructions of a part do not wait for each other if their sums differ. */
#if defined(__gfx950__)
enum { MULTIPLY_PARTS = 1 };

template <int Dtype> MMF_DEVICE block multiply_part(chunk b, chunk a, block sum, int)
{
    if (Dtype == MMF_GEMM_FLOAT16) {
        typedef _Float16 halves __attribute__((ext_vector_type(8)));
        return __builtin_amdgcn_mfma_f32_16x16x32_f16((halves)b, (halves)a, sum, 0, 0, 0);
    }
    typedef __bf16 brains __attribute__((ext_vector_type(8)));
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16((brains)b, (brains)a, sum, 0, 0, 0);
}
#else
enum { MULTIPLY_PARTS = 2 };

template <int Dtype> MMF_DEVICE block multiply_part(chunk b, chunk a, block sum, int part)
{
    const half_chunk of_b = part ? b.zw : b.xy, of_a = part ? a.zw : a.xy;
    if (Dtype == MMF_GEMM_FLOAT16) {
        typedef _Float16 halves __attribute__((ext_vector_type(4)));
        return __builtin_amdgcn_mfma_f32_16x16x16f16((halves)of_b, (halves)of_a, sum, 0, 0, 0);
    }
    typedef short brains __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k((brains)of_b, (brains)of_a, sum, 0, 0, 0);
}
#endif

/* Operands are multiplied as they are: prepare() would change what a carrier brings, before that is
 * put into shared memory. */
struct unprepared {
    template <class Carrier> static __attribute__((device, always_inline)) void prepare(Carrier &)
    {
    }
};

/* What the chunks of a fragment of B and of one of A add to the sums of a block, by PARTS
 * instructions. */
template <int Dtype> struct products : unprepared {
    typedef float real;
    typedef block sums;
    enum { PARTS = MULTIPLY_PARTS };

    static __attribute__((device, always_inline)) sums add(chunk b, chunk a, sums sum, int part)
    {
        return multiply_part<Dtype>(b, a, sum, part);
    }
};

/* Exact products; subnormals count. A part is one k of each lane. */
template <> struct products<MMF_GEMM_FLOAT32> : unprepared {
    typedef float real;
    typedef block sums;
    enum { PARTS = 4 };

    static __attribute__((device, always_inline)) sums add(chunk b, chunk a, sums sum, int part)
    {
        return __builtin_amdgcn_mfma_f32_16x16x4f32(float_of(b[part]), float_of(a[part]), sum, 0, 0,
                                                    0);
    }
};

#if defined(__gfx90a__)
/* The instructions of 16 bits read subnormals as 0: float16 is converted, exactly, and multiplied
 * as float32. */
template <> struct products<MMF_GEMM_FLOAT16> : unprepared {
    typedef float real;
    typedef block sums;
    enum { PARTS = 8 };

    static __attribute__((device, always_inline)) sums add(chunk b, chunk a, sums sum, int part)
    {
        typedef _Float16 halves __attribute__((ext_vector_type(8)));
        return __builtin_amdgcn_mfma_f32_16x16x4f32(((halves)b)[part], ((halves)a)[part], sum, 0, 0,
                                                    0);
    }
};
#endif

/* A part is one k of each lane. Unlike those of float, the sums of lane l are the lines 4 r + l /
 * 16 of B. */
template <> struct products<MMF_GEMM_FLOAT64> : unprepared {
    typedef double real;
    typedef mmf_double4 sums;
    enum { PARTS = 2 };

    static __attribute__((device, always_inline)) sums add(chunk b, chunk a, sums sum, int part)
    {
        typedef double doubles __attribute__((ext_vector_type(2)));
        return __builtin_amdgcn_mfma_f64_16x16x4f64(((doubles)b)[part], ((doubles)a)[part], sum, 0,
                                                    0, 0);
    }
};

/* Where a lane finds its chunks in shared memory: of its line, chunk lane / 16 of either half of
 * k. The first line is a multiple of 32. */
template <bool AlongK> struct reader {
    unsigned at[2];

    __attribute__((device, always_inline)) void start(unsigned first_line)
    {
        const unsigned lane = thread_id() & 63;
        MMF_UNROLL
        for (unsigned half = 0; half < 2; half++)
            at[half] = place<AlongK>(first_line + lane_line(lane & 15), half * 4 + lane / 16);
    }

    /* Its chunk in the block whose even lines begin `lines_on` lines on: as block_line() says. */
    __attribute__((device, always_inline)) chunk read(local lines, int half,
                                                      unsigned lines_on) const
    {
        const unsigned from = AlongK ? at[half] : at[half] ^ swizzle_of_16(lines_on) * 16;
        return *(MMF_LOCAL const chunk *)(lines + (from + lines_on * LINE));
    }
};

#endif
