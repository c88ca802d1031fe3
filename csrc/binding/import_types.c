/* What a Python type offers: found out once per type, then cached in the module state.
 * Path of a call: asked by import.c. */
#include "binding/errors.h"
#include "binding/import.h"
#include "binding/numpy.h"

#include <string.h>

PyObject *mmf_imported_module(const char *name)
{
    PyObject *modules = PyImport_GetModuleDict(); /* borrowed */
    PyObject *key = PyUnicode_FromString(name);
    PyObject *module = key ? PyDict_GetItemWithError(modules, key) : NULL;
    Py_XDECREF(key);
    return module == Py_None ? NULL : module;
}

/* Is type a subclass of module.attribute, for a module that somebody else may have imported? 1, 0,
 * or -1. */
static int is_subclass_of(PyTypeObject *type, const char *module_name, const char *attribute)
{
    PyObject *module = mmf_imported_module(module_name);
    if (!module)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *base = PyObject_GetAttrString(module, attribute);
    if (!base) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear(); /* lint: a module that is half imported, or of another version */
        return 0;
    }
    int result = PyObject_IsSubclass((PyObject *)type, base);
    Py_DECREF(base);
    return result;
}

/* New reference to an attribute of the type, or NULL without an exception if there is none. */
static PyObject *type_attribute(PyTypeObject *type, PyObject *name)
{
    PyObject *value = PyObject_GetAttr((PyObject *)type, name);
    if (!value && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear(); /* lint: absence is an answer */
    return value;
}

static mmf_status refuse_dispatch(PyObject *object, const char *name)
{
    char type[MMF_PRINTABLE];
    mmf_type_name(object, type);
    if (strcmp(type, "DTensor") == 0)
        return mmf_fail(MMF_TYPE_ERROR, "%s is a DTensor; pass its local tensor (%s.to_local())",
                        name, name);
    if (strcmp(type, "FakeTensor") == 0)
        return mmf_fail(
            MMF_TYPE_ERROR,
            "%s is a FakeTensor, which has no memory; call matmul_fused on real tensors", name);
    return mmf_fail(
        MMF_TYPE_ERROR,
        "%s is a %s, a torch.Tensor subclass with its own __torch_dispatch__; pass a plain "
        "torch.Tensor",
        name, type);
}

/* Take the C functions behind two members of torch's tensor base type: they are asked on every
 * call. */
static mmf_status find_torch_members(mmf_state *state, PyObject *torch)
{
    PyObject *core = PyObject_GetAttrString(torch, "_C");
    PyObject *base = core ? PyObject_GetAttrString(core, "TensorBase") : NULL;
    PyObject *is_grad_enabled = base ? PyObject_GetAttrString(torch, "is_grad_enabled") : NULL;
    Py_XDECREF(core);
    Py_XDECREF(base); /* the module keeps it */
    if (!is_grad_enabled)
        return MMF_PYTHON_ERROR;
    const PyGetSetDef *attribute = PyType_GetSlot((PyTypeObject *)base, Py_tp_getset);
    const PyMethodDef *method = PyType_GetSlot((PyTypeObject *)base, Py_tp_methods);
    while (attribute && attribute->name && strcmp(attribute->name, "requires_grad"))
        attribute++;
    while (method && method->ml_name && strcmp(method->ml_name, "is_neg"))
        method++;
    if (!attribute || !attribute->name || !method || !method->ml_name ||
        method->ml_flags != METH_NOARGS) {
        Py_DECREF(is_grad_enabled);
        return mmf_fail(MMF_NOT_IMPLEMENTED,
                        "this torch has no Tensor.requires_grad or Tensor.is_neg as matmul_fused "
                        "knows them; report its version");
    }
    state->torch_requires_grad = *attribute;
    state->torch_is_neg = *method;
    state->torch_is_grad_enabled = is_grad_enabled;
    return MMF_OK;
}

static mmf_status find_torch(mmf_state *state, PyObject *object, const char *name)
{
    PyObject *torch = mmf_imported_module("torch"),
             *tensor = PyObject_GetAttrString(torch, "Tensor");
    PyObject *plain =
        tensor ? PyObject_GetAttr(tensor, state->names[MMF_NAME_TORCH_DISPATCH]) : NULL;
    PyObject *own =
        plain ? PyObject_GetAttr((PyObject *)Py_TYPE(object), state->names[MMF_NAME_TORCH_DISPATCH])
              : NULL;
    mmf_status status = own ? MMF_OK : MMF_PYTHON_ERROR;
    if (own && own != plain)
        status = refuse_dispatch(object, name);
    if (!status && !state->torch_is_grad_enabled)
        status = find_torch_members(state, torch);
    Py_XDECREF(own);
    Py_XDECREF(plain);
    Py_XDECREF(tensor);
    return status;
}

static mmf_status refuse_type(PyObject *object, const char *name)
{
    char type[MMF_PRINTABLE];
    bool pair = PyList_Check(object) && (strcmp(name, "B") == 0 || strcmp(name, "bias") == 0);
    return mmf_fail(MMF_TYPE_ERROR, "%s is a %s, not an array; pass %snp.asarray(%s)", name,
                    mmf_type_name(object, type),
                    pair ? "a pair as a tuple (gate, up), one array as " : "", name);
}

/* A metaclass, say, raised when it was asked for an attribute. */
static mmf_status refuse_raising_type(mmf_state *state, PyObject *object, const char *name)
{
    char text[MMF_PRINTABLE];
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    mmf_type_name(object, text);
    PyErr_Restore(type, value, traceback);
    return mmf_raise_from(state,
                          mmf_fail(MMF_TYPE_ERROR,
                                   "%s is a %s, whose type raised when asked for DLPack; pass a "
                                   "plain array",
                                   name, text));
}

static mmf_status classify_numpy(PyTypeObject *type, const char *name)
{
    int masked = is_subclass_of(type, "numpy.ma", "MaskedArray");
    int matrix = masked ? 0 : is_subclass_of(type, "numpy", "matrix");
    if (masked < 0 || matrix < 0)
        return MMF_PYTHON_ERROR;
    if (masked)
        return mmf_fail(
            MMF_TYPE_ERROR,
            "%s is a numpy.ma.MaskedArray, whose mask would be lost; pass %s.filled(...)", name,
            name);
    if (matrix)
        return mmf_fail(MMF_TYPE_ERROR, "%s is a numpy.matrix; pass np.asarray(%s)", name, name);
    return MMF_OK;
}

static mmf_status classify(mmf_state *state, PyObject *object, const char *name,
                           mmf_type_facts *facts)
{
    PyTypeObject *type = Py_TYPE(object);
    if (mmf_numpy_check(object)) {
        facts->kind = MMF_KIND_NUMPY;
        return classify_numpy(type, name);
    }
    int tracer = is_subclass_of(type, "jax.core", "Tracer");
    int jax = tracer ? 0 : is_subclass_of(type, "jax", "Array");
    int torch = tracer || jax ? 0 : is_subclass_of(type, "torch", "Tensor");
    if (tracer < 0 || jax < 0 || torch < 0)
        return MMF_PYTHON_ERROR;
    if (tracer)
        return mmf_fail(
            MMF_TYPE_ERROR,
            "%s is a JAX tracer; call matmul_fused outside jax.jit and other transformations "
            "(matmul_fused.jax will serve those)",
            name);
    mmf_status status = torch ? find_torch(state, object, name) : MMF_OK;
    if (status)
        return status;
    /* A view by the exchange API may be written, and an array of jax may not. */
    PyObject *capsule = jax ? NULL : type_attribute(type, state->names[MMF_NAME_EXCHANGE_API]);
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        bool usable = api->header.version.major == MMF_DLPACK_MAJOR &&
                      api->dltensor_from_py_object_no_sync && api->managed_tensor_allocator &&
                      api->managed_tensor_to_py_object_no_sync;
        facts->api = usable ? api : NULL;
    }
    Py_XDECREF(capsule);
    if (PyErr_Occurred())
        return MMF_PYTHON_ERROR;
    if (facts->api) {
        facts->kind = torch ? MMF_KIND_TORCH : MMF_KIND_EXCHANGE;
        return MMF_OK;
    }
    int cupy = jax ? 0 : is_subclass_of(type, "cupy", "ndarray");
    if (cupy < 0)
        return MMF_PYTHON_ERROR;
    facts->kind = jax ? MMF_KIND_JAX : cupy ? MMF_KIND_CUPY : MMF_KIND_DLPACK;
    PyObject *method = type_attribute(type, state->names[MMF_NAME_DLPACK]);
    if (!method)
        return PyErr_Occurred() ? MMF_PYTHON_ERROR : refuse_type(object, name);
    Py_DECREF(method);
    return MMF_OK;
}

mmf_status mmf_find_type(mmf_state *state, PyObject *object, const char *name,
                         mmf_type_facts *facts)
{
    PyTypeObject *type = Py_TYPE(object);
    *facts = (mmf_type_facts){.type = type};
    if (type == state->array_type || type == state->packed_type) {
        facts->kind = type == state->array_type ? MMF_KIND_ARRAY : MMF_KIND_PACKED;
        return MMF_OK;
    }
    mmf_status status = classify(state, object, name, facts);
    if (status == MMF_PYTHON_ERROR)
        return refuse_raising_type(state, object, name);
    if (status)
        return status;
    mmf_type_facts *slot = &state->types[state->next_type];
    PyTypeObject *evicted = slot->type;
    *slot = *facts;
    Py_INCREF((PyObject *)type);
    state->next_type = (state->next_type + 1) % MMF_TYPE_CACHE;
    Py_XDECREF((PyObject *)evicted);
    return MMF_OK;
}
