/* Which k a workgroup multiplies: all of them, or a piece; and where the sums of a piece go. Path
 * of a call: the loops over k of gemm_thin, gemm_pingpong and gemm_pingpong_staged; the last step
 * of their forms *_splitk, behind which reduce_splitk adds the pieces and has the epilogue. */
#ifndef MMF_CDNA_PIECE_H
#define MMF_CDNA_PIECE_H

#include "gpu/kernels/cdna/fragment.h"

/* IN_PIECES, of the source that includes this, says which. */
MMF_DEVICE unsigned k_begin(const mmf_gemm_args &args)
{
    return IN_PIECES ? (unsigned)piece_id() * (unsigned)args.piece : 0;
}

MMF_DEVICE unsigned k_count(const mmf_gemm_args &args)
{
    const unsigned left = (unsigned)args.k - k_begin(args), most = (unsigned)args.piece;
    /* The compiler may compare in vector registers. */
    return IN_PIECES ? (unsigned)__builtin_amdgcn_readfirstlane(most < left ? most : left) : left;
}

/* The sums of a tile in the workspace, the operand PREACTIVATION: float32, columns in whole fours,
 * those of up half a line behind those of gate, `plane` elements from piece to piece. */
struct piece_sums {
    bounded_buffer memory;
    unsigned pitch, up; /* bytes between lines, and from gate to up */
    int rows, cols;

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t)
    {
        const long long line = args.strides[MMF_GEMM_PREACTIVATION].row;
        pitch = (unsigned)line * 4;
        up = pitch / 2;
        rows = t.rows;
        cols = t.cols;
        const unsigned last = (args.gated ? up : 0) + (unsigned)(cols + 3) / 4 * 16;
        memory.open(t.matrix(MMF_GEMM_PREACTIVATION) +
                        (piece_id() * args.plane + t.m0 * line + t.n0) * 4,
                    (rows - 1) * (long long)pitch + last);
    }

    /* Four columns of a row, as far as they are of the result. */
    __attribute__((device, always_inline)) void store(int m, int n, bool second, block value) const
    {
        const unsigned at = m * pitch + n * 4 + (second ? up : 0);
        memory.store(m < rows && n < cols ? at : NOWHERE, (mmf_uint4)value);
    }
};

#endif
