/* Status to Python exception: the only place that does it. Path of a call: where one that failed
 * ends. */
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

/* A str for error texts: printable UTF-8 with repr's escapes (of NUL, lone surrogates, ...), cut to
 * 64 characters. It equals a known plain name only if the str does. Returns text, or NULL with an
 * exception. */
#define MMF_PRINTABLE 736 /* 64 escapes of 10 bytes, and the module of a type */
const char *mmf_printable(PyObject *string, char text[MMF_PRINTABLE]);

/* The type of an object with its module, "numpy.matrix", printable; never fails. */
const char *mmf_describe(PyObject *object, char text[MMF_PRINTABLE]);

/* "a" or "an". */
const char *mmf_article(const char *noun);

/* The name of an object's type, printable; never fails. */
const char *mmf_type_name(PyObject *object, char text[MMF_PRINTABLE]);

#endif
