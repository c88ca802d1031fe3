/* Launches: the limits that the real runtime checks, the kernarg segment with its hidden arguments,
 * the dispatch packet, and the call of the machine when the stream gets there. */
#include "rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GRID_YZ = 65536 };

/* Hidden arguments, which follow the explicit ones; the launch knows all of them but
 * pointers into the real runtime, which are zero: a kernel that follows one is told at its
 * instruction. */
static const struct {
    const char *kind;
    enum { COUNT, SIZE, REMAINDER, DIMS, LDS, ZERO } what;
    int axis;
} hidden[] = {
    {"hidden_block_count_x", COUNT, 0},
    {"hidden_block_count_y", COUNT, 1},
    {"hidden_block_count_z", COUNT, 2},
    {"hidden_group_size_x", SIZE, 0},
    {"hidden_group_size_y", SIZE, 1},
    {"hidden_group_size_z", SIZE, 2},
    {"hidden_remainder_x", REMAINDER, 0},
    {"hidden_remainder_y", REMAINDER, 1},
    {"hidden_remainder_z", REMAINDER, 2},
    {"hidden_global_offset_x", ZERO, 0},
    {"hidden_global_offset_y", ZERO, 1},
    {"hidden_global_offset_z", ZERO, 2},
    {"hidden_grid_dims", DIMS, 0},
    {"hidden_dynamic_lds_size", LDS, 0},
    {"hidden_none", ZERO, 0},
    {"hidden_printf_buffer", ZERO, 0},
    {"hidden_hostcall_buffer", ZERO, 0},
    {"hidden_default_queue", ZERO, 0},
    {"hidden_completion_action", ZERO, 0},
    {"hidden_multigrid_sync_arg", ZERO, 0},
    {"hidden_heap_v1", ZERO, 0},
    {"hidden_private_base", ZERO, 0},
    {"hidden_shared_base", ZERO, 0},
    {"hidden_queue_ptr", ZERO, 0},
};

int rt_hidden_argument(const char *kind)
{
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        if (strcmp(hidden[i].kind, kind) == 0)
            return (int)i;
    }
    return -1;
}

static void fill_hidden(const struct rt_dispatch *dispatch, const struct rt_argument *argument)
{
    int axis = hidden[argument->hidden].axis;
    uint64_t value = 0;
    switch (hidden[argument->hidden].what) {
    case COUNT:
        value = dispatch->grid[axis];
        break;
    case SIZE:
        value = dispatch->block[axis];
        break;
    case DIMS:
        value = 3; /* as AMD's runtime launches everything */
        break;
    case LDS:
        value = dispatch->dynamic_lds;
        break;
    case REMAINDER: /* grids are whole workgroups */
    case ZERO:
        break;
    }
    memcpy(dispatch->kernarg + argument->offset, &value, argument->size < 8 ? argument->size : 8);
}

static hipError_t fill_explicit(const struct rt_dispatch *dispatch, void **parameters, void **extra)
{
    const struct rt_kernel *kernel = dispatch->kernel;
    if (extra) {
        if (extra[0] != HIP_LAUNCH_PARAM_BUFFER_POINTER ||
            extra[2] != HIP_LAUNCH_PARAM_BUFFER_SIZE || extra[4] != HIP_LAUNCH_PARAM_END)
            return hipErrorInvalidValue;
        size_t size = *(const size_t *)extra[3];
        /* The real runtime trusts the buffer and reads on. */
        if (size < kernel->explicit_end || size > kernel->machine.kernarg_bytes) {
            rt_violation(kernel->module->device, "call",
                         "%s: a buffer of %zu bytes for arguments of %u", kernel->name, size,
                         kernel->explicit_end);
            return hipErrorInvalidValue;
        }
        memcpy(dispatch->kernarg, extra[1], kernel->explicit_end);
        return hipSuccess;
    }
    for (size_t i = 0; i < kernel->explicit_count; i++) {
        if (!parameters || !parameters[i])
            return hipErrorInvalidValue;
        memcpy(dispatch->kernarg + kernel->arguments[i].offset, parameters[i],
               kernel->arguments[i].size);
    }
    return hipSuccess;
}

