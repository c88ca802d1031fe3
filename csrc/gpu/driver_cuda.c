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
       ATTRIBUTE_MAJOR = 75,
       ATTRIBUTE_MINOR = 76,
       ATTRIBUTE_MEMORY_POOLS = 115,
};
enum { POINTER_IS_MANAGED = 8, POINTER_DEVICE_ORDINAL = 9 }; /* CUpointer_attribute */
enum { NO_DEVICE = 100, INVALID_DEVICE = 101 };              /* CUresult */
enum { MAX_DEVICES = 64 };

static struct {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*device)(int *device, int ordinal);
    int (*device_name)(char *name, int size, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*retain)(void **context, int device);
    int (*current)(void **context);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*pointer_attribute)(void *value, int attribute, uintptr_t pointer);
    int (*stream_context)(void *stream, void **context);
    int (*error_name)(int code, const char **name);
    int (*error_string)(int code, const char **text);
} cu;

static _Atomic(void *) contexts[MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of retaining a context */

/* The primary context of a device. */
static int context_of(int ordinal, void **context)
{
    int device, code = 0;
    if (ordinal < 0 || ordinal >= MAX_DEVICES)
        return INVALID_DEVICE;
    *context = atomic_load_explicit(&contexts[ordinal], memory_order_acquire);
    if (*context)
        return 0;
    pthread_mutex_lock(&mutex);
    *context = atomic_load(&contexts[ordinal]);
    if (!*context) {
        code = cu.device(&device, ordinal);
        if (!code)
            code = cu.retain(context, device);
        if (!code)
            atomic_store_explicit(&contexts[ordinal], *context, memory_order_release);
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

static int facts(int ordinal, mmf_device_facts *out)
{
    int device, major = 0, minor = 0, pools = 0;
    *out = (mmf_device_facts){0};
    int code = cu.device(&device, ordinal);
    if (!code)
        code = cu.device_name(out->name, sizeof out->name, device);
    if (!code)
        code = cu.attribute(&out->compute_units, ATTRIBUTE_MULTIPROCESSORS, device);
    if (!code)
        code = cu.attribute(&out->wave, ATTRIBUTE_WARP_SIZE, device);
    if (!code)
        code = cu.attribute(&out->shared_bytes, ATTRIBUTE_SHARED_PER_BLOCK, device);
    if (!code)
        code = cu.attribute(&major, ATTRIBUTE_MAJOR, device);
    if (!code)
        code = cu.attribute(&minor, ATTRIBUTE_MINOR, device);
    if (code)
        return code;
    /* unknown to drivers before 11.2, which have no pools */
    out->memory_pools = cu.attribute(&pools, ATTRIBUTE_MEMORY_POOLS, device) == 0 && pools;
    snprintf(out->arch, sizeof out->arch, "sm_%d%d", major, minor);
    return 0;
}

static int enter(int ordinal, mmf_device_scope *scope)
{
    void *wanted = NULL, *current = NULL;
    scope->entered = false;
    int code = context_of(ordinal, &wanted);
    if (!code)
        code = cu.current(&current);
    if (code || current == wanted)
        return code;
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
    for (int i = 0; !code && i < MAX_DEVICES; i++)
        if (context && atomic_load(&contexts[i]) == context)
            *ordinal = i;
    if (!code && *ordinal < 0)
        *ordinal = MAX_DEVICES; /* a context of its own, or of a device that nobody used here */
    return code;
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
        {"cuInit", &cu.init, false},
        {"cuDriverGetVersion", &cu.version, false},
        {"cuDeviceGetCount", &cu.count, false},
        {"cuDeviceGet", &cu.device, false},
        {"cuDeviceGetName", &cu.device_name, false},
        {"cuDeviceGetAttribute", &cu.attribute, false},
        {"cuDevicePrimaryCtxRetain", &cu.retain, false},
        {"cuCtxGetCurrent", &cu.current, false},
        {"cuCtxPushCurrent_v2", &cu.push, false},
        {"cuCtxPopCurrent_v2", &cu.pop, false},
        {"cuPointerGetAttribute", &cu.pointer_attribute, false},
        {"cuStreamGetCtx", &cu.stream_context, true},
        {"cuGetErrorName", &cu.error_name, false},
        {"cuGetErrorString", &cu.error_string, false},
        {"cuModuleLoadData", &d->module_load, false},
        {"cuModuleUnload", &d->module_unload, false},
        {"cuModuleGetFunction", &d->module_function, false},
        {"cuLaunchKernel", &d->launch, false},
        {"cuStreamIsCapturing", &d->stream_is_capturing, false},
        {"cuMemAllocAsync", &d->alloc_async, true},
        {"cuMemFreeAsync", &d->free_async, true},
        {"cuMemcpyDtoDAsync_v2", &d->copy_async, false},
        {"cuEventCreate", &d->event_create, false},
        {"cuEventRecord", &d->event_record, false},
        {"cuEventDestroy_v2", &d->event_destroy, false},
        {"cuStreamWaitEvent", &d->stream_wait_event, false},
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
    int version = 0;
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
    d->facts = facts;
    d->enter = enter;
    d->leave = leave;
    d->pointer_device = pointer_device;
    d->stream_device = stream_device;
    d->error_text = error_text;
    const char *function = "cuInit", *name = NULL, *text = NULL;
    int code = cu.init(0);
    if (!code) {
        function = "cuDeviceGetCount";
        code = cu.count(&d->devices);
    }
    if (!code && cu.version(&version) == 0)
        snprintf(d->version, sizeof d->version, "%d.%d", version / 1000, version % 1000 / 10);
    error_text(code, &name, &text);
    if (code == NO_DEVICE)
        snprintf(reason, size, "%s finds no NVIDIA GPU (%s: %s)", d->path, function,
                 name ? name : "CUDA_ERROR_NO_DEVICE");
    else if (code)
        snprintf(reason, size, "%s: %s: %s (%s)", d->path, function, name ? name : "unknown error",
                 text ? text : "no text");
    else if (d->devices == 0)
        snprintf(reason, size, "%s finds no NVIDIA GPU", d->path);
    return !code && d->devices > 0;
}
