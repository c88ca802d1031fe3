/* From tensors to a checked problem: shapes, and where every operand's elements lie.
 * Path of a call: first stop after the import; nothing is written before all of this has
 * passed. */
#include "problem/problem.h"

#include "problem/checks.h"
#include "problem/merge.h"
#include "problem/overlap.h"

#include <stdio.h>
#include <string.h>

/* Shape of the result: batch axes of A and B broadcast, then M and N where A and B are no vectors.
 * z, if gated, has twice the columns. */
typedef struct shapes {
    int ndim;
    bool has_row, has_col;
    int64_t dims[MMF_MAX_RANK];
    int64_t z_columns;
} shapes;

/* Length of an axis where the last one, if there are columns, has `columns`. */
static int64_t length_of(const shapes *s, int axis, int64_t columns)
{
    return s->has_col && axis == s->ndim - 1 ? columns : s->dims[axis];
}

static const char *result_text(const shapes *s, int64_t columns, char *text)
{
    int64_t shape[MMF_MAX_RANK];
    for (int i = 0; i < s->ndim; i++)
        shape[i] = length_of(s, i, columns);
    return mmf_shape_text(s->ndim, shape, text);
}

/* A refusal that shows the shapes of A and B: format has two %s for them. */
__attribute__((cold)) static mmf_status fail_shapes(const mmf_request *r, const char *format)
{
    char a_text[MMF_SHAPE_TEXT], b_text[MMF_SHAPE_TEXT], text[512];
    snprintf(text, sizeof text, format, mmf_shape_text(r->a->ndim, r->a->shape, a_text),
             mmf_shape_text(r->b->ndim, r->b->shape, b_text));
    return mmf_fail(MMF_VALUE_ERROR, "%s", text);
}

static mmf_status broadcast_batch(const mmf_request *r, shapes *s)
{
    const mmf_tensor *a = r->a, *b = r->b;
    int a_batch = a->ndim > 2 ? a->ndim - 2 : 0, b_batch = b->ndim > 2 ? b->ndim - 2 : 0;
    s->ndim = a_batch > b_batch ? a_batch : b_batch;
    for (int i = 0; i < s->ndim; i++) {
        int64_t x = i < s->ndim - a_batch ? 1 : a->shape[i - (s->ndim - a_batch)];
        int64_t y = i < s->ndim - b_batch ? 1 : b->shape[i - (s->ndim - b_batch)];
        if (x != y && x != 1 && y != 1)
            return fail_shapes(r, "leading axes of A %s and B %s do not broadcast");
        s->dims[i] = x == 1 ? y : x;
    }
    return MMF_OK;
}

static mmf_status check_product_shapes(const mmf_request *r, mmf_gate_layout gate)
{
    const mmf_tensor *a = r->a, *b = r->b, *up = r->b_up;
    bool split = gate != MMF_GATE_NONE && gate != MMF_GATE_PAIR;
    if (a->ndim == 0 || b->ndim == 0)
        return fail_shapes(r, "A is %s and B %s; each needs at least one axis");
    if (up &&
        (up->ndim != b->ndim || memcmp(b->shape, up->shape, sizeof *b->shape * (size_t)b->ndim))) {
        char text[MMF_SHAPE_TEXT], up_text[MMF_SHAPE_TEXT];
        return mmf_fail(MMF_VALUE_ERROR, "B[0] and B[1] must have one shape, got %s and %s",
                        mmf_shape_text(b->ndim, b->shape, text),
                        mmf_shape_text(up->ndim, up->shape, up_text));
    }
    if (a->shape[a->ndim - 1] != b->shape[b->ndim > 1 ? b->ndim - 2 : 0])
        return fail_shapes(
            r, "A %s and B %s do not match: K is the last axis of A and the last but one of B");
    if (gate != MMF_GATE_NONE && b->ndim == 1)
        return fail_shapes(r, "a gated activation needs columns: A is %s, but B %s has one axis");
    if (split && b->shape[b->ndim - 1] % 2)
        return fail_shapes(r, "a gated activation needs an even number of columns: A is %s, B %s");
    return MMF_OK;
}

static mmf_status make_shapes(const mmf_request *r, mmf_gate_layout gate, mmf_problem *p, shapes *s)
{
    const mmf_tensor *a = r->a, *b = r->b;
    mmf_status status = check_product_shapes(r, gate);
    if (!status)
        status = broadcast_batch(r, s);
    if (status)
        return status;
    s->has_row = a->ndim > 1;
    s->has_col = b->ndim > 1;
    p->m = s->has_row ? a->shape[a->ndim - 2] : 1;
    p->n = s->has_col ? b->shape[b->ndim - 1] : 1;
    p->k = r->alpha == 0 ? 0 : a->shape[a->ndim - 1];
    if (gate != MMF_GATE_NONE && gate != MMF_GATE_PAIR)
        p->n /= 2;
    p->batch_ndim = s->ndim;
    for (int i = 0; i < s->ndim; i++)
        p->batch_shape[i] = s->dims[i];
    if (s->has_row)
        s->dims[s->ndim++] = p->m;
    if (s->has_col)
        s->dims[s->ndim++] = p->n;
    s->z_columns = gate == MMF_GATE_NONE ? p->n : 2 * p->n;
    int64_t bytes = 16;
    for (int i = 0; i < s->ndim; i++)
        if (s->dims[i] && __builtin_mul_overflow(bytes, s->dims[i], &bytes))
            return fail_shapes(r, "the result of A %s and B %s would not fit into memory");
    return MMF_OK;
}

