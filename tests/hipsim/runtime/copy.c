/* Copies and fills. Pageable host memory is read at the call, so its owner may reuse it; a copy
 * into it waits, as on the real runtime; pinned memory is touched when the stream gets there. */
#include "rt.h"

#include <stdlib.h>
#include <string.h>

static bool pageable(const void *pointer)
{
    return !rt_find((uintptr_t)pointer) && !rt_in_device_range((uintptr_t)pointer);
}

/* Both sides must be usable now, but for memory that a queued hipMallocAsync will make. */
static hipError_t validate(const void *pointer, size_t bytes)
{
    if (!pointer)
        return hipErrorInvalidValue;
    struct rt_allocation *found = rt_find((uintptr_t)pointer);
    if (!found)
        return rt_in_device_range((uintptr_t)pointer) ? hipErrorInvalidValue : hipSuccess;
    return bytes > found->size - ((uintptr_t)pointer - found->base) ? hipErrorInvalidValue
                                                                    : hipSuccess;
}

static hipError_t make_copy(struct rt_op *op, void *to, const void *from, size_t bytes,
                            hipMemcpyKind kind)
{
    if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault)
        return hipErrorInvalidMemcpyDirection;
    hipError_t error = validate(to, bytes);
    if (!error)
        error = validate(from, bytes);
    /* A direction that contradicts the pointers works by luck on AMD and not at all elsewhere. */
    bool device_to = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
    bool device_from = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
    if (!error && kind != hipMemcpyDefault &&
        ((device_to && pageable(to)) || (device_from && pageable(from)) ||
         (!device_to && rt_in_device_range((uintptr_t)to)) ||
         (!device_from && rt_in_device_range((uintptr_t)from))))
        error = hipErrorInvalidValue;
    if (error)
        return error;
    *op = (struct rt_op){.kind = RT_COPY, .copy = {.to = to, .from = from, .bytes = bytes}};
    if (pageable(from)) {
        op->copy.staged = malloc(bytes);
        if (!op->copy.staged)
            return hipErrorOutOfMemory;
        memcpy(op->copy.staged, from, bytes);
    }
    return hipSuccess;
}

static hipError_t copy(void *to, const void *from, size_t bytes, hipMemcpyKind kind,
                       struct rt_stream *stream, bool wait)
{
    if (bytes == 0)
        return hipSuccess;
    struct rt_op op;
    hipError_t error = make_copy(&op, to, from, bytes, kind);
    if (error)
        return error;
    bool captured = false, into_pageable = pageable(to);
    error = rt_capture_op(stream, &op, &captured);
    if (error || captured)
        return error;
    error = rt_enqueue(stream, &op);
    return !error && (wait || into_pageable) ? rt_sync_stream(stream) : error;
}

static struct rt_stream *legacy(void)
{
    return rt.devices[rt_thread.device].null_stream;
}

hipError_t rt_hipMemcpy(void *to, const void *from, size_t bytes, hipMemcpyKind kind)
{
    hipError_t error = rt_capture_implicit();
    return error ? error : copy(to, from, bytes, kind, legacy(), true);
}

hipError_t rt_hipMemcpyAsync(void *to, const void *from, size_t bytes, hipMemcpyKind kind,
                             hipStream_t handle)
{
    struct rt_stream *stream = rt_stream_of(handle);
    return stream ? copy(to, from, bytes, kind, stream, false) : hipErrorContextIsDestroyed;
}

hipError_t rt_hipMemcpyWithStream(void *to, const void *from, size_t bytes, hipMemcpyKind kind,
                                  hipStream_t handle)
{
    struct rt_stream *stream = rt_stream_of(handle);
    if (!stream)
        return hipErrorContextIsDestroyed;
    hipError_t error = rt_capture_ongoing(stream);
    return error ? error : copy(to, from, bytes, kind, stream, true);
}

hipError_t rt_hipMemcpyHtoD(hipDeviceptr_t to, void *from, size_t bytes)
{
    return rt_hipMemcpy(to, from, bytes, hipMemcpyHostToDevice);
}

