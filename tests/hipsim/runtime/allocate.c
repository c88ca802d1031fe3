/* Allocation: at once, ordered in a stream, pinned, managed; and what is known about a pointer.
 * hipFree waits for the device first, hipFreeAsync takes effect where its stream reaches it. */
#include "rt.h"

#include <string.h>

static hipError_t allocate(void **pointer, int device, int type, size_t size, unsigned flags)
{
    if (!pointer)
        return hipErrorInvalidValue;
    *pointer = NULL;
    if (size == 0)
        return hipSuccess;
    struct rt_allocation *made = rt_allocate(device, type, size, RT_USER);
    if (!made)
        return hipErrorOutOfMemory;
    made->flags = flags;
    *pointer = (void *)(uintptr_t)made->base;
    return hipSuccess;
}

hipError_t rt_hipMalloc(void **pointer, size_t size)
{
    hipError_t error = rt_capture_forbids();
    return error ? error : allocate(pointer, rt_thread.device, hipMemoryTypeDevice, size, 0);
}

hipError_t rt_hipMallocManaged(void **pointer, size_t size, unsigned int flags)
{
    hipError_t error = rt_capture_forbids();
    if (error)
        return error;
    if (size == 0 || (flags != 1 && flags != 2)) /* hipMemAttachGlobal, hipMemAttachHost */
        return hipErrorInvalidValue;
    return allocate(pointer, rt_thread.device, hipMemoryTypeManaged, size, flags);
}

hipError_t rt_hipHostMalloc(void **pointer, size_t size, unsigned int flags)
{
    hipError_t error = rt_capture_forbids();
    return error ? error : allocate(pointer, rt_thread.device, hipMemoryTypeHost, size, flags);
}

/* The user's allocation that starts at the pointer. */
static struct rt_allocation *user_allocation(const void *pointer)
{
    struct rt_allocation *found = rt_find((uintptr_t)pointer);
    bool usable = found && found->owner == RT_USER && found->base == (uintptr_t)pointer;
    return usable && !found->free_pending ? found : NULL;
}

hipError_t rt_hipFree(void *pointer)
{
    hipError_t error = rt_capture_forbids();
    if (error || !pointer)
        return error;
    struct rt_allocation *found = user_allocation(pointer);
    if (!found)
        return hipErrorInvalidValue;
    /* Since HIP 7, memory of hipMallocAsync is freed without the wait. */
    if (!found->ordered || rt.version < 70000000)
        error = rt_sync_device(found->device);
    rt_release(found);
    return error;
}

hipError_t rt_hipHostFree(void *pointer)
{
    struct rt_allocation *found = pointer ? user_allocation(pointer) : NULL;
    if (found && found->type != hipMemoryTypeHost)
        return hipErrorInvalidValue;
    return rt_hipFree(pointer);
}

static hipError_t malloc_ordered(void **pointer, size_t size, struct rt_stream *stream)
{
    *pointer = NULL;
    if (size == 0)
        return hipSuccess;
    struct rt_allocation *made = rt_allocate(stream->device, hipMemoryTypeDevice, size, RT_USER);
    if (!made)
        return hipErrorOutOfMemory;
    made->live = false;
    made->ordered = true;
    hipError_t error =
        rt_enqueue(stream, &(struct rt_op){.kind = RT_MAKE_LIVE, .address = made->base});
    if (error) {
        rt_release(made);
        return error;
    }
    *pointer = (void *)(uintptr_t)made->base;
    return hipSuccess;
}

hipError_t rt_hipMallocAsync(void **pointer, size_t size, hipStream_t handle)
{
    struct rt_stream *stream = rt_stream_of(handle);
    if (!pointer || !stream)
        return hipErrorInvalidValue;
    /* The real runtime would record an allocation node; nobody here does that on purpose. */
    hipError_t error = rt_capture_refuses(stream);
    return error ? error : malloc_ordered(pointer, size, stream);
}

hipError_t rt_hipFreeAsync(void *pointer, hipStream_t handle)
{
    struct rt_stream *stream = rt_stream_of(handle);
    struct rt_allocation *found = pointer ? user_allocation(pointer) : NULL;
    if (!stream || !found || found->type != hipMemoryTypeDevice)
        return hipErrorInvalidValue;
    hipError_t error = rt_capture_refuses(stream);
    if (error)
        return error;
    found->free_pending = true; /* in early order the next line ends its life */
    error = rt_enqueue(stream, &(struct rt_op){.kind = RT_FREE, .address = found->base});
    if (error)
        found->free_pending = false;
    return error;
}

