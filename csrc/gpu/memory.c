/* Stream-ordered memory with an event that says when it is ready. It is freed behind that event, on
 * the default stream, because the stream that it was made on may be gone by then. Memory that a
 * consumer reads on a stream of its own is freed on that stream when it is next seen alive.
 * Path of a call: results for unknown libraries. */
#include "gpu/memory.h"

#include "gpu/attempt.h"
#include "gpu/devices.h"

#include <stdlib.h>

/* Memory that could not be given back at once. */
typedef struct postponed {
    struct postponed *next;
    mmf_device_memory memory;
} postponed;

static _Atomic(postponed *) waiting;

mmf_status mmf_gpu_has_pools(mmf_device device, bool *has)
{
    mmf_gpu *gpu;
    mmf_status status = mmf_gpu_get(device, &gpu);
    *has =
        !status && gpu->facts.memory_pools && gpu->driver->alloc_async && gpu->driver->free_async;
    return status;
}

static mmf_status check_pools(mmf_device device, const mmf_remedy *remedy)
{
    char text[24];
    bool has;
    mmf_status status = mmf_gpu_has_pools(device, &has);
    if (status || has)
        return status;
    return mmf_fail(MMF_NOT_IMPLEMENTED, "%s cannot allocate memory in stream order; %s",
                    mmf_device_name(device, text), remedy->no_pools);
}

