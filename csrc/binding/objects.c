/* Modules, tuples, chains of attributes and calls. Path of a call: under the libraries. */
#include "binding/objects.h"

PyObject *mmf_imported_module(const char *name)
{
    PyObject *modules = PyImport_GetModuleDict(); /* borrowed */
    PyObject *key = PyUnicode_FromString(name);
    PyObject *module = key ? PyDict_GetItemWithError(modules, key) : NULL;
    Py_XDECREF(key);
    return module == Py_None ? NULL : Py_XNewRef(module);
}

PyObject *mmf_get_attribute(PyObject *object, const char *name)
{
    /* Python's cache of type attributes keeps one entry for each string object that it is asked. */
    PyObject *key = PyUnicode_InternFromString(name);
    PyObject *value = key ? PyObject_GetAttr(object, key) : NULL;
    Py_XDECREF(key);
    return value;
}

PyObject *mmf_attribute(PyObject *object, const char *name)
{
    PyObject *value = object ? mmf_get_attribute(object, name) : NULL;
    Py_XDECREF(object);
    return value;
}

PyObject *mmf_invoke(PyObject *callable, int count, PyObject *first, PyObject *second)
{
    PyObject *result = NULL;
    if (callable && (count < 1 || first) && (count < 2 || second))
        result = PyObject_CallFunctionObjArgs(callable, first, second, NULL);
    Py_XDECREF(second);
    Py_XDECREF(first);
    Py_XDECREF(callable);
    return result;
}

PyObject *mmf_shape_tuple(int ndim, const int64_t *shape)
{
    PyObject *tuple = PyTuple_New(ndim);
    for (int i = 0; tuple && i < ndim; i++) {
        PyObject *length = PyLong_FromLongLong(shape[i]);
        if (!length || PyTuple_SetItem(tuple, i, length))
            Py_CLEAR(tuple);
    }
    return tuple;
}
