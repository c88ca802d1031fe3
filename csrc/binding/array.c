/* mf.Array: memory of our own with a shape, that any DLPack consumer can take. Path of a call: the
 * result where A's library makes none. */
#include "binding/array.h"

#include "binding/errors.h"

PyObject *mmf_array_new(mmf_state *state, mmf_tensor *tensor, void *stream)
{
    static const mmf_remedy remedy = {.captured = "pass out=", .no_pools = "pass out="};
    mmf_memory memory;
    size_t bytes = (size_t)mmf_tensor_size(tensor) * mmf_dtypes[tensor->dtype].size;
    mmf_status status = mmf_memory_new(tensor->device, bytes, stream, &remedy, &memory);
    char shape[MMF_SHAPE_TEXT];
    if (status && tensor->device.type == MMF_CPU)
        mmf_fail(status, "no memory for the %zu bytes of a %s array %s", bytes,
                 mmf_dtypes[tensor->dtype].name,
                 mmf_shape_text(tensor->ndim, tensor->shape, shape));
    if (status)
        return mmf_raise(state, status);
    allocfunc allocate = (allocfunc)PyType_GetSlot(state->array_type, Py_tp_alloc);
    mmf_array *self = (mmf_array *)allocate(state->array_type, 0);
    if (!self) {
        mmf_memory_free(&memory);
        return NULL;
    }
    tensor->data = memory.data;
    self->tensor = *tensor;
    self->memory = memory;
    mmf_tensor_set_compact(&self->tensor);
    return (PyObject *)self;
}
