/* Which tensors share memory: what may be written while others are read. Path of a call: asked by
 * problem.c. */
#ifndef MMF_OVERLAP_H
#define MMF_OVERLAP_H

#include "problem/tensor.h"

/* Addresses [begin, end) that a tensor lies in; nowhere if it is empty. */
typedef struct mmf_extent {
    int64_t begin, end;
} mmf_extent;

/* Without a branch per axis: a call asks for that of every operand. */
static inline mmf_extent mmf_tensor_extent(const mmf_tensor *tensor)
{
    int64_t low = 0, high = 1, empty = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        int64_t steps = tensor->shape[i] - 1, reach = tensor->strides[i] * steps;
        int64_t down = reach & reach >> 63;
        low += down;
        high += reach - down;
        empty |= steps;
    }
    if (empty < 0)
        return (mmf_extent){0, 0};
    int64_t data = (int64_t)(intptr_t)tensor->data;
    int shift = mmf_dtypes[tensor->dtype].shift;
    return (mmf_extent){data + low * (1 << shift), data + high * (1 << shift)};
}

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
