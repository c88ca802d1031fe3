/* Checks of operands against each other that need no shapes of the result.
 * Path of a call: asked by problem.c, before and after it has made the problem. */
#include "problem/checks.h"

#include "problem/overlap.h"

#include <string.h>

static const char *dtype_name(mmf_dtype dtype)
{
    return mmf_dtypes[dtype].name;
}

const char *mmf_operand_name(const mmf_request *r, mmf_operand operand)
{
    bool pair = mmf_operands[operand].stream == MMF_STREAM_GATE && r->operand[operand + 1];
    if (!pair)
        return mmf_operands[operand].name;
    return operand == MMF_B ? "B[0]" : "bias[0]";
}

static mmf_status check_out_dtype(const mmf_request *r, mmf_dtype *result)
{
    const mmf_tensor *out = r->operand[MMF_OUT];
    const mmf_dtype given = (mmf_dtype)r->terms.out_dtype;
    if (out && given != MMF_ABSENT && out->dtype != given)
        return mmf_fail(MMF_VALUE_ERROR,
                        "out has dtype %s but out_dtype is %s; drop out_dtype or pass another out",
                        dtype_name(out->dtype), dtype_name(given));
    *result = out ? out->dtype : given != MMF_ABSENT ? given : r->operand[MMF_A]->dtype;
    return MMF_OK;
}

static mmf_status check_dtype(const mmf_request *r, mmf_operand operand, mmf_dtype result)
{
    const mmf_dtype_rule rule = (mmf_dtype_rule)mmf_operands[operand].dtypes;
    mmf_dtype dtype = r->operand[operand]->dtype, a = r->operand[MMF_A]->dtype;
    if (dtype == a || rule == MMF_DTYPES_ANY)
        return MMF_OK;
    if (rule == MMF_DTYPES_LIKE_A)
        return mmf_fail(MMF_TYPE_ERROR,
                        "A and %s must have one dtype, got %s and %s; convert one of them",
                        mmf_operand_name(r, operand), dtype_name(a), dtype_name(dtype));
    if (dtype == result || dtype == MMF_FLOAT32)
        return MMF_OK;
    return mmf_fail(
        MMF_TYPE_ERROR,
        "%s has dtype %s; it must be float32, that of A (%s) or that of the result (%s)",
        mmf_operand_name(r, operand), dtype_name(dtype), dtype_name(a), dtype_name(result));
}

static mmf_status check_device(const mmf_request *r, mmf_operand operand)
{
    mmf_device given = r->operand[operand]->device, wanted = r->operand[MMF_A]->device;
    char given_text[24], wanted_text[24];
    if (given.type == wanted.type && given.id == wanted.id)
        return MMF_OK;
    return mmf_fail(MMF_VALUE_ERROR, "%s is on %s but A is on %s; move it to A's device",
                    mmf_operand_name(r, operand), mmf_device_name(given, given_text),
                    mmf_device_name(wanted, wanted_text));
}

__attribute__((noinline)) static mmf_status check_each(const mmf_request *r, mmf_dtype *result)
{
    mmf_status status = check_out_dtype(r, result);
    for (int i = MMF_B; !status && i < MMF_OPERANDS; i++) {
        if (!r->operand[i] || r->terms.immediates & mmf_immediate((mmf_operand)i))
            continue;
        status = check_device(r, (mmf_operand)i);
        if (!status)
            status = check_dtype(r, (mmf_operand)i, *result);
    }
    return status;
}

mmf_status mmf_check_types_and_devices(const mmf_request *r, mmf_dtype *result)
{
    const mmf_tensor *a = r->operand[MMF_A];
    unsigned differs = r->terms.out_dtype ^ MMF_ABSENT;
    for (int i = MMF_B; i < MMF_OPERANDS; i++) {
        const mmf_tensor *t = r->operand[i];
        if (t)
            differs |= (t->dtype ^ a->dtype) | (unsigned)(t->device.type ^ a->device.type) |
                       (unsigned)(t->device.id ^ a->device.id);
    }
    *result = a->dtype;
    return differs ? check_each(r, result) : MMF_OK;
}

