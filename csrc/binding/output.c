/* Results in the library of A. Path of a call: memory before the kernel runs, the object after it.
 */
#include "binding/output.h"

#include "binding/array.h"
#include "binding/device.h"
#include "binding/errors.h"
#include "binding/numpy.h"
#include "binding/scalars.h"

#include <stdlib.h>
#include <string.h>

/* A result on the host that a torch tensor will own: description and elements in one piece of
 * memory. torch's host allocator is malloc too, but asking for it costs half a small call. */
typedef struct host_block {
    DLManagedTensorVersioned managed;
    int64_t shape[MMF_MAX_RANK], strides[MMF_MAX_RANK];
    char elements[];
} host_block;

static void free_host_block(DLManagedTensorVersioned *managed)
{
    free(managed); /* the first member of its block */
}

static mmf_status new_torch(mmf_tensor *tensor, mmf_output *output)
{
    const mmf_dtype_row *dtype = &mmf_dtypes[tensor->dtype];
    size_t bytes = (size_t)mmf_tensor_size(tensor) * dtype->size;
    host_block *block = malloc(sizeof *block + 64 + bytes);
    if (!block)
        return mmf_fail(MMF_NO_MEMORY, "no memory for a result of %zu bytes", bytes);
    tensor->data = (void *)(((uintptr_t)block->elements + 63) & ~(uintptr_t)63);
    block->managed =
        (DLManagedTensorVersioned){.version = {MMF_DLPACK_MAJOR, MMF_DLPACK_MINOR},
                                   .deleter = free_host_block,
                                   .dl_tensor = {.data = tensor->data,
                                                 .device = {MMF_DL_CPU, 0},
                                                 .ndim = tensor->ndim,
                                                 .dtype = {dtype->dl_code, dtype->dl_bits, 1},
                                                 .shape = block->shape,
                                                 .strides = block->strides}};
    for (int i = 0; i < tensor->ndim; i++) {
        block->shape[i] = tensor->shape[i];
        block->strides[i] = tensor->strides[i];
    }
    output->managed = &block->managed;
    return MMF_OK;
}

/* Called by an allocator that fails; *context becomes the status. torch calls every failure a
 * MemoryError, also that a transform's tensors have no memory. */
static void set_allocator_error(void *context, const char *kind, const char *message)
{
    bool transform = strstr(message, "doesn't have storage") != NULL;
    *(mmf_status *)context =
        transform ? mmf_fail(MMF_TYPE_ERROR,
                             "A's library gave a result without memory: a functorch transform "
                             "(vmap, grad, jvp) is active; call matmul_fused outside of it")
                  : mmf_fail(MMF_NO_MEMORY, "the allocator of A's library failed (%.64s: %.256s)",
                             kind, message);
}

/* Memory of A's own library through its exchange API. */
static mmf_status new_exchange(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                               mmf_output *output)
{
    const mmf_dtype_row *dtype = &mmf_dtypes[tensor->dtype];
    DLTensor prototype = {.device = mmf_dl_device(tensor->device),
                          .ndim = tensor->ndim,
                          .dtype = {dtype->dl_code, dtype->dl_bits, 1},
                          .shape = tensor->shape,
                          .strides = tensor->strides};
    DLManagedTensorVersioned *managed = NULL;
    mmf_status status = MMF_OK;
    if (a->api->managed_tensor_allocator(&prototype, &managed, &status, set_allocator_error)) {
        if (!status)
            status = mmf_fail(MMF_NO_MEMORY, "the allocator of A's library failed");
        return mmf_raise_from(state, status);
    }
    const DLTensor *view = &managed->dl_tensor;
    output->managed = managed;
    output->ran_python = true;
    tensor->data = (char *)view->data + view->byte_offset;
    if (!view->data && mmf_tensor_size(tensor))
        return mmf_fail(MMF_TYPE_ERROR,
                        "A's library gave a result without memory: a mode such as FakeTensorMode "
                        "or functionalize is active; call matmul_fused outside of it");
    bool strided = view->strides && mmf_tensor_size(tensor); /* over nothing any strides will do */
    bool asked = view->device.device_type == prototype.device.device_type &&
                 view->device.device_id == prototype.device.device_id;
    for (int i = 0; strided && i < tensor->ndim; i++)
        asked &= tensor->shape[i] <= 1 || view->strides[i] == tensor->strides[i];
    return asked ? MMF_OK
                 : mmf_fail(MMF_BUFFER_ERROR, "the allocator of A's library gave a device or "
                                              "strides that were not asked for");
}

