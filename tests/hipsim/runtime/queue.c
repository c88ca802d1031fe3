/* Work in stream order. A call appends an operation to its stream; operations run when somebody
 * waits (or at once with HIPSIM_ORDER=early), each time one drawn from the seed among those that
 * their stream, the legacy stream's rule and events allow. What two streams do in the wrong order
 * on a GPU once a week goes wrong here for half of the seeds. A kernel runs under the lock; a host
 * function does not, and marks its stream as running meanwhile. */
#include "rt.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t rt_random(uint64_t bound)
{
    rt.random += 0x9e3779b97f4a7c15u;
    uint64_t x = rt.random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % bound;
}

double rt_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

void rt_op_clear(struct rt_op *op)
{
    if (op->kind == RT_KERNEL) {
        free(op->dispatch.kernarg);
        rt_module_release(op->dispatch.kernel->module);
    } else if (op->kind == RT_COPY) {
        free(op->copy.staged);
    } else if (op->kind == RT_RECORD || op->kind == RT_WAIT) {
        rt_event_unref(op->event.event);
    } else if (op->kind == RT_GRAPH) {
        rt_exec_unref(op->exec);
    }
    op->kind = RT_EMPTY;
}

/* Of operations that a graph may hold: no events, no graphs. */
bool rt_op_clone(struct rt_op *to, const struct rt_op *from)
{
    *to = *from;
    const void *bytes = NULL;
    size_t size = 0;
    if (from->kind == RT_KERNEL) {
        bytes = from->dispatch.kernarg;
        size = from->dispatch.kernel->machine.kernarg_bytes;
    } else if (from->kind == RT_COPY && from->copy.staged) {
        bytes = from->copy.staged;
        size = from->copy.bytes;
    }
    unsigned char *copy = bytes ? malloc(size + 1) : NULL;
    if (bytes && !copy) {
        to->kind = RT_EMPTY;
        return false;
    }
    if (copy)
        memcpy(copy, bytes, size);
    if (from->kind == RT_KERNEL) {
        to->dispatch.kernarg = copy;
        from->dispatch.kernel->module->references++;
    } else if (from->kind == RT_COPY && copy) {
        to->copy.staged = copy;
        to->copy.from = copy;
    }
    return true;
}

/* Is nothing older than the sequence number left in the stream? */
static bool passed(const struct rt_stream *stream, uint64_t sequence)
{
    return !stream->head || stream->head->sequence > sequence;
}

/* The legacy stream and the blocking streams of its device wait for each other. */
static bool legacy_allows(const struct rt_stream *stream, uint64_t sequence)
{
    if (stream->flags & hipStreamNonBlocking)
        return true;
    if (!stream->null)
        return passed(rt.devices[stream->device].null_stream, sequence);
    for (const struct rt_stream *other = rt.streams; other; other = other->next) {
        bool blocking = !other->null && !(other->flags & hipStreamNonBlocking);
        if (blocking && other->device == stream->device && !passed(other, sequence))
            return false;
    }
    return true;
}

static bool ready(const struct rt_stream *stream)
{
    const struct rt_op *op = stream->head;
    if (!op || stream->running || !legacy_allows(stream, op->sequence))
        return false;
    return op->kind != RT_WAIT || op->event.event->completed >= op->event.generation;
}

static void run_host(struct rt_stream *stream, struct rt_op *op)
{
    stream->running = true;
    rt_memory_close();
    pthread_mutex_unlock(&rt.lock);
    if (op->host.callback)
        op->host.callback(op->host.stream, hipSuccess, op->host.data);
    else
        op->host.function(op->host.data);
    pthread_mutex_lock(&rt.lock);
    stream->running = false;
    pthread_cond_broadcast(&rt.changed);
}

static void run_copy(const struct rt_op *op)
{
    unsigned char *to = rt_host_bytes(op->copy.to, op->copy.bytes, "a copy's destination");
    const unsigned char *from =
        op->copy.staged ? op->copy.staged
                        : rt_host_bytes(op->copy.from, op->copy.bytes, "a copy's source");
    if (to && from)
        memmove(to, from, op->copy.bytes);
}

static void run_fill(const struct rt_op *op)
{
    size_t width = (size_t)op->fill.width;
    unsigned char *to = rt_host_bytes(op->fill.to, width * op->fill.count, "a fill");
    for (size_t i = 0; to && i < op->fill.count; i++)
        memcpy(to + i * width, &op->fill.value, width);
}

