/* The driver table: every function of a GPU vendor's driver that this library calls, found by
 * dlopen on first use. Path of a call: under devices.c, attempt.c and launch_plan.c; nothing else
 * talks to a driver. */
#ifndef MMF_GPU_DRIVER_H
#define MMF_GPU_DRIVER_H

#include "problem/status.h"
#include "problem/tensor.h"

#include <limits.h>
#include <stddef.h>

/* What a driver tells of a device. */
typedef struct mmf_device_facts {
    char name[128];
    char arch[32]; /* "gfx942", "sm_90" */
    int compute_units, wave;
    int shared_bytes; /* LDS or shared memory that a workgroup may have without asking */
    int shared_most;  /* and after asking: see allow_shared; of CUDA only */
    double memory;    /* bytes a second, by its clock and width; of CUDA only */
    bool memory_pools;
} mmf_device_facts;

/* A function of the driver as error texts name it: X(what, name in HIP, name in CUDA). */
#define MMF_DRIVER_CALLS(X)                                                                        \
    X(INIT, "hipInit", "cuInit")                                                                   \
    X(COUNT, "hipGetDeviceCount", "cuDeviceGetCount")                                              \
    X(DEVICE, "hipGetDeviceProperties", "cuDeviceGet")                                             \
    X(NAME, "hipDeviceGetName", "cuDeviceGetName")                                                 \
    X(ATTRIBUTE, "hipDeviceGetAttribute", "cuDeviceGetAttribute")                                  \
    X(RETAIN, "", "cuDevicePrimaryCtxRetain")                                                      \
    X(CURRENT, "hipGetDevice", "cuCtxGetCurrent")                                                  \
    X(ENTER, "hipSetDevice", "cuCtxPushCurrent")                                                   \
    X(LOAD, "hipModuleLoadData", "cuModuleLoadData")                                               \
    X(FUNCTION, "hipModuleGetFunction", "cuModuleGetFunction")                                     \
    X(FUNCTION_ATTRIBUTE, "hipFuncSetAttribute", "cuFuncSetAttribute")                             \
    X(TENSOR_MAP, "", "cuTensorMapEncodeTiled")                                                    \
    X(LAUNCH, "hipModuleLaunchKernel", "cuLaunchKernel")                                           \
    X(LAUNCH_CLUSTER, "", "cuLaunchKernelEx")                                                      \
    X(CAPTURING, "hipStreamIsCapturing", "cuStreamIsCapturing")                                    \
    X(POINTER, "hipPointerGetAttributes", "cuPointerGetAttribute")                                 \
    X(STREAM_DEVICE, "hipStreamGetDevice", "cuStreamGetCtx")                                       \
    X(ALLOC, "hipMallocAsync", "cuMemAllocAsync")                                                  \
    X(FREE, "hipFreeAsync", "cuMemFreeAsync")                                                      \
    X(COPY, "hipMemcpyDtoDAsync", "cuMemcpyDtoDAsync")                                             \
    X(EVENT, "hipEventCreateWithFlags", "cuEventCreate")                                           \
    X(RECORD, "hipEventRecord", "cuEventRecord")                                                   \
    X(WAIT, "hipStreamWaitEvent", "cuStreamWaitEvent")                                             \
    X(DESTROY, "hipEventDestroy", "cuEventDestroy")                                                \
    X(SYNCHRONIZE, "hipDeviceSynchronize", "cuCtxSynchronize")

typedef enum mmf_driver_call {
#define X(what, hip, cuda) MMF_CALL_##what,
    MMF_DRIVER_CALLS(X)
#undef X
} mmf_driver_call;

/* The device that was current before mmf_driver_enter(). */
typedef struct mmf_device_scope {
    int ordinal;
    bool entered;
} mmf_device_scope;

/* The size of one launch. Workgroups are one-dimensional. */
typedef struct mmf_grid {
    unsigned x, y, z, threads;
    unsigned dynamic_bytes; /* of LDS or shared memory */
    unsigned cluster;       /* workgroups of a cluster along x; 0: no clusters */
    /* May begin before the kernel before it in the stream is done: it waits itself. Only with
     * clusters. */
    bool overlaps;
} mmf_grid;

