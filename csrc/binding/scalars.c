/* Parsing of the arguments that are no arrays. Path of a call: part of the first stop. */
#include "binding/scalars.h"

#include "binding/errors.h"
#include "binding/libraries/numpy.h"
#include "binding/libraries/torch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

mmf_status mmf_parse_scalar(PyObject *object, const char *name, double *value)
{
    char type[MMF_PRINTABLE];
    if (!PyFloat_Check(object) && !PyLong_Check(object) && !mmf_numpy_is_real_scalar(object))
        return mmf_fail(MMF_TYPE_ERROR, "%s must be a float, an int or a real NumPy scalar, got %s",
                        name, mmf_type_name(object, type));
    *value = PyFloat_AsDouble(object);
    if (*value != -1 || !PyErr_Occurred())
        return MMF_OK;
    return mmf_raise_from((mmf_state *)NULL,
                          mmf_fail(MMF_VALUE_ERROR, "%s is too large for a float", name));
}

/* ", none, relu, ...": every row, aliases included. */
static const char all_names[] =
#define MMF_ACTIVATION(id, name, parameters, default0, default1, f) ", " name
#define MMF_GATED MMF_ACTIVATION
#define MMF_ALIAS(name, id) ", " name
#include "problem/activations.def"
#undef MMF_ACTIVATION
#undef MMF_GATED
#undef MMF_ALIAS
    ;

#define MMF_ACTIVATION(id, name, parameters, default0, default1, f)                                \
    _Static_assert((parameters) <= MMF_MAX_PARAMETERS, "too many parameters: " name);
#define MMF_GATED MMF_ACTIVATION
#define MMF_ALIAS(name, id)
#include "problem/activations.def"
#undef MMF_ACTIVATION
#undef MMF_GATED
#undef MMF_ALIAS

static mmf_status unknown_activation(PyObject *name)
{
    char text[MMF_PRINTABLE];
    if (!mmf_printable(name, text))
        return MMF_PYTHON_ERROR;
    return mmf_fail(MMF_VALUE_ERROR, "unknown activation \"%s\", did you mean \"%s\"? Known: %s",
                    text, mmf_activation_nearest(text), all_names + strlen(", none, "));
}

/* The row of a name: an interned one, what nearly every call passes, by its identity. */
static const mmf_activation_row *find_row(const mmf_state *state, PyObject *name)
{
    for (int i = MMF_ACT_NONE + 1; i < mmf_activation_rows; i++)
        if (name == state->activation_names[i])
            return &mmf_activations[i];
    for (int i = MMF_ACT_NONE + 1; PyUnicode_Check(name) && i < mmf_activation_rows; i++)
        if (PyUnicode_CompareWithASCIIString(name, mmf_activations[i].name) == 0)
            return &mmf_activations[i];
    return NULL;
}

static mmf_status find_activation(const mmf_state *state, PyObject *name,
                                  const mmf_activation_row **row)
{
    char type[MMF_PRINTABLE];
    *row = find_row(state, name);
    if (*row)
        return MMF_OK;
    if (!PyUnicode_Check(name))
        return mmf_fail(MMF_TYPE_ERROR,
                        "activation must be None, a name or a tuple (name, parameters...), got %s",
                        mmf_type_name(name, type));
    return unknown_activation(name);
}

static mmf_status parse_parameters(PyObject *tuple, const mmf_activation_row *row, mmf_terms *terms)
{
    Py_ssize_t given = PyTuple_Size(tuple) - 1;
    if (given > row->parameters)
        return mmf_fail(MMF_VALUE_ERROR, "activation %s takes %d parameter%s, got %zd", row->name,
                        row->parameters, row->parameters == 1 ? "" : "s", given);
    for (Py_ssize_t i = 0; i < given; i++) {
        char name[64];
        snprintf(name, sizeof name, "activation: parameter %zd of %s", i + 1, row->name);
        mmf_status status =
            mmf_parse_scalar(PyTuple_GetItem(tuple, i + 1), name, &terms->parameters[i]);
        if (status)
            return status;
        if (isnan(terms->parameters[i]))
            return mmf_fail(MMF_VALUE_ERROR, "%s must be a number, got nan", name);
    }
    if (row->id == MMF_ACT_CLAMP && given != 2)
        return mmf_fail(MMF_VALUE_ERROR,
                        "activation clamp needs its bounds: (\"clamp\", low, high)");
    if (row->id == MMF_ACT_SWIGLU_OAI && terms->parameters[0] < 0)
        return mmf_fail(MMF_VALUE_ERROR,
                        "activation swiglu_oai: its limit must not be negative, got %g",
                        terms->parameters[0]);
    return MMF_OK;
}

