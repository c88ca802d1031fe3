/* The handlers of XLA as objects, and an activation as plain values. Not on the path of a call:
 * asked while jax traces. */
#include "binding/xla.h"

#include "binding/activations.h"
#include "binding/errors.h"
#include "xla/handler.h"

PyObject *mmf_activation_call_of(PyObject *module, PyObject *activation)
{
    mmf_state *state = mmf_state_of(module);
    mmf_terms terms = {0};
    mmf_status status = mmf_parse_activation(state, activation, &terms);
    if (status)
        return mmf_raise(state, status);
    const mmf_activation id = (mmf_activation)terms.activation;
    const int count = mmf_activation_parameters(id);
    PyObject *parameters = PyTuple_New(count), *result = NULL;
    for (int i = 0; parameters && i < count; i++) {
        PyObject *value = PyFloat_FromDouble(terms.parameters[i]);
        if (!value || PyTuple_SetItem(parameters, i, value))
            Py_CLEAR(parameters);
    }
    if (parameters)
        result = Py_BuildValue("(sOz)", mmf_activation_row_of(id)->name, parameters,
                               mmf_gate_layout_name((mmf_gate_layout)terms.gate_layout));
    Py_XDECREF(parameters);
    return result;
}

/* XLA wants the address of a function as a pointer to an object. */
static PyObject *capsule_of(mmf_ffi_error *(*handler)(mmf_ffi_frame *frame))
{
    return PyCapsule_New((void *)(uintptr_t)handler, NULL, NULL);
}

PyObject *mmf_xla_handlers(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return Py_BuildValue("((sN)(sN)(sN))", "cpu", capsule_of(mmf_xla_run), "CUDA",
                         capsule_of(mmf_xla_run_cuda), "ROCM", capsule_of(mmf_xla_run_rocm));
}
