/* Graphs: what a capture made, its executable copies, replay. A replay runs its nodes in an order
 * drawn from the seed that respects their dependencies, as one operation of the stream. */
#include "rt.h"

#include <stdlib.h>
#include <string.h>

void rt_graph_clear(struct rt_graph *graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        rt_op_clear(&graph->nodes[i]->op);
        free(graph->nodes[i]->dependencies);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    graph->nodes = NULL;
    graph->count = 0;
}

static struct rt_node *clone_node(const struct rt_node *from, struct rt_node *const *made)
{
    struct rt_node *node = calloc(1, sizeof *node);
    struct rt_node **dependencies = malloc((from->dependency_count + 1) * sizeof(struct rt_node *));
    if (!node || !dependencies || !rt_op_clone(&node->op, &from->op)) {
        free(node);
        free(dependencies);
        return NULL;
    }
    node->dependencies = dependencies;
    node->dependency_count = from->dependency_count;
    node->index = from->index;
    for (size_t i = 0; i < from->dependency_count; i++)
        dependencies[i] = made[from->dependencies[i]->index];
    return node;
}

bool rt_graph_clone(struct rt_graph *to, const struct rt_graph *from)
{
    *to = (struct rt_graph){.device = from->device};
    to->nodes = malloc((from->count + 1) * sizeof(struct rt_node *));
    if (!to->nodes)
        return false;
    for (size_t i = 0; i < from->count; i++) {
        to->nodes[i] = clone_node(from->nodes[i], to->nodes);
        if (!to->nodes[i]) {
            rt_graph_clear(to);
            return false;
        }
        to->count++;
    }
    return true;
}

static struct rt_graph *graph_of(hipGraph_t handle)
{
    struct rt_graph *graph = rt.graphs;
    while (graph && (void *)graph != (void *)handle)
        graph = graph->next;
    return graph;
}

static struct rt_exec *exec_of(hipGraphExec_t handle)
{
    struct rt_exec *exec = rt.execs;
    while (exec && ((void *)exec != (void *)handle || exec->destroyed))
        exec = exec->next;
    return exec;
}

hipError_t rt_hipGraphDestroy(hipGraph_t handle)
{
    struct rt_graph *graph = graph_of(handle);
    if (!graph)
        return handle ? hipErrorIllegalState : hipErrorInvalidValue;
    for (struct rt_exec *exec = rt.execs; exec; exec = exec->next) {
        if (exec->source == graph)
            exec->source = NULL;
    }
    struct rt_graph **link = &rt.graphs;
    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    rt_graph_clear(graph);
    free(graph);
    return hipSuccess;
}

hipError_t rt_hipGraphInstantiateWithFlags(hipGraphExec_t *out, hipGraph_t handle,
                                           unsigned long long flags)
{
    struct rt_graph *graph = graph_of(handle);
    if (!out || !graph || (flags & ~(unsigned long long)hipGraphInstantiateFlagAutoFreeOnLaunch))
        return hipErrorInvalidValue;
    struct rt_exec *exec = calloc(1, sizeof *exec);
    if (!exec || !rt_graph_clone(&exec->graph, graph)) {
        free(exec);
        return hipErrorOutOfMemory;
    }
    exec->next = rt.execs;
    exec->references = 1;
    exec->source = graph;
    rt.execs = exec;
    *out = (hipGraphExec_t)(void *)exec;
    return hipSuccess;
}

hipError_t rt_hipGraphInstantiate(hipGraphExec_t *out, hipGraph_t graph, hipGraphNode_t *error_node,
                                  char *log, size_t log_size)
{
    if (error_node)
        *error_node = NULL;
    if (log && log_size)
        *log = 0;
    return rt_hipGraphInstantiateWithFlags(out, graph, 0);
}

void rt_exec_unref(struct rt_exec *exec)
{
    if (--exec->references > 0)
        return;
    struct rt_exec **link = &rt.execs;
    while (*link != exec)
        link = &(*link)->next;
    *link = exec->next;
    rt_graph_clear(&exec->graph);
    free(exec);
}

hipError_t rt_hipGraphExecDestroy(hipGraphExec_t handle)
{
    struct rt_exec *exec = exec_of(handle);
    if (!exec)
        return hipErrorInvalidValue;
    exec->destroyed = true;
    rt_exec_unref(exec);
    return hipSuccess;
}

/* A graph holds no reference that would keep a module loaded on the real runtime. */
static bool modules_loaded(const struct rt_graph *graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        const struct rt_op *op = &graph->nodes[i]->op;
        if (op->kind == RT_KERNEL && op->dispatch.kernel->module->unloaded) {
            rt_violation(graph->device, "handle", "%s is replayed after its module was unloaded",
                         op->dispatch.kernel->name);
            return false;
        }
    }
    return true;
}

