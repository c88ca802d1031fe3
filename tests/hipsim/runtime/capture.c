/* Stream capture: operations of a recording stream become nodes of a graph, and calls that would
 * break a recording fail with HIP's codes and invalidate it. Where AMD's runtime is lenient and
 * CUDA is not (work on the legacy stream, loading a module), this simulation is strict: what passes
 * here passes on both. */
#include "rt.h"

#include <stdlib.h>
#include <string.h>

static bool here(const struct rt_capture *capture)
{
    return pthread_equal(capture->thread, pthread_self());
}

/* Does the calling thread's mode let this capture forbid an unsafe call? */
static bool guards(const struct rt_capture *capture)
{
    if (rt_thread.capture_mode == hipStreamCaptureModeRelaxed ||
        capture->mode == hipStreamCaptureModeRelaxed)
        return false;
    bool others = rt_thread.capture_mode == hipStreamCaptureModeGlobal &&
                  capture->mode == hipStreamCaptureModeGlobal;
    return here(capture) || others;
}

static hipError_t invalidate_if(bool (*applies)(const struct rt_capture *), hipError_t error)
{
    bool any = false;
    for (struct rt_capture *capture = rt.captures; capture; capture = capture->next) {
        if (applies(capture)) {
            capture->invalid = true;
            any = true;
        }
    }
    return any ? error : hipSuccess;
}

static bool any_capture(const struct rt_capture *capture)
{
    (void)capture;
    return true;
}

hipError_t rt_capture_forbids(void)
{
    return invalidate_if(guards, hipErrorStreamCaptureUnsupported);
}

hipError_t rt_capture_forbids_sync(void)
{
    return invalidate_if(any_capture, hipErrorStreamCaptureUnsupported);
}

hipError_t rt_capture_implicit(void)
{
    return invalidate_if(any_capture, hipErrorStreamCaptureImplicit);
}

hipError_t rt_capture_refuses(struct rt_stream *stream)
{
    if (!stream->capture)
        return hipSuccess;
    bool invalid = stream->capture->invalid;
    stream->capture->invalid = true;
    return invalid ? hipErrorStreamCaptureInvalidated : hipErrorStreamCaptureUnsupported;
}

hipError_t rt_capture_ongoing(struct rt_stream *stream)
{
    if (!stream->capture)
        return stream->null ? hipSuccess : rt_capture_forbids();
    stream->capture->invalid = true;
    return hipErrorStreamCaptureUnsupported;
}

static bool depend_on(struct rt_stream *stream, struct rt_node *const *nodes, size_t count)
{
    struct rt_node **all =
        realloc(stream->last, (stream->last_count + count + 1) * sizeof(struct rt_node *));
    if (!all)
        return false;
    stream->last = all;
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < stream->last_count && all[at] != nodes[i])
            at++;
        all[at] = nodes[i];
        stream->last_count += at == stream->last_count;
    }
    return true;
}

static struct rt_node *append(struct rt_graph *graph, const struct rt_op *op,
                              struct rt_node *const *dependencies, size_t count)
{
    struct rt_node *node = calloc(1, sizeof *node);
    struct rt_node **copy = malloc((count + 1) * sizeof(struct rt_node *));
    void *nodes = realloc(graph->nodes, (graph->count + 1) * sizeof(struct rt_node *));
    if (nodes)
        graph->nodes = nodes;
    if (!node || !copy || !nodes) {
        free(node);
        free(copy);
        return NULL;
    }
    if (count)
        memcpy(copy, dependencies, count * sizeof(struct rt_node *));
    *node = (struct rt_node){
        .op = *op, .dependencies = copy, .dependency_count = count, .index = graph->count};
    graph->nodes[graph->count++] = node;
    return node;
}