/* Will jax keep the dtype? Without x64 it silently narrows float64. */
static mmf_status check_jax_keeps(mmf_state *state, const mmf_tensor *tensor)
{
    if (tensor->dtype != MMF_FLOAT64)
        return MMF_OK;
    PyObject *module = PyImport_ImportModule("jax.dtypes");
    PyObject *canonicalize = module ? PyObject_GetAttrString(module, "canonicalize_dtype") : NULL;
    PyObject *wanted = canonicalize ? PyUnicode_FromString("float64") : NULL;
    PyObject *dtype = wanted ? PyObject_CallFunctionObjArgs(canonicalize, wanted, NULL) : NULL;
    mmf_dtype given = MMF_ABSENT;
    mmf_status status =
        dtype ? mmf_parse_dtype(state, dtype, "out_dtype", &given) : MMF_PYTHON_ERROR;
    Py_XDECREF(dtype);
    Py_XDECREF(wanted);
    Py_XDECREF(canonicalize);
    Py_XDECREF(module);
    if (!status && given != MMF_FLOAT64)
        status = mmf_fail(MMF_TYPE_ERROR,
                          "jax makes %s of a float64 result; set jax_enable_x64 or choose another "
                          "out_dtype",
                          mmf_dtypes[given].name);
    return status;
}

void mmf_output_drop(mmf_output *output)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); /* a deleter may run Python while an exception is set */
    if (output->managed && output->managed->deleter)
        output->managed->deleter(output->managed);
    output->managed = NULL;
    Py_CLEAR(output->object);
    PyErr_Restore(type, value, traceback);
}

/* A library's object that owns the memory. */
static PyObject *exchange_object(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    void *object = NULL;
    if (a->api->managed_tensor_to_py_object_no_sync(output->managed, &object) == 0) {
        output->managed = NULL;
        return object;
    }
    mmf_raise_from(state,
                   mmf_fail(MMF_BUFFER_ERROR, "A's library made no object of the result's memory"));
    mmf_output_drop(output);
    return NULL;
}

/* torch is told of the stream before the launch, which takes the object. */
static mmf_status new_gpu_exchange(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                                   mmf_output *output)
{
    mmf_status status = new_exchange(state, a, tensor, output);
    if (status)
        return status;
    output->object = exchange_object(state, a, output);
    return output->object ? MMF_OK : MMF_PYTHON_ERROR;
}

mmf_status mmf_output_new(mmf_state *state, const mmf_import *a, mmf_tensor *tensor, void *stream,
                          mmf_output *output)
{
    mmf_status status = MMF_OK;
    bool on_gpu = tensor->device.type != MMF_CPU;
    switch (a->kind) {
    case MMF_KIND_NUMPY:
        output->object = mmf_numpy_new(state, tensor);
        break;
    case MMF_KIND_TORCH:
        return on_gpu ? new_gpu_exchange(state, a, tensor, output) : new_torch(tensor, output);
    case MMF_KIND_EXCHANGE:
        return on_gpu ? new_gpu_exchange(state, a, tensor, output)
                      : new_exchange(state, a, tensor, output);
    case MMF_KIND_CUPY:
        output->ran_python = true;
        output->object = mmf_cupy_new(tensor);
        break;
    case MMF_KIND_JAX:
        output->ran_python = true;
        status = check_jax_keeps(state, tensor);
        if (status)
            return status;
        output->object = mmf_array_new(state, tensor, stream);
        break;
    default:
        output->object = mmf_array_new(state, tensor, stream);
    }
    return output->object ? MMF_OK : MMF_PYTHON_ERROR;
}

static PyObject *jax_object(PyObject *object)
{
    PyObject *module = PyImport_ImportModule("jax.dlpack");
    PyObject *from_dlpack = module ? PyObject_GetAttrString(module, "from_dlpack") : NULL;
    PyObject *array = from_dlpack ? PyObject_CallFunctionObjArgs(from_dlpack, object, NULL) : NULL;
    Py_XDECREF(from_dlpack);
    Py_XDECREF(module);
    Py_DECREF(object);
    return array;
}

PyObject *mmf_output_finish(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    if (output->managed)
        return exchange_object(state, a, output);
    return a->kind == MMF_KIND_JAX ? jax_object(output->object) : output->object;
}
