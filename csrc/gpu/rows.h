/* The GPUs' kernels, and what else plan/ may ask of a GPU. Path of a call: named by the plan's
 * list. */
#ifndef MMF_GPU_ROWS_H
#define MMF_GPU_ROWS_H

#include "gpu/memory.h"
#include "problem/kernel_row.h"

extern const mmf_kernel_row mmf_gpu_mfma; /* matrix cores of gfx942 and gfx950; float16, bfloat16 */
extern const mmf_kernel_row mmf_gpu_simt; /* any layout, any dtype, any GPU: the last row */

/* Can tensors of this device be computed with? DEVICE_ERROR with the reason why not. */
mmf_status mmf_gpu_begin(mmf_device device);

/* DEVICE_ERROR unless the stream belongs to the device, as far as the driver can tell. */
mmf_status mmf_gpu_check_stream(mmf_device device, void *stream);

/* Is work on the stream being recorded into a graph? */
mmf_status mmf_gpu_is_capturing(mmf_device device, void *stream, bool *capturing);

/* BUFFER_ERROR unless the memory of operand `name` is the device's. */
mmf_status mmf_gpu_check_memory(mmf_device device, const void *data, const char *name);

/* Compute units, 0 if the device cannot be used. */
int mmf_gpu_units(mmf_device device);

/* The state of a kind of GPU: "on: ..." or "off: ..." into text. Number of devices. Opens the
 * driver. */
int mmf_gpu_describe(mmf_device_type type, char *text, size_t size);

/* The file of the driver library that is open, or NULL. */
const char *mmf_gpu_library(mmf_device_type type);

/* A device as info shows it: name, architecture, size and where its code comes from. */
mmf_status mmf_gpu_describe_device(mmf_device device, char *text, size_t size);

/* The device code of this build: "gfx90a, gfx942, ..." or why there is none. */
void mmf_gpu_describe_code(char *text, size_t size);

/* Object number index of this build, or false past the end. */
bool mmf_gpu_object(int index, const char **arch, const char **kernel, const void **bytes,
                    size_t *size);

#endif
