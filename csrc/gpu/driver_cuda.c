/* The CUDA driver, libcuda.so.1, behind the driver table. Path of a call: opened by driver.c on
 * first use. The context is the device's primary one, which the CUDA runtime and every array
 * library share; it is retained once and kept. Enum values: cuda.h. */
#include "gpu/driver.h"
#include "gpu/library.h"
#include "problem/environment.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { /* CUdevice_attribute */
       ATTRIBUTE_SHARED_PER_BLOCK = 8,
       ATTRIBUTE_WARP_SIZE = 10,
       ATTRIBUTE_MULTIPROCESSORS = 16,
       ATTRIBUTE_MEMORY_CLOCK = 36, /* kHz */
       ATTRIBUTE_MEMORY_WIDTH = 37, /* bits */
       ATTRIBUTE_MAJOR = 75,
       ATTRIBUTE_MINOR = 76,
       ATTRIBUTE_SHARED_MOST = 97,
       ATTRIBUTE_MEMORY_POOLS = 115,
};
enum { POINTER_IS_MANAGED = 8, POINTER_DEVICE_ORDINAL = 9 }; /* CUpointer_attribute */
enum { INVALID_VALUE = 1, INVALID_DEVICE = 101 };            /* CUresult */
enum { MAX_DEVICES = 64 };

enum { FUNCTION_MAX_DYNAMIC_SHARED = 8 };        /* CUfunction_attribute */
enum { LAUNCH_CLUSTER = 4, LAUNCH_OVERLAP = 6 }; /* CUlaunchAttributeID */
enum { NOT_SUPPORTED = 801 };                    /* CUresult */

/* CUlaunchAttribute and CUlaunchConfig */
typedef struct launch_attribute {
    int id;
    char padding[4];
    union {
        unsigned cluster[3];
        int overlap; /* programmatic stream serialization */
        char bytes[64];
    } value;
} launch_attribute;

typedef struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    launch_attribute *attributes;
    unsigned count;
} launch_config;

static struct {
    int (*version)(int *version);
    int (*device)(int *device, int ordinal);
    int (*device_name)(char *name, int size, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*retain)(void **context, int device);
    int (*current)(void **context);
    int (*current_device)(int *device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*pointer_attribute)(void *value, int attribute, uintptr_t pointer);
    int (*stream_context)(void *stream, void **context);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **arguments, void **extra);
    int (*launch_ex)(const launch_config *config, void *function, void **arguments, void **extra);
    int (*function_attribute)(void *function, int attribute, int value);
    int (*error_name)(int code, const char **name);
    int (*error_string)(int code, const char **text);
} cu;

