/* Import through a type's DLPack exchange API (a borrowed view, no capsule), and what torch lets
 * through that way but has no plain memory behind it. Path of a call: asked by import.c. */
#include "binding/errors.h"
#include "binding/import.h"

#include <string.h>

/* Is the attribute of a torch tensor true (equal to text if given)? An attribute that raises counts
 * as false. */
static bool torch_attribute(PyObject *object, const char *attribute, const char *text)
{
    PyObject *value = PyObject_GetAttrString(object, attribute);
    PyObject *compared = value && text ? PyObject_Str(value) : NULL;
    bool result = value && (text ? compared && PyUnicode_CompareWithASCIIString(compared, text) == 0
                                 : PyObject_IsTrue(value) == 1);
    Py_XDECREF(compared);
    Py_XDECREF(value);
    PyErr_Clear(); /* lint: probing why a tensor was refused; the refusal is raised by the caller */
    return result;
}

/* Say why torch gave no view of a tensor. The exception that torch set becomes the cause. */
static mmf_status refuse_torch(mmf_state *state, PyObject *object, const char *name)
{
    static const struct {
        const char *attribute, *text, *what;
    } cases[] = {
        {"is_nested", NULL, "is a nested tensor; pass its parts (unbind()) or a padded tensor"},
        {"is_quantized", NULL, "is a quantized tensor; pass .dequantize()"},
        {"is_mkldnn", NULL, "is an MKL-DNN tensor; pass .to_dense()"},
        {"layout", "torch.strided", NULL},
        {"device", "meta", "is on the meta device, which has no memory"},
    };
    PyObject *type, *value, *traceback;
    mmf_status status = MMF_OK;
    PyErr_Fetch(&type, &value, &traceback);
    for (size_t i = 0; !status && i < sizeof cases / sizeof *cases; i++) {
        bool found = torch_attribute(object, cases[i].attribute, cases[i].text);
        if (!cases[i].what && !found)
            status = mmf_fail(MMF_TYPE_ERROR, "%s is a sparse tensor; pass .to_dense()", name);
        else if (cases[i].what && found)
            status = mmf_fail(MMF_TYPE_ERROR, "%s %s", name, cases[i].what);
    }
    PyErr_Restore(type, value, traceback);
    if (!status)
        status = mmf_fail(
            MMF_TYPE_ERROR,
            "%s has no memory of its own: it belongs to a functorch transform (vmap, grad, "
            "jvp) or a tracer; call matmul_fused outside of it",
            name);
    return mmf_raise_from(state, status);
}

/* A subclass's own __torch_function__, or a mode's, raised. */
static mmf_status torch_raised(mmf_state *state, const mmf_import *import, const char *member)
{
    return mmf_raise_from(state, mmf_fail(MMF_TYPE_ERROR,
                                          "%s: its __torch_function__ raised when asked for %s; "
                                          "pass a plain torch.Tensor",
                                          import->name, member));
}

__attribute__((cold)) static mmf_status check_grad_mode(mmf_state *state, const mmf_import *import)
{
    PyObject *enabled = PyObject_CallFunctionObjArgs(state->torch_is_grad_enabled, NULL);
    if (!enabled)
        return MMF_PYTHON_ERROR;
    Py_DECREF(enabled);
    if (enabled == Py_False)
        return MMF_OK;
    return mmf_fail(
        MMF_VALUE_ERROR,
        "%s requires grad, but matmul_fused records no gradients; pass %s.detach() or call "
        "it under torch.no_grad()",
        import->name, import->name);
}

mmf_status mmf_check_torch_grad(mmf_state *state, const mmf_import *import)
{
    PyObject *object = import->object;
    PyObject *requires_grad =
        state->torch_requires_grad.get(object, state->torch_requires_grad.closure);
    if (!requires_grad)
        return torch_raised(state, import, "requires_grad");
    Py_DECREF(requires_grad);
    return requires_grad == Py_False ? MMF_OK : check_grad_mode(state, import);
}

/* torch's public way to a negative bit is the imaginary part of a conjugated tensor: it and its
 * views step over pairs of numbers, or (as_strided) begin at the second number of a pair. Asking
 * torch gives up and takes back the GIL, so other tensors are not asked about. */
static bool may_be_negative(const mmf_tensor *tensor)
{
    if ((uintptr_t)tensor->data & mmf_dtypes[tensor->dtype].size)
        return true;
    for (int i = tensor->ndim - 1; i >= 0; i--)
        if (tensor->shape[i] > 1 && tensor->strides[i] & 1)
            return false;
    return true;
}

__attribute__((cold)) static mmf_status check_negative_bit(mmf_state *state,
                                                           const mmf_import *import)
{
    PyObject *negative = state->torch_is_neg.ml_meth(import->object, NULL);
    if (!negative)
        return torch_raised(state, import, "is_neg()");
    Py_DECREF(negative);
    if (negative == Py_False)
        return MMF_OK;
    return mmf_fail(MMF_VALUE_ERROR, "%s has its negative bit set; pass %s.resolve_neg()",
                    import->name, import->name);
}

/* The exchange API gave no view. */
__attribute__((cold)) static mmf_status refuse_view(mmf_state *state, const mmf_import *import)
{
    if (import->kind == MMF_KIND_TORCH)
        return refuse_torch(state, import->object, import->name);
    return mmf_raise_from(
        state,
        mmf_fail(MMF_BUFFER_ERROR, "%s: its DLPack exchange API gave no view", import->name));
}

/* Functionalized and zero tensors have elements without memory. */
__attribute__((cold)) static mmf_status check_no_memory(const DLTensor *view, const char *name)
{
    for (int i = 0; i < view->ndim; i++)
        if (view->shape[i] == 0)
            return MMF_OK;
    return mmf_fail(MMF_TYPE_ERROR,
                    "%s has elements but no memory (a functionalized or zero tensor); pass "
                    "%s.clone() outside of the transform",
                    name, name);
}

mmf_status mmf_view_exchange(mmf_state *state, mmf_import *import, bool *asked)
{
    DLTensor view = {0};
    if (import->api->dltensor_from_py_object_no_sync(import->object, &view))
        return refuse_view(state, import);
    mmf_status status = MMF_OK;
    if (!view.data && import->kind == MMF_KIND_TORCH)
        status = check_no_memory(&view, import->name);
    if (!status)
        status = mmf_view_dltensor(&view, import->name, &import->tensor);
    if (asked &&
        import->kind != MMF_KIND_TORCH) /* a library that we do not know may have run Python */
        *asked = true;
    if (!status && asked && import->kind == MMF_KIND_TORCH && may_be_negative(&import->tensor)) {
        *asked = true;
        status = check_negative_bit(state, import);
    }
    return status;
}
