/* The HIP runtime, libamdhip64, behind the driver table. Path of a call: opened by driver.c on
 * first use. Enum values and layouts are those of ROCm 5.2 to 10 (checked against the headers
 * of 5.2 and the bindings of 6.4 and 10); what differs between them is said where it is used. */
#include "gpu/driver.h"
#include "gpu/library.h"
#include "problem/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { /* hipDeviceAttribute_t */
       ATTRIBUTE_MULTIPROCESSORS = 63,
       ATTRIBUTE_SHARED_PER_BLOCK = 74,
       ATTRIBUTE_WARP_SIZE = 87,
       ATTRIBUTE_MEMORY_POOLS = 88,
};

enum { INVALID_VALUE = 1 }; /* hipError_t */

/* hipDeviceProp_t: 792 bytes until ROCm 5.7 and from hipGetDeviceProperties, 1472 from
 * hipGetDevicePropertiesR0600. */
enum { PROPERTIES_SIZE = 4096, ARCH_OFFSET_R0000 = 396, ARCH_OFFSET_R0600 = 1160 };

typedef struct pointer_attributes { /* hipPointerAttribute_t; the values of type differ between ROCm
                                       5 and 6 */
    int type, device;
    void *device_pointer, *host_pointer;
    int is_managed;
    unsigned flags;
    char room[64];
} pointer_attributes;

enum { NOT_SUPPORTED = 801 }; /* hipErrorNotSupported */

static struct {
    int (*runtime_version)(int *version);
    int (*get_device)(int *ordinal);
    int (*set_device)(int ordinal);
    int (*device_name)(char *name, int size, int ordinal);
    int (*attribute)(int *value, int attribute, int ordinal);
    int (*properties_r0600)(void *properties, int ordinal);
    int (*properties)(void *properties, int ordinal);
    int (*pointer_attributes)(pointer_attributes *attributes, const void *pointer);
    int (*stream_device)(void *stream, int *ordinal);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **arguments, void **extra);
    int (*last_error)(void);
    const char *(*error_name)(int code);
    const char *(*error_string)(int code);
} hip;

/* HIP keeps a failure for whoever asks hipGetLastError() next, torch after its launches for one. */
static void forget_error(void)
{
    hip.last_error();
}

static int reported(int code)
{
    if (code)
        forget_error();
    return code;
}

static bool read_arch(const char *field, char arch[32])
{
    size_t length = strcspn(field, ":"); /* "gfx942:sramecc+:xnack-" */
    if (strncmp(field, "gfx", 3) || length >= 32)
        return false;
    memcpy(arch, field, length);
    arch[length] = 0;
    return true;
}

static int facts(int ordinal, mmf_device_facts *out, mmf_driver_call *call)
{
    char properties[PROPERTIES_SIZE];
    int pools = 0;
    *out = (mmf_device_facts){0};
    memset(properties, 0, sizeof properties);
    bool r0600 = hip.properties_r0600 != NULL;
    *call = MMF_CALL_DEVICE;
    int code =
        r0600 ? hip.properties_r0600(properties, ordinal) : hip.properties(properties, ordinal);
    if (!code) {
        *call = MMF_CALL_NAME;
        code = hip.device_name(out->name, sizeof out->name, ordinal);
    }
    if (!code) {
        *call = MMF_CALL_ATTRIBUTE;
        code = hip.attribute(&out->compute_units, ATTRIBUTE_MULTIPROCESSORS, ordinal);
    }
    if (!code)
        code = hip.attribute(&out->wave, ATTRIBUTE_WARP_SIZE, ordinal);
    if (!code)
        code = hip.attribute(&out->shared_bytes, ATTRIBUTE_SHARED_PER_BLOCK, ordinal);
    if (!code) {
        code = hip.attribute(&pools, ATTRIBUTE_MEMORY_POOLS, ordinal);
        if (code == INVALID_VALUE) { /* unknown to early runtimes, which have no pools */
            forget_error();
            code = 0;
        }
    }
    if (code)
        return reported(code);
    out->memory_pools = pools;
    if (!read_arch(properties + (r0600 ? ARCH_OFFSET_R0600 : ARCH_OFFSET_R0000), out->arch))
        snprintf(out->arch, sizeof out->arch, "unknown");
    return 0;
}

static int enter(int ordinal, mmf_device_scope *scope, mmf_driver_call *call)
{
    int code = hip.get_device(&scope->ordinal);
    scope->entered = false;
    *call = MMF_CALL_CURRENT;
    if (code || scope->ordinal == ordinal)
        return reported(code);
    *call = MMF_CALL_ENTER;
    code = hip.set_device(ordinal);
    scope->entered = code == 0;
    return reported(code);
}

static void leave(const mmf_device_scope *scope)
{
    if (scope->entered)
        reported(hip.set_device(
            scope->ordinal)); /* it was current before, so there is no error to expect */
}

