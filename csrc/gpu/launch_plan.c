/* The launches of a plan. Path of a call: last stop of a call on a GPU. */
#include "gpu/launch_plan.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WORKSPACE = 1 << 30 }; /* bytes: more would compete with the operands for memory */

mmf_launch_plan *mmf_launch_plan_begin(mmf_config *config)
{
    mmf_launch_plan *plan = (mmf_launch_plan *)config->own;
    plan->bind = NULL;
    plan->launches = plan->argument_bytes = 0;
    return plan;
}

mmf_launch *mmf_launch_plan_add(mmf_launch_plan *plan, int instance, size_t bytes)
{
    mmf_launch *launch = &plan->launch[plan->launches++];
    const size_t padded =
        (bytes + MMF_ARGUMENT_ALIGN - 1) / MMF_ARGUMENT_ALIGN * MMF_ARGUMENT_ALIGN;
    *launch = (mmf_launch){.instance = (int16_t)instance,
                           .argument = (uint16_t)plan->argument_bytes,
                           .grid_x = 1,
                           .grid_y = 1,
                           .grid_z = 1};
    memset(plan->arguments + plan->argument_bytes, 0, padded);
    plan->argument_bytes += (int)padded;
    return launch;
}

const char *mmf_launch_plan_name(const mmf_config *config, int launch)
{
    const mmf_launch_plan *plan = (const mmf_launch_plan *)config->own;
    return launch < plan->launches ? mmf_gpu_instances[plan->launch[launch].instance].name : NULL;
}

void mmf_launch_plan_spare(mmf_config *config, const mmf_config *other)
{
    const mmf_launch_plan *plan = (const mmf_launch_plan *)other->own;
    config->spares = (int16_t)plan->launches;
    for (int i = 0; i < plan->launches; i++)
        config->spare[i] = plan->launch[i].instance;
}

bool mmf_launch_plan_workspace(const mmf_problem *problem, int64_t bytes, char *reason)
{
    static const char *const why[] = {
        [MMF_WORKSPACE_CAPTURED] = "while the stream is being captured it can have none, A's "
                                   "library having no allocator that we know",
        [MMF_WORKSPACE_NO_POOL] = "the driver cannot allocate it in stream order, nor does A's "
                                  "library",
    };
    if (problem->no_workspace != MMF_WORKSPACE_ALLOWED)
        snprintf(reason, MMF_REASON_TEXT, "needs a workspace; %s", why[problem->no_workspace]);
    else if (bytes > MAX_WORKSPACE)
        snprintf(reason, MMF_REASON_TEXT, "needs a workspace of %lld bytes, %d are the most",
                 (long long)bytes, MAX_WORKSPACE);
    return problem->no_workspace == MMF_WORKSPACE_ALLOWED && bytes <= MAX_WORKSPACE;
}

/* One launch, or several where the grid is too long for one. Returns the driver's code. */
static int enqueue(const mmf_driver *driver, void *function, const mmf_launch *launch,
                   unsigned char *argument, void *stream)
{
    mmf_grid grid = {.y = launch->grid_y,
                     .z = launch->grid_z,
                     .threads = (unsigned)mmf_gpu_instances[launch->instance].threads,
                     .dynamic_bytes = launch->dynamic_bytes,
                     .cluster = launch->cluster,
                     .overlaps = launch->overlaps};
    void *arguments[] = {argument};
    int code = 0;
    for (int64_t first = 0; !code && first < launch->grid_x; first += grid.x) {
        const int64_t left = launch->grid_x - first;
        grid.x = (unsigned)(launch->first && left > MMF_MAX_GRID ? MMF_MAX_GRID : left);
        if (launch->first)
            memcpy(argument + launch->first, &first, sizeof first);
        code = driver->launch(function, &grid, stream, arguments);
    }
    return code;
}

mmf_status mmf_launch_plan_run(const mmf_problem *problem, const mmf_config *config,
                               const mmf_buffers *buffers)
{
    const mmf_launch_plan *plan = (const mmf_launch_plan *)config->own;
    _Alignas(MMF_ARGUMENT_ALIGN) unsigned char arguments[MMF_ARGUMENT_BYTES];
    void *functions[MMF_MAX_LAUNCHES];
    mmf_gpu *gpu;
    mmf_device_scope scope;
    if (plan->launches == 0)
        return MMF_OK;
    mmf_status status = mmf_gpu_get(problem->device, &gpu);
    for (int i = 0; !status && i < plan->launches; i++)
        status = mmf_gpu_function(gpu, plan->launch[i].instance, plan->launch[i].dynamic_bytes,
                                  buffers->stream, &functions[i]);
    for (int i = 0; !status && i < config->spares; i++)
        status = mmf_gpu_preload(gpu, config->spare[i], buffers->stream);
    if (status)
        return status;
    memcpy(arguments, plan->arguments, (size_t)plan->argument_bytes);
    status = mmf_driver_enter(gpu->driver, gpu->ordinal, &scope);
    if (status)
        return status;
    int code = 0;
    mmf_driver_call call = MMF_CALL_LAUNCH;
    status = plan->bind(plan, problem, buffers, arguments);
    for (int i = 0; !status && !code && i < plan->launches; i++) {
        const mmf_launch *launch = &plan->launch[i];
        call = launch->cluster ? MMF_CALL_LAUNCH_CLUSTER : MMF_CALL_LAUNCH;
        code = enqueue(gpu->driver, functions[i], launch, arguments + launch->argument,
                       buffers->stream);
    }
    gpu->driver->leave(&scope);
    return code ? mmf_driver_fail(gpu->driver, code, call, gpu->ordinal) : status;
}