/* The order of these checks is the real runtime's, the codes are HIP 7's. */
static hipError_t validate(const struct rt_kernel *kernel, int device, const uint32_t grid[3],
                           const uint32_t block[3], uint32_t lds, void **parameters, void **extra)
{
    const struct hipsim_arch *arch = rt.devices[device].arch;
    if (grid[0] > INT32_MAX || grid[1] > MOST_GRID_YZ || grid[2] > MOST_GRID_YZ)
        return hipErrorInvalidValue;
    if ((uint64_t)grid[0] * block[0] > UINT32_MAX)
        return hipErrorInvalidConfiguration;
    if (parameters && extra)
        return hipErrorInvalidValue;
    if (!grid[0] || !grid[1] || !grid[2])
        return hipErrorInvalidValue;
    if (!block[0] || !block[1] || !block[2])
        return hipErrorInvalidConfiguration;
    if (lds + (uint64_t)kernel->static_lds > arch->lds_bytes)
        return hipErrorInvalidValue;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (block[0] > 1024 || block[1] > 1024 || block[2] > 1024 ||
        threads > (uint64_t)arch->max_threads_per_block)
        return rt.version >= 70000000 ? hipErrorInvalidConfiguration : hipErrorInvalidValue;
    if (kernel->explicit_count && !parameters && !extra)
        return hipErrorInvalidValue;
    if (kernel->module->device != device)
        return hipErrorInvalidDevice;
    uint32_t most = kernel->machine.max_flat_workgroup_size;
    return most && threads > most ? hipErrorLaunchFailure : hipSuccess;
}

hipError_t rt_dispatch_make(struct rt_dispatch *dispatch, int device, struct rt_kernel *kernel,
                            const uint32_t grid[3], const uint32_t block[3], uint32_t lds,
                            void **parameters, void **extra)
{
    hipError_t error = validate(kernel, device, grid, block, lds, parameters, extra);
    if (error)
        return error;
    *dispatch = (struct rt_dispatch){.kernel = kernel, .dynamic_lds = lds};
    memcpy(dispatch->grid, grid, sizeof dispatch->grid);
    memcpy(dispatch->block, block, sizeof dispatch->block);
    dispatch->kernarg = calloc(1, kernel->machine.kernarg_bytes + 1);
    if (!dispatch->kernarg)
        return hipErrorOutOfMemory;
    error = fill_explicit(dispatch, parameters, extra);
    if (error) {
        free(dispatch->kernarg);
        return error;
    }
    for (size_t i = 0; i < kernel->argument_count; i++) {
        if (kernel->arguments[i].hidden >= 0)
            fill_hidden(dispatch, &kernel->arguments[i]);
    }
    kernel->module->references++;
    return hipSuccess;
}

hipError_t rt_hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x,
                                    unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                                    unsigned int block_y, unsigned int block_z, unsigned int lds,
                                    hipStream_t handle, void **parameters, void **extra)
{
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return rt.version >= 70000000 ? hipErrorContextIsDestroyed : hipErrorInvalidValue;
    struct rt_kernel *kernel = rt_kernel_of(function);
    if (!kernel)
        return hipErrorInvalidHandle;
    char sentence[256] = "";
    if (!rt_bytes(kernel->module->image))
        return hipErrorOutOfMemory;
    if (hipsim_prepare(&kernel->machine, sentence, sizeof sentence) != HIPSIM_OK) {
        rt_violation(stream->device, "machine", "%s: %s", kernel->name, sentence);
        return hipErrorInvalidDeviceFunction;
    }
    struct rt_op op = {.kind = RT_KERNEL};
    hipError_t error = rt_dispatch_make(
        &op.dispatch, stream->device, kernel, (uint32_t[3]){grid_x, grid_y, grid_z},
        (uint32_t[3]){block_x, block_y, block_z}, lds, parameters, extra);
    if (error)
        return error;
    bool captured = false;
    error = rt_capture_op(stream, &op, &captured);
    return error || captured ? error : rt_enqueue(stream, &op);
}