static int pointer_device(const void *pointer, int *ordinal)
{
    pointer_attributes attributes;
    memset(&attributes, 0, sizeof attributes);
    int code = reported(hip.pointer_attributes(&attributes, pointer));
    /* Memory of the host: an error in ROCm 5, a zeroed answer since */
    if (code == INVALID_VALUE || (!code && !attributes.device_pointer)) {
        *ordinal = -1;
        return 0;
    }
    if (!code && !attributes.is_managed)
        *ordinal = attributes.device;
    return code;
}

static int stream_device(void *stream, int *ordinal)
{
    *ordinal = -1;
    return hip.stream_device && stream ? reported(hip.stream_device(stream, ordinal)) : 0;
}

static void read_version(char version[32])
{
    int number = 0;
    if (reported(hip.runtime_version(&number)) == 0)
        snprintf(version, 32, "%d.%d.%d", number / 10000000, number / 100000 % 100,
                 number % 100000);
}

static void error_text(int code, const char **name, const char **text)
{
    *name = hip.error_name(code);
    *text = hip.error_string(code);
}

static int launch(void *function, const mmf_grid *g, void *stream, void **arguments)
{
    if (g->cluster)
        return NOT_SUPPORTED;
    return hip.launch(function, g->x, g->y, g->z, g->threads, 1, 1, g->dynamic_bytes, stream,
                      arguments, NULL);
}

static void *find_library(mmf_driver *d, char *reason, size_t size)
{
    static const char *const names[] = {"libamdhip64.so",
                                        "libamdhip64.so.9",
                                        "libamdhip64.so.8",
                                        "libamdhip64.so.7",
                                        "libamdhip64.so.6",
                                        "libamdhip64.so.5",
                                        NULL};
    char rocm[PATH_MAX] = "";
    const char *home = getenv("ROCM_PATH");
    if (home && *home)
        snprintf(rocm, sizeof rocm, "%s/lib/libamdhip64.so*", home);
    const char *patterns[] = {"@/torch/lib/libamdhip64.so*", "@/_rocm_sdk_core/lib/libamdhip64.so*",
                              *rocm ? rocm : "/opt/rocm/lib/libamdhip64.so*", NULL};
    const mmf_library_search search = {mmf_environment(MMF_ENV_HIP_LIBRARY), "libamdhip64.so",
                                       patterns, names};
    return mmf_library_open(&search, d->path, sizeof d->path, reason, size);
}

static bool find_functions(mmf_driver *d, void *library, char *reason, size_t size)
{
    const mmf_symbol symbols[] = {
        {"hipInit", &d->init, false},
        {"hipGetDeviceCount", &d->count, false},
        {"hipRuntimeGetVersion", &hip.runtime_version, false},
        {"hipGetDevice", &hip.get_device, false},
        {"hipSetDevice", &hip.set_device, false},
        {"hipDeviceGetName", &hip.device_name, false},
        {"hipDeviceGetAttribute", &hip.attribute, false},
        {"hipGetDevicePropertiesR0600", &hip.properties_r0600, true},
        {"hipGetDeviceProperties", &hip.properties, false},
        {"hipPointerGetAttributes", &hip.pointer_attributes, false},
        {"hipStreamGetDevice", &hip.stream_device, true},
        {"hipGetLastError", &hip.last_error, false},
        {"hipGetErrorName", &hip.error_name, false},
        {"hipGetErrorString", &hip.error_string, false},
        {"hipModuleLoadData", &d->module_load, false},
        {"hipModuleUnload", &d->module_unload, false},
        {"hipModuleGetFunction", &d->module_function, false},
        {"hipModuleLaunchKernel", &hip.launch, false},
        {"hipStreamIsCapturing", &d->stream_is_capturing, false},
        {"hipThreadExchangeStreamCaptureMode", &d->exchange_capture_mode, true},
        {"hipMallocAsync", &d->alloc_async, true},
        {"hipFreeAsync", &d->free_async, true},
        {"hipMemcpyDtoDAsync", &d->copy_async, false},
        {"hipEventCreateWithFlags", &d->event_create, false},
        {"hipEventRecord", &d->event_record, false},
        {"hipEventDestroy", &d->event_destroy, false},
        {"hipStreamWaitEvent", &d->stream_wait_event, false},
        {"hipDeviceSynchronize", &d->synchronize, false},
    };
    return mmf_library_symbols(library, symbols, sizeof symbols / sizeof *symbols, reason, size);
}

bool mmf_driver_hip_open(mmf_driver *d, char *reason, size_t size)
{
    char detail[512] = "";
    void *library = find_library(d, detail, sizeof detail);
    if (!library) {
        snprintf(reason, size, "no HIP runtime (%s)", detail);
        return false;
    }
    /* The library stays mapped: runtimes of GPUs do not stand being unloaded. */
    if (!find_functions(d, library, detail, sizeof detail)) {
        snprintf(reason, size, "%s: %s", d->path, detail);
        return false;
    }
    d->vendor = "HIP";
    d->launch = launch;
    d->read_version = read_version;
    d->facts = facts;
    d->enter = enter;
    d->leave = leave;
    d->pointer_device = pointer_device;
    d->stream_device = stream_device;
    d->error_text = error_text;
    d->forget_error = forget_error;
    return true;
}
