/* The operands of one matrix of the batch, and where their elements lie.
 * Path of a call: made by run() of every CPU kernel for each batch index, read by packing and the
 * epilogue. */
#ifndef MMF_CPU_VIEW_H
#define MMF_CPU_VIEW_H

#include "cpu/rows.h"

/* Columns of accumulators that the epilogue takes at once, at most. */
#define MMF_TILE_COLUMNS 64

/* The same of a plain epilogue, activation(sum + bias) and no more. */
#ifndef MMF_PLAIN_COLUMNS
#define MMF_PLAIN_COLUMNS 512
#endif

/* Bytes of columns in a panel, on every instruction set: prepacked weights fit all of them. */
#define MMF_PANEL_BYTES 64

typedef struct mmf_view {
    const mmf_problem *problem;
    char *data[MMF_OPERANDS]; /* element [0, 0] of this batch index */
} mmf_view;

static inline int64_t mmf_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A constant where the dtype is one: the table of mmf_dtypes is not. */
static inline int64_t mmf_element_size(int dtype)
{
    switch (dtype) {
#define MMF_DTYPE(id, name, shift, code, bits, sum)                                                \
    case MMF_##id:                                                                                 \
        return 1 << (shift);
#include "problem/dtypes.def"
#undef MMF_DTYPE
    default:
        return 0;
    }
}

static inline int64_t mmf_batches(const mmf_problem *problem)
{
    int64_t count = 1;
    for (int axis = 0; axis < problem->batch_ndim; axis++)
        count *= problem->batch_shape[axis];
    return count;
}

static inline void mmf_view_at(mmf_view *view, const mmf_problem *problem,
                               const mmf_buffers *buffers, int64_t index)
{
    view->problem = problem;
    for (int o = 0; o < MMF_OPERANDS; o++)
        view->data[o] = (char *)buffers->data[o];
    for (int axis = problem->batch_ndim - 1; axis >= 0; axis--) {
        const int64_t size = problem->batch_shape[axis], at = index % size;
        index /= size;
        for (int o = 0; o < MMF_OPERANDS; o++) {
            if (problem->dtype[o] != MMF_ABSENT && view->data[o])
                view->data[o] +=
                    at * problem->strides[o].batch[axis] * mmf_element_size(problem->dtype[o]);
        }
    }
}

static inline char *mmf_element(const mmf_view *view, int operand, int64_t i, int64_t j)
{
    const mmf_strides *strides = &view->problem->strides[operand];
    return view->data[operand] +
           (i * strides->row + j * strides->col) * mmf_element_size(view->problem->dtype[operand]);
}

#endif