static void run_record(const struct rt_op *op)
{
    struct rt_event *event = op->event.event;
    if (event->completed < op->event.generation) {
        event->completed = op->event.generation;
        event->milliseconds = rt_clock();
    }
}

void rt_execute(struct rt_stream *stream, struct rt_op *op)
{
    struct rt_allocation *allocation;
    switch (op->kind) {
    case RT_KERNEL:
        rt_dispatch_run(&op->dispatch);
        break;
    case RT_COPY:
        run_copy(op);
        break;
    case RT_FILL:
        run_fill(op);
        break;
    case RT_HOST:
        run_host(stream, op);
        break;
    case RT_RECORD:
        run_record(op);
        break;
    case RT_MAKE_LIVE:
    case RT_FREE:
        allocation = rt_find(op->address);
        if (allocation && op->kind == RT_MAKE_LIVE)
            allocation->live = true;
        else if (allocation)
            rt_release(allocation);
        break;
    case RT_GRAPH:
        rt_exec_run(stream, op->exec);
        break;
    case RT_WAIT:
    case RT_EMPTY:
        break;
    }
}

/* Run one operation; false if none may run. */
static bool step(void)
{
    struct rt_stream *chosen = NULL;
    uint64_t candidates = 0;
    for (struct rt_stream *stream = rt.streams; stream; stream = stream->next) {
        if (ready(stream) && rt_random(++candidates) == 0)
            chosen = stream;
    }
    if (!chosen)
        return false;
    struct rt_op *op = chosen->head;
    rt_execute(chosen, op);
    chosen->head = op->next;
    if (!chosen->head)
        chosen->tail = NULL;
    rt_op_clear(op);
    free(op);
    rt_stream_reap(chosen);
    return true;
}

static bool somebody_runs(void)
{
    for (const struct rt_stream *stream = rt.streams; stream; stream = stream->next) {
        if (stream->running)
            return true;
    }
    return false;
}

hipError_t rt_run_until(bool (*done)(const void *context), const void *context)
{
    while (!done(context)) {
        if (step())
            continue;
        if (!somebody_runs()) {
            rt_violation(0, "order",
                         "the work that is waited for cannot run: streams wait for each other");
            return hipErrorLaunchTimeOut;
        }
        pthread_cond_wait(&rt.changed, &rt.lock);
    }
    return hipSuccess;
}

hipError_t rt_enqueue(struct rt_stream *stream, const struct rt_op *op)
{
    struct rt_op *queued = malloc(sizeof *queued);
    if (!queued) {
        struct rt_op taken = *op;
        rt_op_clear(&taken);
        return hipErrorOutOfMemory;
    }
    *queued = *op;
    queued->next = NULL;
    queued->sequence = stream->enqueued = ++rt.sequence;
    if (stream->tail)
        stream->tail->next = queued;
    else
        stream->head = queued;
    stream->tail = queued;
    while (rt.early && step()) {
    }
    return hipSuccess;
}

struct target {
    int device; /* of every stream in question */
    const struct rt_stream *only, *legacy;
    uint64_t sequence;
};

static bool reached(const void *context)
{
    const struct target *target = context;
    for (const struct rt_stream *stream = rt.streams; stream; stream = stream->next) {
        if (stream->device != target->device || (target->only && stream != target->only) ||
            (target->legacy && stream != target->legacy && (stream->flags & hipStreamNonBlocking)))
            continue;
        if (!passed(stream, target->sequence))
            return false;
    }
    return true;
}

hipError_t rt_take_error(int device)
{
    hipError_t error = rt.devices[device].error;
    rt.devices[device].error = hipSuccess;
    return error;
}

static hipError_t wait_for(const struct target *target)
{
    hipError_t error = rt_run_until(reached, target);
    hipError_t earlier = rt_take_error(target->device);
    return earlier ? earlier : error;
}

/* Waiting for the legacy stream waits for the blocking streams too. */
hipError_t rt_sync_stream(struct rt_stream *stream)
{
    return wait_for(&(struct target){.device = stream->device,
                                     .only = stream->null ? NULL : stream,
                                     .legacy = stream->null ? stream : NULL,
                                     .sequence = rt.sequence});
}

hipError_t rt_sync_device(int device)
{
    return wait_for(&(struct target){.device = device, .sequence = rt.sequence});
}
