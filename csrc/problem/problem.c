/* From tensors to a checked problem: shapes, and where every operand's elements lie.
 * Path of a call: first stop after the import; nothing is written before all of this has
 * passed. */
#include "problem/problem.h"

#include "problem/checks.h"
#include "problem/merge.h"
#include "problem/overlap.h"

#include <stdio.h>
#include <string.h>

const mmf_operand_row mmf_operands[MMF_OPERANDS] = {
#define MMF_OPERAND(id, name, axes, access, dtypes, stream)                                        \
    {name, MMF_AXES_##axes, MMF_##access, MMF_DTYPES_##dtypes, MMF_STREAM_##stream},
#include "problem/operands.def"
#undef MMF_OPERAND
};

const char *mmf_feature_name(int feature)
{
    switch (feature) {
    case MMF_FEATURE_GATED:
        return "gated activations";
    case MMF_FEATURE_PACKED:
        return "prepacked weights";
    case MMF_FEATURE_IMMEDIATES:
        return "numbers as bias, C or multiply";
    default:
        return mmf_operands[feature].name;
    }
}

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
    const mmf_tensor *a = r->operand[MMF_A], *b = r->operand[MMF_B];
    char a_text[MMF_SHAPE_TEXT], b_text[MMF_SHAPE_TEXT], text[512];
    snprintf(text, sizeof text, format, mmf_shape_text(a->ndim, a->shape, a_text),
             mmf_shape_text(b->ndim, b->shape, b_text));
    return mmf_fail(MMF_VALUE_ERROR, "%s", text);
}

/* K differs. A weight stored (N, K), as in torch.nn.Linear, is the commonest reason. */
__attribute__((cold)) static mmf_status fail_depth(const mmf_request *r)
{
    const mmf_tensor *a = r->operand[MMF_A], *b = r->operand[MMF_B];
    const bool transposed =
        b->ndim > 1 && !r->terms.packed && a->shape[a->ndim - 1] == b->shape[b->ndim - 1];
    const char *hint = !transposed            ? ""
                       : r->operand[MMF_B_UP] ? "; (N, K) weights? pass (B[0].T, B[1].T)"
                       : b->ndim == 2         ? "; an (N, K) weight? pass B.T"
                                              : "; (N, K) weights? pass B.mT";
    char format[256];
    snprintf(format, sizeof format,
             "A %%s and B %%s do not match: K is the last axis of A and the last but one of B%s",
             hint);
    return fail_shapes(r, format);
}

static mmf_status broadcast_batch(const mmf_request *r, shapes *s)
{
    const mmf_tensor *a = r->operand[MMF_A], *b = r->operand[MMF_B];
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
    const mmf_tensor *a = r->operand[MMF_A], *b = r->operand[MMF_B], *up = r->operand[MMF_B_UP];
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
        return fail_depth(r);
    if (gate != MMF_GATE_NONE && b->ndim == 1)
        return fail_shapes(r, "a gated activation needs columns: A is %s, but B %s has one axis");
    if (split && b->shape[b->ndim - 1] % 2)
        return fail_shapes(r, "a gated activation needs an even number of columns: A is %s, B %s");
    return MMF_OK;
}

