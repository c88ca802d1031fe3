/* Which tensors share memory: what may be written while others are read. Path of a call: asked by
 * problem.c. */
#ifndef MMF_OVERLAP_H
#define MMF_OVERLAP_H

#include "problem/tensor.h"

/* Addresses [begin, end) that a tensor lies in; nowhere if it is empty. */
typedef struct mmf_extent {
    int64_t begin, end;
} mmf_extent;

mmf_extent mmf_tensor_extent(const mmf_tensor *tensor);

static inline bool mmf_extents_meet(mmf_extent a, mmf_extent b)
{
    return a.begin < b.end && b.begin < a.end;
}

/* True if an element of a shares a byte with an element of b. Exact if each has at most two axes
 * that cannot be merged; beyond that true wherever the address ranges intersect. */
bool mmf_tensors_overlap(const mmf_tensor *a, const mmf_tensor *b);

typedef enum mmf_answer { MMF_NO, MMF_YES, MMF_UNDECIDED } mmf_answer;

/* Do two elements of the tensor share an address (a zero stride over an axis > 1 included)? Exact
 * up to two axes and wherever the strides nest (each axis steps over the whole of the next smaller
 * one); beyond that a search, which gives up after a million steps. */
mmf_answer mmf_tensor_overlaps_itself(const mmf_tensor *tensor);

#endif
