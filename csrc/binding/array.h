/* mf.Array: a result for producers whose library we do not know. Path of a call: the result where
 * A's library makes none. */
#ifndef MMF_ARRAY_H
#define MMF_ARRAY_H

#include "binding/memory.h"
#include "binding/state.h"

typedef struct mmf_array {
    PyObject_HEAD mmf_tensor tensor; /* its data is that of memory */
    mmf_memory memory;
    Py_ssize_t byte_strides[MMF_MAX_RANK]; /* of buffers */
} mmf_array;

/* A new C-contiguous Array of tensor's shape, dtype and device, at least 64-byte aligned; sets
 * tensor->data. On a GPU its memory is for work on stream. NULL with an exception. */
PyObject *mmf_array_new(mmf_state *state, mmf_tensor *tensor, void *stream);

static inline const mmf_tensor *mmf_array_tensor(PyObject *array)
{
    return &((mmf_array *)array)->tensor;
}

static inline mmf_memory *mmf_array_memory(PyObject *array)
{
    return &((mmf_array *)array)->memory;
}

extern PyType_Spec mmf_array_spec; /* array_type.c */

#endif
