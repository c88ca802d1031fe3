/* The measured choices that Python read from the tune store. Not on the path of a call. */
#ifndef MMF_BINDING_TUNED_H
#define MMF_BINDING_TUNED_H

#include "binding/state.h"

/* _set_tuned([(key of explain, kernel, seconds), ...]): replaces all choices, drops cached plans.
 * The number of choices; those of kernels that this build lacks are left out. */
PyObject *mmf_set_tuned(PyObject *module, PyObject *choices);

#endif