hipError_t rt_hipMemcpyDtoH(void *to, hipDeviceptr_t from, size_t bytes)
{
    return rt_hipMemcpy(to, from, bytes, hipMemcpyDeviceToHost);
}

hipError_t rt_hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes)
{
    return rt_hipMemcpy(to, from, bytes, hipMemcpyDeviceToDevice);
}

hipError_t rt_hipMemcpyHtoDAsync(hipDeviceptr_t to, void *from, size_t bytes, hipStream_t stream)
{
    return rt_hipMemcpyAsync(to, from, bytes, hipMemcpyHostToDevice, stream);
}

hipError_t rt_hipMemcpyDtoHAsync(void *to, hipDeviceptr_t from, size_t bytes, hipStream_t stream)
{
    return rt_hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToHost, stream);
}

hipError_t rt_hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes,
                                 hipStream_t stream)
{
    return rt_hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToDevice, stream);
}

static bool devices_exist(int a, int b)
{
    return a >= 0 && b >= 0 && a < rt.device_count && b < rt.device_count;
}

hipError_t rt_hipMemcpyPeer(void *to, int to_device, const void *from, int from_device,
                            size_t bytes)
{
    if (!devices_exist(to_device, from_device))
        return hipErrorInvalidDevice;
    return rt_hipMemcpy(to, from, bytes, hipMemcpyDeviceToDevice);
}

hipError_t rt_hipMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                 size_t bytes, hipStream_t stream)
{
    if (!devices_exist(to_device, from_device))
        return hipErrorInvalidDevice;
    return rt_hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToDevice, stream);
}

static hipError_t fill(void *to, uint32_t value, int width, size_t count, struct rt_stream *stream,
                       bool wait)
{
    if (!stream)
        return hipErrorContextIsDestroyed;
    if (count == 0)
        return hipSuccess;
    bool aligned = (uintptr_t)to % (size_t)width == 0;
    if (!to || !aligned || pageable(to) || count > SIZE_MAX / (size_t)width ||
        validate(to, count * (size_t)width) != hipSuccess)
        return hipErrorInvalidValue;
    struct rt_op op = {.kind = RT_FILL,
                       .fill = {.to = to, .value = value, .width = width, .count = count}};
    bool captured = false;
    hipError_t error = rt_capture_op(stream, &op, &captured);
    if (error || captured)
        return error;
    error = rt_enqueue(stream, &op);
    return !error && wait ? rt_sync_stream(stream) : error;
}

static hipError_t fill_now(void *to, uint32_t value, int width, size_t count)
{
    hipError_t error = rt_capture_implicit();
    return error ? error : fill(to, value, width, count, legacy(), true);
}

hipError_t rt_hipMemset(void *to, int value, size_t bytes)
{
    return fill_now(to, (uint8_t)value, 1, bytes);
}

hipError_t rt_hipMemsetAsync(void *to, int value, size_t bytes, hipStream_t stream)
{
    return fill(to, (uint8_t)value, 1, bytes, rt_stream_of(stream), false);
}

hipError_t rt_hipMemsetD8(hipDeviceptr_t to, unsigned char value, size_t count)
{
    return fill_now(to, value, 1, count);
}

hipError_t rt_hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t count,
                               hipStream_t stream)
{
    return fill(to, value, 1, count, rt_stream_of(stream), false);
}

hipError_t rt_hipMemsetD16(hipDeviceptr_t to, unsigned short value, size_t count)
{
    return fill_now(to, value, 2, count);
}

hipError_t rt_hipMemsetD16Async(hipDeviceptr_t to, unsigned short value, size_t count,
                                hipStream_t stream)
{
    return fill(to, value, 2, count, rt_stream_of(stream), false);
}

hipError_t rt_hipMemsetD32(hipDeviceptr_t to, int value, size_t count)
{
    return fill_now(to, (uint32_t)value, 4, count);
}

hipError_t rt_hipMemsetD32Async(hipDeviceptr_t to, int value, size_t count, hipStream_t stream)
{
    return fill(to, (uint32_t)value, 4, count, rt_stream_of(stream), false);
}
