/* Status to Python exception: the only place that does it. */
#ifndef MMF_ERRORS_H
#define MMF_ERRORS_H

#include "binding/state.h"
#include "problem/status.h"

/* Set the exception of a failed status (PYTHON_ERROR: one is set already). Returns NULL. */
PyObject *mmf_raise(mmf_state *state, mmf_status status);

/* Set the exception of status with this thread's error text; the one that is set already, if any,
 * becomes its __cause__. Exceptions that are no Exception (KeyboardInterrupt) and MemoryError stay.
 * Returns PYTHON_ERROR. */
mmf_status mmf_raise_from(mmf_state *state, mmf_status status);

/* "name of the type" of an object, valid while the type lives; for error texts. */
const char *mmf_type_name(PyObject *object, char text[96]);

#endif
