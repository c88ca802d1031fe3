/* All that is done through NumPy's C API. Path of a call: under the import of operands and the
 * making of results. */
#ifndef MMF_NUMPY_H
#define MMF_NUMPY_H

#include "binding/state.h"
#include "problem/status.h"
#include "problem/tensor.h"

/* Load NumPy's function table and note the type of its arrays. Returns 0, or -1 with ImportError.
 */
int mmf_numpy_load(mmf_state *state);

bool mmf_numpy_check(PyObject *object);

/* View an ndarray (its memory is borrowed). */
mmf_status mmf_numpy_import(mmf_state *state, PyObject *object, const char *name,
                            mmf_tensor *tensor);

/* A new C-contiguous ndarray of tensor's shape and dtype; sets tensor->data. NULL with an
 * exception. */
PyObject *mmf_numpy_new(mmf_state *state, mmf_tensor *tensor);

/* True for NumPy's real scalars (np.float32(2)) and other packages' (ml_dtypes.bfloat16(2)), not
 * for arrays. */
bool mmf_numpy_is_real_scalar(PyObject *object);

/* The dtype that np.dtype(object) means. *text (MMF_PRINTABLE) gets its name if it is none of ours:
 * MMF_TYPE_ERROR. */
mmf_status mmf_numpy_dtype(mmf_state *state, PyObject *object, mmf_dtype *dtype, char *text);

#endif
