/* torch's dtypes, which are known by their text alone: torch is never imported. Path of a call:
 * under the parsing of out_dtype. */
#ifndef MMF_TORCH_H
#define MMF_TORCH_H

#include "binding/errors.h"
#include "problem/tensor.h"

/* The dtype of an object whose type is called "dtype": "torch.bfloat16" is torch's. text gets what
 * it says of itself; MMF_TYPE_ERROR if it is none of ours. */
mmf_status mmf_torch_dtype(PyObject *object, mmf_dtype *dtype, char text[MMF_PRINTABLE]);

#endif
