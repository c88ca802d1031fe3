/* The dtype table and small facts about tensors. Path of a call: read by every layer. */
#include "problem/tensor.h"

#include <stdio.h>
#include <string.h>

const mmf_dtype_row mmf_dtypes[MMF_DTYPE_COUNT] = {
#define MMF_DTYPE(id, name, shift, code, bits, sum)                                                \
    {name, 1 << shift, shift, code, bits, MMF_##sum},
#include "problem/dtypes.def"
#undef MMF_DTYPE
};

mmf_dtype mmf_dtype_from_name(const char *name)
{
    for (int i = 0; i < MMF_DTYPE_COUNT; i++)
        if (strcmp(mmf_dtypes[i].name, name) == 0)
            return (mmf_dtype)i;
    return MMF_ABSENT;
}

const char *mmf_device_name(mmf_device device, char *text)
{
    static const char *const names[] = {
        [MMF_CPU] = "cpu", [MMF_CUDA] = "cuda", [MMF_ROCM] = "rocm"};
    if (device.type == MMF_CPU)
        return strcpy(text, names[MMF_CPU]);
    snprintf(text, 24, "%s:%d", names[device.type], (int)device.id);
    return text;
}

int64_t mmf_tensor_size(const mmf_tensor *tensor)
{
    int64_t size = 1;
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] == 0)
            return 0;
    for (int i = 0; i < tensor->ndim; i++)
        if (__builtin_mul_overflow(size, tensor->shape[i], &size))
            return INT64_MAX;
    return size;
}

void mmf_tensor_set_compact(mmf_tensor *tensor)
{
    int64_t stride = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        tensor->strides[i] = stride;
        if (__builtin_mul_overflow(stride, tensor->shape[i] > 0 ? tensor->shape[i] : 1, &stride))
            stride = 0; /* of an empty tensor; of others, a producer lies */
    }
}

const char *mmf_shape_text(int ndim, const int64_t *shape, char *text)
{
    char *end = text;
    *end++ = '(';
    for (int i = 0; i < ndim; i++)
        end += sprintf(end, i ? ", %lld" : "%lld", (long long)shape[i]);
    strcpy(end, ndim == 1 ? ",)" : ")");
    return text;
}
