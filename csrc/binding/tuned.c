/* The measured choices that Python read from the tune store. Not on the path of a call: at import,
 * and after tune(). */
#include "binding/tuned.h"

#include "binding/errors.h"
#include "plan/tuned.h"
#include "xla/plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int index_of(const char *name)
{
    for (int i = 0; i < MMF_KERNELS; i++)
        if (strcmp(mmf_kernel_at(i)->name, name) == 0)
            return i;
    return -1;
}

/* A choice. False with an exception. */
static bool parse(PyObject *item, mmf_tuned *choice)
{
    if (!PyTuple_Check(item) || PyTuple_Size(item) != 3) {
        PyErr_SetString(PyExc_TypeError, "a choice is (key, kernel, seconds)");
        return false;
    }
    const char *key = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(item, 0), NULL);
    const char *name = key ? PyUnicode_AsUTF8AndSize(PyTuple_GetItem(item, 1), NULL) : NULL;
    unsigned long long word[2];
    char end;
    choice->seconds = name ? PyFloat_AsDouble(PyTuple_GetItem(item, 2)) : -1;
    if (PyErr_Occurred())
        return false;
    if (strlen(key) != 32 || sscanf(key, "%16llx%16llx%c", &word[0], &word[1], &end) != 2) {
        PyErr_Format(PyExc_ValueError, "no key of explain: \"%s\"", key);
        return false;
    }
    choice->key = (mmf_tuned_key){{word[0], word[1]}};
    choice->kernel = index_of(name);
    return true;
}

PyObject *mmf_set_tuned(PyObject *module, PyObject *choices)
{
    mmf_state *state = mmf_state_of(module);
    const Py_ssize_t count = PyList_Size(choices);
    int used = 0;
    if (count < 0)
        return NULL;
    mmf_tuned *table = malloc((size_t)(count + 1) * sizeof *table);
    if (!table)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; used >= 0 && i < count; i++) {
        if (!parse(PyList_GetItem(choices, i), &table[used]))
            used = -1;
        else if (table[used].kernel >= 0)
            used++;
    }
    mmf_status status = used < 0 ? MMF_PYTHON_ERROR : mmf_tuned_set(table, used);
    free(table);
    if (status)
        return mmf_raise(state, status);
    mmf_cache_forget(&state->plans);
    mmf_xla_forget_plans();
    return PyLong_FromLong(used);
}