mmf_status mmf_parse_activation(const mmf_state *state, PyObject *object, mmf_terms *terms)
{
    const mmf_activation_row *row;
    terms->activation = MMF_ACT_NONE;
    if (object == Py_None)
        return MMF_OK;
    bool tuple = PyTuple_CheckExact(object);
    if (tuple && PyTuple_Size(object) == 0)
        return mmf_fail(MMF_VALUE_ERROR,
                        "activation is an empty tuple; pass (name, parameters...)");
    mmf_status status = find_activation(state, tuple ? PyTuple_GetItem(object, 0) : object, &row);
    if (status)
        return status;
    terms->activation = (uint8_t)row->id;
    memcpy(terms->parameters, row->defaults, sizeof terms->parameters);
    if (tuple)
        return parse_parameters(object, row, terms);
    if (row->id == MMF_ACT_CLAMP)
        return mmf_fail(MMF_VALUE_ERROR,
                        "activation clamp needs its bounds: (\"clamp\", low, high)");
    return MMF_OK;
}

static const char *const gate_layouts[] = {
    [MMF_GATE_NONE] = NULL,
    [MMF_GATE_HALVES] = "halves",
    [MMF_GATE_HALVES_UP_FIRST] = "halves_up_first",
    [MMF_GATE_INTERLEAVED] = "interleaved",
};

const char *mmf_gate_layout_name(mmf_gate_layout layout)
{
    return gate_layouts[layout];
}

mmf_status mmf_parse_gate_layout(PyObject *object, mmf_gate_layout *layout)
{
    char text[MMF_PRINTABLE];
    *layout = MMF_GATE_NONE;
    if (object == Py_None)
        return MMF_OK;
    if (!PyUnicode_Check(object))
        return mmf_fail(MMF_TYPE_ERROR, "gate_layout must be None or a str, got %s",
                        mmf_type_name(object, text));
    for (int i = MMF_GATE_HALVES; i <= MMF_GATE_INTERLEAVED; i++)
        if (PyUnicode_CompareWithASCIIString(object, gate_layouts[i]) == 0) {
            *layout = (mmf_gate_layout)i;
            return MMF_OK;
        }
    if (!mmf_printable(object, text))
        return MMF_PYTHON_ERROR;
    return mmf_fail(MMF_VALUE_ERROR,
                    "unknown gate_layout \"%s\"; it is halves, halves_up_first or interleaved",
                    text);
}

mmf_status mmf_parse_dtype(mmf_state *state, PyObject *object, const char *name, mmf_dtype *dtype)
{
    char text[MMF_PRINTABLE], type[MMF_PRINTABLE];
    *dtype = MMF_ABSENT;
    if (object == Py_None)
        return MMF_OK;
    for (int i = 0; PyUnicode_Check(object) && i < MMF_DTYPE_COUNT; i++)
        if (PyUnicode_CompareWithASCIIString(object, mmf_dtypes[i].name) == 0) {
            *dtype = (mmf_dtype)i;
            return MMF_OK;
        }
    bool torch = strcmp(mmf_type_name(object, type), "dtype") == 0;
    mmf_status status =
        torch ? mmf_torch_dtype(object, dtype, text) : mmf_numpy_dtype(state, object, dtype, text);
    if (status == MMF_TYPE_ERROR)
        return mmf_fail(MMF_TYPE_ERROR,
                        "%s is %s; it must be float32, float64, float16 or bfloat16", name, text);
    if (status == MMF_PYTHON_ERROR)
        return mmf_raise_from(state,
                              mmf_fail(MMF_TYPE_ERROR,
                                       "%s is no dtype; it must be float32, float64, float16 or "
                                       "bfloat16",
                                       name));
    return status;
}

mmf_status mmf_parse_flag(PyObject *object, const char *name, bool *flag)
{
    char type[MMF_PRINTABLE];
    if (!PyBool_Check(object))
        return mmf_fail(MMF_TYPE_ERROR, "%s must be True or False, got %s", name,
                        mmf_type_name(object, type));
    *flag = object == Py_True;
    return MMF_OK;
}
