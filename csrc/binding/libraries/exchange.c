/* Libraries with DLPack's C exchange API (not torch, which has checks of its own): borrowed views,
 * results by the library's allocator, its current stream. Path of a call: its row of libraries/. */
#include "binding/libraries/library.h"

#include "binding/dlpack.h"
#include "binding/errors.h"

#include <string.h>

mmf_status mmf_exchange_find(mmf_state *state, mmf_type_facts *facts)
{
    PyObject *capsule = mmf_type_attribute(facts->type, state->names[MMF_NAME_EXCHANGE_API]);
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        bool usable = api->header.version.major == MMF_DLPACK_MAJOR &&
                      api->dltensor_from_py_object_no_sync && api->managed_tensor_allocator &&
                      api->managed_tensor_to_py_object_no_sync;
        facts->api = usable ? api : NULL;
    }
    Py_XDECREF(capsule);
    return PyErr_Occurred() ? MMF_PYTHON_ERROR : MMF_OK;
}

static mmf_status recognise(mmf_state *state, PyObject *object, const char *name,
                            mmf_type_facts *facts)
{
    mmf_status status = mmf_exchange_find(state, facts);
    (void)object;
    (void)name;
    if (!status && facts->api)
        facts->library = &mmf_library_exchange;
    return status;
}

static mmf_status view(mmf_state *state, mmf_import *import, bool *asked)
{
    DLTensor view = {0};
    if (import->api->dltensor_from_py_object_no_sync(import->object, &view))
        return mmf_raise_from(
            state,
            mmf_fail(MMF_BUFFER_ERROR, "%s: its DLPack exchange API gave no view", import->name));
    if (asked) /* a library that we do not know may have run Python */
        *asked = true;
    return mmf_view_dltensor(&view, import->name, &import->tensor);
}

mmf_status mmf_exchange_stream(mmf_state *state, const mmf_import *of, mmf_device device,
                               void **handle, bool *ran_python)
{
    int32_t type = mmf_dl_device(device).device_type;
    (void)ran_python;
    if (!of->api->current_work_stream || of->api->current_work_stream(type, device.id, handle) == 0)
        return MMF_OK;
    return mmf_raise_from(
        state, mmf_fail(MMF_BUFFER_ERROR, "%s: its library named no current stream", of->name));
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

/* Is the new memory what was asked for? */
static mmf_status check_new(const DLTensor *view, const mmf_tensor *tensor)
{
    const DLDevice device = mmf_dl_device(tensor->device);
    int64_t size = mmf_tensor_size(tensor);
    if (!view->data && size)
        return mmf_fail(MMF_TYPE_ERROR,
                        "A's library gave a result without memory: a mode such as FakeTensorMode "
                        "or functionalize is active; call matmul_fused outside of it");
    bool asked = view->device.device_type == device.device_type &&
                 view->device.device_id == device.device_id;
    bool strided = view->strides && size; /* over nothing any strides will do */
    for (int i = 0; strided && i < tensor->ndim; i++)
        asked &= tensor->shape[i] <= 1 || view->strides[i] == tensor->strides[i];
    return asked ? MMF_OK
                 : mmf_fail(MMF_BUFFER_ERROR, "the allocator of A's library gave a device or "
                                              "strides that were not asked for");
}

/* The library's object that owns the memory. The library has taken that over also where it fails:
 * torch's deleter has run by then. */
static PyObject *make_object(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    void *object = NULL;
    DLManagedTensorVersioned *managed = output->managed;
    output->managed = NULL;
    if (a->api->managed_tensor_to_py_object_no_sync(managed, &object) == 0)
        return object;
    mmf_raise_from(state,
                   mmf_fail(MMF_BUFFER_ERROR, "A's library made no object of the result's memory"));
    return NULL;
}

mmf_status mmf_exchange_allocate(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                                 mmf_output *output)
{
    int64_t shape[MMF_MAX_RANK], strides[MMF_MAX_RANK];
    DLTensor prototype = mmf_dl_tensor(tensor, shape, strides);
    DLManagedTensorVersioned *managed = NULL;
    mmf_status status = MMF_OK;
    prototype.data = NULL;
    if (a->api->managed_tensor_allocator(&prototype, &managed, &status, set_allocator_error)) {
        if (!status)
            status = mmf_fail(MMF_NO_MEMORY, "the allocator of A's library failed");
        return mmf_raise_from(state, status);
    }
    const DLTensor *view = &managed->dl_tensor;
    output->managed = managed;
    output->ran_python = true;
    tensor->data = (char *)view->data + view->byte_offset;
    return check_new(view, tensor);
}

static mmf_status new_output(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                             void *stream, mmf_output *output)
{
    (void)stream; /* the library's own one; the caller orders the two */
    mmf_status status = mmf_exchange_allocate(state, a, tensor, output);
    if (status || tensor->device.type == MMF_CPU)
        return status;
    return mmf_output_make_object(state, a, output);
}

PyObject *mmf_exchange_finish(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    return output->managed ? make_object(state, a, output) : output->object;
}

const mmf_library mmf_library_exchange = {
    .recognise = recognise,
    .view = view,
    .stream = mmf_exchange_stream,
    .new_output = new_output,
    .finish = mmf_exchange_finish,
    .owner = &mmf_library_exchange,
};
