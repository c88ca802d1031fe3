/* mf.Array: a result for producers whose library we do not know. Path of a call: output.c makes one
 * where A's library is unknown. */
#ifndef MMF_ARRAY_H
#define MMF_ARRAY_H

#include "binding/state.h"

/* A new C-contiguous Array of tensor's shape, dtype and device, at least 64-byte aligned; sets
 * tensor->data. On a GPU its memory is for work on stream. NULL with an exception. */
PyObject *mmf_array_new(mmf_state *state, mmf_tensor *tensor, void *stream);

/* The tensor of an Array, valid while it lives. */
const mmf_tensor *mmf_array_tensor(PyObject *array);

/* The memory of an Array on a GPU. */
mmf_device_memory *mmf_array_memory(PyObject *array);

/* Tuple of a shape. */
PyObject *mmf_shape_tuple(int ndim, const int64_t *shape);

extern PyType_Spec mmf_array_spec;

#endif
