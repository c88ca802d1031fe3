/* The order of ways to import an operand, and the checks they share.
 * Path of a call: after the arguments are parsed, before problem/. */
#include "binding/import.h"

#include "binding/array.h"
#include "binding/errors.h"
#include "binding/numpy.h"

#include <stdio.h>

mmf_status mmf_refuse_dtype(const char *name, const char *dtype)
{
    return mmf_fail(MMF_TYPE_ERROR,
                    "%s has dtype %s; matmul_fused takes float32, float64, float16 and bfloat16",
                    name, dtype);
}

mmf_status mmf_check_rank(const char *name, int64_t ndim)
{
    if (ndim <= MMF_MAX_RANK)
        return MMF_OK;
    return mmf_fail(MMF_NOT_IMPLEMENTED,
                    "%s has %lld axes; at most %d are supported, merge some by reshape", name,
                    (long long)ndim, MMF_MAX_RANK);
}

/* Elements that one axis may step over: far beyond any memory, and small enough that later layers
 * add and multiply lengths and strides without overflow. */
#define MMF_AXIS_REACH (INT64_C(1) << 54)

mmf_status mmf_check_memory(const char *name, mmf_tensor *tensor)
{
    int64_t size = mmf_dtypes[tensor->dtype].size;
    bool empty = false, reaches_too_far = false;
    for (int i = 0; i < tensor->ndim; i++) {
        int64_t steps = tensor->shape[i] - 1, reach;
        empty |= steps < 0;
        reaches_too_far |=
            steps > 0 && (__builtin_mul_overflow(steps, tensor->strides[i], &reach) ||
                          reach > MMF_AXIS_REACH || reach < -MMF_AXIS_REACH);
    }
    if (empty) /* strides over nothing may be anything */
        mmf_tensor_set_compact(tensor);
    else if (reaches_too_far)
        return mmf_fail(MMF_VALUE_ERROR,
                        "%s has lengths and strides that reach farther than any memory", name);
    if (((uintptr_t)tensor->data & (uintptr_t)(size - 1)) == 0)
        return MMF_OK;
    return mmf_fail(
        MMF_VALUE_ERROR,
        "%s lies at an address that is no multiple of its item size (%lld); copy it first", name,
        (long long)size);
}

static mmf_status view_device(DLDevice given, const char *name, mmf_device *device)
{
    switch (given.device_type) {
    case MMF_DL_CPU:
    case MMF_DL_CUDA_HOST: /* pinned host memory */
    case MMF_DL_ROCM_HOST:
        *device = (mmf_device){MMF_CPU, 0};
        return MMF_OK;
    case MMF_DL_CUDA:
    case MMF_DL_CUDA_MANAGED:
        *device = (mmf_device){MMF_CUDA, given.device_id};
        return MMF_OK;
    case MMF_DL_ROCM:
        *device = (mmf_device){MMF_ROCM, given.device_id};
        return MMF_OK;
    default:
        return mmf_fail(
            MMF_NOT_IMPLEMENTED,
            "%s is on a device of DLPack type %d; matmul_fused knows CPU, CUDA and ROCm", name,
            (int)given.device_type);
    }
}

__attribute__((cold)) static mmf_status refuse_dltype(DLDataType given, const char *name)
{
    static const char *const codes[] = {"int",    "uint",    "float", "opaque",
                                        "bfloat", "complex", "bool"};
    char text[64];
    int length =
        given.code < sizeof codes / sizeof *codes
            ? snprintf(text, sizeof text, "%s%d", codes[given.code], given.bits)
            : snprintf(text, sizeof text, "DLPack code %d with %d bits", given.code, given.bits);
    if (given.lanes != 1)
        snprintf(text + length, sizeof text - (size_t)length, " with %d lanes", given.lanes);
    return mmf_refuse_dtype(name, text);
}

mmf_status mmf_view_dltensor(const DLTensor *dl, const char *name, mmf_tensor *tensor)
{
    if (dl->ndim < 0 || (dl->ndim > 0 && !dl->shape))
        return mmf_fail(MMF_BUFFER_ERROR, "%s: its DLPack tensor has %d axes and %s shape", name,
                        (int)dl->ndim, dl->shape ? "a" : "no");
    tensor->dtype = mmf_dtype_from_dlpack(dl->dtype.code, dl->dtype.bits);
    if (tensor->dtype == MMF_ABSENT || dl->dtype.lanes != 1)
        return refuse_dltype(dl->dtype, name);
    mmf_status status = view_device(dl->device, name, &tensor->device);
    if (!status)
        status = mmf_check_rank(name, dl->ndim);
    if (status)
        return status;
    /* As numbers: offsets may be negative ones that wrap around. */
    tensor->data = dl->data ? (void *)((uintptr_t)dl->data + dl->byte_offset) : NULL;
    tensor->ndim = dl->ndim;
    tensor->readonly = false;
    int64_t bytes = mmf_dtypes[tensor->dtype].size; /* 0-long axes left out */
    for (int i = 0; i < dl->ndim; i++) {
        if (dl->shape[i] < 0)
            return mmf_fail(MMF_BUFFER_ERROR, "%s: its DLPack tensor has a negative length", name);
        if (dl->shape[i] && __builtin_mul_overflow(bytes, dl->shape[i], &bytes))
            return mmf_fail(MMF_BUFFER_ERROR,
                            "%s: its DLPack tensor has more elements than any memory", name);
        tensor->shape[i] = dl->shape[i];
        if (dl->strides)
            tensor->strides[i] = dl->strides[i];
    }
    if (!dl->strides)
        mmf_tensor_set_compact(tensor);
    if (!dl->data && mmf_tensor_size(tensor))
        return mmf_fail(MMF_BUFFER_ERROR, "%s: its DLPack tensor has elements but no memory", name);
    return mmf_check_memory(name, tensor);
}

mmf_status mmf_import_tensor(mmf_state *state, PyObject *object, const char *name,
                             mmf_import *import)
{
    import->object = object;
    import->legacy = NULL;
    import->versioned = NULL;
    import->api = NULL;
    if (mmf_numpy_check_exact(object)) {
        import->kind = MMF_KIND_NUMPY;
        return mmf_numpy_import(state, object, name, &import->tensor);
    }
    mmf_type_facts facts;
    mmf_status status = mmf_find_type(state, object, name, &facts);
    if (status)
        return status;
    import->kind = facts.kind;
    import->api = facts.api;
    switch (facts.kind) {
    case MMF_KIND_NUMPY:
        return mmf_numpy_import(state, object, name, &import->tensor);
    case MMF_KIND_TORCH:
    case MMF_KIND_EXCHANGE:
        return mmf_import_exchange(state, name, import);
    case MMF_KIND_ARRAY:
        import->tensor = *mmf_array_tensor(object);
        return MMF_OK;
    case MMF_KIND_PACKED:
        return mmf_fail(MMF_TYPE_ERROR, "%s is a PackedMatrix; only B can be prepacked", name);
    default:
        return mmf_import_capsule(state, name, import);
    }
}

void mmf_import_release(mmf_import *import)
{
    PyObject *type, *value, *traceback;
    if (!import->versioned && !import->legacy)
        return;
    PyErr_Fetch(&type, &value, &traceback); /* a deleter may run Python while an exception is set */
    if (import->versioned && import->versioned->deleter)
        import->versioned->deleter(import->versioned);
    if (import->legacy && import->legacy->deleter)
        import->legacy->deleter(import->legacy);
    import->versioned = NULL;
    import->legacy = NULL;
    PyErr_Restore(type, value, traceback);
}
