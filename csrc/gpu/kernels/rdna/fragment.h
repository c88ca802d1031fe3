/* A and B in LDS, and fragments of 16 lines by 16 k of them with the matrix instruction that
 * multiplies two. Path of a call: the main loop of gemm_wmma. */
#ifndef MMF_RDNA_FRAGMENT_H
#define MMF_RDNA_FRAGMENT_H

#include "gpu/kernels/common/amd.h"

enum {
    LANES = 32,
    LINE_K = 32,       /* elements of 16 bits of a line (m of A, n of B): 4 chunks, and */
    LINE = LINE_K * 2, /* its bytes */
    PARTS = LINE_K / 16,
};

/* Where chunk c of a line lies. Lanes that read at once have lines that follow each other, or, of
 * B on gfx11, four and the four 8 below: either way 8 lanes find 32 banks. Lanes that write lines
 * from end to end have two at once, 8 apart: of every other eight the last one lies first. */
MMF_DEVICE unsigned place(unsigned line, unsigned c)
{
    const unsigned swizzle = (line >> 1 & 1) | ((line >> 2 ^ line >> 3) & 1) << 1;
    const unsigned turned = (line & ~7u) | ((line + (line >> 3 & 1)) & 7);
    return turned * LINE + (c ^ swizzle) * 16;
}

typedef float block __attribute__((ext_vector_type(8))); /* this lane's part of 16 x 16 sums */

/* Of a product B A^T lane l has the sums of m = l % 16 and n = 8 (l / 16), ... + 7.
 * gfx11: a lane has all 16 k of its line, lanes 16 to 31 those of 0 to 15 again; row 2 r + l / 16
 * of the product lies in register r, so the rows of B's fragment are lines in such an order that
 * a lane's are neighbours.
 * gfx12: a lane has half of the 16 k. Which ones is a matter of names as long as A and B agree:
 * neighbours, of one chunk. */
#if defined(__GFX11__)
enum { CHUNKS = 2 };
typedef unsigned fragment __attribute__((ext_vector_type(8)));

MMF_DEVICE unsigned line_of_b(unsigned lane)
{
    return (lane & 1) * 8 + (lane >> 1 & 7);
}

template <int Dtype> MMF_DEVICE block multiply(fragment b, fragment a, block sum)
{
    if (Dtype == MMF_GEMM_FLOAT16) {
        typedef _Float16 halves __attribute__((ext_vector_type(16)));
        return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32((halves)b, (halves)a, sum);
    }
    typedef short brains __attribute__((ext_vector_type(16)));
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32((brains)b, (brains)a, sum);
}
#else
enum { CHUNKS = 1 };
typedef chunk fragment;

MMF_DEVICE unsigned line_of_b(unsigned lane)
{
    return lane & 15;
}

template <int Dtype> MMF_DEVICE block multiply(fragment b, fragment a, block sum)
{
    if (Dtype == MMF_GEMM_FLOAT16) {
        typedef _Float16 halves __attribute__((ext_vector_type(8)));
        return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12((halves)b, (halves)a, sum);
    }
    typedef short brains __attribute__((ext_vector_type(8)));
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12((brains)b, (brains)a, sum);
}
#endif

/* Where a lane finds its chunks in LDS: of its line in a fragment, for each part of k. */
struct reader {
    unsigned at[PARTS][CHUNKS];

    /* first_line: of the wave's first fragment; line: the lane's in a fragment. */
    __attribute__((device, always_inline)) void start(unsigned first_line, unsigned line)
    {
        const unsigned upper = (unsigned)thread_id() / 16 & 1;
        MMF_UNROLL
        for (int part = 0; part < PARTS; part++) {
            MMF_UNROLL
            for (int c = 0; c < CHUNKS; c++)
                at[part][c] =
                    place(first_line + line, part * 2 + (CHUNKS == 1 ? upper : (unsigned)c));
        }
    }

    /* Of the fragment that begins lines_on lines on, a multiple of 16: as swizzled as the first. */
    __attribute__((device, always_inline)) fragment read(local lines, int part,
                                                         unsigned lines_on) const
    {
        fragment of;
        MMF_UNROLL
        for (int c = 0; c < CHUNKS; c++) {
            const chunk one = *(MMF_LOCAL const chunk *)(lines + at[part][c] + lines_on * LINE);
            MMF_UNROLL
            for (int d = 0; d < 4; d++)
                of[c * 4 + d] = one[d];
        }
        return of;
    }
};

#endif