hipError_t rt_hipGraphLaunch(hipGraphExec_t handle, hipStream_t stream_handle)
{
    struct rt_exec *exec = exec_of(handle);
    struct rt_stream *stream = rt_stream_of(stream_handle);
    if (!exec || !stream)
        return exec ? hipErrorContextIsDestroyed : hipErrorInvalidValue;
    hipError_t error = rt_capture_refuses(stream);
    if (error)
        return error;
    if (!modules_loaded(&exec->graph))
        return hipErrorInvalidHandle;
    exec->references++;
    return rt_enqueue(stream, &(struct rt_op){.kind = RT_GRAPH, .exec = exec});
}

static bool may_run(const struct rt_node *node, const bool *done)
{
    for (size_t i = 0; i < node->dependency_count; i++) {
        if (!done[node->dependencies[i]->index])
            return false;
    }
    return !done[node->index];
}

void rt_exec_run(struct rt_stream *stream, struct rt_exec *exec)
{
    struct rt_graph *graph = &exec->graph;
    bool *done = calloc(graph->count + 1, sizeof *done);
    if (!done) {
        rt.devices[stream->device].error = hipErrorOutOfMemory;
        return;
    }
    for (size_t left = graph->count; left; left--) {
        struct rt_node *chosen = NULL;
        uint64_t candidates = 0;
        for (size_t i = 0; i < graph->count; i++) {
            if (may_run(graph->nodes[i], done) && rt_random(++candidates) == 0)
                chosen = graph->nodes[i];
        }
        rt_execute(stream, &chosen->op);
        done[chosen->index] = true;
    }
    free(done);
}

hipError_t rt_hipGraphGetNodes(hipGraph_t handle, hipGraphNode_t *nodes, size_t *count)
{
    struct rt_graph *graph = graph_of(handle);
    if (!graph || !count)
        return hipErrorInvalidValue;
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < graph->count ? (hipGraphNode_t)(void *)graph->nodes[i] : NULL;
    if (!nodes || *count > graph->count)
        *count = graph->count;
    return hipSuccess;
}

/* The graph that has the node, and the node in it. */
static struct rt_node *node_of(hipGraphNode_t handle, struct rt_graph **owner)
{
    for (struct rt_graph *graph = rt.graphs; graph; graph = graph->next) {
        for (size_t i = 0; i < graph->count; i++) {
            if ((void *)graph->nodes[i] == (void *)handle) {
                *owner = graph;
                return graph->nodes[i];
            }
        }
    }
    return NULL;
}

hipError_t rt_hipGraphNodeGetType(hipGraphNode_t handle, hipGraphNodeType *type)
{
    struct rt_graph *owner;
    struct rt_node *node = node_of(handle, &owner);
    if (!node || !type)
        return hipErrorInvalidValue;
    *type = node->op.kind == RT_KERNEL ? hipGraphNodeTypeKernel
            : node->op.kind == RT_COPY ? hipGraphNodeTypeMemcpy
            : node->op.kind == RT_FILL ? hipGraphNodeTypeMemset
            : node->op.kind == RT_HOST ? hipGraphNodeTypeHost
                                       : hipGraphNodeTypeEmpty;
    return hipSuccess;
}

static bool idle(const void *context)
{
    return ((const struct rt_exec *)context)->references == 1;
}

/* New arguments and sizes for one kernel of an executable graph, named by the node of the graph it
 * was made from. */
hipError_t rt_hipGraphExecKernelNodeSetParams(hipGraphExec_t exec_handle,
                                              hipGraphNode_t node_handle,
                                              const hipKernelNodeParams *parameters)
{
    struct rt_exec *exec = exec_of(exec_handle);
    struct rt_graph *owner;
    struct rt_node *source = node_of(node_handle, &owner);
    if (!exec || !source || exec->source != owner || !parameters || source->op.kind != RT_KERNEL)
        return hipErrorInvalidValue;
    struct rt_kernel *kernel = rt_kernel_of((hipFunction_t)parameters->func);
    if (!kernel)
        return hipErrorInvalidValue;
    struct rt_op op = {.kind = RT_KERNEL};
    uint32_t grid[3] = {parameters->gridDim.x, parameters->gridDim.y, parameters->gridDim.z};
    uint32_t block[3] = {parameters->blockDim.x, parameters->blockDim.y, parameters->blockDim.z};
    hipError_t error =
        rt_dispatch_make(&op.dispatch, exec->graph.device, kernel, grid, block,
                         parameters->sharedMemBytes, parameters->kernelParams, parameters->extra);
    if (error)
        return error;
    error = rt_run_until(idle, exec); /* launches before this call keep their arguments */
    if (error) {
        rt_op_clear(&op);
        return error;
    }
    struct rt_op *old = &exec->graph.nodes[source->index]->op;
    rt_op_clear(old);
    *old = op;
    return hipSuccess;
}
