/* The CPU's kernels, and what else plan/ may ask of the CPU. Path of a call: plan/ names the rows
 * by it. */
#ifndef MMF_CPU_ROWS_H
#define MMF_CPU_ROWS_H

#include "problem/interrupt.h"
#include "problem/kernel.h"

/* Every kernel of the CPU, best first: what this architecture cannot build is not in the list, and
 * cmake/isa_flags.cmake leaves out its file. */
#if defined(__x86_64__)
#define MMF_CPU_VECTOR_KERNELS(X)                                                                  \
    X(mmf_cpu_blocked_amx)                                                                         \
    X(mmf_cpu_blocked_amx_split)                                                                   \
    X(mmf_cpu_blocked_avx512_bf16)                                                                 \
    X(mmf_cpu_blocked_avx512) X(mmf_cpu_blocked_avx2) X(mmf_cpu_blocked)
#else
#define MMF_CPU_VECTOR_KERNELS(X) X(mmf_cpu_blocked)
#endif
#define MMF_CPU_KERNELS(X) MMF_CPU_VECTOR_KERNELS(X) X(mmf_cpu_reference)

#define X(row) extern const mmf_kernel row;
MMF_CPU_KERNELS(X)
#undef X

/* Prepacked weights of the blocked kernels, layout id 1, "panels64": panels of as many columns
 * as 64 bytes of the accumulator type hold, k-major, in the weight's own type; the last panel is
 * padded with zeros. */
#define MMF_CPU_PANELS64 1

/* Layout id 2, "pairs64", of bfloat16, for the kernels of AMX and AVX512_BF16: panels of 16 columns
 * as [k / 2][column][2], which end in zeros up to a multiple of 32 k. */
#define MMF_CPU_PAIRS64 2

/* Layout "columns": a matrix with strides whose columns are contiguous, for dot products with rows
 * of A. "auto" takes it for up to MMF_CPU_FEW_COLUMNS columns, of which panels would be mostly
 * zeros, and for those of mmf_cpu_dots_columns(). */
#define MMF_CPU_COLUMNS (MMF_PACKED_STRIDED | 3)
#define MMF_CPU_FEW_COLUMNS 4

/* K of dot products of more rows or columns than a few, on AVX-512. */
#define MMF_CPU_DOT_LEAST 128
#define MMF_CPU_DOT_MOST 32768
#define MMF_CPU_DOT_COLUMNS 24

/* Is a product of any number of rows with so many columns fastest as dot products, on AVX-512?
 * Measured on Zen 4 and a Xeon: they waste nothing where a panel would not be full, nor do they
 * widen A into strips; a short K does not pay for the tree at the end of each. pairs: bfloat16 is
 * multiplied in pairs. */
static inline bool mmf_cpu_dots_columns(mmf_dtype dtype, bool pairs, int64_t k, int64_t n)
{
    const int size = mmf_dtypes[dtype].size;
    const bool full = n % (size == 8 ? 8 : 16) == 0, widened = size == 2 && !pairs;
    return k >= (pairs ? 2 : 1) * MMF_CPU_DOT_LEAST && k <= MMF_CPU_DOT_MOST &&
           n <= (k < 512 ? 8 : MMF_CPU_DOT_COLUMNS) && (widened || !full);
}

/* Bytes that the panels of a K x N weight take, a multiple of 64. */
int64_t mmf_cpu_panels_bytes(mmf_dtype dtype, int64_t k, int64_t n);

/* Pack the K x N matrix with element strides (row, col) at data into panels (64-byte aligned). */
void mmf_cpu_pack_panels(mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                         int64_t col, void *panels, mmf_interrupt *interrupt);

/* The reverse, into element strides (row, col) at data. */
void mmf_cpu_unpack_panels(mmf_dtype dtype, int64_t k, int64_t n, const void *panels, int64_t row,
                           int64_t col, void *data, mmf_interrupt *interrupt);

/* The same of layout "pairs64"; dtype is bfloat16. */
int64_t mmf_cpu_pairs_bytes(mmf_dtype dtype, int64_t k, int64_t n);
void mmf_cpu_pack_pairs(mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                        int64_t col, void *panels, mmf_interrupt *interrupt);
void mmf_cpu_unpack_pairs(mmf_dtype dtype, int64_t k, int64_t n, const void *panels, int64_t row,
                          int64_t col, void *data, mmf_interrupt *interrupt);

/* A K x N matrix with element strides from_row and from_col into one with those of `to`: both ways
 * of layout "columns". */
void mmf_cpu_copy_columns(mmf_dtype dtype, int64_t k, int64_t n, const void *from, int64_t from_row,
                          int64_t from_col, void *to, int64_t to_row, int64_t to_col,
                          mmf_interrupt *interrupt);

/* Names of the instruction sets found that kernels use, "avx2 fma f16c" (empty: none). */
const char *mmf_cpu_features(void);

/* Threads of the pool for a call of this thread, which is counted: num_threads, else
 * set_num_threads, else MATMUL_FUSED_NUM_THREADS, else OMP_NUM_THREADS, else min(affinity, cgroup
 * quota). */
int mmf_cpu_get_threads(void);
void mmf_cpu_set_threads(int threads);

/* For calls of this thread, from 1 to MMF_MAX_THREADS; 0: as for all. Returns what it was. */
int mmf_cpu_use_threads(int threads);

/* Complain of a MATMUL_FUSED_NUM_THREADS that is no such number. At import. */
void mmf_cpu_read_environment(void);

#endif
