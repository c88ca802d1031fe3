/* Calls on GPUs: the order between the call's stream and those of the operands' libraries, and
 * notes to the owners of memory. Path of a call: after problem/, before the launch, after it. */
#include "binding/device_order.h"

#include "binding/libraries/library.h"
#include "plan/backends.h"
#include "problem/kernel.h"

/* A kernel that reads another's wild pointer would take the device down for the whole process. */
static mmf_status check_memory(const mmf_import *import)
{
    if (import->library->trusted || !mmf_tensor_size(&import->tensor))
        return MMF_OK;
    return mmf_gpu_check_memory(import->tensor.device, import->tensor.data, import->name);
}

mmf_status mmf_device_prepare(mmf_state *state, mmf_call *call)
{
    mmf_device device = call->request.operand[MMF_A]->device;
    mmf_status status = mmf_gpu_begin(device);
    if (!status && !call->stream.known)
        status = mmf_stream_find(state, &call->stream, device);
    call->buffers.stream = call->stream.handle;
    for (int i = 0; !status && i < call->imports; i++)
        status = check_memory(&call->import[i]);
    return status;
}

/* Did this operand's library choose the call's stream? */
static bool chose_stream(const mmf_call *call, const mmf_import *import)
{
    const mmf_import *a = call->stream.a;
    return !call->stream.given && import->library == a->library && import->api == a->api;
}

/* The current stream of an operand's library; *other is false if it is the call's, or there is
 * none. */
static mmf_status library_stream(mmf_state *state, mmf_call *call, const mmf_import *import,
                                 bool *other, void **handle)
{
    mmf_stream own = {.a = import};
    mmf_status status = MMF_OK;
    if (import->library->stream && !chose_stream(call, import))
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
        if (call->import[i].library == import->library && call->import[i].api == import->api)
            return false;
    return true;
}

static mmf_status record(const mmf_call *call, const mmf_import *of, PyObject *array)
{
    bool tell = of->library->record && !chose_stream(call, of);
    return tell ? of->library->record(&call->stream, array) : MMF_OK;
}

/* The call's stream waits for that of an operand's library. */
static mmf_status wait_for_library(mmf_state *state, mmf_call *call, const mmf_import *import)
{
    bool other;
    void *own;
    mmf_status status = library_stream(state, call, import, &other, &own);
    return status || !other ? status : mmf_gpu_order(call->stream.device, own, call->stream.handle);
}

/* The stream of an operand's library, which cannot be told of the call's, waits for that. */
static mmf_status let_library_wait(mmf_state *state, mmf_call *call, const mmf_import *import)
{
    bool other = false;
    void *own;
    mmf_status status = MMF_OK;
    if (!import->library->record)
        status = library_stream(state, call, import, &other, &own);
    return status || !other ? status : mmf_gpu_order(call->stream.device, call->stream.handle, own);
}

mmf_status mmf_device_await(mmf_state *state, mmf_call *call, PyObject *result)
{
    mmf_status status = MMF_OK;
    mmf_gpu_stream_seen(call->stream.device, call->stream.handle);
    for (int i = 0; !status && i < call->imports; i++) {
        const mmf_import *import = &call->import[i];
        if (import->library->wait)
            status = import->library->wait(&call->stream, import->object);
        if (!status)
            status = record(call, import, import->object);
    }
    for (int i = 0; !status && i < 2; i++)
        if (call->packed_memory[i])
            status = mmf_gpu_wait(call->packed_memory[i], call->stream.handle);
    for (int i = 0; !status && i < call->imports; i++) {
        bool viewed = call->import[i].library->view != NULL;
        if ((viewed || (i == 0 && result)) && is_first(call, i))
            status = wait_for_library(state, call, &call->import[i]);
    }
    return status || !result ? status : record(call, &call->import[0], result);
}

mmf_status mmf_device_finish(mmf_state *state, mmf_call *call, PyObject *result)
{
    const mmf_library *owner = call->import[0].library->owner;
    mmf_status status = MMF_OK, next;
    if (result && owner->used)
        status = owner->used(&call->stream, result);
    for (int i = 0; i < call->imports; i++) { /* all of them, also after an error */
        const mmf_import *import = &call->import[i];
        next =
            import->library->used ? import->library->used(&call->stream, import->object) : MMF_OK;
        status = next ? next : status; /* the text is that of the last error */
    }
    for (int i = 0; i < 2; i++) {
        if (!call->packed_memory[i])
            continue;
        next = mmf_gpu_read(call->packed_memory[i], call->stream.handle);
        status = next ? next : status;
    }
    for (int i = 0; !status && i < call->imports; i++)
        if (is_first(call, i))
            status = let_library_wait(state, call, &call->import[i]);
    return status;
}

mmf_status mmf_workspace_possible(const mmf_call *call, mmf_no_workspace *why_not)
{
    const mmf_device device = call->stream.device;
    bool capturing = false, pools = true;
    mmf_status status = MMF_OK;
    if (call->import[0].library->owner == &mmf_library_array) {
        status = mmf_gpu_is_capturing(device, call->stream.handle, &capturing);
        if (!status)
            status = mmf_gpu_has_pools(device, &pools);
    }
    *why_not = capturing ? MMF_WORKSPACE_CAPTURED
               : pools   ? MMF_WORKSPACE_ALLOWED
                         : MMF_WORKSPACE_NO_POOL;
    return status;
}

mmf_status mmf_workspace_new(mmf_state *state, mmf_call *call, int64_t bytes, mmf_output *workspace,
                             void **data)
{
    const mmf_import *a = &call->import[0];
    const int64_t size = mmf_dtypes[MMF_FLOAT32].size; /* of a dtype that every library has */
    mmf_tensor memory = {.dtype = MMF_FLOAT32,
                         .device = call->stream.device,
                         .ndim = 1,
                         .shape = {(bytes + size - 1) / size},
                         .strides = {1}};
    *workspace = (mmf_output){0};
    *data = NULL;
    if (bytes == 0)
        return MMF_OK;
    mmf_status status =
        a->library->owner->new_output(state, a, &memory, call->stream.handle, workspace);
    if (!status && call->stream.given)
        status = mmf_output_make_object(state, a, workspace);
    call->stream.ran_python |= workspace->ran_python;
    if (!status)
        status = wait_for_library(state, call, a); /* whose memory's user before may be at work */
    if (!status)
        status = record(call, a, workspace->object);
    if (!status && (uintptr_t)memory.data % MMF_WORKSPACE_ALIGN)
        status = mmf_fail(MMF_BUFFER_ERROR,
                          "A's library made a workspace at an address that is no multiple of %d "
                          "bytes",
                          MMF_WORKSPACE_ALIGN);
    if (status)
        mmf_output_drop(workspace);
    else
        *data = memory.data;
    return status;
}

mmf_status mmf_workspace_drop(mmf_state *state, mmf_call *call, bool launched,
                              mmf_output *workspace)
{
    const mmf_import *a = &call->import[0];
    mmf_status status = MMF_OK;
    if (workspace->object && launched && a->library->owner->used)
        status = a->library->owner->used(&call->stream, workspace->object);
    if (!status && workspace->object && launched)
        status = let_library_wait(state, call, a);
    mmf_output_drop(workspace);
    return status;
}
