/* A shuffle of two vectors of four, for the transpositions in pack.inc, in what GCC and clang have
 * in common. Path of a call: under the packing of A and B. */
#ifndef MMF_CPU_SHUFFLE_H
#define MMF_CPU_SHUFFLE_H

/* indices: a vector of integers as wide as the elements. */
#if defined(__clang__)
#define MMF_SHUFFLE4(indices, a, b, i0, i1, i2, i3) __builtin_shufflevector(a, b, i0, i1, i2, i3)
#else
#define MMF_SHUFFLE4(indices, a, b, i0, i1, i2, i3)                                                \
    __builtin_shuffle(a, b, (indices){i0, i1, i2, i3})
#endif

#endif