static int64_t stride_of(const mmf_tensor *t, int axis)
{
    return axis < 0 || t->shape[axis] == 1 ? 0 : t->strides[axis];
}

static void place_axes(const mmf_tensor *t, int batch_ndim, bool has_row, bool has_col,
                       mmf_strides *strides)
{
    int axis = t->ndim - 1;
    strides->col = has_col ? stride_of(t, axis--) : 0;
    strides->row = has_row ? stride_of(t, axis--) : 0;
    for (int i = batch_ndim - 1; i >= 0; i--, axis--)
        strides->batch[i] = stride_of(t, axis);
}

/* Strides of an epilogue operand or output along the axes of a result with so many columns. False
 * if it does not broadcast to that. */
static bool place(const mmf_tensor *t, const shapes *s, int64_t columns, mmf_strides *strides)
{
    int missing = s->ndim - t->ndim;
    if (missing < 0)
        return false;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] != length_of(s, i + missing, columns) && t->shape[i] != 1)
            return false;
    place_axes(t, s->ndim - s->has_row - s->has_col, s->has_row, s->has_col, strides);
    return true;
}

static void place_product(const mmf_tensor *t, int batch_ndim, bool is_b, mmf_strides *strides)
{
    int last = t->ndim - 1;
    bool column = is_b && t->ndim == 1; /* a 1-D B is a column, a 1-D A a row */
    strides->row = stride_of(t, column ? last : last - 1);
    strides->col = column ? 0 : stride_of(t, last);
    for (int i = batch_ndim - 1, axis = last - 2; i >= 0; i--, axis--)
        strides->batch[i] = stride_of(t, axis);
}

static void set_operand(mmf_problem *p, mmf_operand operand, const mmf_tensor *t)
{
    p->dtype[operand] = (uint8_t)t->dtype;
    p->data[operand] = t->data;
}

/* Split the operand whose columns are those of z into its gate stream and its up stream (operand +
 * 1). */
static void split_gate(mmf_problem *p, mmf_operand gate_operand)
{
    mmf_operand up_operand = gate_operand + 1;
    mmf_strides *gate = &p->strides[gate_operand];
    int64_t size = mmf_dtypes[p->dtype[gate_operand]].size, col = gate->col;
    char *first = p->data[gate_operand];
    int64_t distance = p->gate_layout == MMF_GATE_INTERLEAVED ? col : col * p->n;
    char *second = first ? first + distance * size : NULL;
    bool up_first = p->gate_layout == MMF_GATE_HALVES_UP_FIRST;
    if (p->gate_layout == MMF_GATE_INTERLEAVED)
        gate->col = 2 * col;
    p->strides[up_operand] = *gate;
    p->dtype[up_operand] = p->dtype[gate_operand];
    p->data[gate_operand] = up_first ? second : first;
    p->data[up_operand] = up_first ? first : second;
}

/* Add an epilogue operand that broadcasts to a result with so many columns. */
static mmf_status add_epilogue(const mmf_request *r, mmf_problem *p, mmf_operand operand,
                               const shapes *s, int64_t columns)
{
    const mmf_tensor *t = r->operand[operand];
    if (!place(t, s, columns, &p->strides[operand])) {
        char given[MMF_SHAPE_TEXT], wanted[MMF_SHAPE_TEXT];
        return mmf_fail(MMF_VALUE_ERROR, "%s has shape %s, which does not broadcast to %s",
                        mmf_operand_name(r, operand), mmf_shape_text(t->ndim, t->shape, given),
                        result_text(s, columns, wanted));
    }
    set_operand(p, operand, t);
    return MMF_OK;
}

static mmf_status check_output(const char *name, const mmf_tensor *t, const shapes *s,
                               int64_t columns)
{
    bool equal = t->ndim == s->ndim;
    for (int i = 0; equal && i < t->ndim; i++)
        equal = t->shape[i] == length_of(s, i, columns);
    if (!equal) {
        char given[MMF_SHAPE_TEXT], wanted[MMF_SHAPE_TEXT];
        return mmf_fail(MMF_VALUE_ERROR, "%s has shape %s, it must be %s", name,
                        mmf_shape_text(t->ndim, t->shape, given), result_text(s, columns, wanted));
    }
    if (t->readonly)
        return mmf_fail(MMF_VALUE_ERROR,
                        t->readonly == MMF_READONLY
                            ? "%s is read-only; pass a writable array"
                            : "%s comes in an unversioned DLPack capsule, which cannot say that it "
                              "may be written; pass an array whose __dlpack__ knows max_version",
                        name);
    mmf_answer overlaps = mmf_tensor_overlaps_itself(t);
    if (overlaps == MMF_NO)
        return MMF_OK;
    return mmf_fail(MMF_VALUE_ERROR,
                    overlaps == MMF_YES
                        ? "%s has strides that make its elements overlap; pass an array whose "
                          "elements are distinct"
                        : "%s has strides that do not nest, and whether its elements are distinct "
                          "takes too long to find out; pass a contiguous array",
                    name);
}

