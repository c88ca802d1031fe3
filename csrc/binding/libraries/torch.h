/* What other files ask of torch, which is never imported here. Path of a call: under the parsing of
 * out_dtype; before a call of matmul_fused.torch. */
#ifndef MMF_TORCH_H
#define MMF_TORCH_H

#include "binding/errors.h"
#include "problem/tensor.h"

/* Python's _torch_case(x): device, dtype, shape, and whether gradients are recorded, as bytes that
 * are equal where these are. None: no tensor of torch, more axes than we take, or what DLPack has
 * no view of (sparse, nested, ...). */
PyObject *mmf_torch_case(PyObject *module, PyObject *object);

/* The dtype of an object whose type is called "dtype": "torch.bfloat16" is torch's. text gets what
 * it says of itself; MMF_TYPE_ERROR if it is none of ours. */
mmf_status mmf_torch_dtype(PyObject *object, mmf_dtype *dtype, char text[MMF_PRINTABLE]);

#endif
