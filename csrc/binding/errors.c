/* Status to Python exception. Path of a call: its last stop if anything failed. */
#include "binding/errors.h"

#include "binding/objects.h"

#include <stdio.h>
#include <string.h>

static PyObject *exception_of(const mmf_state *state, mmf_status status)
{
    switch (status) {
    case MMF_TYPE_ERROR:
        return PyExc_TypeError;
    case MMF_VALUE_ERROR:
    case MMF_GRADIENTS:
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
    if (status == MMF_PYTHON_ERROR)
        return NULL;
    /* A text may be cut inside a character, or quote bytes of a producer. */
    const char *utf8 = mmf_error_text();
    PyObject *text = PyUnicode_DecodeUTF8(utf8, (Py_ssize_t)strlen(utf8), "replace");
    if (text)
        PyErr_SetObject(exception_of(state, status), text);
    Py_XDECREF(text);
    return NULL;
}

mmf_status mmf_raise_from(mmf_state *state, mmf_status status)
{
    PyObject *type, *cause, *traceback, *raised, *value, *nowhere;
    if (!PyErr_Occurred()) { /* a producer that failed without saying why */
        mmf_raise(state, status);
        return MMF_PYTHON_ERROR;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError))
        return MMF_PYTHON_ERROR;
    PyErr_Fetch(&type, &cause, &traceback);
    mmf_raise(state, status); /* before Python runs, which may leave another error text */
    PyErr_Fetch(&raised, &value, &nowhere);
    PyErr_NormalizeException(&type, &cause, &traceback);
    if (traceback)
        PyException_SetTraceback(cause, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    PyErr_NormalizeException(&raised, &value, &nowhere);
    PyException_SetCause(value, Py_NewRef(cause));
    PyException_SetContext(value, cause);
    PyErr_Restore(raised, value, nowhere);
    return MMF_PYTHON_ERROR;
}

const char *mmf_printable(PyObject *string, char text[MMF_PRINTABLE])
{
    PyObject *start = PyUnicode_Substring(string, 0, 64); /* an exact str */
    PyObject *quoted = start ? PyObject_Repr(start) : NULL;
    Py_ssize_t size = 0;
    const char *utf8 = quoted ? PyUnicode_AsUTF8AndSize(quoted, &size) : NULL;
    if (utf8) {
        memcpy(text, utf8 + 1, (size_t)size - 2); /* without its quotes */
        text[size - 2] = 0;
    }
    Py_XDECREF(quoted);
    Py_XDECREF(start);
    return utf8 ? text : NULL;
}

const char *mmf_type_name(PyObject *object, char text[MMF_PRINTABLE])
{
    PyObject *name = PyType_GetName(Py_TYPE(object));
    if (!name || !mmf_printable(name, text)) {
        PyErr_Clear(); /* lint: a text for an error that is raised anyway */
        strcpy(text, "object");
    }
    Py_XDECREF(name);
    return text;
}

/* "module." of a type, nothing for those of Python itself. */
static size_t module_text(PyTypeObject *type, char text[MMF_PRINTABLE])
{
    char module[MMF_PRINTABLE] = "";
    PyObject *object = mmf_get_attribute((PyObject *)type, "__module__");
    bool named = object && PyUnicode_Check(object) && mmf_printable(object, module);
    PyErr_Clear(); /* lint: a text for an error that is raised anyway */
    Py_XDECREF(object);
    if (!named || strcmp(module, "builtins") == 0)
        return 0;
    return (size_t)snprintf(text, MMF_PRINTABLE, "%.64s.", module);
}

const char *mmf_describe(PyObject *object, char text[MMF_PRINTABLE])
{
    char name[MMF_PRINTABLE];
    const size_t length = module_text(Py_TYPE(object), text);
    snprintf(text + length, MMF_PRINTABLE - length, "%.640s", mmf_type_name(object, name));
    return text;
}

const char *mmf_article(const char *noun)
{
    return noun[0] && strchr("aeiouAEIOU", noun[0]) ? "an" : "a";
}
