/* Events. Each hipEventRecord begins a new generation; a wait is for the generation that was newest
 * at its call. */
#include "rt.h"

#include <stdlib.h>

struct rt_event *rt_event_of(hipEvent_t handle)
{
    for (struct rt_event *event = rt.events; event; event = event->next) {
        if ((void *)event == (void *)handle && !event->destroyed)
            return event;
    }
    if (handle)
        rt_violation(rt_thread.device, "handle", "%p is not an event, or one that was destroyed",
                     (void *)handle);
    return NULL;
}

void rt_event_unref(struct rt_event *event)
{
    if (--event->references > 0)
        return;
    struct rt_event **link = &rt.events;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    free(event->nodes);
    free(event);
}

hipError_t rt_hipEventCreateWithFlags(hipEvent_t *handle, unsigned flags)
{
    unsigned known = hipEventBlockingSync | hipEventDisableTiming | hipEventInterprocess |
                     0x70000000u | 0x80000000u;
    bool interprocess_timed = (flags & hipEventInterprocess) && !(flags & hipEventDisableTiming);
    if (!handle || (flags & ~known) || interprocess_timed)
        return hipErrorInvalidValue;
    struct rt_event *event = calloc(1, sizeof *event);
    if (!event)
        return hipErrorOutOfMemory;
    *event = (struct rt_event){
        .next = rt.events, .flags = flags, .device = rt_thread.device, .references = 1};
    rt.events = event;
    *handle = (hipEvent_t)(void *)event;
    return hipSuccess;
}

hipError_t rt_hipEventCreate(hipEvent_t *handle)
{
    return rt_hipEventCreateWithFlags(handle, hipEventDefault);
}

hipError_t rt_hipEventDestroy(hipEvent_t handle)
{
    struct rt_event *event = rt_event_of(handle);
    if (!event)
        return hipErrorInvalidHandle;
    event->destroyed = true;
    rt_event_unref(event);
    return hipSuccess;
}

hipError_t rt_hipEventRecord(hipEvent_t handle, hipStream_t stream_handle)
{
    struct rt_event *event = rt_event_of(handle);
    if (!event)
        return hipErrorInvalidHandle;
    struct rt_stream *stream = rt_stream_of(stream_handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    if (stream->device != event->device)
        return hipErrorInvalidHandle;
    if (stream->capture)
        return rt_capture_record(stream, event);
    event->capture = NULL;
    event->references++;
    event->recorded++;
    return rt_enqueue(stream,
                      &(struct rt_op){.kind = RT_RECORD, .event = {event, event->recorded}});
}

hipError_t rt_hipEventQuery(hipEvent_t handle)
{
    struct rt_event *event = rt_event_of(handle);
    if (!event)
        return hipErrorInvalidHandle;
    if (event->capture)
        return hipErrorCapturedEvent;
    hipError_t error = rt_capture_forbids();
    if (error)
        return error;
    return event->completed >= event->recorded ? hipSuccess : hipErrorNotReady;
}

static bool completed(const void *context)
{
    const struct rt_event *event = context;
    return event->completed >= event->recorded;
}

hipError_t rt_hipEventSynchronize(hipEvent_t handle)
{
    struct rt_event *event = rt_event_of(handle);
    if (!event)
        return hipErrorInvalidHandle;
    if (event->capture)
        return hipErrorCapturedEvent;
    hipError_t error = rt_run_until(completed, event);
    hipError_t earlier = rt_take_error(event->device);
    return earlier ? earlier : error;
}

hipError_t rt_hipEventElapsedTime(float *milliseconds, hipEvent_t start_handle,
                                  hipEvent_t stop_handle)
{
    if (!milliseconds)
        return hipErrorInvalidValue;
    struct rt_event *start = rt_event_of(start_handle), *stop = rt_event_of(stop_handle);
    if (!start || !stop || start->device != stop->device || !start->recorded || !stop->recorded ||
        ((start->flags | stop->flags) & hipEventDisableTiming))
        return hipErrorInvalidHandle;
    if (start->completed < start->recorded || stop->completed < stop->recorded)
        return hipErrorNotReady;
    *milliseconds = (float)(stop->milliseconds - start->milliseconds);
    return hipSuccess;
}
