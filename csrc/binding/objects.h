/* Python objects that several files make or ask: modules, tuples, chains of attributes and calls.
 * Path of a call: under the libraries. */
#ifndef MMF_OBJECTS_H
#define MMF_OBJECTS_H

#include "binding/state.h"

/* sys.modules[name], or NULL without an exception if it was never imported. A reference of the
 * caller's own: asking a module for an attribute may remove it from there. */
PyObject *mmf_imported_module(const char *name);

/* object.name of an object that is borrowed. */
PyObject *mmf_get_attribute(PyObject *object, const char *name);

/* object.name. Takes object over; NULL where that is NULL already, so that chains need no checks.
 */
PyObject *mmf_attribute(PyObject *object, const char *name);

/* callable(first, second), as many of them as count says. Takes all over; NULL where one of them is
 * NULL. */
PyObject *mmf_invoke(PyObject *callable, int count, PyObject *first, PyObject *second);

/* Tuple of a shape. */
PyObject *mmf_shape_tuple(int ndim, const int64_t *shape);

#endif
