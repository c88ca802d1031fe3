/* Device, stream and memory of a call, as the driver sees them. Path of a call: during the import
 * and after problem/. */
#include "gpu/preflight.h"

#include "gpu/attempt.h"
#include "gpu/devices.h"

mmf_status mmf_gpu_begin(mmf_device device)
{
    mmf_gpu *gpu;
    return mmf_gpu_get(device, &gpu);
}

mmf_status mmf_gpu_of_stream(void *stream, mmf_device *device)
{
    mmf_attempt a;
    int ordinal = -1;
    mmf_status status = mmf_attempt_begin(*device, &a);
    if (status)
        return status;
    mmf_attempt_note(&a, a.driver->stream_device(stream, &ordinal), MMF_CALL_STREAM_DEVICE);
    status = mmf_attempt_end(&a);
    if (!status && ordinal >= 0)
        device->id = ordinal;
    return status;
}

mmf_status mmf_gpu_check_stream(mmf_device device, void *stream)
{
    mmf_device own = device;
    char text[24];
    mmf_status status = mmf_gpu_of_stream(stream, &own);
    if (status || own.id == device.id)
        return status;
    return mmf_fail(MMF_DEVICE_ERROR,
                    "stream belongs to another device than the operands, which are on %s",
                    mmf_device_name(device, text));
}

mmf_status mmf_gpu_is_capturing(mmf_device device, void *stream, bool *capturing)
{
    return mmf_driver_is_capturing(device, stream, capturing);
}

mmf_status mmf_gpu_check_memory(mmf_device device, const void *data, const char *name)
{
    mmf_attempt a;
    int ordinal = device.id;
    char text[24], other[24];
    mmf_status status = mmf_attempt_begin(device, &a);
    if (status)
        return status;
    mmf_attempt_note(&a, a.driver->pointer_device(data, &ordinal), MMF_CALL_POINTER);
    status = mmf_attempt_end(&a);
    if (status || ordinal == device.id)
        return status;
    mmf_device_name(device, text);
    if (ordinal < 0)
        return mmf_fail(MMF_BUFFER_ERROR,
                        "%s says that it is on %s, but the driver knows no such device memory",
                        name, text);
    return mmf_fail(MMF_BUFFER_ERROR, "%s says that it is on %s, but its memory is on %s", name,
                    text, mmf_device_name((mmf_device){device.type, ordinal}, other));
}
