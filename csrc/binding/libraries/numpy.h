/* What others than its row of libraries/ ask of NumPy. Path of a call: ndarrays, which need no look
 * at their type, and the parsing of scalars and dtypes. */
#ifndef MMF_NUMPY_H
#define MMF_NUMPY_H

#include "binding/import.h"

/* Load NumPy's function table and note the type of its arrays. Returns 0, or -1 with ImportError.
 */
int mmf_numpy_load(mmf_state *state);

/* View an ndarray (its memory is borrowed); asked is not used. */
mmf_status mmf_numpy_view(mmf_state *state, mmf_import *import, bool *asked);

/* An ndarray of a tensor on the host that shares its memory and keeps owner. NULL with an
 * exception: TypeError for bfloat16 without ml_dtypes. */
PyObject *mmf_numpy_of_memory(mmf_state *state, const mmf_tensor *tensor, PyObject *owner);

/* True for NumPy's real scalars (np.float32(2)) and other packages' (ml_dtypes.bfloat16(2)), not
 * for arrays. */
bool mmf_numpy_is_real_scalar(PyObject *object);

bool mmf_numpy_is_bool(PyObject *object);

/* The dtype that np.dtype(object) means. *text (MMF_PRINTABLE) gets its name if it is none of ours:
 * MMF_TYPE_ERROR. */
mmf_status mmf_numpy_dtype(mmf_state *state, PyObject *object, mmf_dtype *dtype, char *text);

#endif