mmf_status mmf_gpu_alloc(mmf_device device, size_t bytes, void *stream, const mmf_remedy *remedy,
                         mmf_device_memory *memory, bool *full)
{
    mmf_attempt a;
    int capturing = MMF_NOT_CAPTURING;
    *memory = (mmf_device_memory){.device = device};
    *full = false;
    mmf_gpu_stream_seen(device, stream);
    mmf_status status = bytes ? check_pools(device, remedy) : MMF_OK;
    if (!status)
        status = mmf_attempt_begin(device, &a);
    if (status)
        return status;
    const mmf_driver *driver = a.driver;
    mmf_attempt_note(&a, driver->stream_is_capturing(stream, &capturing), MMF_CALL_CAPTURING);
    if (capturing != MMF_NOT_CAPTURING) {
        driver->leave(&a.scope);
        return mmf_fail(MMF_DEVICE_ERROR,
                        "the stream is being captured, so no memory can be allocated; %s",
                        remedy->captured);
    }
    if (!a.code &&
        mmf_attempt_note(&a, driver->event_create(&memory->ready, MMF_EVENT_DISABLE_TIMING),
                         MMF_CALL_EVENT)) {
        if (bytes)
            mmf_attempt_note(&a, driver->alloc_async(&memory->data, bytes, stream), MMF_CALL_ALLOC);
        *full = a.code == MMF_OUT_OF_MEMORY;
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
    mmf_gpu_stream_seen(memory->device, stream);
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

/* The latest known read on a stream. */
typedef struct mmf_use {
    struct mmf_use *next;
    void *stream, *done; /* an event */
} mmf_use;

/* That of a stream, a new one if there is none. */
static mmf_status use_of(mmf_device_memory *memory, void *stream, mmf_attempt *a, mmf_use **use)
{
    for (*use = memory->uses; *use && (*use)->stream != stream;)
        *use = (*use)->next;
    if (*use)
        return MMF_OK;
    mmf_use *made = malloc(sizeof *made);
    if (!made)
        return mmf_fail(MMF_NO_MEMORY, "no memory to keep the use of a prepacked weight");
    *made = (mmf_use){memory->uses, stream, NULL};
    if (!mmf_attempt_note(a, a->driver->event_create(&made->done, MMF_EVENT_DISABLE_TIMING),
                          MMF_CALL_EVENT)) {
        free(made);
        return MMF_OK; /* the attempt's end tells */
    }
    *use = memory->uses = made;
    return MMF_OK;
}

mmf_status mmf_gpu_read(mmf_device_memory *memory, void *stream)
{
    mmf_attempt a;
    mmf_use *use = NULL;
    mmf_status status = mmf_attempt_begin(memory->device, &a), kept = MMF_OK;
    if (!status) {
        if (!mmf_attempt_in_capture(&a, stream) && !a.code)
            kept = use_of(memory, stream, &a, &use);
        if (use)
            mmf_attempt_note(&a, a.driver->event_record(use->done, stream), MMF_CALL_RECORD);
        status = mmf_attempt_end(&a);
    }
    memory->in_doubt |= status || kept;
    return status ? status : kept;
}

/* A stream of a consumer. CUDA's per-thread stream is another one on each thread; the default one
 * stands for it, which waits for all of them. */
typedef struct mmf_reader {
    struct mmf_reader *next;
    void *stream;
} mmf_reader;

enum { CUDA_PER_THREAD = 2 };

mmf_status mmf_gpu_lend(mmf_device_memory *memory, void *stream)
{
    bool per_thread = memory->device.type == MMF_CUDA && (uintptr_t)stream == CUDA_PER_THREAD;
    void *reads = per_thread ? NULL : stream;
    mmf_reader *reader = memory->readers;
    while (reader && reader->stream != reads)
        reader = reader->next;
    if (!reader) {
        reader = malloc(sizeof *reader);
        if (!reader)
            return mmf_fail(MMF_NO_MEMORY, "no memory to keep a consumer's stream");
        *reader = (mmf_reader){memory->readers, reads};
        memory->readers = reader;
    }
    return mmf_gpu_wait(memory, stream);
}

mmf_status mmf_gpu_order(mmf_device device, void *before, void *after)
{
    mmf_attempt a;
    mmf_device_memory mark = {.device = device};
    mmf_gpu_stream_seen(device, before);
    mmf_gpu_stream_seen(device, after);
    mmf_status status = mmf_attempt_begin(device, &a);
    if (status)
        return status;
    bool captured = mmf_attempt_in_capture(&a, before) || mmf_attempt_in_capture(&a, after);
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

/* May the reader's stream be touched? */
static bool exists(const mmf_reader *reader, const void *alive)
{
    return !reader->stream || reader->stream == alive;
}

static void forget_reader(mmf_reader **reader)
{
    mmf_reader *done = *reader;
    *reader = done->next;
    free(done);
}

/* Free the memory on a stream, behind its last use. False while that would break a capture. */
static bool free_on(mmf_attempt *a, const mmf_device_memory *memory, void *stream)
{
    if (mmf_attempt_in_capture(a, stream) || a->code)
        return false;
    for (const mmf_use *use = memory->uses; use && memory->data && !a->code; use = use->next)
        mmf_attempt_note(a, a->driver->stream_wait_event(stream, use->done, 0), MMF_CALL_WAIT);
    if (memory->data && !a->code &&
        mmf_attempt_note(a, a->driver->stream_wait_event(stream, memory->ready, 0), MMF_CALL_WAIT))
        mmf_attempt_note(a, a->driver->free_async(memory->data, stream), MMF_CALL_FREE);
    for (const mmf_use *use = memory->uses; use; use = use->next)
        mmf_attempt_note(a, a->driver->event_destroy(use->done), MMF_CALL_DESTROY);
    mmf_attempt_note(a, a->driver->event_destroy(memory->ready), MMF_CALL_DESTROY);
    return true;
}

/* The memory is ready only when the reader's stream has come this far. False while the stream is
 * being captured. */
static bool wait_for_reader(mmf_attempt *a, const mmf_device_memory *memory, void *stream)
{
    if (mmf_attempt_in_capture(a, stream) || a->code)
        return false;
    return mmf_attempt_note(a, a->driver->stream_wait_event(stream, memory->ready, 0),
                            MMF_CALL_WAIT) &&
           mmf_attempt_note(a, a->driver->event_record(memory->ready, stream), MMF_CALL_RECORD);
}

/* Give memory back behind its readers. `alive` exists, as the default stream does; other readers'
 * streams may not be touched. False while one of those is left, or a capture would be lost. */
static bool free_now(mmf_device_memory *memory, void *alive)
{
    mmf_attempt a;
    void *last = NULL;
    bool left = false;
    const mmf_reader *known = memory->readers;
    while (known && !exists(known, alive))
        known = known->next;
    if (memory->readers && !known)
        return false;
    if (mmf_attempt_begin(memory->device, &a))
        return true; /* after a fork, for one: the parent's memory */
    for (mmf_reader **reader = &memory->readers; *reader && !a.code;) {
        if (memory->readers->next == NULL && exists(memory->readers, alive)) {
            last = memory->readers->stream; /* its own order will do */
            break;
        }
        if (exists(*reader, alive) && wait_for_reader(&a, memory, (*reader)->stream)) {
            forget_reader(reader);
        } else {
            left = true;
            reader = &(*reader)->next;
        }
    }
    left = left || !free_on(&a, memory, last);
    mmf_attempt_end(&a); /* nobody is there to take an error; it is cleared */
    return !left;
}

static void postpone(postponed *item)
{
    item->next = atomic_load(&waiting);
    while (!atomic_compare_exchange_weak(&waiting, &item->next, item))
        ;
}

static void drop_notes(mmf_device_memory *memory)
{
    while (memory->readers)
        forget_reader(&memory->readers);
    while (memory->uses) {
        mmf_use *done = memory->uses;
        memory->uses = done->next;
        free(done);
    }
}

/* Free of a list what can be freed, and let the rest wait on. idle: all work that was on the device
 * when the list was taken is done. */
static void free_list(postponed *list, mmf_device device, void *alive, bool idle)
{
    while (list) {
        postponed *item = list;
        mmf_device_memory *memory = &item->memory;
        bool here = memory->device.type == device.type && memory->device.id == device.id;
        list = item->next;
        if (here && idle && memory->readers) { /* all are done: any stream will do */
            while (memory->readers->next)
                forget_reader(&memory->readers->next);
            memory->readers->stream = alive;
        }
        if (!free_now(memory, here ? alive : NULL)) {
            postpone(item);
            continue;
        }
        drop_notes(memory);
        free(item);
    }
}

void mmf_gpu_stream_seen(mmf_device device, void *stream)
{
    if (atomic_load_explicit(&waiting, memory_order_relaxed))
        free_list(atomic_exchange(&waiting, NULL), device, stream, false);
}

bool mmf_gpu_drain(mmf_device device, void *stream)
{
    mmf_attempt a;
    int mode = MMF_CAPTURE_RELAXED; /* what other threads capture is to stay whole */
    if (!atomic_load(&waiting) || mmf_attempt_begin(device, &a))
        return false;
    postponed *list = atomic_exchange(&waiting, NULL);
    int (*exchange)(int *) = a.driver->exchange_capture_mode;
    if (!exchange || mmf_attempt_note(&a, exchange(&mode), MMF_CALL_CAPTURING)) {
        mmf_attempt_note(&a, a.driver->synchronize(), MMF_CALL_SYNCHRONIZE);
        if (exchange)
            mmf_attempt_note(&a, exchange(&mode), MMF_CALL_CAPTURING);
    }
    bool idle = mmf_attempt_end(&a) == MMF_OK;
    free_list(list, device, stream, idle);
    return idle;
}

void mmf_gpu_free(mmf_device_memory *memory)
{
    mmf_gpu_stream_seen(memory->device, NULL);
    if (memory->in_doubt || free_now(memory, NULL)) {
        drop_notes(memory);
        return;
    }
    postponed *item = malloc(sizeof *item);
    if (!item) { /* lost, rather than the capture or a reader's data */
        drop_notes(memory);
        return;
    }
    item->memory = *memory;
    postpone(item);
}
