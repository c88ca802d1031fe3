/* Shared by matrix.c, matrix_narrow.c (MFMA) and wmma.c (WMMA): how operands become floats, and the
 * product of rows. */
#ifndef HIPSIM_MATRIX_H
#define HIPSIM_MATRIX_H

#include "lanes.h"

typedef void (*unpack_function)(const uint32_t *lanes, float *even, float *odd, int count);
void unpack_bf16(const uint32_t *lanes, float *even, float *odd, int count);
void unpack_f16(const uint32_t *lanes, float *even, float *odd, int count);
/* Lanes of a register, or of a constant. */
const uint32_t *register_lanes(struct wave *w, const struct operand *s, int r);
/* d = a * b + c for four rows of the result from `row`, 16 columns from `column`; c and d point to
 * the rows. */
void multiply_4x16(float (*a)[32], float (*b)[32], int row, int column, int k_count,
                   const float *const c[4], float *const d[4]);
/* D of an MFMA of size x size from rows a[k] of A and b[k] of B. */
void accumulate(struct wave *w, const struct op *o, float (*a)[32], float (*b)[32], int size,
                int k_count);

#endif
