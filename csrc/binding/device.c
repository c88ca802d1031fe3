/* Calls on GPUs: checks before the launch, notes to the owners of memory after it.
 * Path of a call: between import and problem, and after the run. */
#include "binding/device.h"

#include "binding/array.h"
#include "binding/errors.h"
#include "plan/backends.h"

DLDevice mmf_dl_device(mmf_device device)
{
    static const int32_t types[] = {
        [MMF_CPU] = MMF_DL_CPU, [MMF_CUDA] = MMF_DL_CUDA, [MMF_ROCM] = MMF_DL_ROCM};
    return (DLDevice){types[device.type], device.id};
}

/* Libraries that we know do not lie about their memory; a kernel that reads another's wild pointer
 * would take the device down for the whole process. */
static mmf_status check_memory(const mmf_import *import)
{
    bool unknown = import->kind == MMF_KIND_DLPACK || import->kind == MMF_KIND_EXCHANGE;
    if (!unknown || !mmf_tensor_size(&import->tensor))
        return MMF_OK;
    return mmf_gpu_check_memory(import->tensor.device, import->tensor.data, import->name);
}

/* torch hands memory to its next user in the order of the stream it was made on; another one must
 * be named. */
static mmf_status record(const mmf_call *call, mmf_kind kind, PyObject *object)
{
    bool torch_stream = !call->stream.given && call->import[0].kind == MMF_KIND_TORCH;
    if (kind != MMF_KIND_TORCH || torch_stream)
        return MMF_OK;
    return mmf_stream_record(&call->stream, object) ? MMF_PYTHON_ERROR : MMF_OK;
}

/* The current stream of an operand's library, in whose order that library makes its arrays and
 * hands out their memory. False if it is the call's, or the library has none. */
static mmf_status library_stream(mmf_state *state, mmf_call *call, const mmf_import *import,
                                 bool *other, void **handle)
{
    const mmf_import *a = call->stream.a;
    mmf_stream own = {.a = import};
    mmf_kind kind = import->kind;
    bool has_one = kind == MMF_KIND_TORCH || kind == MMF_KIND_CUPY || kind == MMF_KIND_EXCHANGE;
    bool chosen = !call->stream.given && kind == a->kind && import->api == a->api;
    mmf_status status = MMF_OK;
    if (has_one && !chosen)
        status = mmf_stream_find(state, &own, call->stream.device);
    call->stream.ran_python |= own.ran_python;
    *handle = own.handle;
    *other = own.known && own.handle != call->stream.handle;
    return status;
}

/* Is an operand the first one of its library? */
static bool is_first(const mmf_call *call, int index)
{
    const mmf_import *import = &call->import[index];
    for (int i = 0; i < index; i++)
        if (call->import[i].kind == import->kind && call->import[i].api == import->api)
            return false;
    return true;
}

mmf_status mmf_device_prepare(mmf_state *state, mmf_call *call)
{
    mmf_device device = call->request.a->device;
    mmf_status status = mmf_gpu_begin(device);
    if (!status && !call->stream.known)
        status = mmf_stream_find(state, &call->stream, device);
    call->own.problem.stream = call->stream.handle;
    for (int i = 0; !status && i < call->imports; i++) {
        const mmf_import *import = &call->import[i];
        status = check_memory(import);
        if (!status && import->kind == MMF_KIND_ARRAY)
            status = mmf_gpu_wait(mmf_array_memory(import->object), call->stream.handle);
        if (!status)
            status = record(call, import->kind, import->object);
    }
    return status;
}

mmf_status mmf_device_await(mmf_state *state, mmf_call *call, PyObject *result)
{
    mmf_status status = MMF_OK;
    for (int i = 0; !status && i < call->imports; i++) {
        mmf_kind kind = call->import[i].kind;
        bool other = false, viewed = kind == MMF_KIND_TORCH || kind == MMF_KIND_EXCHANGE;
        void *own;
        if ((viewed || (i == 0 && result)) && is_first(call, i))
            status = library_stream(state, call, &call->import[i], &other, &own);
        if (!status && other)
            status = mmf_gpu_order(call->stream.device, own, call->stream.handle);
    }
    return status || !result ? status : record(call, call->import[0].kind, result);
}

