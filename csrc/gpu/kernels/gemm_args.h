/* The one argument of every GEMM kernel, by value: written by the host (C11), read by device code
 * (C++ without any header). A straight copy of mmf_problem, field by field, plus the grid. Path of
 * a call: from gpu/launch.c to the kernel. */
#ifndef MMF_GEMM_ARGS_H
#define MMF_GEMM_ARGS_H

/* mmf_dtype, MMF_ABSENT and MMF_MAX_BATCH of problem/; the host asserts that they agree. */
enum {
    MMF_GEMM_FLOAT32,
    MMF_GEMM_FLOAT64,
    MMF_GEMM_FLOAT16,
    MMF_GEMM_BFLOAT16,
    MMF_GEMM_ABSENT = 0xff,
};

/* mmf_operand of problem/problem.h, in its order. */
enum {
    MMF_GEMM_A,
    MMF_GEMM_B,
    MMF_GEMM_B_UP,
    MMF_GEMM_BIAS,
    MMF_GEMM_BIAS_UP,
    MMF_GEMM_C,
    MMF_GEMM_C_UP,
    MMF_GEMM_MULTIPLY,
    MMF_GEMM_PREACTIVATION,
    MMF_GEMM_PREACTIVATION_UP,
    MMF_GEMM_OUT,
    MMF_GEMM_OPERANDS,
    MMF_GEMM_BATCH = 6
};

/* Laid out as mmf_strides: in elements, any sign, 0 where the operand broadcasts. */
typedef struct mmf_gemm_strides {
    long long row, col;
    long long batch[MMF_GEMM_BATCH];
} mmf_gemm_strides;

/* A tile is tile_m x tile_n of the kernel's row; gated: tile_n / 2 columns of out, whose gate
 * columns fill the left half and whose up columns fill the right half. Tiles are numbered batch by
 * batch; workgroup w of a launch computes tile first_tile + w. A grid is one-dimensional and
 * limited (HIP: 2^32 threads): more tiles are more launches. tiles_m * tiles_n < 2^31. */
typedef struct mmf_gemm_args {
    long long m, n, k; /* n: columns of out; k is 0 where A and B are not read */
    long long batch_shape[MMF_GEMM_BATCH];
    mmf_gemm_strides strides[MMF_GEMM_OPERANDS];
    double alpha, beta, parameters[2];
    void *data[MMF_GEMM_OPERANDS];
    long long tiles_m, tiles_n, first_tile;
    int batch_ndim;
    unsigned char dtype[MMF_GEMM_OPERANDS];
    unsigned char activation; /* mmf_activation */
    unsigned char gated;      /* 0 or 1; layouts of gates differ in pointers and strides only */
    unsigned char zero[7];
} mmf_gemm_args;

#endif
