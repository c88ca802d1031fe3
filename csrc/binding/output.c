/* Results in the library of A. Path of a call: memory before the kernel runs, the object after it.
 */
#include "binding/output.h"

#include "binding/array.h"
#include "binding/errors.h"
#include "binding/numpy.h"
#include "binding/scalars.h"

#include <stdlib.h>
#include <string.h>

/* Give memory that `managed` owns to A's library as one of its objects. */
static PyObject *to_object(mmf_state *state, const mmf_import *a, DLManagedTensorVersioned *managed)
{
    void *object = NULL;
    if (a->api->managed_tensor_to_py_object_no_sync(managed, &object) == 0)
        return object;
    if (managed->deleter)
        managed->deleter(managed);
    mmf_raise_from(state,
                   mmf_fail(MMF_BUFFER_ERROR, "A's library made no object of the result's memory"));
    return NULL;
}

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

static PyObject *new_torch(mmf_state *state, const mmf_import *a, mmf_tensor *tensor)
{
    const mmf_dtype_row *dtype = &mmf_dtypes[tensor->dtype];
    size_t bytes = (size_t)mmf_tensor_size(tensor) * dtype->size;
    host_block *block = malloc(sizeof *block + 64 + bytes);
    if (!block) {
        mmf_raise(state, mmf_fail(MMF_NO_MEMORY, "no memory for a result of %zu bytes", bytes));
        return NULL;
    }
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
    return to_object(state, a, &block->managed);
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
static PyObject *new_exchange(mmf_state *state, const mmf_import *a, mmf_tensor *tensor)
{
    const mmf_dtype_row *dtype = &mmf_dtypes[tensor->dtype];
    DLTensor prototype = {.device = {MMF_DL_CPU, 0},
                          .ndim = tensor->ndim,
                          .dtype = {dtype->dl_code, dtype->dl_bits, 1},
                          .shape = tensor->shape,
                          .strides = tensor->strides};
    DLManagedTensorVersioned *managed = NULL;
    mmf_status status = MMF_OK;
    if (a->api->managed_tensor_allocator(&prototype, &managed, &status, set_allocator_error)) {
        if (!status)
            status = mmf_fail(MMF_NO_MEMORY, "the allocator of A's library failed");
        mmf_raise_from(state, status);
        return NULL;
    }
    const DLTensor *view = &managed->dl_tensor;
    tensor->data = (char *)view->data + view->byte_offset;
    if (!view->data && mmf_tensor_size(tensor)) {
        if (managed->deleter)
            managed->deleter(managed);
        return mmf_raise(state, mmf_fail(MMF_TYPE_ERROR,
                                         "A's library gave a result without memory: a mode such as "
                                         "FakeTensorMode or functionalize is active; call "
                                         "matmul_fused outside of it"));
    }
    bool strided = view->strides && mmf_tensor_size(tensor); /* over nothing any strides will do */
    for (int i = 0; strided && i < tensor->ndim; i++)
        if (tensor->shape[i] > 1 && view->strides[i] != tensor->strides[i]) {
            if (managed->deleter)
                managed->deleter(managed);
            return mmf_raise(state,
                             mmf_fail(MMF_BUFFER_ERROR,
                                      "the allocator of A's library gave strides that were not "
                                      "asked for"));
        }
    return to_object(state, a, managed);
}

PyObject *mmf_output_new(mmf_state *state, const mmf_import *a, mmf_tensor *tensor)
{
    switch (a->kind) {
    case MMF_KIND_NUMPY:
        return mmf_numpy_new(state, tensor);
    case MMF_KIND_TORCH:
        return new_torch(state, a, tensor);
    case MMF_KIND_EXCHANGE:
        return new_exchange(state, a, tensor);
    default:
        return mmf_array_new(state, tensor);
    }
}

/* Did jax keep the dtype? Without x64 it silently narrows float64. */
static bool keeps_dtype(mmf_state *state, PyObject *array, const mmf_tensor *tensor)
{
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    mmf_dtype given = MMF_ABSENT;
    mmf_status status =
        dtype ? mmf_parse_dtype(state, dtype, "out_dtype", &given) : MMF_PYTHON_ERROR;
    Py_XDECREF(dtype);
    if (!status && given != tensor->dtype)
        status =
            mmf_fail(MMF_TYPE_ERROR,
                     "jax made %s of a %s result; set jax_enable_x64 or choose another out_dtype",
                     mmf_dtypes[given].name, mmf_dtypes[tensor->dtype].name);
    if (status)
        mmf_raise(state, status);
    return !status;
}

PyObject *mmf_output_finish(mmf_state *state, const mmf_import *a, const mmf_tensor *tensor,
                            PyObject *object)
{
    if (a->kind != MMF_KIND_JAX)
        return object;
    PyObject *module = PyImport_ImportModule("jax.dlpack");
    PyObject *from_dlpack = module ? PyObject_GetAttrString(module, "from_dlpack") : NULL;
    PyObject *array = from_dlpack ? PyObject_CallFunctionObjArgs(from_dlpack, object, NULL) : NULL;
    Py_XDECREF(from_dlpack);
    Py_XDECREF(module);
    Py_DECREF(object);
    if (array && !keeps_dtype(state, array, tensor))
        Py_CLEAR(array);
    return array;
}
