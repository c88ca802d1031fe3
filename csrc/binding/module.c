/* The module matmul_fused._core: multi-phase init, the state and its cleanup. Path of a call:
 * before its first step. */
#include "binding/array.h"
#include "binding/call.h"
#include "binding/docstrings.h"
#include "binding/gpu_info.h"
#include "binding/libraries/numpy.h"
#include "binding/libraries/torch.h"
#include "binding/packed.h"
#include "binding/report.h"
#include "binding/state.h"
#include "binding/tuned.h"
#include "binding/xla.h"
#include "plan/backends.h"

#define FAST(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef methods[] = {
    {"matmul_fused", FAST(mmf_matmul_fused), METH_FASTCALL | METH_KEYWORDS, mmf_doc_matmul_fused},
    {"prepack", FAST(mmf_prepack_call), METH_FASTCALL | METH_KEYWORDS, MMF_DOC_PREPACK},
    {"as_prepacked", FAST(mmf_as_prepacked_call), METH_FASTCALL | METH_KEYWORDS,
     MMF_DOC_AS_PREPACKED},
    {"explain", FAST(mmf_explain), METH_FASTCALL | METH_KEYWORDS, MMF_DOC_EXPLAIN},
    {"info", mmf_info, METH_NOARGS, MMF_DOC_INFO},
    {"gpus", mmf_gpus, METH_NOARGS, MMF_DOC_GPUS},
    {"activation_table", mmf_activation_table, METH_NOARGS, MMF_DOC_ACTIVATION_TABLE},
    {"_activation", mmf_activation_call_of, METH_O,
     "(name, parameters, gate_layout or None) of what activation= takes."},
    {"_xla_handlers", mmf_xla_handlers, METH_NOARGS,
     "XLA's handlers: (platform, capsule) of each."},
    {"device_manifest", mmf_device_manifest, METH_NOARGS, MMF_DOC_DEVICE_MANIFEST},
    {"device_kernel", mmf_device_kernel, METH_O, MMF_DOC_DEVICE_KERNEL},
    {"device_objects", mmf_device_objects_call, METH_NOARGS, MMF_DOC_DEVICE_OBJECTS},
    {"set_num_threads", mmf_set_num_threads, METH_O, MMF_DOC_SET_NUM_THREADS},
    {"_use_num_threads", mmf_use_num_threads, METH_O,
     "Threads of calls on this thread, None: as on all. Returns what it was."},
    {"get_num_threads", mmf_get_num_threads, METH_NOARGS, MMF_DOC_GET_NUM_THREADS},
    {"force_kernel", mmf_force_kernel, METH_O, MMF_DOC_FORCE_KERNEL},
    {"_set_tuned", mmf_set_tuned, METH_O,
     "Replace the measured choices; returns how many are used."},
    {"_linear", FAST(mmf_linear), METH_FASTCALL | METH_KEYWORDS,
     "matmul_fused of torch tensors with B (N, K); NotImplemented: a call that is not for it."},
    {"_torch_case", mmf_torch_case, METH_O,
     "Device, dtype, shape and recording of a torch tensor as bytes; None: DLPack has no view."},
    {"_unpickle_packed", FAST(mmf_unpickle_packed), METH_FASTCALL,
     "What a pickled PackedMatrix calls."},
    {0},
};

static int add_names(mmf_state *state)
{
    static const char *const texts[] = {
#define MMF_ARGUMENT(id, text) text,
#include "binding/signature.def"
#undef MMF_ARGUMENT
#define X(id, text) text,
        MMF_NAMES(X)
#undef X
    };
    for (int i = 0; i < MMF_NAME_COUNT; i++)
        if (!(state->names[i] = PyUnicode_InternFromString(texts[i])))
            return -1;
    for (int i = 0; i < MMF_ACTIVATION_NAMES; i++)
        if (!(state->activation_names[i] =
                  PyUnicode_InternFromString(mmf_activation_names[i].name)))
            return -1;
    state->max_version = Py_BuildValue("(ii)", MMF_DLPACK_MAJOR, MMF_DLPACK_MINOR);
    return state->max_version ? 0 : -1;
}