mmf_status mmf_check_gate(const mmf_request *r, mmf_gate_layout *gate)
{
    const mmf_terms *terms = &r->terms;
    const mmf_gate_layout given = (mmf_gate_layout)terms->gate_layout;
    const bool b_up = r->operand[MMF_B_UP], bias_up = r->operand[MMF_BIAS_UP];
    const mmf_activation_row *row = mmf_activation_row_of((mmf_activation)r->terms.activation);
    *gate = MMF_GATE_NONE;
    if (given != MMF_GATE_NONE && (!row->gated || b_up))
        return mmf_fail(MMF_VALUE_ERROR, "gate_layout was given but %s; drop it",
                        row->gated ? "B is a pair, which needs none"
                                   : "the activation has no gate");
    if (!row->gated) {
        if (b_up)
            return mmf_fail(
                MMF_VALUE_ERROR,
                "B is a pair (gate, up) but activation %s is not gated; pass swiglu, geglu, ...",
                row->name);
        if (terms->packed && terms->packed_gate != MMF_GATE_NONE)
            return mmf_fail(MMF_VALUE_ERROR,
                            "B was prepacked for a gate but activation %s is not gated", row->name);
        if (bias_up)
            return mmf_fail(MMF_VALUE_ERROR, "bias is a pair but B is not; pass one bias");
        return MMF_OK;
    }
    if (b_up) {
        *gate = MMF_GATE_PAIR;
    } else if (terms->packed) {
        if (terms->packed_gate == MMF_GATE_NONE)
            return mmf_fail(MMF_VALUE_ERROR,
                            "activation %s needs a weight prepacked for its gate; "
                            "use prepack(B, gate_layout=\"halves\")",
                            row->name);
        if (given != MMF_GATE_NONE && given != terms->packed_gate)
            return mmf_fail(MMF_VALUE_ERROR,
                            "gate_layout differs from the one that B was prepacked with; drop it");
        *gate = (mmf_gate_layout)terms->packed_gate;
    } else {
        *gate = given == MMF_GATE_NONE ? MMF_GATE_HALVES : given;
    }
    bool takes_pair =
        *gate == MMF_GATE_PAIR || terms->packed; /* a packed weight may stem from a pair */
    const bool number = terms->immediates & mmf_immediate(MMF_BIAS); /* serves both */
    if (r->operand[MMF_BIAS] && (bias_up ? !takes_pair : *gate == MMF_GATE_PAIR && !number))
        return mmf_fail(MMF_VALUE_ERROR,
                        bias_up ? "bias is a pair but B is not; pass one bias of B's columns"
                                : "B is a pair, so bias must be None or a pair (gate, up)");
    return MMF_OK;
}

static bool same_elements(const mmf_tensor *x, const mmf_tensor *y)
{
    if (x->data != y->data || x->dtype != y->dtype || x->ndim != y->ndim)
        return false;
    for (int i = 0; i < x->ndim; i++)
        if (x->shape[i] != y->shape[i] || (x->shape[i] > 1 && x->strides[i] != y->strides[i]))
            return false;
    return true;
}

static bool collides(const mmf_tensor *output, const mmf_tensor *t)
{
    return output && mmf_tensors_overlap(output, t);
}

/* An operand whose addresses are among those of an output: does it share an element? */
__attribute__((noinline)) static mmf_status check_operand(const mmf_request *r, mmf_operand operand,
                                                          bool reads_products, bool reads_c)
{
    const mmf_tensor *t = r->operand[operand], *out = r->operand[MMF_OUT];
    bool is_a = operand == MMF_A, is_c = operand == MMF_C;
    bool read = operand <= MMF_B_UP ? reads_products && (is_a || !r->terms.packed ||
                                                         (r->terms.packed & MMF_PACKED_COMPACT))
                                    : !is_c || reads_c;
    if (!read)
        return MMF_OK;
    if (collides(out, t) && !(is_c && same_elements(out, t)))
        return mmf_fail(MMF_VALUE_ERROR, "out shares memory with %s; pass another out%s",
                        mmf_operand_name(r, operand), is_c ? ", or C itself" : "");
    if (collides(r->operand[MMF_PREACTIVATION], t))
        return mmf_fail(MMF_VALUE_ERROR, "preactivation shares memory with %s; pass another array",
                        mmf_operand_name(r, operand));
    return MMF_OK;
}

mmf_status mmf_check_aliasing(const mmf_request *r, bool reads_products, bool reads_c)
{
    const mmf_extent nowhere = {0, 0};
    const mmf_tensor *result = r->operand[MMF_OUT], *z = r->operand[MMF_PREACTIVATION];
    mmf_extent out = result ? mmf_tensor_extent(result) : nowhere;
    mmf_extent pre = z ? mmf_tensor_extent(z) : nowhere;
    for (int i = MMF_A; i < MMF_OPERANDS; i++) {
        if (!r->operand[i] || mmf_operands[i].access == MMF_WRITE ||
            r->terms.immediates & mmf_immediate((mmf_operand)i))
            continue;
        mmf_extent extent = mmf_tensor_extent(r->operand[i]);
        if (!mmf_extents_meet(out, extent) && !mmf_extents_meet(pre, extent))
            continue; /* nearly always */
        mmf_status status = check_operand(r, (mmf_operand)i, reads_products, reads_c);
        if (status)
            return status;
    }
    if (mmf_extents_meet(out, pre) && collides(result, z))
        return mmf_fail(MMF_VALUE_ERROR,
                        "preactivation shares memory with out; pass another array");
    return MMF_OK;
}
