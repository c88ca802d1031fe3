/* What info shows of GPUs. Not on the path of a call: info. */
#ifndef MMF_GPU_DESCRIBE_H
#define MMF_GPU_DESCRIBE_H

#include "problem/status.h"
#include "problem/tensor.h"

#include <stddef.h>

/* Compute units, 0 if the device cannot be used. */
int mmf_gpu_units(mmf_device device);

/* The state of a kind of GPU: "on: ..." or "off: ..." into text. Number of devices. Opens the
 * driver. */
int mmf_gpu_describe(mmf_device_type type, char *text, size_t size);

/* The file of the driver library that is open, or NULL. */
const char *mmf_gpu_library(mmf_device_type type);

/* A device as info shows it: name, architecture, size and where its code comes from. */
mmf_status mmf_gpu_describe_device(mmf_device device, char *text, size_t size);

/* A device and its driver, for what was measured there, cut to size; text stays as it is if the
 * device cannot be used. */
void mmf_gpu_identity(mmf_device device, char *text, size_t size);

/* The device code of this build: "gfx90a, gfx942, ..." or why there is none. */
void mmf_gpu_describe_code(char *text, size_t size);

/* A field of the argument of GEMM kernels: array elements and structs are spelled out. */
typedef struct mmf_argument_field {
    const char *name;
    size_t offset, size;
} mmf_argument_field;

/* The fields of mmf_gemm_args, in order; bytes: of all of it. */
const mmf_argument_field *mmf_gpu_argument_fields(int *count, size_t *bytes);

/* Object number index of this build, or false past the end. */
bool mmf_gpu_object(int index, const char **arch, const char **kernel, const void **bytes,
                    size_t *size);

#endif