mmf_status mmf_device_finish(mmf_state *state, mmf_call *call, PyObject *result)
{
    mmf_kind kind = call->import[0].kind;
    bool ours = kind == MMF_KIND_ARRAY || kind == MMF_KIND_DLPACK || kind == MMF_KIND_JAX;
    mmf_status status = MMF_OK, next;
    if (result && ours)
        status = mmf_gpu_used(mmf_array_memory(result), call->stream.handle);
    for (int i = 0; i < call->imports; i++) { /* all of them, also after an error */
        if (call->import[i].kind != MMF_KIND_ARRAY)
            continue;
        next = mmf_gpu_used(mmf_array_memory(call->import[i].object), call->stream.handle);
        status = status ? status : next;
    }
    for (int i = 0; !status && i < call->imports; i++) {
        bool other = false;
        void *own;
        kind = call->import[i].kind;
        if ((kind == MMF_KIND_CUPY || kind == MMF_KIND_EXCHANGE) && is_first(call, i))
            status = library_stream(state, call, &call->import[i], &other, &own);
        if (!status && other)
            status = mmf_gpu_order(call->stream.device, call->stream.handle, own);
    }
    return status;
}

/* The dtype argument for cupy.empty. */
static PyObject *cupy_dtype(mmf_dtype dtype)
{
    if (dtype != MMF_BFLOAT16)
        return PyUnicode_FromString(mmf_dtypes[dtype].name);
    PyObject *module = PyImport_ImportModule("ml_dtypes");
    PyObject *type = module ? PyObject_GetAttrString(module, "bfloat16") : NULL;
    Py_XDECREF(module);
    return type;
}

/* cupy.cuda.Device(ordinal).use(): the device before comes back with the next use(). -1 with an
 * exception. */
static int cupy_use(PyObject *cuda, PyObject *ordinal)
{
    PyObject *type = PyObject_GetAttrString(cuda, "Device");
    PyObject *device = type ? PyObject_CallFunctionObjArgs(type, ordinal, NULL) : NULL;
    PyObject *use = device ? PyObject_GetAttrString(device, "use") : NULL;
    PyObject *none = use ? PyObject_CallFunctionObjArgs(use, NULL) : NULL;
    int result = none ? 0 : -1;
    Py_XDECREF(none);
    Py_XDECREF(use);
    Py_XDECREF(device);
    Py_XDECREF(type);
    return result;
}

/* cupy.cuda.runtime.getDevice() */
static PyObject *cupy_current(PyObject *cuda)
{
    PyObject *runtime = PyObject_GetAttrString(cuda, "runtime");
    PyObject *get = runtime ? PyObject_GetAttrString(runtime, "getDevice") : NULL;
    PyObject *ordinal = get ? PyObject_CallFunctionObjArgs(get, NULL) : NULL;
    Py_XDECREF(get);
    Py_XDECREF(runtime);
    return ordinal;
}

static PyObject *cupy_empty(PyObject *cupy, const mmf_tensor *tensor)
{
    PyObject *empty = PyObject_GetAttrString(cupy, "empty");
    PyObject *shape = empty ? mmf_shape_tuple(tensor->ndim, tensor->shape) : NULL;
    PyObject *dtype = shape ? cupy_dtype(tensor->dtype) : NULL;
    PyObject *array = dtype ? PyObject_CallFunctionObjArgs(empty, shape, dtype, NULL) : NULL;
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_XDECREF(empty);
    return array;
}

/* array.data.ptr into *data. */
static int cupy_pointer(PyObject *array, void **data)
{
    PyObject *memory = PyObject_GetAttrString(array, "data");
    PyObject *pointer = memory ? PyObject_GetAttrString(memory, "ptr") : NULL;
    *data = pointer ? PyLong_AsVoidPtr(pointer) : NULL;
    Py_XDECREF(pointer);
    Py_XDECREF(memory);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *mmf_cupy_new(mmf_tensor *tensor)
{
    PyObject *cupy = PyImport_ImportModule("cupy"),
             *cuda = cupy ? PyObject_GetAttrString(cupy, "cuda") : NULL;
    PyObject *before = cuda ? cupy_current(cuda) : NULL, *array = NULL;
    PyObject *wanted = before ? PyLong_FromLong(tensor->device.id) : NULL;
    int same = wanted ? PyObject_RichCompareBool(before, wanted, Py_EQ) : -1;
    if (same == 1 || (same == 0 && cupy_use(cuda, wanted) == 0)) {
        array = cupy_empty(cupy, tensor);
        if (same == 0) { /* back, also where the allocation failed */
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            bool back = cupy_use(cuda, before) == 0;
            if (back || type)
                PyErr_Restore(type, value, traceback);
            if (!back)
                Py_CLEAR(array);
        }
    }
    if (array && cupy_pointer(array, &tensor->data))
        Py_CLEAR(array);
    Py_XDECREF(wanted);
    Py_XDECREF(before);
    Py_XDECREF(cuda);
    Py_XDECREF(cupy);
    return array;
}
