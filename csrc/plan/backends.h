/* What a device offers besides kernels: prepacked weights, threads, facts. Chooses the back end by
 * device. Path of a call: off it; prepack, info and set_num_threads. */
#ifndef MMF_BACKENDS_H
#define MMF_BACKENDS_H

#include "problem/problem.h"

#include <stddef.h>

/* The id of a prepacked layout by name ("auto": the device's best), or VALUE_ERROR /
 * NOT_IMPLEMENTED. */
mmf_status mmf_prepack_layout(mmf_device device, const char *name, int *layout);
const char *mmf_prepack_layout_name(int layout);

/* Bytes that a K x N weight takes in a layout. */
int64_t mmf_prepack_bytes(int layout, mmf_dtype dtype, int64_t k, int64_t n);

/* Bring the K x N matrix with element strides (row, col) into a layout (64-byte aligned), and back,
 * without rounding. */
void mmf_prepack(int layout, mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                 int64_t col, void *packed);
void mmf_unpack(int layout, mmf_dtype dtype, int64_t k, int64_t n, const void *packed, int64_t row,
                int64_t col, void *data);

/* Read the environment, once per process: at import, before anything else here is called. */
void mmf_read_environment(void);

/* --- GPUs. An error is a DEVICE_ERROR with the driver's own name and text unless it says
 * otherwise. --- */

/* Can be computed on this device? Opens its driver on first use. */
mmf_status mmf_device_begin(mmf_device device);

/* A stream of another device is an error, where the driver can tell. */
mmf_status mmf_device_check_stream(mmf_device device, void *stream);

/* Is work on the stream being recorded into a graph? */
mmf_status mmf_device_is_capturing(mmf_device device, void *stream, bool *capturing);

/* BUFFER_ERROR unless the memory of operand `name` is the device's. */
mmf_status mmf_device_check_memory(mmf_device device, const void *data, const char *name);

/* Compute units, 0 if the device cannot be used. */
int mmf_device_units(mmf_device device);

/* Memory in stream order: usable on stream at once; elsewhere after mmf_device_wait(). */
mmf_status mmf_device_alloc(mmf_device device, size_t bytes, void *stream,
                            mmf_device_memory *memory);
void mmf_device_free(const mmf_device_memory *memory);

/* Let stream wait for all uses of the memory that are known. */
mmf_status mmf_device_wait(const mmf_device_memory *memory, void *stream);

/* Work on stream uses the memory. After an error it is never given back. */
mmf_status mmf_device_used(mmf_device_memory *memory, void *stream);

/* Let one stream wait for what is on another now; not if either is being captured. */
mmf_status mmf_device_order(mmf_device device, void *before, void *after);

mmf_status mmf_device_copy(mmf_device_memory *to, mmf_device_memory *from, size_t bytes,
                           void *stream);

/* The file of a kind of GPU's driver library, or NULL. */
const char *mmf_devices_library(mmf_device_type type);

/* For info: "on: ..." or "off: why" of a kind of GPU, and how many there are; one of them; what
 * code this build has. */
int mmf_devices_describe(mmf_device_type type, char *text, size_t size);
mmf_status mmf_device_describe(mmf_device device, char *text, size_t size);
void mmf_device_code_describe(char *text, size_t size);

/* Device object number index of this build; false past the end. */
bool mmf_device_object_at(int index, const char **arch, const char **kernel, const void **bytes,
                          size_t *size);

/* --- the host --- */

#define MMF_HOST_THREADS 1024 /* the most that can be asked for */

const char *mmf_host_features(void);
int mmf_host_get_threads(void);
void mmf_host_set_threads(int threads);

#endif