static _Atomic(void *) contexts[MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of retaining a context */

/* The primary context of a device. */
static int context_of(int ordinal, void **context, mmf_driver_call *call)
{
    int device, code = 0;
    *call = MMF_CALL_DEVICE;
    if (ordinal < 0 || ordinal >= MAX_DEVICES)
        return INVALID_DEVICE;
    *context = atomic_load_explicit(&contexts[ordinal], memory_order_acquire);
    if (*context)
        return 0;
    pthread_mutex_lock(&mutex);
    *context = atomic_load(&contexts[ordinal]);
    if (!*context) {
        code = cu.device(&device, ordinal);
        if (!code) {
            *call = MMF_CALL_RETAIN;
            code = cu.retain(context, device);
        }
        if (!code)
            atomic_store_explicit(&contexts[ordinal], *context, memory_order_release);
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

static int facts(int ordinal, mmf_device_facts *out, mmf_driver_call *call)
{
    int device, major = 0, minor = 0, pools = 0, clock = 0, width = 0;
    *out = (mmf_device_facts){0};
    *call = MMF_CALL_DEVICE;
    int code = cu.device(&device, ordinal);
    if (!code) {
        *call = MMF_CALL_NAME;
        code = cu.device_name(out->name, sizeof out->name, device);
    }
    if (!code) {
        *call = MMF_CALL_ATTRIBUTE;
        code = cu.attribute(&out->compute_units, ATTRIBUTE_MULTIPROCESSORS, device);
    }
    if (!code)
        code = cu.attribute(&out->wave, ATTRIBUTE_WARP_SIZE, device);
    if (!code)
        code = cu.attribute(&out->shared_bytes, ATTRIBUTE_SHARED_PER_BLOCK, device);
    if (!code)
        code = cu.attribute(&major, ATTRIBUTE_MAJOR, device);
    if (!code)
        code = cu.attribute(&minor, ATTRIBUTE_MINOR, device);
    if (!code) {
        code = cu.attribute(&pools, ATTRIBUTE_MEMORY_POOLS, device);
        if (code == INVALID_VALUE) /* unknown to drivers before 11.2, which have no pools */
            code = 0;
    }
    if (!code)
        code = cu.attribute(&out->shared_most, ATTRIBUTE_SHARED_MOST, device);
    out->memory_pools = pools;
    /* Only the cost model asks for these: a device that does not say them is as good. */
    if (!code && !cu.attribute(&clock, ATTRIBUTE_MEMORY_CLOCK, device) &&
        !cu.attribute(&width, ATTRIBUTE_MEMORY_WIDTH, device))
        out->memory = 2e3 * clock * width / 8; /* two transfers in a cycle */
    snprintf(out->arch, sizeof out->arch, "sm_%d%d", major, minor);
    return code;
}

static int enter(int ordinal, mmf_device_scope *scope, mmf_driver_call *call)
{
    void *wanted = NULL, *current = NULL;
    scope->entered = false;
    int code = context_of(ordinal, &wanted, call);
    if (code)
        return code;
    *call = MMF_CALL_CURRENT;
    code = cu.current(&current);
    if (code || current == wanted)
        return code;
    *call = MMF_CALL_ENTER;
    code = cu.push(wanted);
    scope->entered = code == 0;
    return code;
}

static void leave(const mmf_device_scope *scope)
{
    void *ours;
    if (scope->entered)
        cu.pop(&ours); /* it was pushed by enter(), so there is no error to expect */
}

static int pointer_device(const void *pointer, int *ordinal)
{
    unsigned managed = 0;
    int code = cu.pointer_attribute(&managed, POINTER_IS_MANAGED, (uintptr_t)pointer);
    if (!code && !managed)
        code = cu.pointer_attribute(ordinal, POINTER_DEVICE_ORDINAL, (uintptr_t)pointer);
    if (code == INVALID_VALUE) {
        *ordinal = -1;
        return 0;
    }
    return code;
}

static int stream_device(void *stream, int *ordinal)
{
    void *context = NULL;
    *ordinal = -1;
    if (!cu.stream_context ||
        (uintptr_t)stream <= 2) /* the default streams are of the current device */
        return 0;
    int code = cu.stream_context(stream, &context);
    if (!code)
        code = cu.push(context); /* it need not be a primary one */
    if (code)
        return code;
    code = cu.current_device(ordinal);
    cu.pop(&context);
    return code;
}

static int launch(void *function, const mmf_grid *g, void *stream, void **arguments)
{
    launch_attribute attributes[] = {{.id = LAUNCH_CLUSTER, .value.cluster = {g->cluster, 1, 1}},
                                     {.id = LAUNCH_OVERLAP, .value.overlap = 1}};
    const launch_config config = {.grid = {g->x, g->y, g->z},
                                  .block = {g->threads, 1, 1},
                                  .shared_bytes = g->dynamic_bytes,
                                  .stream = stream,
                                  .attributes = attributes,
                                  .count = g->overlaps ? 2 : 1};
    if (!g->cluster)
        return cu.launch(function, g->x, g->y, g->z, g->threads, 1, 1, g->dynamic_bytes, stream,
                         arguments, NULL);
    return cu.launch_ex ? cu.launch_ex(&config, function, arguments, NULL) : NOT_SUPPORTED;
}

static int allow_shared(void *function, unsigned bytes)
{
    return cu.function_attribute(function, FUNCTION_MAX_DYNAMIC_SHARED, (int)bytes);
}

static void read_version(char version[32])
{
    int number = 0;
    if (cu.version(&number) == 0)
        snprintf(version, 32, "%d.%d", number / 1000, number % 1000 / 10);
}

static void error_text(int code, const char **name, const char **text)
{
    if (cu.error_name(code, name))
        *name = NULL;
    if (cu.error_string(code, text))
        *text = NULL;
}

static bool find_functions(mmf_driver *d, void *library, char *reason, size_t size)
{
    const mmf_symbol symbols[] = {
        {"cuInit", &d->init, false},
        {"cuDriverGetVersion", &cu.version, false},
        {"cuDeviceGetCount", &d->count, false},
        {"cuDeviceGet", &cu.device, false},
        {"cuDeviceGetName", &cu.device_name, false},
        {"cuDeviceGetAttribute", &cu.attribute, false},
        {"cuDevicePrimaryCtxRetain", &cu.retain, false},
        {"cuCtxGetCurrent", &cu.current, false},
        {"cuCtxGetDevice", &cu.current_device, false},
        {"cuCtxPushCurrent_v2", &cu.push, false},
        {"cuCtxPopCurrent_v2", &cu.pop, false},
        {"cuPointerGetAttribute", &cu.pointer_attribute, false},
        {"cuStreamGetCtx", &cu.stream_context, true},
        {"cuGetErrorName", &cu.error_name, false},
        {"cuGetErrorString", &cu.error_string, false},
        {"cuModuleLoadData", &d->module_load, false},
        {"cuModuleUnload", &d->module_unload, false},
        {"cuModuleGetFunction", &d->module_function, false},
        {"cuLaunchKernel", &cu.launch, false},
        {"cuLaunchKernelEx", &cu.launch_ex, true},
        {"cuFuncSetAttribute", &cu.function_attribute, true},
        {"cuTensorMapEncodeTiled", &d->encode_tensor_map, true},
        {"cuStreamIsCapturing", &d->stream_is_capturing, false},
        {"cuThreadExchangeStreamCaptureMode", &d->exchange_capture_mode, true},
        {"cuMemAllocAsync", &d->alloc_async, true},
        {"cuMemFreeAsync", &d->free_async, true},
        {"cuMemcpyDtoDAsync_v2", &d->copy_async, false},
        {"cuEventCreate", &d->event_create, false},
        {"cuEventRecord", &d->event_record, false},
        {"cuEventDestroy_v2", &d->event_destroy, false},
        {"cuStreamWaitEvent", &d->stream_wait_event, false},
        {"cuCtxSynchronize", &d->synchronize, false},
    };
    return mmf_library_symbols(library, symbols, sizeof symbols / sizeof *symbols, reason, size);
}

bool mmf_driver_cuda_open(mmf_driver *d, char *reason, size_t size)
{
    static const char *const names[] = {"libcuda.so.1", "libcuda.so", NULL}, *const no_patterns[] =
                                                                                 {NULL};
    const mmf_library_search search = {mmf_environment(MMF_ENV_CUDA_LIBRARY), "libcuda.so",
                                       no_patterns, names};
    char detail[512] = "";
    void *library = mmf_library_open(&search, d->path, sizeof d->path, detail, sizeof detail);
    if (!library) {
        snprintf(reason, size, "no CUDA driver (%s)", detail);
        return false;
    }
    /* The library stays mapped: drivers of GPUs do not stand being unloaded. */
    if (!find_functions(d, library, detail, sizeof detail)) {
        snprintf(reason, size, "%s: %s", d->path, detail);
        return false;
    }
    d->vendor = "CUDA";
    d->launch = launch;
    d->allow_shared = cu.function_attribute ? allow_shared : NULL;
    if (!cu.launch_ex || !cu.function_attribute) /* kernels that take maps need both */
        d->encode_tensor_map = NULL;
    d->read_version = read_version;
    d->facts = facts;
    d->enter = enter;
    d->leave = leave;
    d->pointer_device = pointer_device;
    d->stream_device = stream_device;
    d->error_text = error_text;
    return true;
}
