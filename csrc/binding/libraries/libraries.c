/* What a Python type offers: found out once per type, then cached in the module state.
 * Path of a call: asked by import.c. */
#include "binding/libraries/library.h"

#include "binding/errors.h"
#include "binding/objects.h"
#include "binding/packed.h"

#include <string.h>

/* In the order in which a type is asked about. */
static const mmf_library *const libraries[] = {
    &mmf_library_numpy,    &mmf_library_jax,  &mmf_library_torch,
    &mmf_library_exchange, &mmf_library_cupy, &mmf_library_dlpack,
};

int mmf_is_subclass(PyTypeObject *type, const char *module_name, const char *attribute)
{
    PyObject *module = mmf_imported_module(module_name);
    if (!module)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *base = mmf_attribute(module, attribute);
    if (!base) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear(); /* lint: a module that is half imported, or of another version */
        return 0;
    }
    /* what stands there in place of a class, a mock say, has no instances */
    int result = PyType_Check(base) ? PyObject_IsSubclass((PyObject *)type, base) : 0;
    Py_DECREF(base);
    return result;
}

PyObject *mmf_type_attribute(PyTypeObject *type, PyObject *name)
{
    PyObject *value = PyObject_GetAttr((PyObject *)type, name);
    if (!value && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear(); /* lint: absence is an answer */
    return value;
}

mmf_status mmf_take_handle(PyObject *value, const mmf_import *of, void **handle)
{
    if (!value && !PyErr_Occurred()) /* not imported, yet its array is here */
        return mmf_fail(MMF_NOT_IMPLEMENTED,
                        "%s's library is not laid out as matmul_fused knows it; report its version",
                        of->name);
    if (!value)
        return MMF_PYTHON_ERROR;
    *handle = PyLong_AsVoidPtr(value);
    Py_DECREF(value);
    return *handle == NULL && PyErr_Occurred() ? MMF_PYTHON_ERROR : MMF_OK;
}

/* A metaclass, say, raised when it was asked for an attribute. */
static mmf_status refuse_raising_type(mmf_state *state, PyObject *object, const char *name)
{
    char text[MMF_PRINTABLE];
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    mmf_describe(object, text);
    PyErr_Restore(type, value, traceback);
    return mmf_raise_from(state,
                          mmf_fail(MMF_TYPE_ERROR,
                                   "%s is a %s, whose type raised when asked for DLPack; pass a "
                                   "plain array",
                                   name, text));
}

mmf_status mmf_find_type(mmf_state *state, PyObject *object, const char *name,
                         mmf_type_facts *facts)
{
    PyTypeObject *type = Py_TYPE(object);
    *facts = (mmf_type_facts){.type = type};
    if (type == state->array_type) {
        facts->library = &mmf_library_array;
        return MMF_OK;
    }
    if (mmf_is_packed_type(type))
        return mmf_fail(MMF_TYPE_ERROR, "%s is a PackedMatrix; only B can be prepacked", name);
    mmf_status status = MMF_OK;
    for (size_t i = 0; !status && !facts->library; i++) /* the last one takes or refuses all */
        status = libraries[i]->recognise(state, object, name, facts);
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