/* Work on the legacy stream would wait for the blocking streams that record. */
static hipError_t legacy_work(const struct rt_stream *stream)
{
    hipError_t error = hipSuccess;
    for (struct rt_capture *capture = rt.captures; capture && stream->null;
         capture = capture->next) {
        if (capture->origin->device == stream->device &&
            !(capture->origin->flags & hipStreamNonBlocking)) {
            capture->invalid = true;
            error = hipErrorStreamCaptureImplicit;
        }
    }
    return error;
}

hipError_t rt_capture_op(struct rt_stream *stream, struct rt_op *op, bool *captured)
{
    hipError_t error = legacy_work(stream);
    if (!error && stream->capture && stream->capture->invalid)
        error = hipErrorStreamCaptureInvalidated;
    if (error || !stream->capture) {
        if (error)
            rt_op_clear(op);
        return error;
    }
    struct rt_node *node = append(stream->capture->graph, op, stream->last, stream->last_count);
    if (!node) {
        rt_op_clear(op);
        return hipErrorOutOfMemory;
    }
    stream->last_count = 0;
    *captured = true;
    return depend_on(stream, &node, 1) ? hipSuccess : hipErrorOutOfMemory;
}

hipError_t rt_capture_record(struct rt_stream *stream, struct rt_event *event)
{
    if (stream->capture->invalid)
        return hipErrorStreamCaptureInvalidated;
    struct rt_node **nodes = malloc((stream->last_count + 1) * sizeof(struct rt_node *));
    if (!nodes)
        return hipErrorOutOfMemory;
    if (stream->last_count)
        memcpy(nodes, stream->last, stream->last_count * sizeof(struct rt_node *));
    free(event->nodes);
    event->nodes = nodes;
    event->node_count = stream->last_count;
    event->capture = stream->capture;
    return hipSuccess;
}

hipError_t rt_capture_wait(struct rt_stream *stream, struct rt_event *event, bool *captured)
{
    struct rt_capture *capture = event->capture;
    if (!capture) {
        /* Uncaptured work cannot be waited for inside a recording. */
        if (stream->capture)
            stream->capture->invalid = true;
        return stream->capture ? hipErrorStreamCaptureIsolation : legacy_work(stream);
    }
    if (capture->invalid)
        return hipErrorStreamCaptureInvalidated;
    if (stream->null || (stream->capture && stream->capture != capture)) {
        capture->invalid = true;
        if (stream->capture)
            stream->capture->invalid = true;
        return stream->null ? hipErrorStreamCaptureImplicit : hipErrorStreamCaptureMerge;
    }
    stream->capture = capture;
    *captured = true;
    return depend_on(stream, event->nodes, event->node_count) ? hipSuccess : hipErrorOutOfMemory;
}

/* Take the capture away from its streams and events; its graph stays with the caller. */
static void finish(struct rt_capture *capture)
{
    for (struct rt_stream *stream = rt.streams; stream; stream = stream->next) {
        if (stream->capture == capture) {
            stream->capture = NULL;
            stream->last_count = 0;
        }
    }
    for (struct rt_event *event = rt.events; event; event = event->next) {
        if (event->capture == capture)
            event->capture = NULL;
    }
    struct rt_capture **link = &rt.captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
}

static void discard(struct rt_capture *capture)
{
    struct rt_graph *graph = capture->graph;
    finish(capture);
    rt_graph_clear(graph);
    free(graph);
}

void rt_capture_leave(struct rt_stream *stream)
{
    if (stream->capture && stream->capture->origin == stream)
        discard(stream->capture);
    else if (stream->capture)
        stream->capture->invalid = true;
    stream->capture = NULL;
}

static void mark(const struct rt_node *node, bool *seen)
{
    if (seen[node->index])
        return;
    seen[node->index] = true;
    for (size_t i = 0; i < node->dependency_count; i++)
        mark(node->dependencies[i], seen);
}