/* The tuple of names of the (un)gated activations. */
static int add_activations(PyObject *module, const char *attribute, bool gated)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < MMF_ACTIVATION_NAMES; i++) {
        const mmf_activation id = mmf_activation_names[i].id;
        if (id != MMF_ACT_NONE && mmf_activation_row_of(id)->gated == gated &&
            PyList_Append(list, mmf_state_of(module)->activation_names[i]))
            Py_CLEAR(list);
    }
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    int result = tuple ? PyModule_AddObjectRef(module, attribute, tuple) : -1;
    Py_XDECREF(tuple);
    Py_XDECREF(list);
    return result;
}

static int add_types(PyObject *module, mmf_state *state)
{
    state->array_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &mmf_array_spec, NULL);
    if (!state->array_type || PyModule_AddType(module, state->array_type))
        return -1;
    state->packed_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &mmf_packed_spec, NULL);
    if (!state->packed_type || PyModule_AddType(module, state->packed_type))
        return -1;
    state->device_error = PyErr_NewExceptionWithDoc(
        "matmul_fused.DeviceError",
        "A GPU driver reported an error; the text has the driver's own name for it.",
        PyExc_RuntimeError, NULL);
    return state->device_error ? PyModule_AddObjectRef(module, "DeviceError", state->device_error)
                               : -1;
}

/* DLPack's deleters come on any thread and take the GIL through PyGILState_Ensure(), which knows
 * the main interpreter only. */
static int check_interpreter(void)
{
    int64_t id = PyInterpreterState_GetID(PyInterpreterState_Get());
    if (id > 0)
        PyErr_Format(PyExc_ImportError,
                     "matmul_fused works in the main interpreter only, not in subinterpreter %lld",
                     (long long)id);
    return id == 0 ? 0 : -1;
}

static int execute(PyObject *module)
{
    mmf_state *state = mmf_state_of(module);
    if (check_interpreter())
        return -1;
    mmf_read_environment();
    if (mmf_numpy_load(state) || add_names(state) || add_types(module, state))
        return -1;
    if (add_activations(module, "activations", false) ||
        add_activations(module, "gated_activations", true))
        return -1;
    return PyModule_AddStringConstant(module, "__version__", MMF_VERSION);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    mmf_state *state = mmf_state_of(module);
    Py_VISIT(state->array_type);
    Py_VISIT(state->packed_type);
    Py_VISIT(state->device_error);
    Py_VISIT(state->torch_base);
    Py_VISIT(state->torch_is_grad_enabled);
    Py_VISIT(state->torch_dispatch_modes);
    Py_VISIT(state->bfloat16);
    for (int i = 0; i < MMF_TYPE_CACHE; i++)
        Py_VISIT(state->types[i].type);
    return 0;
}

static int clear(PyObject *module)
{
    mmf_state *state = mmf_state_of(module);
    for (int i = 0; i < MMF_NAME_COUNT; i++)
        Py_CLEAR(state->names[i]);
    for (int i = 0; i < MMF_ACTIVATION_NAMES; i++)
        Py_CLEAR(state->activation_names[i]);
    for (int i = 0; i < MMF_TYPE_CACHE; i++)
        Py_CLEAR(state->types[i].type);
    Py_CLEAR(state->max_version);
    Py_CLEAR(state->array_type);
    Py_CLEAR(state->packed_type);
    Py_CLEAR(state->device_error);
    Py_CLEAR(state->torch_base);
    Py_CLEAR(state->torch_is_grad_enabled);
    Py_CLEAR(state->torch_dispatch_modes);
    Py_CLEAR(state->bfloat16);
    return 0;
}

static void free_module(void *module)
{
    clear(module);
    mmf_cache_clear(&mmf_state_of(module)->plans);
}

/* Slots of later interpreters than the headers are of; what they say is NULL, "not supported". */
enum { MOD_MULTIPLE_INTERPRETERS = 3, MOD_GIL = 4 };

static PyModuleDef_Slot slots[4] = {{Py_mod_exec, execute}}; /* the last one stays 0 */

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "matmul_fused._core",
    .m_doc = "The C side of matmul_fused.",
    .m_size = sizeof(mmf_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__core(void)
{
    if (Py_Version >= 0x030c0000)
        slots[1] = (PyModuleDef_Slot){MOD_MULTIPLE_INTERPRETERS, NULL};
    if (Py_Version >= 0x030d0000)
        slots[2] = (PyModuleDef_Slot){MOD_GIL, NULL}; /* it needs the GIL */
    return PyModuleDef_Init(&definition);
}
