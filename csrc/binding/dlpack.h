/* What this library writes in DLPack's terms: devices and descriptions of its own tensors. Path of
 * a call: exports, and results that an allocator behind DLPack makes. */
#ifndef MMF_DLPACK_H
#define MMF_DLPACK_H

#include "problem/dlpack_abi.h"
#include "problem/tensor.h"

static inline DLDevice mmf_dl_device(mmf_device device)
{
    static const int32_t types[] = {
        [MMF_CPU] = MMF_DL_CPU, [MMF_CUDA] = MMF_DL_CUDA, [MMF_ROCM] = MMF_DL_ROCM};
    return (DLDevice){types[device.type], device.id};
}

/* The tensor, with its shape and strides copied to arrays that live as long as the description. */
static inline DLTensor mmf_dl_tensor(const mmf_tensor *tensor, int64_t *shape, int64_t *strides)
{
    const mmf_dtype_row *dtype = &mmf_dtypes[tensor->dtype];
    for (int i = 0; i < tensor->ndim; i++) {
        shape[i] = tensor->shape[i];
        strides[i] = tensor->strides[i];
    }
    return (DLTensor){.data = tensor->data,
                      .device = mmf_dl_device(tensor->device),
                      .ndim = tensor->ndim,
                      .dtype = {dtype->dl_code, dtype->dl_bits, 1},
                      .shape = shape,
                      .strides = strides};
}

#endif