enum { MMF_NOT_CAPTURING = 0 }; /* a capture status; all others mean that work is being recorded */

/* Handles (streams, modules, functions, events) and device addresses are void * everywhere. Every
 * int is the driver's own error code, 0 for success. */
typedef struct mmf_driver {
    mmf_device_type type;
    const char *vendor;  /* "HIP", "CUDA" */
    char path[PATH_MAX]; /* the library, and */
    char version[32];    /* what it says of itself */
    int devices;

    /* the driver's own functions, of one signature in both */
    int (*init)(unsigned flags);
    int (*count)(int *devices);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *symbol);
    int (*stream_is_capturing)(void *stream, int *status);
    int (*exchange_capture_mode)(int *mode); /* of this thread; NULL: this driver is too old */
    int (*alloc_async)(void **memory, size_t bytes,
                       void *stream); /* NULL: this driver is too old */
    int (*free_async)(void *memory, void *stream);
    int (*copy_async)(void *to, const void *from, size_t bytes, void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_destroy)(void *event);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    /* CUtensorMap and its enumerations as in the driver API; NULL: this driver has none. */
    int (*encode_tensor_map)(void *map, int type, uint32_t rank, void *address,
                             const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                             const uint32_t *steps, int interleave, int swizzle, int promotion,
                             int fill);
    int (*synchronize)(void); /* the whole device: only when it has run out of memory */

    /* wrapped by driver_hip.c and driver_cuda.c */
    int (*launch)(void *function, const mmf_grid *grid, void *stream, void **arguments);
    /* Let a function be launched with so much dynamic shared memory; NULL: nothing to ask for. */
    int (*allow_shared)(void *function, unsigned bytes);
    void (*read_version)(char version[32]);
    /* *call: which of its functions failed, if one did */
    int (*facts)(int ordinal, mmf_device_facts *facts, mmf_driver_call *call);
    int (*enter)(int ordinal, mmf_device_scope *scope, mmf_driver_call *call);
    void (*leave)(const mmf_device_scope *scope); /* undoes enter() */
    /* *ordinal: -1 if no GPU knows the address; stays as it was for memory of all devices */
    int (*pointer_device)(const void *pointer, int *ordinal);
    int (*stream_device)(void *stream, int *ordinal); /* -1: this driver cannot say */
    void (*error_text)(int code, const char **name, const char **text);
    void (*forget_error)(
        void); /* NULL, or: the driver keeps the last error for others to trip over; take it away */
} mmf_driver;

enum { MMF_OUT_OF_MEMORY = 2 };      /* an error of both drivers: ...OutOfMemory */
enum { MMF_CAPTURE_IMPLICIT = 906 }; /* an error of both drivers: ...StreamCaptureImplicit */
enum { MMF_CAPTURE_RELAXED = 2 }; /* hipStreamCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED */

#define MMF_EVENT_DISABLE_TIMING 2u /* hipEventDisableTiming, CU_EVENT_DISABLE_TIMING */

/* The driver of a kind of device, loaded and initialised by the first caller. DEVICE_ERROR with the
 * reason if it cannot be used. */
mmf_status mmf_driver_get(mmf_device_type type, const mmf_driver **driver);

/* The driver of a device. DEVICE_ERROR if there is no such device. */
mmf_status mmf_driver_of(mmf_device device, const mmf_driver **driver);

enum { MMF_MAX_DEVICES = 64 }; /* of a kind; more are not there */

/* Make a device current on this thread until mmf_driver.leave(). */
mmf_status mmf_driver_enter(const mmf_driver *driver, int ordinal, mmf_device_scope *scope);

/* DEVICE_ERROR of a driver's function that returned code: with the driver's own name and text. */
__attribute__((cold)) mmf_status mmf_driver_fail(const mmf_driver *driver, int code,
                                                 mmf_driver_call call, int ordinal);

/* --- for driver.c --- */

/* Open the library and fill the table from it. On failure the reason is in reason. */
bool mmf_driver_hip_open(mmf_driver *driver, char *reason, size_t size);
bool mmf_driver_cuda_open(mmf_driver *driver, char *reason, size_t size);

#endif
