/* Parsing without format strings: a keyword is found by the identity of its interned name, then by
 * value. Path of a call: first stop. */
#include "binding/arguments.h"

#include <string.h>

static int find_name(const mmf_state *state, const mmf_signature *signature, PyObject *keyword)
{
    for (int i = signature->count - 1; i >= 0;
         i--) /* most keywords name what cannot be positional */
        if (state->names[signature->names[i]] == keyword)
            return i;
    for (int i = 0; i < signature->count; i++)
        if (PyUnicode_Compare(state->names[signature->names[i]], keyword) == 0)
            return i;
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'",
                 signature->function, keyword);
    return -1;
}

static int set_keyword(const mmf_state *state, const mmf_signature *signature, PyObject *keyword,
                       PyObject *value, PyObject **values)
{
    int index = find_name(state, signature, keyword);
    if (index < 0)
        return -1;
    if (values[index]) {
        PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'",
                     signature->function, keyword);
        return -1;
    }
    values[index] = value;
    return 0;
}

static int check_positional(const mmf_signature *signature, Py_ssize_t count)
{
    if (count <= signature->positional)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                 signature->function, signature->positional, count);
    return -1;
}

static int check_required(const mmf_state *state, const mmf_signature *signature,
                          PyObject *const *values)
{
    for (int i = 0; i < signature->required; i++)
        if (!values[i]) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%U' (pos %d)",
                         signature->function, state->names[signature->names[i]], i + 1);
            return -1;
        }
    return 0;
}

int mmf_parse_arguments(const mmf_state *state, const mmf_signature *signature,
                        PyObject *const *arguments, Py_ssize_t count, PyObject *keywords,
                        PyObject **values)
{
    if (check_positional(signature, count))
        return -1;
    memset(values, 0, sizeof *values * (size_t)signature->count);
    for (Py_ssize_t i = 0; i < count; i++)
        values[i] = arguments[i];
    Py_ssize_t keyword_count = keywords ? PyTuple_Size(keywords) : 0;
    for (Py_ssize_t i = 0; i < keyword_count; i++)
        if (set_keyword(state, signature, PyTuple_GetItem(keywords, i), arguments[count + i],
                        values))
            return -1;
    return check_required(state, signature, values);
}