static mmf_status make_shapes(const mmf_request *r, mmf_gate_layout gate, mmf_problem *p, shapes *s)
{
    const mmf_tensor *a = r->operand[MMF_A], *b = r->operand[MMF_B];
    mmf_status status = check_product_shapes(r, gate);
    if (!status)
        status = broadcast_batch(r, s);
    if (status)
        return status;
    s->has_row = a->ndim > 1;
    s->has_col = b->ndim > 1;
    p->m = s->has_row ? a->shape[a->ndim - 2] : 1;
    p->n = s->has_col ? b->shape[b->ndim - 1] : 1;
    p->k = mmf_is_zero(r->terms.alpha) ? 0 : a->shape[a->ndim - 1];
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

/* A problem while it is made. */
typedef struct making {
    const mmf_request *request;
    mmf_problem *problem;
    mmf_buffers *buffers;
    shapes shapes;
} making;

static void set_operand(making *m, mmf_operand operand, mmf_dtype dtype, void *data)
{
    m->problem->dtype[operand] = (uint8_t)dtype;
    m->buffers->data[operand] = data;
}

/* Split the operand whose columns are those of z into its gate stream and its up stream (operand +
 * 1). */
static void split_gate(making *m, mmf_operand gate_operand)
{
    mmf_problem *p = m->problem;
    mmf_operand up_operand = gate_operand + 1;
    mmf_strides *gate = &p->strides[gate_operand];
    int64_t size = mmf_dtypes[p->dtype[gate_operand]].size, col = gate->col;
    char *first = m->buffers->data[gate_operand];
    int64_t distance = p->gate_layout == MMF_GATE_INTERLEAVED ? col : col * p->n;
    char *second = first ? first + distance * size : NULL;
    bool up_first = p->gate_layout == MMF_GATE_HALVES_UP_FIRST;
    if (p->gate_layout == MMF_GATE_INTERLEAVED)
        gate->col = 2 * col;
    p->strides[up_operand] = *gate;
    if (p->immediates & mmf_immediate(gate_operand))
        p->immediates |= mmf_immediate(up_operand);
    m->buffers->data[gate_operand] = up_first ? second : first;
    set_operand(m, up_operand, p->dtype[gate_operand], up_first ? first : second);
}

/* Columns of an epilogue operand: of a pair, each has those of out. */
static int64_t columns_of(const making *m, mmf_operand operand)
{
    bool pair =
        mmf_operands[operand].stream == MMF_STREAM_UP ||
        (mmf_operands[operand].stream == MMF_STREAM_GATE && m->request->operand[operand + 1]);
    return mmf_operands[operand].axes == MMF_AXES_Z && !pair ? m->shapes.z_columns : m->problem->n;
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

/* Add an epilogue operand: one that is read broadcasts, one that is written has the exact shape. */
static mmf_status add_epilogue(making *m, mmf_operand operand)
{
    const mmf_tensor *t = m->request->operand[operand];
    const char *name = mmf_operand_name(m->request, operand);
    const int64_t columns = columns_of(m, operand);
    if (mmf_operands[operand].access == MMF_WRITE) {
        mmf_status status = check_output(name, t, &m->shapes, columns);
        if (status)
            return status;
    }
    if (!place(t, &m->shapes, columns, &m->problem->strides[operand])) {
        char given[MMF_SHAPE_TEXT], wanted[MMF_SHAPE_TEXT];
        return mmf_fail(MMF_VALUE_ERROR, "%s has shape %s, which does not broadcast to %s", name,
                        mmf_shape_text(t->ndim, t->shape, given),
                        result_text(&m->shapes, columns, wanted));
    }
    set_operand(m, operand, t->dtype, t->data);
    return MMF_OK;
}

static void add_product(making *m, mmf_operand operand)
{
    const mmf_tensor *t = m->request->operand[operand];
    set_operand(m, operand, t->dtype, t->data);
    place_product(t, m->problem->batch_ndim, operand != MMF_A, &m->problem->strides[operand]);
}

static void add_weights(making *m)
{
    const mmf_request *r = m->request;
    const mmf_tensor *b = r->operand[MMF_B];
    bool gated = mmf_problem_gated(m->problem);
    if (r->terms.packed) {
        mmf_strides strides = {0};
        if (r->terms.packed & MMF_PACKED_STRIDED)
            place_product(b, m->problem->batch_ndim, true, &strides);
        for (int i = MMF_B; i <= MMF_B + gated; i++) {
            set_operand(m, i, b->dtype, i == MMF_B ? b->data : r->panels_up);
            m->problem->strides[i] = strides;
        }
        return;
    }
    add_product(m, MMF_B);
    if (r->operand[MMF_B_UP])
        add_product(m, MMF_B_UP);
    else if (gated)
        split_gate(m, MMF_B);
}

/* Every operand but out. */
static mmf_status add_operands(making *m)
{
    mmf_problem *p = m->problem;
    add_product(m, MMF_A);
    add_weights(m);
    for (mmf_operand i = MMF_B_UP + 1; i < MMF_OUT; i++) {
        const bool splits = mmf_operands[i].stream == MMF_STREAM_GATE;
        if (!m->request->operand[i])
            continue;
        mmf_status status = add_epilogue(m, i);
        if (status)
            return status;
        if (i == MMF_C && mmf_is_zero(p->beta)) { /* checked, not read */
            p->strides[i] = (mmf_strides){0};
            set_operand(m, i, MMF_ABSENT, NULL);
            p->immediates &= (uint8_t)~mmf_immediate(i);
        } else if (splits && mmf_problem_gated(p) && !m->request->operand[i + 1]) {
            split_gate(m, i);
        }
    }
    return MMF_OK;
}

/* All of the problem but its shapes and operands. */
static void set_terms(const mmf_request *r, mmf_gate_layout gate, mmf_problem *p)
{
    const mmf_terms *terms = &r->terms;
    memset(p, 0, sizeof *p);
    memset(p->dtype, MMF_ABSENT, sizeof p->dtype);
    p->device = r->operand[MMF_A]->device;
    p->activation = terms->activation;
    p->gate_layout = (uint8_t)gate;
    p->packed = terms->packed & MMF_PACKED_STRIDED ? 0 : terms->packed;
    p->allow_tf32 = terms->allow_tf32;
    p->immediates = terms->immediates;
    p->alpha = terms->alpha;
    p->beta = !r->operand[MMF_C] ? 0 : terms->beta_given ? terms->beta : 1;
    memcpy(p->parameters, terms->parameters, sizeof p->parameters);
}

mmf_status mmf_problem_make(const mmf_request *r, mmf_problem *p, mmf_buffers *buffers,
                            mmf_tensor *result)
{
    const mmf_tensor *out = r->operand[MMF_OUT];
    making m = {.request = r, .problem = p, .buffers = buffers};
    mmf_dtype out_dtype = MMF_ABSENT;
    mmf_gate_layout gate = MMF_GATE_NONE;
    if (r->terms.beta_given && !r->operand[MMF_C])
        return mmf_fail(MMF_VALUE_ERROR, "beta was given without C; pass C or drop beta");
    mmf_status status = mmf_check_types_and_devices(r, &out_dtype);
    if (!status)
        status = mmf_check_gate(r, &gate);
    if (status)
        return status;
    memset(buffers, 0, sizeof *buffers);
    set_terms(r, gate, p);
    status = make_shapes(r, gate, p, &m.shapes);
    if (!status)
        status = add_operands(&m);
    if (!status && out)
        status = check_output("out", out, &m.shapes, p->n);
    if (!status && (out || r->operand[MMF_PREACTIVATION]))
        status = mmf_check_aliasing(r, !mmf_is_zero(r->terms.alpha), !mmf_is_zero(p->beta));
    if (status)
        return status;
    if (out) {
        *result = *out;
        return MMF_OK;
    }
    *result = (mmf_tensor){.dtype = out_dtype, .device = p->device, .ndim = m.shapes.ndim};
    for (int i = 0; i < m.shapes.ndim; i++)
        result->shape[i] = m.shapes.dims[i];
    mmf_tensor_set_compact(result);
    return MMF_OK;
}

void mmf_problem_set_out(mmf_problem *p, mmf_buffers *buffers, const mmf_request *r,
                         const mmf_tensor *out)
{
    bool has_row = r->operand[MMF_A]->ndim > 1, has_col = r->operand[MMF_B]->ndim > 1;
    p->dtype[MMF_OUT] = (uint8_t)out->dtype;
    buffers->data[MMF_OUT] = out->data;
    if (p->k == 0 && p->device.type != MMF_CPU)
        p->packed = 0; /* nobody reads it */
    place_axes(out, p->batch_ndim, has_row, has_col, &p->strides[MMF_OUT]);
    p->features = (mmf_problem_gated(p) ? MMF_HAS(MMF_FEATURE_GATED) : 0) |
                  (p->packed ? MMF_HAS(MMF_FEATURE_PACKED) : 0) |
                  (p->immediates ? MMF_HAS(MMF_FEATURE_IMMEDIATES) : 0);
    for (int i = 0; i < MMF_OPERANDS; i++) {
        p->features |= p->dtype[i] != MMF_ABSENT ? MMF_HAS(i) : 0;
        if (p->device.type != MMF_CPU && !(p->immediates & mmf_immediate((mmf_operand)i)))
            p->offset[i] = (uintptr_t)buffers->data[i] % 64;
    }
    mmf_problem_merge_axes(p);
}
