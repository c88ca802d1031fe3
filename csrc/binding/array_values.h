/* What makes an mf.Array on the host usable as values: the buffer protocol, NumPy, indexing, repr.
 * Not on the path of a call. */
#ifndef MMF_ARRAY_VALUES_H
#define MMF_ARRAY_VALUES_H

#include "binding/state.h"

int mmf_array_get_buffer(PyObject *self, Py_buffer *view, int flags);

/* __array__(dtype=None, copy=None): an ndarray that shares the memory unless dtype or copy asks for
 * another. */
PyObject *mmf_array_to_numpy(PyObject *self, PyObject *const *arguments, Py_ssize_t count,
                             PyObject *keywords);

Py_ssize_t mmf_array_length(PyObject *self);
PyObject *mmf_array_item(PyObject *self, PyObject *index);
PyObject *mmf_array_iterate(PyObject *self);
PyObject *mmf_array_repr(PyObject *self);

#endif
