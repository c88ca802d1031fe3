/* What info shows of GPUs. Not on the path of a call: info. */
#include "gpu/describe.h"

#include "gpu/devices.h"
#include "gpu/kernels/common/gemm_args.h"
#include "gpu/objects.h"
#include "gpu/siblings.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

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
    const char *arch = mmf_gpu_code_arch(gpu, MMF_GPU_gemm_simt_64x64x16_f32_any);
    bool code = arch || mmf_gpu_has_code(gpu, MMF_GPU_gemm_simt_64x64x16_f32_any, reason);
    snprintf(text, size, "%s, %s, %d compute units, wave %d; %s%s", gpu->facts.name,
             gpu->facts.arch, gpu->facts.compute_units, gpu->facts.wave,
             arch   ? "code for "
             : code ? "generic kernel only, compiled by hipRTC on first use"
                    : reason,
             arch ? arch : "");
    return MMF_OK;
}

void mmf_gpu_identity(mmf_device device, char *text, size_t size)
{
    mmf_gpu *gpu;
    if (mmf_gpu_get(device, &gpu) == MMF_OK)
        snprintf(text, size, "%s, %s, %d compute units; %s %s", gpu->facts.name, gpu->facts.arch,
                 gpu->facts.compute_units, gpu->driver->vendor, gpu->driver->version);
}

/* " (gfx1101, gfx1102)", the GPUs that run the code of `arch` too. Its length. */
static size_t add_siblings(const char *arch, char *text, size_t size)
{
    const char *name, *elder;
    size_t length = 0;
    for (int i = 0; (name = mmf_gpu_sibling(i, &elder)) && length < size; i++)
        if (strcmp(elder, arch) == 0)
            length +=
                (size_t)snprintf(text + length, size - length, "%s%s", length ? ", " : " (", name);
    if (length && length < size)
        length += (size_t)snprintf(text + length, size - length, ")");
    return length;
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
        if (!seen)
            length += add_siblings(arch, text + length, length < size ? size - length : 0);
    }
}

const mmf_argument_field *mmf_gpu_argument_fields(int *count, size_t *bytes)
{
#define FIELD(name) {#name, offsetof(mmf_gemm_args, name), sizeof(((mmf_gemm_args *)0)->name)}
#define STRIDES(operand)                                                                           \
    FIELD(strides[operand].row), FIELD(strides[operand].col), FIELD(strides[operand].batch)
    static const mmf_argument_field fields[] = {
        FIELD(m),          FIELD(n),       FIELD(k),          FIELD(batch_shape),
#define MMF_OPERAND(id, name, axes, access, dtypes, stream) STRIDES(MMF_GEMM_##id),
#include "problem/operands.def"
#undef MMF_OPERAND
        FIELD(alpha),      FIELD(beta),    FIELD(parameters), FIELD(immediates),
        FIELD(data),       FIELD(tiles_m), FIELD(tiles_n),    FIELD(first_tile),
        FIELD(piece),      FIELD(plane),   FIELD(batch_ndim), FIELD(dtype),
        FIELD(activation), FIELD(gated),   FIELD(epilogue),   FIELD(deal),
    };
#undef STRIDES
#undef FIELD
    *count = sizeof fields / sizeof *fields;
    *bytes = sizeof(mmf_gemm_args);
    return fields;
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
