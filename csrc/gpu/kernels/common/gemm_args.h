/* The one argument of every GEMM kernel, by value: written by the host (C11), read by device code
 * (C++ without any header). A straight copy of mmf_problem, field by field, plus the grid. Path of
 * a call: from gpu/gemm.c to the kernel. */
#ifndef MMF_GEMM_ARGS_H
#define MMF_GEMM_ARGS_H

#include "gpu/kernels/common/deal.h"

/* As mmf_dtype and mmf_operand of problem/. */
enum {
#define MMF_DTYPE(id, name, shift, code, bits, sum) MMF_GEMM_##id,
#include "problem/dtypes.def"
#undef MMF_DTYPE
    MMF_GEMM_IMMEDIATE = 0xfe, /* a number in `immediates`, of the type of the sums */
    MMF_GEMM_ABSENT = 0xff,
};

enum {
#define MMF_OPERAND(id, name, axes, access, dtypes, stream) MMF_GEMM_##id,
#include "problem/operands.def"
#undef MMF_OPERAND
    MMF_GEMM_OPERANDS,
    MMF_GEMM_BATCH = 6,
    MMF_GEMM_PARAMETERS = 4
};

/* Laid out as mmf_strides: in elements, any sign, 0 where the operand broadcasts. */
typedef struct mmf_gemm_strides {
    long long row, col;
    long long batch[MMF_GEMM_BATCH];
} mmf_gemm_strides;

/* How a tile is finished: gpu/epilogue_form.c chooses. */
enum {
    MMF_EPILOGUE_GENERAL,
    MMF_EPILOGUE_REGISTERS,          /* no bias, or one per column */
    MMF_EPILOGUE_REGISTERS_ROW_BIAS, /* a bias per row */
};

/* A tile is tile_m x tile_n of the kernel's row; gated: tile_n / 2 columns of out, whose gate
 * columns fill the left half and whose up columns fill the right half. Tiles are numbered batch by
 * batch; workgroup w of a launch computes tile first_tile + w, or which mmf_dealt() makes of that.
 * A grid is one-dimensional and limited (HIP: 2^32 threads): more tiles are more launches. tiles_m
 * * tiles_n < 2^31. */
typedef struct mmf_gemm_args {
    long long m, n, k; /* n: columns of out; k is 0 where A and B are not read */
    long long batch_shape[MMF_GEMM_BATCH];
    mmf_gemm_strides strides[MMF_GEMM_OPERANDS];
    double alpha, beta, parameters[MMF_GEMM_PARAMETERS];
    double immediates[MMF_GEMM_MULTIPLY - MMF_GEMM_BIAS + 1]; /* BIAS to MULTIPLY */
    void *data[MMF_GEMM_OPERANDS];
    long long tiles_m, tiles_n, first_tile;
    long long piece, plane; /* split-K, first launch: products of a piece of K, and elements from
                               the sums of a piece to those of the next; else 0 */
    int batch_ndim;
    unsigned char dtype[MMF_GEMM_OPERANDS];
    unsigned char activation; /* mmf_activation */
    unsigned char gated;      /* 0 or 1; layouts of gates differ in pointers and strides only */
    unsigned char epilogue;   /* MMF_EPILOGUE_... */
    mmf_deal deal;            /* of CDNA3 and CDNA4 */
} mmf_gemm_args;

#endif