/* The packet that the command processor reads: offsets of the AQL format. */
static void write_packet(const struct rt_dispatch *dispatch, const struct rt_device *device)
{
    unsigned char *out = rt_bytes(device->packet);
    const struct rt_kernel *kernel = dispatch->kernel;
    const uint16_t head[6] = {0x1502,
                              3,
                              (uint16_t)dispatch->block[0],
                              (uint16_t)dispatch->block[1],
                              (uint16_t)dispatch->block[2],
                              0};
    const uint32_t sizes[5] = {dispatch->grid[0] * dispatch->block[0],
                               dispatch->grid[1] * dispatch->block[1],
                               dispatch->grid[2] * dispatch->block[2], kernel->private_bytes,
                               kernel->static_lds + dispatch->dynamic_lds};
    const uint64_t addresses[4] = {kernel->machine.descriptor,
                                   device->kernarg ? device->kernarg->base : 0, 0, 0};
    memcpy(out, head, sizeof head);
    memcpy(out + 12, sizes, sizeof sizes);
    memcpy(out + 32, addresses, sizeof addresses);
}

static hipError_t error_of(enum hipsim_status status)
{
    switch (status) {
    case HIPSIM_OK:
        return hipSuccess;
    case HIPSIM_FAULT:
        return hipErrorIllegalAddress;
    case HIPSIM_NO_MEMORY:
        return hipErrorOutOfMemory;
    case HIPSIM_BAD_LAUNCH:
        return hipErrorLaunchOutOfResources;
    case HIPSIM_NO_DECODER:
    case HIPSIM_UNDECODED:
        break;
    }
    return hipErrorLaunchFailure;
}

/* The kernarg segment and the packet in device memory, and everything accessible. */
static bool place_arguments(const struct rt_dispatch *dispatch, struct rt_device *device)
{
    uint32_t bytes = dispatch->kernel->machine.kernarg_bytes;
    device->kernarg =
        bytes ? rt_allocate(device->ordinal, hipMemoryTypeDevice, bytes, RT_INTERNAL) : NULL;
    if ((bytes && !device->kernarg) || !rt_memory_open())
        return false;
    if (bytes) {
        memcpy(rt_bytes(device->kernarg), dispatch->kernarg, bytes);
        device->kernarg->writable = false;
    }
    write_packet(dispatch, device);
    return true;
}

static void run(const struct rt_dispatch *dispatch, struct rt_device *device)
{
    struct hipsim_launch launch = {.dynamic_lds = dispatch->dynamic_lds,
                                   .kernarg = device->kernarg ? device->kernarg->base : 0,
                                   .dispatch_packet = device->packet->base,
                                   .seed = rt_random(UINT64_MAX),
                                   .checks = rt.checks,
                                   .truncate_xf32 = rt.truncate_xf32,
                                   .threads = rt.threads,
                                   .instruction_limit = rt.instruction_limit};
    memcpy(launch.grid, dispatch->grid, sizeof launch.grid);
    memcpy(launch.block, dispatch->block, sizeof launch.block);
    struct hipsim_memory memory = {.context = device, .find = rt_machine_find};
    struct hipsim_sink sink = {.context = device,
                               .violation = rt_machine_violation,
                               .counters = &device->counters,
                               .executed = dispatch->kernel->executed};
    char sentence[256] = "";
    uint64_t before = device->counters.violations;
    enum hipsim_status status =
        hipsim_run(&dispatch->kernel->machine, &launch, &memory, &sink, sentence, sizeof sentence);
    device->launches++;
    if (status == HIPSIM_OK)
        return;
    device->error = error_of(status);
    if (*sentence && device->counters.violations == before)
        rt_violation(device->ordinal, "machine", "%s: %s", dispatch->kernel->name, sentence);
}

void rt_dispatch_run(const struct rt_dispatch *dispatch)
{
    struct rt_device *device = &rt.devices[dispatch->kernel->module->device];
    if (place_arguments(dispatch, device))
        run(dispatch, device);
    else
        device->error = hipErrorOutOfMemory;
    if (device->kernarg)
        rt_release(device->kernarg);
    device->kernarg = NULL;
}

hipError_t rt_hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                                                 hipFunction_t function,
                                                                 int block_size, size_t dynamic_lds)
{
    struct rt_kernel *kernel = rt_kernel_of(function);
    if (!blocks || !kernel || block_size <= 0)
        return hipErrorInvalidValue;
    const struct hipsim_arch *arch = kernel->machine.arch;
    size_t lds = kernel->static_lds + dynamic_lds;
    int most = arch->max_threads_per_cu / block_size;
    if (lds && most > (int)(arch->lds_bytes / lds))
        most = (int)(arch->lds_bytes / lds);
    *blocks = most;
    return hipSuccess;
}
