/* Checks of memory and streams, and what info shows of GPUs. Path of a call: checks, where operands
 * come from a library that we do not know; else off it. */
#include "gpu/devices.h"
#include "gpu/objects.h"
#include "gpu/rows.h"

#include <stdio.h>
#include <string.h>

mmf_status mmf_gpu_begin(mmf_device device)
{
    mmf_gpu *gpu;
    return mmf_gpu_get(device, &gpu);
}

mmf_status mmf_gpu_check_stream(mmf_device device, void *stream)
{
    mmf_gpu *gpu;
    mmf_device_scope scope;
    int ordinal = -1;
    char text[24];
    mmf_status status = mmf_gpu_get(device, &gpu);
    if (!status)
        status = mmf_driver_enter(gpu->driver, device.id, &scope);
    if (status)
        return status;
    int code = gpu->driver->stream_device(stream, &ordinal);
    gpu->driver->leave(&scope);
    if (code)
        return mmf_driver_fail(gpu->driver, code, MMF_CALL_STREAM_DEVICE, device.id);
    if (ordinal < 0 || ordinal == device.id)
        return MMF_OK;
    return mmf_fail(MMF_DEVICE_ERROR,
                    "stream belongs to another device than the operands, which are on %s",
                    mmf_device_name(device, text));
}

mmf_status mmf_gpu_is_capturing(mmf_device device, void *stream, bool *capturing)
{
    mmf_gpu *gpu;
    mmf_device_scope scope;
    int status_of_stream = MMF_NOT_CAPTURING;
    mmf_status status = mmf_gpu_get(device, &gpu);
    if (!status)
        status = mmf_driver_enter(gpu->driver, device.id, &scope);
    if (status)
        return status;
    int code = gpu->driver->stream_is_capturing(stream, &status_of_stream);
    gpu->driver->leave(&scope);
    *capturing = status_of_stream != MMF_NOT_CAPTURING;
    return code ? mmf_driver_fail(gpu->driver, code, MMF_CALL_CAPTURING, device.id) : MMF_OK;
}

mmf_status mmf_gpu_check_memory(mmf_device device, const void *data, const char *name)
{
    mmf_gpu *gpu;
    mmf_device_scope scope;
    int ordinal = device.id;
    char text[24], other[24];
    mmf_status status = mmf_gpu_get(device, &gpu);
    if (!status)
        status = mmf_driver_enter(gpu->driver, device.id, &scope);
    if (status)
        return status;
    mmf_device_name(device, text);
    int code = gpu->driver->pointer_device(data, &ordinal);
    gpu->driver->leave(&scope);
    if (code)
        return mmf_driver_fail(gpu->driver, code, MMF_CALL_POINTER, device.id);
    if (ordinal < 0)
        return mmf_fail(MMF_BUFFER_ERROR,
                        "%s says that it is on %s, but the driver knows no such device memory",
                        name, text);
    if (ordinal == device.id)
        return MMF_OK;
    return mmf_fail(MMF_BUFFER_ERROR, "%s says that it is on %s, but its memory is on %s", name,
                    text, mmf_device_name((mmf_device){device.type, ordinal}, other));
}

int mmf_gpu_units(mmf_device device)
{
    mmf_gpu *gpu;
    return mmf_gpu_get(device, &gpu) ? 0 : gpu->facts.compute_units;
}

int mmf_gpu_describe(mmf_device_type type, char *text, size_t size)
{
    const mmf_driver *driver;
    if (mmf_driver_get(type, &driver)) {
        const char *why = strchr(mmf_error_text(), ':'); /* behind "AMD GPUs cannot be used" */
        snprintf(text, size, "off%s", why ? why : "");
        return 0;
    }
    snprintf(text, size, "on: %s %s, %s", driver->vendor, driver->version, driver->path);
    return driver->devices;
}

const char *mmf_gpu_library(mmf_device_type type)
{
    const mmf_driver *driver;
    return mmf_driver_get(type, &driver) ? NULL : driver->path;
}

mmf_status mmf_gpu_describe_device(mmf_device device, char *text, size_t size)
{
    mmf_gpu *gpu;
    char reason[MMF_REASON_TEXT];
    mmf_status status = mmf_gpu_get(device, &gpu);
    if (status)
        return status;
    const char *arch = mmf_gpu_code_arch(gpu, MMF_GPU_gemm_simt_f32);
    bool code = arch || mmf_gpu_has_code(gpu, MMF_GPU_gemm_simt_f32, reason);
    snprintf(text, size, "%s, %s, %d compute units, wave %d; %s%s", gpu->facts.name,
             gpu->facts.arch, gpu->facts.compute_units, gpu->facts.wave,
             arch   ? "code for "
             : code ? "generic kernel only, compiled by hipRTC on first use"
                    : reason,
             arch ? arch : "");
    return MMF_OK;
}

void mmf_gpu_describe_code(char *text, size_t size)
{
    size_t length = 0;
    *text = 0;
    if (!mmf_device_object_count)
        snprintf(text, size, "none: %s", mmf_device_build_note);
    for (int i = 0; i < mmf_device_object_count && length < size; i++) {
        const char *arch = mmf_device_objects[i].arch;
        bool seen = false;
        for (int j = 0; !seen && j < i; j++)
            seen = strcmp(mmf_device_objects[j].arch, arch) == 0;
        if (!seen)
            length +=
                (size_t)snprintf(text + length, size - length, "%s%s", length ? ", " : "", arch);
    }
}

bool mmf_gpu_object(int index, const char **arch, const char **kernel, const void **bytes,
                    size_t *size)
{
    if (index < 0 || index >= mmf_device_object_count)
        return false;
    const mmf_device_object *object = &mmf_device_objects[index];
    *arch = object->arch;
    *kernel = object->file;
    *bytes = object->begin;
    *size = (size_t)(object->end - object->begin);
    return true;
}
