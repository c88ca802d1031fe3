/* Parsing of activation and gate_layout. Path of a call: part of the first stop. */
#include "binding/activations.h"

#include "binding/errors.h"
#include "binding/scalars.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ", none, relu, ...": every activation, without aliases. */
static const char all_names[] =
#define MMF_ACTIVATION(id, name, formula, source, f) ", " name
#define MMF_GATED(id, name, formula, source, f) ", " name
#include "problem/activations.def"
    ;

static mmf_status unknown_activation(PyObject *name)
{
    char text[MMF_PRINTABLE], hint[64] = "";
    if (!mmf_printable(name, text))
        return MMF_PYTHON_ERROR;
    const char *nearest = mmf_activation_nearest(text);
    if (nearest)
        snprintf(hint, sizeof hint, ", did you mean \"%s\"?", nearest);
    return mmf_fail(MMF_VALUE_ERROR, "unknown activation \"%s\"%s Known: %s", text,
                    nearest ? hint : ".", all_names + strlen(", none, "));
}

/* Index of a name, -1 if it is none: an interned one, what nearly every call passes, by identity.
 */
static int find_name(const mmf_state *state, PyObject *name)
{
    for (int i = 0; i < MMF_ACTIVATION_NAMES; i++)
        if (name == state->activation_names[i])
            return i;
    char text[MMF_PRINTABLE];
    if (!PyUnicode_Check(name) || !mmf_printable(name, text)) {
        PyErr_Clear(); /* lint: the caller says that it is no name */
        return -1;
    }
    return mmf_activation_find(text);
}

static mmf_status refuse_type(PyObject *object)
{
    char type[MMF_PRINTABLE], name[MMF_PRINTABLE];
    if (PyType_Check(object)) {
        PyObject *text = PyType_GetName((PyTypeObject *)object);
        bool named = text && mmf_printable(text, name);
        Py_XDECREF(text);
        return named ? mmf_fail(MMF_TYPE_ERROR,
                                "activation is the class %s; pass an instance, %s(), or a name",
                                name, name)
                     : MMF_PYTHON_ERROR;
    }
    return mmf_fail(MMF_TYPE_ERROR,
                    "activation must be None, a name, a tuple (name, parameters...), or a function "
                    "or module of torch or jax that is one of them, got %s",
                    mmf_describe(object, type));
}

static mmf_status find_activation(const mmf_state *state, PyObject *object, bool in_tuple,
                                  mmf_activation_call *call)
{
    bool known = false;
    call->name = find_name(state, object);
    if (call->name >= 0)
        return MMF_OK;
    if (PyUnicode_Check(object))
        return unknown_activation(object);
    mmf_status status = in_tuple ? MMF_OK : mmf_find_callable(object, call, &known);
    return status || known ? status : refuse_type(object);
}

static mmf_status parse_parameters(PyObject *tuple, mmf_activation_call *call)
{
    const mmf_activation_name *said = &mmf_activation_names[call->name];
    const mmf_activation id = mmf_activation_with_parameters(said->id);
    const int most = said->preset ? 0 : mmf_activation_parameters(id);
    Py_ssize_t given = PyTuple_Size(tuple) - 1;
    if (given > most)
        return mmf_fail(MMF_VALUE_ERROR, "activation %s takes %d parameter%s, got %zd", said->name,
                        most, most == 1 ? "" : "s", given);
    for (call->given = 0; call->given < given; call->given++) {
        double *value = &call->parameters[call->given];
        char name[64];
        snprintf(name, sizeof name, "activation: %s of %s",
                 mmf_activation_row_of(id)->parameter[call->given].name, said->name);
        mmf_status status = mmf_parse_scalar(PyTuple_GetItem(tuple, call->given + 1), name, value);
        if (status)
            return status;
        if (isnan(*value))
            return mmf_fail(MMF_VALUE_ERROR, "%s must be a number, got nan", name);
    }
    return MMF_OK;
}

mmf_status mmf_parse_activation(const mmf_state *state, PyObject *object, mmf_terms *terms)
{
    mmf_activation_call call = {0};
    terms->activation = MMF_ACT_NONE;
    if (object == Py_None)
        return MMF_OK;
    bool tuple = PyTuple_CheckExact(object);
    if (tuple && PyTuple_Size(object) == 0)
        return mmf_fail(MMF_VALUE_ERROR,
                        "activation is an empty tuple; pass (name, parameters...)");
    mmf_status status =
        find_activation(state, tuple ? PyTuple_GetItem(object, 0) : object, tuple, &call);
    if (!status && tuple)
        status = parse_parameters(object, &call);
    if (status)
        return status;
    const mmf_activation_name *said = &mmf_activation_names[call.name];
    mmf_activation id = call.given ? mmf_activation_with_parameters(said->id) : said->id;
    if (said->preset) {
        call.given = mmf_activation_parameters(id);
        memcpy(call.parameters, said->value, sizeof said->value);
    }
    terms->activation = (uint8_t)id;
    terms->gate_layout = (uint8_t)(call.layout ? call.layout : said->layout);
    memcpy(terms->parameters, call.parameters, sizeof terms->parameters);
    if (!mmf_activation_row_of(id)->parameter->name)
        return MMF_OK; /* without parameters, as most calls */
    return mmf_activation_check(id, call.given, terms->parameters);
}

mmf_status mmf_parse_gate_layout(PyObject *object, mmf_gate_layout *layout)
{
    char text[MMF_PRINTABLE];
    *layout = MMF_GATE_NONE;
    if (object == Py_None)
        return MMF_OK;
    if (!PyUnicode_Check(object))
        return mmf_fail(MMF_TYPE_ERROR, "gate_layout must be None or a str, got %s",
                        mmf_describe(object, text));
    for (int i = MMF_GATE_HALVES; i <= MMF_GATE_INTERLEAVED; i++)
        if (PyUnicode_CompareWithASCIIString(object, mmf_gate_layout_name((mmf_gate_layout)i)) ==
            0) {
            *layout = (mmf_gate_layout)i;
            return MMF_OK;
        }
    if (!mmf_printable(object, text))
        return MMF_PYTHON_ERROR;
    return mmf_fail(MMF_VALUE_ERROR,
                    "unknown gate_layout \"%s\"; it is halves, halves_up_first or interleaved",
                    text);
}