/* A device has one pool; its handle is the address of the device's record. */
static struct rt_device *device_of_pool(hipMemPool_t pool)
{
    for (int i = 0; i < rt.device_count; i++) {
        if ((void *)pool == &rt.devices[i])
            return &rt.devices[i];
    }
    return NULL;
}

hipError_t rt_hipMallocFromPoolAsync(void **pointer, size_t size, hipMemPool_t pool,
                                     hipStream_t handle)
{
    struct rt_device *device = device_of_pool(pool);
    struct rt_stream *stream = rt_stream_of(handle);
    if (!device || !stream || stream->device != device->ordinal)
        return hipErrorInvalidValue;
    return rt_hipMallocAsync(pointer, size, handle);
}

hipError_t rt_hipDeviceGetDefaultMemPool(hipMemPool_t *pool, int device)
{
    if (!pool)
        return hipErrorInvalidValue;
    if (device < 0 || device >= rt.device_count)
        return hipErrorInvalidDevice;
    *pool = (hipMemPool_t)(void *)&rt.devices[device];
    return hipSuccess;
}

hipError_t rt_hipDeviceGetMemPool(hipMemPool_t *pool, int device)
{
    return rt_hipDeviceGetDefaultMemPool(pool, device);
}

hipError_t rt_hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void *value)
{
    struct rt_device *device = device_of_pool(pool);
    if (!device || !value)
        return hipErrorInvalidValue;
    if (attribute == hipMemPoolAttrReleaseThreshold)
        memcpy(&device->release_threshold, value, sizeof device->release_threshold);
    else if (attribute < 1 || attribute > hipMemPoolAttrUsedMemHigh)
        return hipErrorInvalidValue;
    return hipSuccess;
}

hipError_t rt_hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute, void *value)
{
    struct rt_device *device = device_of_pool(pool);
    if (!device || !value)
        return hipErrorInvalidValue;
    uint64_t answer;
    if (attribute == hipMemPoolAttrReleaseThreshold)
        answer = device->release_threshold;
    else if (attribute >= hipMemPoolAttrReservedMemCurrent &&
             attribute <= hipMemPoolAttrUsedMemHigh)
        answer = device->used;
    else
        return hipErrorInvalidValue;
    memcpy(value, &answer, sizeof answer);
    return hipSuccess;
}

hipError_t rt_hipMemPoolTrimTo(hipMemPool_t pool, size_t bytes)
{
    (void)bytes; /* nothing is kept in the pool */
    return device_of_pool(pool) ? hipSuccess : hipErrorInvalidValue;
}

hipError_t rt_hipMemGetInfo(size_t *free, size_t *total)
{
    const struct rt_device *device = &rt.devices[rt_thread.device];
    if (free)
        *free = device->arch->memory_bytes - device->used;
    if (total)
        *total = device->arch->memory_bytes;
    return hipSuccess;
}

hipError_t rt_hipMemPtrGetInfo(void *pointer, size_t *size)
{
    struct rt_allocation *found = rt_find((uintptr_t)pointer);
    if (!size || (pointer && !found))
        return hipErrorInvalidValue;
    *size = pointer ? found->size : 0;
    return hipSuccess;
}

hipError_t rt_hipMemGetAddressRange(hipDeviceptr_t *base, size_t *size, hipDeviceptr_t pointer)
{
    struct rt_allocation *found = rt_find((uintptr_t)pointer);
    if (!found)
        return hipErrorNotFound;
    if (base)
        *base = (void *)(uintptr_t)found->base;
    if (size)
        *size = found->size;
    return hipSuccess;
}

hipError_t rt_hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *pointer)
{
    /* HIP 7 follows CUDA 11: an unknown pointer is an answer, not an error. */
    hipError_t unknown = rt.version >= 70000000 ? hipSuccess : hipErrorInvalidValue;
    if (!attributes)
        return unknown;
    struct rt_allocation *found = rt_find((uintptr_t)pointer);
    *attributes = (hipPointerAttribute_t){.type = hipMemoryTypeUnregistered, .device = -2};
    if (!found)
        return unknown;
    bool device = found->type == hipMemoryTypeDevice;
    *attributes = (hipPointerAttribute_t){.type = found->type,
                                          .device = found->device,
                                          .devicePointer = (void *)pointer,
                                          .hostPointer = device ? NULL : (void *)pointer,
                                          .isManaged = found->type == hipMemoryTypeManaged,
                                          .allocationFlags = found->flags};
    return hipSuccess;
}
