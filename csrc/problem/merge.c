/* Fewer, longer axes: kernels see one row axis where a caller passed (batch, sequence, features).
 * Path of a call: last step of problem.c. */
#include "problem/merge.h"

/* Fold leading axis b into the rows if B does not vary along it and every other operand steps
 * evenly. */
static bool fold_into_rows(mmf_problem *p, int b)
{
    for (int i = 0; i < MMF_OPERANDS; i++) {
        bool is_b = i == MMF_B || i == MMF_B_UP;
        if (p->dtype[i] == MMF_ABSENT)
            continue;
        if (is_b ? p->strides[i].batch[b] != 0
                 : p->m != 1 && p->strides[i].batch[b] != p->m * p->strides[i].row)
            return false;
    }
    for (int i = 0; i < MMF_OPERANDS; i++)
        if (p->m == 1 && i != MMF_B && i != MMF_B_UP)
            p->strides[i].row = p->strides[i].batch[b];
    p->m *= p->batch_shape[b];
    return true;
}

/* Merge leading axis `inner` into the kept axis `outer` if every operand steps evenly over both. */
static bool merge_axes(mmf_problem *p, int outer, int inner)
{
    for (int i = 0; i < MMF_OPERANDS; i++)
        if (p->dtype[i] != MMF_ABSENT &&
            p->strides[i].batch[outer] != p->strides[i].batch[inner] * p->batch_shape[inner])
            return false;
    return true;
}

static void move_axis(mmf_problem *p, int from, int to)
{
    p->batch_shape[to] = p->batch_shape[from];
    for (int i = 0; i < MMF_OPERANDS; i++)
        p->strides[i].batch[to] = p->strides[i].batch[from];
}

void mmf_problem_merge_axes(mmf_problem *p)
{
    int kept = 0, ndim = p->batch_ndim;
    for (int b = 0; b < ndim; b++) {
        if (p->batch_shape[b] == 1)
            continue;
        if (kept && merge_axes(p, kept - 1, b)) {
            int64_t count = p->batch_shape[kept - 1];
            move_axis(p, b, kept - 1);
            p->batch_shape[kept - 1] *= count;
        } else {
            move_axis(p, b, kept++);
        }
    }
    while (kept && fold_into_rows(p, kept - 1))
        kept--;
    p->batch_ndim = kept;
    for (int b = kept; b < ndim; b++) { /* what is unused is 0 */
        p->batch_shape[b] = 0;
        for (int i = 0; i < MMF_OPERANDS; i++)
            p->strides[i].batch[b] = 0;
    }
}