/* Does everything that was recorded come before the end of the origin stream? */
static hipError_t joined(const struct rt_capture *capture)
{
    const struct rt_graph *graph = capture->graph;
    bool *seen = calloc(graph->count + 1, sizeof *seen);
    if (!seen)
        return hipErrorOutOfMemory;
    for (size_t i = 0; i < capture->origin->last_count; i++)
        mark(capture->origin->last[i], seen);
    bool all = true;
    for (size_t i = 0; i < graph->count; i++)
        all = all && seen[i];
    free(seen);
    return all ? hipSuccess : hipErrorStreamCaptureUnjoined;
}

hipError_t rt_hipStreamBeginCapture(hipStream_t handle, hipStreamCaptureMode mode)
{
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    if (stream->null)
        return hipErrorStreamCaptureUnsupported;
    if (mode < hipStreamCaptureModeGlobal || mode > hipStreamCaptureModeRelaxed)
        return hipErrorInvalidValue;
    if (stream->capture)
        return hipErrorIllegalState;
    struct rt_capture *capture = calloc(1, sizeof *capture);
    struct rt_graph *graph = calloc(1, sizeof *graph);
    if (!capture || !graph) {
        free(capture);
        free(graph);
        return hipErrorOutOfMemory;
    }
    graph->device = stream->device;
    *capture = (struct rt_capture){.next = rt.captures,
                                   .origin = stream,
                                   .thread = pthread_self(),
                                   .mode = mode,
                                   .id = ++rt.captures_begun,
                                   .graph = graph};
    rt.captures = stream->capture = capture;
    stream->last_count = 0;
    return hipSuccess;
}

hipError_t rt_hipStreamEndCapture(hipStream_t handle, hipGraph_t *out)
{
    if (!out)
        return hipErrorInvalidValue;
    *out = NULL;
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    struct rt_capture *capture = stream->capture;
    if (!capture)
        return hipErrorIllegalState;
    if (capture->origin != stream)
        return hipErrorStreamCaptureUnmatched;
    if (capture->mode != hipStreamCaptureModeRelaxed && !here(capture))
        return hipErrorStreamCaptureWrongThread;
    hipError_t error = capture->invalid ? hipErrorStreamCaptureInvalidated : joined(capture);
    if (error) {
        discard(capture);
        return error;
    }
    struct rt_graph *graph = capture->graph;
    finish(capture);
    graph->next = rt.graphs;
    rt.graphs = graph;
    *out = (hipGraph_t)(void *)graph;
    return hipSuccess;
}

static hipStreamCaptureStatus status_of(const struct rt_stream *stream)
{
    if (!stream->capture)
        return hipStreamCaptureStatusNone;
    return stream->capture->invalid ? hipStreamCaptureStatusInvalidated
                                    : hipStreamCaptureStatusActive;
}

hipError_t rt_hipStreamIsCapturing(hipStream_t handle, hipStreamCaptureStatus *status)
{
    return rt_hipStreamGetCaptureInfo(handle, status, NULL);
}

hipError_t rt_hipStreamGetCaptureInfo(hipStream_t handle, hipStreamCaptureStatus *status,
                                      unsigned long long *id)
{
    if (!status)
        return hipErrorInvalidValue;
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    /* The legacy stream cannot be asked while a blocking stream records: an error that invalidates
     * nothing. */
    for (const struct rt_capture *capture = rt.captures; capture && stream->null;
         capture = capture->next) {
        if (!(capture->origin->flags & hipStreamNonBlocking))
            return hipErrorStreamCaptureImplicit;
    }
    *status = status_of(stream);
    if (id && stream->capture)
        *id = stream->capture->id;
    return hipSuccess;
}

hipError_t rt_hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode)
{
    if (!mode || *mode < hipStreamCaptureModeGlobal || *mode > hipStreamCaptureModeRelaxed)
        return hipErrorInvalidValue;
    int old = rt_thread.capture_mode;
    rt_thread.capture_mode = *mode;
    *mode = old;
    return hipSuccess;
}
