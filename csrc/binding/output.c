/* Results in the library of A. Path of a call: memory before the kernel runs, the object after it.
 */
#include "binding/output.h"

#include "binding/array.h"
#include "binding/device.h"
#include "binding/errors.h"
#include "binding/numpy.h"
#include "binding/scalars.h"

#include <string.h>

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
    DLTensor prototype = {.device = mmf_dl_device(tensor->device),
                          .ndim = tensor->ndim,
                          .dtype = {dtype->dl_code, dtype->dl_bits, 1},
                          .shape = tensor->shape,
                          .strides = tensor->strides};
    DLManagedTensorVersioned *managed = NULL;
    void *object = NULL;
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
    for (int i = 0; view->strides && i < tensor->ndim; i++)
        if (tensor->shape[i] > 1 && view->strides[i] != tensor->strides[i]) {
            if (managed->deleter)
                managed->deleter(managed);
            return mmf_raise(state,
                             mmf_fail(MMF_BUFFER_ERROR,
                                      "the allocator of A's library gave strides that were not "
                                      "asked for"));
        }
    if (a->api->managed_tensor_to_py_object_no_sync(managed, &object)) {
        if (managed->deleter)
            managed->deleter(managed);
        mmf_raise_from(
            state, mmf_fail(MMF_BUFFER_ERROR, "A's library made no object of the result's memory"));
        return NULL;
    }
    return object;
}

PyObject *mmf_output_new(mmf_state *state, const mmf_import *a, mmf_tensor *tensor)
{
    switch (a->kind) {
    case MMF_KIND_NUMPY:
        return mmf_numpy_new(state, tensor);
    case MMF_KIND_TORCH:
    case MMF_KIND_EXCHANGE:
        return new_exchange(state, a, tensor);
    case MMF_KIND_CUPY:
        return mmf_cupy_new(tensor);
    default:
        return mmf_array_new(state, tensor, a->stream->handle);
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
