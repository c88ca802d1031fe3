/* Stream-ordered memory with an event that says when it is ready. It is freed on the default stream
 * behind that event, because the stream that it was made on may be gone by then. Path of a call:
 * results for unknown libraries. */
#include "gpu/memory.h"

#include "gpu/devices.h"

#include <stdlib.h>

/* Is the stream being captured? Of the default stream that cannot be asked while a stream that
 * blocks it is: nothing may be put on it then either. */
static bool is_captured(mmf_attempt *a, void *stream)
{
    int capturing = MMF_NOT_CAPTURING;
    int code = a->driver->stream_is_capturing(stream, &capturing);
    bool implicit = code == MMF_CAPTURE_IMPLICIT;
    mmf_attempt_note(a, implicit ? 0 : code, MMF_CALL_CAPTURING);
    if (implicit && a->driver->forget_error)
        a->driver->forget_error();
    return implicit || capturing != MMF_NOT_CAPTURING;
}

/* Memory that could not be given back at once. */
typedef struct postponed {
    struct postponed *next;
    mmf_device_memory memory;
} postponed;

static _Atomic(postponed *) waiting;

static void free_waiting(void);

static mmf_status check_pools(mmf_device device)
{
    mmf_gpu *gpu;
    char text[24];
    mmf_status status = mmf_gpu_get(device, &gpu);
    if (status || (gpu->facts.memory_pools && gpu->driver->alloc_async && gpu->driver->free_async))
        return status;
    return mmf_fail(MMF_NOT_IMPLEMENTED, "%s cannot allocate memory in stream order; pass out=",
                    mmf_device_name(device, text));
}

mmf_status mmf_gpu_alloc(mmf_device device, size_t bytes, void *stream, mmf_device_memory *memory)
{
    mmf_attempt a;
    int capturing = MMF_NOT_CAPTURING;
    *memory = (mmf_device_memory){.device = device};
    if (atomic_load_explicit(&waiting, memory_order_relaxed))
        free_waiting();
    mmf_status status = bytes ? check_pools(device) : MMF_OK;
    if (!status)
        status = mmf_attempt_begin(device, &a);
    if (status)
        return status;
    const mmf_driver *driver = a.driver;
    mmf_attempt_note(&a, driver->stream_is_capturing(stream, &capturing), MMF_CALL_CAPTURING);
    if (capturing != MMF_NOT_CAPTURING) {
        driver->leave(&a.scope);
        return mmf_fail(MMF_DEVICE_ERROR,
                        "the stream is being captured, so no result can be allocated; pass out=");
    }
    if (!a.code &&
        mmf_attempt_note(&a, driver->event_create(&memory->ready, MMF_EVENT_DISABLE_TIMING),
                         MMF_CALL_EVENT)) {
        if (bytes)
            mmf_attempt_note(&a, driver->alloc_async(&memory->data, bytes, stream), MMF_CALL_ALLOC);
        if (!a.code)
            mmf_attempt_note(&a, driver->event_record(memory->ready, stream), MMF_CALL_RECORD);
        if (a.code) { /* the first error is the one to tell */
            if (memory->data)
                driver->free_async(memory->data, stream);
            driver->event_destroy(memory->ready);
        }
    }
    return mmf_attempt_end(&a);
}

/* Let stream wait for the memory; if used, the memory is then ready when the stream has come this
 * far. A graph that is being captured cannot wait for what is outside of it: its user orders the
 * replays. */
static mmf_status order(const mmf_device_memory *memory, void *stream, bool used)
{
    mmf_attempt a;
    int capturing = MMF_NOT_CAPTURING;
    mmf_status status = mmf_attempt_begin(memory->device, &a);
    if (status)
        return status;
    mmf_attempt_note(&a, a.driver->stream_is_capturing(stream, &capturing), MMF_CALL_CAPTURING);
    if (capturing == MMF_NOT_CAPTURING && !a.code) {
        mmf_attempt_note(&a, a.driver->stream_wait_event(stream, memory->ready, 0), MMF_CALL_WAIT);
        if (used && !a.code)
            mmf_attempt_note(&a, a.driver->event_record(memory->ready, stream), MMF_CALL_RECORD);
    }
    return mmf_attempt_end(&a);
}

