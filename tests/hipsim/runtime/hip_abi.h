/* The types of HIP's C interface as this simulation states them, so that it builds without HIP's
 * headers. abi/check_headers.c compiles the same lists against the real headers; test_abi.py
 * compares them with AMD's bindings for later versions. */
#ifndef HIPSIM_HIP_ABI_H
#define HIPSIM_HIP_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int hipDevice_t;
typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipModule_t *hipModule_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;
typedef struct ihipMemPoolHandle_t *hipMemPool_t;
typedef struct ihipGraph *hipGraph_t;
typedef struct hipGraphNode *hipGraphNode_t;
typedef struct hipGraphExec *hipGraphExec_t;
typedef void *hipDeviceptr_t;

/* Enumerations: passed as int; their values come from the two lists. */
typedef int hipError_t, hipDeviceAttribute_t, hipMemcpyKind, hipMemPoolAttr, hipFunction_attribute,
    hipJitOption;
typedef int hipStreamCaptureMode, hipStreamCaptureStatus, hipGraphNodeType;

#define HIP_ERROR(name, value, text) name = value,
#define HIP_VALUE(name, value) name = value,
#define HIP_VALUE_NEW(name, value) name = value,
enum {
#include "errors.def"
};
enum {
#include "values.def"
};
#undef HIP_ERROR
#undef HIP_VALUE
#undef HIP_VALUE_NEW

#define hipStreamLegacy ((hipStream_t)1)
#define hipStreamPerThread ((hipStream_t)2)
#define HIP_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define HIP_LAUNCH_PARAM_BUFFER_SIZE ((void *)0x02)
#define HIP_LAUNCH_PARAM_END ((void *)0x03)

typedef void (*hipStreamCallback_t)(hipStream_t stream, hipError_t status, void *userData);
typedef void (*hipHostFn_t)(void *userData);

/* Two layouts share the name: device.c writes them by offset (properties.def). */
typedef struct hipDeviceProp_t hipDeviceProp_t;

typedef struct hipUUID_t {
    char bytes[16];
} hipUUID;

typedef struct dim3 {
    uint32_t x, y, z;
} dim3;

typedef struct hipPointerAttribute_t {
    int type;
    int device;
    void *devicePointer;
    void *hostPointer;
    int isManaged;
    unsigned allocationFlags;
} hipPointerAttribute_t;

typedef struct hipKernelNodeParams {
    dim3 blockDim;
    void **extra;
    void *func;
    dim3 gridDim;
    void **kernelParams;
    unsigned int sharedMemBytes;
} hipKernelNodeParams;

#define HIP_STRUCT(name, size) _Static_assert(sizeof(name) == size, #name);
#define HIP_FIELD(name, field, offset) _Static_assert(offsetof(name, field) == offset, #field);
#include "structs.def"
#undef HIP_STRUCT
#undef HIP_FIELD

#endif
