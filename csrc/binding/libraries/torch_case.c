/* What a patched layer of matmul_fused.torch chooses its form by, in one question instead of eight
 * of Python: a layer that is left alone pays for them with every call. Path of a call: before it.
 */
#include "binding/import.h"
#include "binding/libraries/library.h"
#include "binding/libraries/torch.h"

#include <string.h>

/* Without padding: its bytes are the key. */
typedef struct torch_case {
    int32_t device, ordinal, ndim;
    DLDataType dtype;
    int32_t recording;
    int32_t requires_grad; /* 0 while nothing is recorded */
    int64_t shape[MMF_MAX_RANK];
} torch_case;

/* True, false, or -1 with an exception. */
static int take_truth(PyObject *answer)
{
    const int truth = answer ? answer == Py_True : -1;
    Py_XDECREF(answer);
    return truth;
}

static bool describe(mmf_state *state, PyObject *object, torch_case *found)
{
    const mmf_type_facts *facts = mmf_known_type(state, Py_TYPE(object));
    mmf_type_facts unknown;
    DLTensor view = {0};
    if (!facts && !mmf_find_type(state, object, "x", &unknown))
        facts = &unknown;
    if (!facts || facts->library != &mmf_library_torch ||
        facts->api->dltensor_from_py_object_no_sync(object, &view) || view.ndim > MMF_MAX_RANK)
        return false;
    found->device = (int32_t)view.device.device_type;
    found->ordinal = view.device.device_id;
    found->dtype = view.dtype;
    found->ndim = view.ndim;
    memcpy(found->shape, view.shape, (size_t)view.ndim * sizeof *view.shape);
    found->recording = take_truth(PyObject_CallNoArgs(state->torch_is_grad_enabled));
    if (found->recording > 0)
        found->requires_grad =
            take_truth(state->torch_requires_grad.get(object, state->torch_requires_grad.closure));
    return found->recording >= 0 && found->requires_grad >= 0;
}

PyObject *mmf_torch_case(PyObject *module, PyObject *object)
{
    torch_case found = {0};
    if (describe(mmf_state_of(module), object, &found))
        return PyBytes_FromStringAndSize(
            (const char *)&found,
            (Py_ssize_t)(offsetof(torch_case, shape) + (size_t)found.ndim * sizeof *found.shape));
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) /* an interrupt */
        return NULL;
    PyErr_Clear(); /* lint: a tensor without a case is for torch's own form */
    return Py_NewRef(Py_None);
}
