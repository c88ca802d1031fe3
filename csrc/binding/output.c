/* Results in the library of A. Path of a call: memory before the kernel runs, the object after it.
 */
#include "binding/output.h"

#include "binding/array.h"
#include "binding/errors.h"
#include "binding/numpy.h"

static void set_allocator_error(void *context, const char *kind, const char *message)
{
    *(bool *)context = true;
    mmf_fail(MMF_NO_MEMORY, "the allocator of A's library failed (%s: %.256s)", kind, message);
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
    void *object = NULL;
    bool told = false;
    if (a->api->managed_tensor_allocator(&prototype, &managed, &told, set_allocator_error)) {
        if (!told)
            mmf_fail(MMF_NO_MEMORY, "the allocator of A's library failed");
        mmf_raise_from(state, MMF_NO_MEMORY);
        return NULL;
    }
    const DLTensor *view = &managed->dl_tensor;
    tensor->data = (char *)view->data + view->byte_offset;
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
    default:
        return mmf_array_new(state, tensor);
    }
}

PyObject *mmf_output_finish(const mmf_import *a, PyObject *object)
{
    if (a->kind != MMF_KIND_JAX)
        return object;
    PyObject *module = PyImport_ImportModule("jax.dlpack");
    PyObject *from_dlpack = module ? PyObject_GetAttrString(module, "from_dlpack") : NULL;
    PyObject *array = from_dlpack ? PyObject_CallFunctionObjArgs(from_dlpack, object, NULL) : NULL;
    Py_XDECREF(from_dlpack);
    Py_XDECREF(module);
    Py_DECREF(object);
    return array;
}
