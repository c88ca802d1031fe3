/* Device memory of results that no array library allocates: owned by an mf.Array. Path of a call:
 * results for unknown libraries. */
#ifndef MMF_GPU_MEMORY_H
#define MMF_GPU_MEMORY_H

#include "problem/status.h"
#include "problem/tensor.h"

#include <stddef.h>

/* Stream-ordered memory, usable on stream at once. Refused while the stream is being captured. */
mmf_status mmf_gpu_alloc(mmf_device device, size_t bytes, void *stream, mmf_device_memory *memory);

/* Let stream wait until the memory is ready. */
mmf_status mmf_gpu_wait(const mmf_device_memory *memory, void *stream);

/* What was put on stream uses the memory: until it is done, the memory is not ready. */
mmf_status mmf_gpu_used(mmf_device_memory *memory, void *stream);

/* Let one stream wait for what is on another now; not if either is being captured. */
mmf_status mmf_gpu_order(mmf_device device, void *before, void *after);

/* Copy bytes between two memories of one device on a stream; both are in use until that is done. */
mmf_status mmf_gpu_copy(mmf_device_memory *to, mmf_device_memory *from, size_t bytes, void *stream);

/* Give it back. Nobody is there to take an error: a driver that refuses keeps the memory, and so
 * does one that took no note of a use. */
void mmf_gpu_free(const mmf_device_memory *memory);

#endif
