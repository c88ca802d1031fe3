/* Status to Python exception. Path of a call: its last stop if anything failed. */
#include "binding/errors.h"

#include <stdio.h>

static PyObject *exception_of(const mmf_state *state, mmf_status status)
{
    switch (status) {
    case MMF_TYPE_ERROR:
        return PyExc_TypeError;
    case MMF_VALUE_ERROR:
        return PyExc_ValueError;
    case MMF_BUFFER_ERROR:
        return PyExc_BufferError;
    case MMF_NOT_IMPLEMENTED:
        return PyExc_NotImplementedError;
    case MMF_NO_MEMORY:
        return PyExc_MemoryError;
    case MMF_DEVICE_ERROR:
        return state->device_error;
    default:
        return PyExc_SystemError;
    }
}

PyObject *mmf_raise(mmf_state *state, mmf_status status)
{
    if (status != MMF_PYTHON_ERROR)
        PyErr_SetString(exception_of(state, status), mmf_error_text());
    return NULL;
}

mmf_status mmf_raise_from(mmf_state *state, mmf_status status)
{
    PyObject *type, *cause, *traceback, *value;
    if (!PyErr_Occurred()) { /* a producer that failed without saying why */
        mmf_raise(state, status);
        return MMF_PYTHON_ERROR;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError))
        return MMF_PYTHON_ERROR;
    PyErr_Fetch(&type, &cause, &traceback);
    PyErr_NormalizeException(&type, &cause, &traceback);
    if (traceback)
        PyException_SetTraceback(cause, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    mmf_raise(state, status);
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyException_SetCause(value, Py_NewRef(cause));
    PyException_SetContext(value, cause);
    PyErr_Restore(type, value, traceback);
    return MMF_PYTHON_ERROR;
}

const char *mmf_type_name(PyObject *object, char text[96])
{
    PyObject *name = PyType_GetName(Py_TYPE(object));
    const char *utf8 = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    snprintf(text, 96, "%s", utf8 ? utf8 : "object");
    if (!utf8)
        PyErr_Clear(); /* lint: a text for an error that is raised anyway */
    Py_XDECREF(name);
    return text;
}
