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

static mmf_status check_grad(mmf_state *state, PyObject *object, const char *name)
{
    PyObject *requires_grad =
        state->torch_requires_grad.get(object, state->torch_requires_grad.closure);
    if (!requires_grad)
        return MMF_PYTHON_ERROR;
    Py_DECREF(requires_grad);
    if (requires_grad == Py_False)
        return MMF_OK;
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
        name, name);
}

/* torch's public way to a negative bit is the imaginary part of a conjugated tensor: it and its
 * views step over pairs of numbers, or (as_strided) begin at the second number of a pair. Asking
 * torch gives up and takes back the GIL, so other tensors are not asked about. */
static bool may_be_negative(const mmf_tensor *tensor)
{
    if ((uintptr_t)tensor->data & mmf_dtypes[tensor->dtype].size)
        return true;
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] > 1 && tensor->strides[i] & 1)
            return false;
    return true;
}

static mmf_status check_negative_bit(mmf_state *state, PyObject *object, const char *name)
{
    PyObject *negative = state->torch_is_neg.ml_meth(object, NULL);
    if (!negative)
        return MMF_PYTHON_ERROR;
    Py_DECREF(negative);
    if (negative == Py_False)
        return MMF_OK;
    return mmf_fail(MMF_VALUE_ERROR, "%s has its negative bit set; pass %s.resolve_neg()", name,
                    name);
}

mmf_status mmf_import_exchange(mmf_state *state, const char *name, mmf_import *import)
{
    DLTensor view = {0};
    PyObject *object = import->object;
    bool torch = import->kind == MMF_KIND_TORCH;
    if (import->api->dltensor_from_py_object_no_sync(object, &view)) {
        if (torch)
            return refuse_torch(state, object, name);
        return mmf_raise_from(
            state, mmf_fail(MMF_BUFFER_ERROR, "%s: its DLPack exchange API gave no view", name));
    }
    if (torch && !view.data) { /* functionalized and zero tensors have elements without memory */
        int64_t size = 1;
        for (int i = 0; i < view.ndim; i++)
            size *= view.shape[i];
        if (size)
            return mmf_fail(MMF_TYPE_ERROR,
                            "%s has elements but no memory (a functionalized or zero tensor); pass "
                            "%s.clone() outside of the transform",
                            name, name);
    }
    mmf_status status = mmf_view_dltensor(&view, name, &import->tensor);
    if (!status && torch)
        status = check_grad(state, object, name);
    if (!status && torch && may_be_negative(&import->tensor))
        status = check_negative_bit(state, object, name);
    return status;
}
