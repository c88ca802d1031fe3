/* mf.PackedMatrix and prepack(). Not on the path of a call, but for a PackedMatrix as B, which
 * needs no import. */
#ifndef MMF_PACKED_H
#define MMF_PACKED_H

#include "binding/import.h"
#include "binding/memory.h"
#include "binding/state.h"
#include "problem/problem.h"

struct mmf_call;

/* A weight in a prepacked layout. Its values never change, unless they are another's. */
typedef struct mmf_packed {
    PyObject_HEAD mmf_tensor weight; /* shape (K, N), dtype, device of the weight; data: the first
                                        stream, at the start of memory */
    mmf_memory memory;
    PyObject *owner; /* the array that as_prepacked() borrowed: there is no data and no memory;
                        else NULL */
    mmf_gate_layout gate;
    int layout;
    void *up; /* the second stream, inside the same memory; NULL without a gate */
    int64_t bytes;
    PyObject *weak_references;
} mmf_packed;

/* The streams of a weight: one, or gate and up, each K x n with its own offset and column stride
 * (in elements). */
typedef struct mmf_stream_view {
    int64_t offset, col;
} mmf_stream_view;

/* Where they lie in a weight of 2 n columns, col elements apart; how many there are. */
int mmf_split_streams(mmf_gate_layout gate, int64_t n, int64_t col, mmf_stream_view streams[2]);

/* Is the type that of a PackedMatrix, also of another module object: matmul_fused may have been
 * imported anew? */
bool mmf_is_packed_type(PyTypeObject *type);

static inline bool mmf_is_packed(const mmf_state *state, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    return type == state->packed_type ||
           (!mmf_is_known_array(state, object) && mmf_is_packed_type(type));
}

/* A new PackedMatrix of a 2-D weight; layout by name. call: of prepack(), which imported it; NULL:
 * it is on the host. NULL with an exception. */
PyObject *mmf_pack_matrix(mmf_state *state, struct mmf_call *call, const mmf_tensor *weight,
                          mmf_gate_layout gate, const char *layout_name);

/* Raise MemoryError for a packed weight; bytes: 0 if they are too many to count. Returns NULL. */
PyObject *mmf_packed_no_memory(mmf_state *state, const mmf_tensor *weight, int64_t bytes);

/* Write the plain weight, C-contiguous (K, N), to data, in the order of stream on a GPU, from the
 * first stream of the packed one at `from`. Without the GIL; PYTHON_ERROR if a signal handler ended
 * it. */
mmf_status mmf_packed_unpack(const mmf_packed *self, const void *from, void *stream, void *data);

/* Set the weights of a call that are borrowed, once their arrays were imported. VALUE_ERROR if one
 * is another array by now. */
mmf_status mmf_borrowed_view(struct mmf_call *call);

/* unpack() of a borrowed weight. NULL with an exception. */
PyObject *mmf_borrowed_unpack(mmf_state *state, const mmf_packed *self);

/* as_prepacked(tensor, shape, *, layout="preshuffle_16x16"). */
PyObject *mmf_as_prepacked_call(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                                PyObject *keywords);

/* prepack(B, *, gate_layout=None, layout="auto"). */
PyObject *mmf_prepack_call(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords);

/* What pickle calls: (bytes, rows, columns, dtype, gate layout or None); it chooses the layout. */
PyObject *mmf_unpickle_packed(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

extern PyType_Spec mmf_packed_spec;

#endif
