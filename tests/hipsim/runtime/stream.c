/* Streams: made, destroyed, waited for, made to wait. A handle is the stream's record; NULL and 1
 * are the legacy stream of the current device, 2 is the calling thread's own. */
#include "rt.h"

#include <stdlib.h>

static struct rt_stream *make_stream(int device, unsigned flags, int priority)
{
    struct rt_stream *stream = calloc(1, sizeof *stream);
    if (stream) {
        *stream = (struct rt_stream){
            .next = rt.streams, .device = device, .flags = flags, .priority = priority};
        rt.streams = stream;
    }
    return stream;
}

/* HIP 7 crashes on a stale handle; here it is a violation. */
struct rt_stream *rt_stream_of(hipStream_t handle)
{
    int device = rt_thread.device;
    if (!handle || handle == hipStreamLegacy)
        return rt.devices[device].null_stream;
    if (handle == hipStreamPerThread) {
        if (!rt_thread.streams[device])
            rt_thread.streams[device] = make_stream(device, hipStreamDefault, 0);
        if (rt_thread.streams[device])
            rt_thread.streams[device]->per_thread = true;
        return rt_thread.streams[device];
    }
    for (struct rt_stream *stream = rt.streams; stream; stream = stream->next) {
        if ((void *)stream == (void *)handle && !stream->destroyed && !stream->null)
            return stream;
    }
    rt_violation(device, "handle", "%p is not a stream, or one that was destroyed", (void *)handle);
    return NULL;
}

void rt_stream_reap(struct rt_stream *stream)
{
    if (!stream->destroyed || stream->head || stream->running)
        return;
    struct rt_stream **link = &rt.streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    free(stream->last);
    free(stream);
}

static hipError_t create(hipStream_t *handle, unsigned flags, int priority)
{
    if (!handle || (flags != hipStreamDefault && flags != hipStreamNonBlocking))
        return hipErrorInvalidValue;
    struct rt_stream *stream = make_stream(rt_thread.device, flags, priority);
    *handle = (hipStream_t)(void *)stream;
    return stream ? hipSuccess : hipErrorOutOfMemory;
}

hipError_t rt_hipStreamCreate(hipStream_t *handle)
{
    return create(handle, hipStreamDefault, 0);
}

hipError_t rt_hipStreamCreateWithFlags(hipStream_t *handle, unsigned int flags)
{
    return create(handle, flags, 0);
}

hipError_t rt_hipStreamCreateWithPriority(hipStream_t *handle, unsigned int flags, int priority)
{
    return create(handle, flags, priority < -1 ? -1 : priority > 1 ? 1 : priority);
}

/* What is queued still runs. */
hipError_t rt_hipStreamDestroy(hipStream_t handle)
{
    if (!handle)
        return hipErrorInvalidHandle;
    if (handle == hipStreamPerThread || handle == hipStreamLegacy)
        return hipErrorInvalidHandle;
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    rt_capture_leave(stream);
    stream->destroyed = true;
    rt_stream_reap(stream);
    return hipSuccess;
}

hipError_t rt_hipStreamQuery(hipStream_t handle)
{
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    hipError_t error = rt_capture_ongoing(stream);
    if (error)
        return error;
    return stream->head || stream->running ? hipErrorNotReady : rt_take_error(stream->device);
}

hipError_t rt_hipStreamSynchronize(hipStream_t handle)
{
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    hipError_t error = stream->null ? rt_capture_implicit() : rt_capture_ongoing(stream);
    return error ? error : rt_sync_stream(stream);
}

hipError_t rt_hipStreamWaitEvent(hipStream_t handle, hipEvent_t event_handle, unsigned int flags)
{
    struct rt_event *event = rt_event_of(event_handle);
    struct rt_stream *stream = rt_stream_of(handle);
    if (flags > 1)
        return hipErrorInvalidValue;
    if (!event || !stream)
        return event ? hipErrorContextIsDestroyed : hipErrorInvalidHandle;
    bool captured = false;
    hipError_t error = rt_capture_wait(stream, event, &captured);
    if (error || captured)
        return error;
    /* An event that was never recorded holds nobody up. */
    event->references++;
    return rt_enqueue(stream, &(struct rt_op){.kind = RT_WAIT, .event = {event, event->recorded}});
}

hipError_t rt_hipStreamGetFlags(hipStream_t handle, unsigned int *flags)
{
    if (!flags || !handle)
        return hipErrorInvalidValue;
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorInvalidHandle;
    *flags = stream->flags;
    return hipSuccess;
}

hipError_t rt_hipStreamGetPriority(hipStream_t handle, int *priority)
{
    if (!priority)
        return hipErrorInvalidValue;
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorInvalidHandle;
    *priority = stream->priority;
    return hipSuccess;
}

hipError_t rt_hipStreamGetDevice(hipStream_t handle, hipDevice_t *device)
{
    if (!device)
        return hipErrorInvalidValue;
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    *device = stream->device;
    return hipSuccess;
}

hipError_t rt_hipStreamAddCallback(hipStream_t handle, hipStreamCallback_t callback, void *data,
                                   unsigned int flags)
{
    struct rt_stream *stream = rt_stream_of(handle);
    if (!callback || flags || !stream)
        return hipErrorInvalidValue;
    hipError_t error = rt_capture_refuses(stream);
    if (error)
        return error;
    return rt_enqueue(
        stream, &(struct rt_op){.kind = RT_HOST,
                                .host = {.callback = callback, .stream = handle, .data = data}});
}

hipError_t rt_hipLaunchHostFunc(hipStream_t handle, hipHostFn_t function, void *data)
{
    struct rt_stream *stream = rt_stream_of(handle);
    if (!function || !stream)
        return hipErrorInvalidValue;
    struct rt_op op = {.kind = RT_HOST, .host = {.function = function, .data = data}};
    bool captured = false;
    hipError_t error = rt_capture_op(stream, &op, &captured);
    return error || captured ? error : rt_enqueue(stream, &op);
}