mmf_status mmf_gpu_wait(const mmf_device_memory *memory, void *stream)
{
    return order(memory, stream, false);
}

mmf_status mmf_gpu_used(mmf_device_memory *memory, void *stream)
{
    mmf_status status = order(memory, stream, true);
    memory->in_doubt |= status != MMF_OK;
    return status;
}

mmf_status mmf_gpu_order(mmf_device device, void *before, void *after)
{
    mmf_attempt a;
    mmf_device_memory mark = {.device = device};
    mmf_status status = mmf_attempt_begin(device, &a);
    if (status)
        return status;
    bool captured = is_captured(&a, before) || is_captured(&a, after);
    if (!captured && !a.code &&
        mmf_attempt_note(&a, a.driver->event_create(&mark.ready, MMF_EVENT_DISABLE_TIMING),
                         MMF_CALL_EVENT)) {
        if (mmf_attempt_note(&a, a.driver->event_record(mark.ready, before), MMF_CALL_RECORD))
            mmf_attempt_note(&a, a.driver->stream_wait_event(after, mark.ready, 0), MMF_CALL_WAIT);
        mmf_attempt_note(&a, a.driver->event_destroy(mark.ready),
                         MMF_CALL_DESTROY); /* lives on until it was waited for */
    }
    return mmf_attempt_end(&a);
}

mmf_status mmf_gpu_copy(mmf_device_memory *to, mmf_device_memory *from, size_t bytes, void *stream)
{
    mmf_attempt a;
    mmf_status status = mmf_attempt_begin(to->device, &a);
    if (status)
        return status;
    if (mmf_attempt_note(&a, a.driver->stream_wait_event(stream, from->ready, 0), MMF_CALL_WAIT) &&
        bytes)
        mmf_attempt_note(&a, a.driver->copy_async(to->data, from->data, bytes, stream),
                         MMF_CALL_COPY);
    status = mmf_attempt_end(&a);
    if (status)
        return status;
    status = mmf_gpu_used(to, stream);
    mmf_status second = mmf_gpu_used(from, stream);
    return status ? status : second;
}

/* On the default stream, behind the last use. False while a stream that blocks it is being
 * captured: the capture would be lost. */
static bool free_now(const mmf_device_memory *memory)
{
    mmf_attempt a;
    if (mmf_attempt_begin(memory->device, &a))
        return true; /* after a fork, for one: the parent's memory */
    bool may = !is_captured(&a, NULL) && !a.code;
    if (may && memory->data &&
        mmf_attempt_note(&a, a.driver->stream_wait_event(NULL, memory->ready, 0), MMF_CALL_WAIT))
        mmf_attempt_note(&a, a.driver->free_async(memory->data, NULL), MMF_CALL_FREE);
    if (may)
        mmf_attempt_note(&a, a.driver->event_destroy(memory->ready), MMF_CALL_DESTROY);
    mmf_attempt_end(&a); /* nobody is there to take an error; it is cleared */
    return may;
}

/* Take the list, free what can be freed, put the rest back. */
static void free_waiting(void)
{
    postponed *list = atomic_exchange(&waiting, NULL);
    while (list) {
        postponed *item = list;
        list = item->next;
        if (free_now(&item->memory)) {
            free(item);
            continue;
        }
        item->next = atomic_load(&waiting);
        while (!atomic_compare_exchange_weak(&waiting, &item->next, item))
            ;
    }
}

void mmf_gpu_free(const mmf_device_memory *memory)
{
    if (atomic_load_explicit(&waiting, memory_order_relaxed))
        free_waiting();
    if (memory->in_doubt || free_now(memory))
        return;
    postponed *item = malloc(sizeof *item);
    if (!item) /* lost, rather than the capture */
        return;
    item->memory = *memory;
    item->next = atomic_load(&waiting);
    while (!atomic_compare_exchange_weak(&waiting, &item->next, item))
        ;
}
