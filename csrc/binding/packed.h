/* mf.PackedMatrix and prepack(). Not on the path of a call, but for a PackedMatrix as B, which
 * needs no import. */
#ifndef MMF_PACKED_H
#define MMF_PACKED_H

#include "binding/memory.h"
#include "binding/state.h"
#include "problem/problem.h"

/* A weight in a prepacked layout. Immutable once made. */
typedef struct mmf_packed {
    PyObject_HEAD mmf_tensor weight; /* shape (K, N), dtype, device of the weight; data: the first
                                        stream's panels, at the start of memory */
    mmf_memory memory;
    mmf_gate_layout gate;
    int layout;
    void *up; /* the second stream's panels, inside the same memory; NULL without a gate */
    int64_t bytes;
} mmf_packed;

/* prepack(B, *, gate_layout=None, layout="auto"). */
PyObject *mmf_prepack_call(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords);

/* What pickle calls: (bytes, rows, columns, dtype, gate layout or None, layout). */
PyObject *mmf_unpickle_packed(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

extern PyType_Spec mmf_packed_spec;

#endif
