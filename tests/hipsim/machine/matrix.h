/* Shared by matrix.c (MFMA) and wmma.c (WMMA): how 16- and 8-bit operands become floats. */
#ifndef HIPSIM_MATRIX_H
#define HIPSIM_MATRIX_H

#include "lanes.h"

typedef void (*unpack_function)(const uint32_t *lanes, float *even, float *odd, int count);
void unpack_bf16(const uint32_t *lanes, float *even, float *odd, int count);
void unpack_f16(const uint32_t *lanes, float *even, float *odd, int count);
/* The 256 values of an 8-bit float of this part: E5M2 (bf8) or E4M3. */
void byte_table(struct wave *w, bool bf8, float *table);

#endif
