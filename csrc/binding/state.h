/* Everything Python that the module holds: interned names, types, facts about argument types. One
 * per module object. Path of a call: every function of binding/ is given it. */
#ifndef MMF_STATE_H
#define MMF_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Counted by functions of the running interpreter: since CPython 3.12 None, bools and small numbers
 * are not counted, but code that the headers of 3.11 inline counts them, in the end to their death.
 */
#undef Py_INCREF
#undef Py_DECREF
#undef Py_XINCREF
#undef Py_XDECREF
#undef Py_NewRef
#undef Py_XNewRef
#define Py_INCREF(object) Py_IncRef((PyObject *)(object))
#define Py_DECREF(object) Py_DecRef((PyObject *)(object))
#define Py_XINCREF(object) Py_IncRef((PyObject *)(object)) /* both take NULL */
#define Py_XDECREF(object) Py_DecRef((PyObject *)(object))

#include "plan/cache.h"
#include "problem/activation.h"
#include "problem/dlpack_abi.h"
#include "problem/tensor.h"

#include <stdbool.h>

/* Interned names besides those of signature.def: X(enumerator, text). */
#define MMF_NAMES(X)                                                                               \
    X(LAYOUT, "layout")                                                                            \
    X(TENSOR, "tensor")                                                                            \
    X(SHAPE, "shape")                                                                              \
    X(MAX_VERSION, "max_version")                                                                  \
    X(DL_DEVICE, "dl_device")                                                                      \
    X(COPY, "copy")                                                                                \
    X(DTYPE, "dtype")                                                                              \
    X(DLPACK, "__dlpack__")                                                                        \
    X(DLPACK_DEVICE, "__dlpack_device__")                                                          \
    X(CUDA_STREAM, "__cuda_stream__")                                                              \
    X(EXCHANGE_API, "__dlpack_c_exchange_api__")                                                   \
    X(TORCH_DISPATCH, "__torch_dispatch__")                                                        \
    X(ARRAY_UFUNC, "__array_ufunc__")                                                              \
    X(ARRAY_NAMESPACE, "__array_namespace__")

typedef enum mmf_name {
#define MMF_ARGUMENT(id, text) MMF_NAME_##id,
#include "binding/signature.def"
#undef MMF_ARGUMENT
#define X(id, text) MMF_NAME_##id,
    MMF_NAMES(X)
#undef X
        MMF_NAME_COUNT
} mmf_name;

/* Whose arrays the objects of a Python type are. */
typedef struct mmf_type_facts {
    PyTypeObject *type; /* owned; NULL: free slot */
    const struct mmf_library *library;
    const DLPackExchangeAPI *api; /* NULL: none; lives as long as the process */
} mmf_type_facts;

enum { MMF_TYPE_CACHE = 16 };

typedef struct mmf_state {
    PyObject *names[MMF_NAME_COUNT];
    PyObject *activation_names[MMF_ACTIVATION_NAMES]; /* interned */
    PyObject *max_version;                            /* (1, 3) */
    PyTypeObject *array_type, *packed_type;
    PyTypeObject *ndarray_type; /* borrowed: NumPy is never unloaded */
    PyObject *device_error;
    PyTypeObject *torch_base;        /* torch._C.TensorBase once torch was seen, and what follows */
    PyObject *torch_is_grad_enabled; /* torch.is_grad_enabled */
    PyObject *torch_dispatch_modes;  /* torch._C._len_torch_dispatch_stack */
    PyGetSetDef torch_requires_grad; /* torch.Tensor.requires_grad and .is_neg without the attribute
                                        look-up */
    PyMethodDef torch_is_neg;
    PyObject *bfloat16; /* np.dtype of ml_dtypes.bfloat16 once it was seen */
    int bfloat16_number;
    mmf_type_facts types[MMF_TYPE_CACHE];
    int next_type;
    mmf_plan_cache plans;
} mmf_state;

/* The state of a module, or of the module that a heap type belongs to. */
static inline mmf_state *mmf_state_of(PyObject *module)
{
    return (mmf_state *)PyModule_GetState(module);
}

static inline mmf_state *mmf_state_of_type(PyTypeObject *type)
{
    return (mmf_state *)PyType_GetModuleState(type);
}

#endif
