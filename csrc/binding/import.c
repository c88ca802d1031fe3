/* The order of ways to import an operand, and the checks they share.
 * Path of a call: after the arguments are parsed, before problem/. */
#include "binding/import.h"

#include "binding/libraries/library.h"
#include "binding/libraries/numpy.h"

#include <stdio.h>
#include <string.h>

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
    static const char *const codes[] = {/* with their bits, and without */
                                        "int",
                                        "uint",
                                        "float",
                                        "opaque",
                                        "bfloat",
                                        "complex",
                                        "bool",
                                        "float8_e3m4",
                                        "float8_e4m3",
                                        "float8_e4m3b11fnuz",
                                        "float8_e4m3fn",
                                        "float8_e4m3fnuz",
                                        "float8_e5m2",
                                        "float8_e5m2fnuz",
                                        "float8_e8m0fnu",
                                        "float6_e2m3fn",
                                        "float6_e3m2fn",
                                        "float4_e2m1fn"};
    char text[64], bits[8] = "";
    int length;
    if (given.code <= MMF_DL_BOOL)
        snprintf(bits, sizeof bits, "%d", given.bits);
    if (given.code < sizeof codes / sizeof *codes)
        length = snprintf(text, sizeof text, "%s%s", codes[given.code], bits);
    else
        length = snprintf(text, sizeof text, "DLPack code %d with %d bits", given.code, given.bits);
    if (given.lanes != 1)
        snprintf(text + length, sizeof text - (size_t)length, " with %d lanes", given.lanes);
    return mmf_refuse_dtype(name, text);
}

/* Fields that may contradict each other. */
static mmf_status check_fields(const DLTensor *dl, const char *name, mmf_tensor *tensor)
{
    int64_t bytes = mmf_dtypes[tensor->dtype].size; /* 0-long axes left out */
    for (int i = 0; i < dl->ndim; i++) {
        if (dl->shape[i] < 0)
            return mmf_fail(MMF_BUFFER_ERROR, "%s: its DLPack tensor has a negative length", name);
        if (dl->shape[i] && __builtin_mul_overflow(bytes, dl->shape[i], &bytes))
            return mmf_fail(MMF_BUFFER_ERROR,
                            "%s: its DLPack tensor has more elements than any memory", name);
    }
    if (!dl->strides)
        mmf_tensor_set_compact(tensor);
    if (!dl->data && mmf_tensor_size(tensor))
        return mmf_fail(MMF_BUFFER_ERROR, "%s: its DLPack tensor has elements but no memory", name);
    return mmf_check_memory(name, tensor);
}

mmf_status mmf_view_unusual(const DLTensor *dl, const char *name, mmf_tensor *tensor)
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
    tensor->readonly = MMF_WRITABLE;
    for (int i = 0; i < dl->ndim; i++) {
        tensor->shape[i] = dl->shape[i];
        tensor->strides[i] = dl->strides ? dl->strides[i] : 0;
    }
    return check_fields(dl, name, tensor);
}

/* Is the memory held by the Python object alone, which may let go of it while Python runs? */
static bool is_borrowed(const mmf_import *import)
{
    return import->library->view != NULL;
}

/* All that may run Python. Fills the tensor unless it is borrowed. */
static mmf_status import_owned(mmf_state *state, mmf_import *import, struct mmf_stream *stream)
{
    const mmf_type_facts *facts = mmf_known_type(state, Py_TYPE(import->object));
    mmf_type_facts found;
    if (!facts) {
        mmf_status status = mmf_find_type(state, import->object, import->name, &found);
        if (status)
            return status;
        facts = &found;
    }
    import->library = facts->library;
    import->api = facts->api;
    return import->library->import ? import->library->import(state, import, stream) : MMF_OK;
}

mmf_status mmf_import_device(mmf_state *state, const mmf_import *import, mmf_device *device)
{
    mmf_import view = *import;
    mmf_status status = is_borrowed(import) ? import->library->view(state, &view, NULL) : MMF_OK;
    if (!status)
        *device = view.tensor.device;
    return status;
}

static void exchange_axes(mmf_tensor *matrix)
{
    const int64_t rows = matrix->shape[0], stride = matrix->strides[0];
    matrix->shape[0] = matrix->shape[1];
    matrix->strides[0] = matrix->strides[1];
    matrix->shape[1] = rows;
    matrix->strides[1] = stride;
}

void mmf_import_transpose(mmf_import *import)
{
    import->transposed = true;
    exchange_axes(&import->tensor);
}

mmf_status mmf_import_recheck(mmf_state *state, const mmf_import *imports, int count)
{
    for (int i = 0; i < count; i++) {
        if (!is_borrowed(&imports[i]))
            continue;
        mmf_import again = imports[i];
        mmf_status status = again.library->view(state, &again, NULL);
        if (status)
            return status;
        if (again.transposed && again.tensor.ndim == 2)
            exchange_axes(&again.tensor);
        const mmf_tensor *x = &imports[i].tensor, *y = &again.tensor;
        size_t bytes = (size_t)x->ndim * sizeof *x->shape;
        if (x->data != y->data || x->dtype != y->dtype || x->ndim != y->ndim ||
            memcmp(x->shape, y->shape, bytes) || memcmp(x->strides, y->strides, bytes))
            return mmf_fail(MMF_BUFFER_ERROR,
                            "%s changed its memory or shape during the call, in Python code that "
                            "another operand ran",
                            imports[i].name);
    }
    return MMF_OK;
}

mmf_status mmf_import_tensors(mmf_state *state, mmf_import *imports, int count,
                              struct mmf_stream *stream)
{
    mmf_status status = MMF_OK;
    bool asked = false;
    int plain = 0;
    for (; plain < count && Py_TYPE(imports[plain].object) == state->ndarray_type; plain++) {
        imports[plain].library = &mmf_library_numpy;
        status = mmf_numpy_view(state, &imports[plain], &asked);
        if (status)
            return status;
    }
    if (plain == count) /* nothing but ndarrays: no Python has run */
        return MMF_OK;
    for (int i = plain; !status && i < count; i++) {
        if (Py_TYPE(imports[i].object) == state->ndarray_type)
            imports[i].library = &mmf_library_numpy;
        else
            status = import_owned(state, &imports[i], stream);
    }
    for (int i = 0; !status && i < count; i++)
        if (is_borrowed(&imports[i]))
            status = imports[i].library->view(state, &imports[i], &asked);
    return !status && asked ? mmf_import_recheck(state, imports, count) : status;
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
