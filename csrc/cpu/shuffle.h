/* Vectors of four floats for the transposition in pack.inc, in what GCC and clang have in common.
 * Path of a call: under the packing of B. */
#ifndef MMF_CPU_SHUFFLE_H
#define MMF_CPU_SHUFFLE_H

typedef float mmf_float4 __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__)
#define MMF_SHUFFLE4(a, b, i0, i1, i2, i3) __builtin_shufflevector(a, b, i0, i1, i2, i3)
#else
typedef int mmf_int4 __attribute__((vector_size(16)));
#define MMF_SHUFFLE4(a, b, i0, i1, i2, i3) __builtin_shuffle(a, b, (mmf_int4){i0, i1, i2, i3})
#endif

#endif
