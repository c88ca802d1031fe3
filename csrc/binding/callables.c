/* Functions and modules of torch and jax as activations. They are looked up in modules that are
 * imported already, in their dictionaries alone, so that nothing is imported and no code of a
 * module runs. Path of a call: only where activation is no name. */
#include "binding/activations.h"

#include "binding/errors.h"
#include "binding/objects.h"
#include "binding/scalars.h"

#include <stdio.h>
#include <string.h>

typedef struct callable {
    const char *module, *name, *activation;
    mmf_gate_layout layout;
    bool is_class;
    const char *attribute[2]; /* of an instance: its parameters */
} callable;

static const callable callables[] = {
#define MMF_FUNCTION(module, name, activation, layout)                                             \
    {module, name, activation, MMF_GATE_##layout, false, {NULL, NULL}},
#define MMF_CLASS(module, name, activation, layout, attribute0, attribute1)                        \
    {module, name, activation, MMF_GATE_##layout, true, {attribute0, attribute1}},
#include "binding/callables.def"
};

typedef struct fixed {
    const char *module, *name, *attribute;
    double value;
} fixed;

static const fixed fixed_values[] = {
#define MMF_FIXED(module, name, attribute, value) {module, name, attribute, value},
#include "binding/callables.def"
};

/* Borrowed; NULL where the module, or the name in it, is not there, with an exception only for want
 * of memory. A stand-in that is no module (a mock) has nothing. */
static PyObject *look_up(const char *module_name, const char *name)
{
    PyObject *module = mmf_imported_module(module_name);
    PyObject *key = PyUnicode_FromString(name);
    PyObject *found = key && module && PyModule_Check(module)
                          ? PyDict_GetItemWithError(PyModule_GetDict(module), key)
                          : NULL;
    Py_XDECREF(key);
    Py_XDECREF(module); /* sys.modules holds it */
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError))
        PyErr_Clear(); /* lint: what cannot be looked up is not known */
    return found;
}

/* NULL: with an exception, or it is not known. */
static const callable *find(PyObject *object)
{
    for (size_t i = 0; i < sizeof callables / sizeof *callables && !PyErr_Occurred(); i++) {
        const callable *row = &callables[i];
        PyObject *wanted = row->is_class ? (PyObject *)Py_TYPE(object) : object;
        if (look_up(row->module, row->name) == wanted)
            return row;
    }
    return NULL;
}

/* A number that an instance holds. */
static mmf_status read_number(PyObject *object, const callable *row, const char *attribute,
                              double *value)
{
    char name[96];
    snprintf(name, sizeof name, "activation: %s of %s.%s", attribute, row->module, row->name);
    PyObject *number = mmf_get_attribute(object, attribute);
    mmf_status status = number ? mmf_parse_scalar(number, name, value) : MMF_PYTHON_ERROR;
    Py_XDECREF(number);
    return status;
}

static mmf_status check_fixed(PyObject *object, const callable *row)
{
    mmf_status status = MMF_OK;
    for (size_t i = 0; !status && i < sizeof fixed_values / sizeof *fixed_values; i++) {
        const fixed *of = &fixed_values[i];
        double value;
        if (strcmp(of->module, row->module) != 0 || strcmp(of->name, row->name) != 0)
            continue;
        status = read_number(object, row, of->attribute, &value);
        if (!status && !(value == of->value))
            status = mmf_fail(MMF_VALUE_ERROR,
                              "activation is a %s.%s with %s=%g; matmul_fused has it with %g alone",
                              row->module, row->name, of->attribute, value, of->value);
    }
    return status;
}

/* torch.nn.GELU says its form in a str. */
static mmf_status choose_gelu(PyObject *object, const char **activation)
{
    PyObject *form = mmf_get_attribute(object, "approximate");
    if (!form)
        return MMF_PYTHON_ERROR;
    bool is_str = PyUnicode_Check(form);
    bool tanh = is_str && PyUnicode_CompareWithASCIIString(form, "tanh") == 0;
    bool erf = is_str && PyUnicode_CompareWithASCIIString(form, "none") == 0;
    Py_DECREF(form);
    *activation = tanh ? "gelu_tanh" : "gelu";
    return tanh || erf ? MMF_OK
                       : mmf_fail(MMF_VALUE_ERROR, "activation is a torch.nn.GELU whose "
                                                   "approximate is neither \"none\" nor \"tanh\"");
}

mmf_status mmf_find_callable(PyObject *object, mmf_activation_call *call, bool *known)
{
    const callable *row = find(object);
    *known = row != NULL;
    if (!row)
        return PyErr_Occurred() ? MMF_PYTHON_ERROR : MMF_OK;
    const char *activation = row->activation;
    mmf_status status = row->is_class ? check_fixed(object, row) : MMF_OK;
    if (!status && row->is_class && strcmp(row->name, "GELU") == 0)
        status = choose_gelu(object, &activation);
    for (call->given = 0; !status && call->given < 2 && row->attribute[call->given]; call->given++)
        status =
            read_number(object, row, row->attribute[call->given], &call->parameters[call->given]);
    call->name = mmf_activation_find(activation);
    call->layout = row->layout;
    return status;
}