/* Fill strides and pointers of every operand but out. */
static mmf_status add_operands(const mmf_request *r, mmf_problem *p, const shapes *s)
{
    bool split = mmf_problem_gated(p) && p->gate_layout != MMF_GATE_PAIR;
    set_operand(p, MMF_A, r->a);
    place_product(r->a, p->batch_ndim, false, &p->strides[MMF_A]);
    set_operand(p, MMF_B, r->b);
    if (r->packed) {
        p->strides[MMF_B] = p->strides[MMF_B_UP] = (mmf_strides){0};
        if (mmf_problem_gated(p)) {
            p->dtype[MMF_B_UP] = p->dtype[MMF_B];
            p->data[MMF_B_UP] = r->panels_up;
        }
    } else {
        place_product(r->b, p->batch_ndim, true, &p->strides[MMF_B]);
        if (r->b_up) {
            set_operand(p, MMF_B_UP, r->b_up);
            place_product(r->b_up, p->batch_ndim, true, &p->strides[MMF_B_UP]);
        } else if (split) {
            split_gate(p, MMF_B);
        }
    }
    mmf_status status = MMF_OK;
    if (r->bias) {
        int64_t columns = r->bias_up ? p->n : s->z_columns;
        status = add_epilogue(r, p, MMF_BIAS, s, columns);
        if (!status && r->bias_up)
            status = add_epilogue(r, p, MMF_BIAS_UP, s, columns);
        else if (!status && split)
            split_gate(p, MMF_BIAS);
    }
    if (!status && r->c) {
        status = add_epilogue(r, p, MMF_C, s, s->z_columns);
        if (p->beta == 0) {
            p->dtype[MMF_C] = MMF_ABSENT;
            p->data[MMF_C] = NULL;
        } else if (!status && mmf_problem_gated(p)) {
            split_gate(p, MMF_C);
        }
    }
    if (!status && r->multiply)
        status = add_epilogue(r, p, MMF_MULTIPLY, s, p->n);
    if (!status && r->preactivation) {
        status = check_output("preactivation", r->preactivation, s, s->z_columns);
        if (!status)
            status = add_epilogue(r, p, MMF_PREACTIVATION, s, s->z_columns);
        if (!status && mmf_problem_gated(p))
            split_gate(p, MMF_PREACTIVATION);
    }
    return status;
}

mmf_status mmf_problem_make(const mmf_request *r, mmf_problem *p, mmf_tensor *result)
{
    shapes s;
    mmf_dtype out_dtype = MMF_ABSENT;
    mmf_gate_layout gate = MMF_GATE_NONE;
    memset(p->dtype, MMF_ABSENT, sizeof p->dtype);
    memset(p->data, 0, sizeof p->data);
    if (r->beta_given && !r->c)
        return mmf_fail(MMF_VALUE_ERROR, "beta was given without C; pass C or drop beta");
    mmf_status status = mmf_check_types_and_devices(r, &out_dtype);
    if (!status)
        status = mmf_check_gate(r, &gate);
    if (!status)
        status = make_shapes(r, gate, p, &s);
    if (status)
        return status;
    p->device = r->a->device;
    p->activation = (uint8_t)r->activation;
    p->gate_layout = (uint8_t)gate;
    p->packed = (uint8_t)r->packed;
    p->allow_tf32 = r->allow_tf32;
    p->alpha = r->alpha;
    p->beta = !r->c ? 0 : r->beta_given ? r->beta : 1;
    memcpy(p->parameters, r->parameters, sizeof p->parameters);
    status = add_operands(r, p, &s);
    if (!status && r->out)
        status = check_output("out", r->out, &s, p->n);
    if (!status && (r->out || r->preactivation))
        status = mmf_check_aliasing(r, r->alpha != 0, p->beta != 0);
    if (status)
        return status;
    if (r->out) {
        *result = *r->out;
    } else {
        *result = (mmf_tensor){.dtype = out_dtype, .device = r->a->device, .ndim = s.ndim};
        for (int i = 0; i < s.ndim; i++)
            result->shape[i] = s.dims[i];
        mmf_tensor_set_compact(result);
    }
    return MMF_OK;
}

void mmf_problem_set_out(mmf_problem *p, const mmf_request *r, const mmf_tensor *out)
{
    bool has_row = r->a->ndim > 1, has_col = r->b->ndim > 1;
    set_operand(p, MMF_OUT, out);
    place_axes(out, p->batch_ndim, has_row, has_col, &p->strides[MMF_OUT]);
    mmf_problem_merge_axes(p);
}
