/* Device memory that no array library allocates: owned by an mf.Array or a PackedMatrix. Path of a
 * call: results for unknown libraries, prepacked weights. */
#ifndef MMF_GPU_MEMORY_H
#define MMF_GPU_MEMORY_H

#include "problem/status.h"
#include "problem/tensor.h"

#include <stddef.h>

/* Memory on a GPU that this library allocated. */
typedef struct mmf_device_memory {
    mmf_device device;
    void *data;    /* NULL: of size 0 */
    void *ready;   /* event of the driver: the last use of the memory that is known */
    bool in_doubt; /* the driver took no note of a use: the memory is never given back */
    struct mmf_reader *readers; /* streams of consumers, whose uses are not known */
    struct mmf_use *uses;       /* reads that nobody but the end of the memory waits for */
} mmf_device_memory;

/* Can the device's driver allocate memory in stream order? */
mmf_status mmf_gpu_has_pools(mmf_device device, bool *has);

/* What a caller can do where there is no memory: the ends of those errors. */
typedef struct mmf_remedy {
    const char *captured, *no_pools;
} mmf_remedy;

/* Stream-ordered memory, usable on stream at once. Refused while the stream is being captured, and
 * by drivers without pools. *full: the device had no memory left;
 * mmf_gpu_drain() may make room. */
mmf_status mmf_gpu_alloc(mmf_device device, size_t bytes, void *stream, const mmf_remedy *remedy,
                         mmf_device_memory *memory, bool *full);

/* Let stream wait until the memory is ready. */
mmf_status mmf_gpu_wait(const mmf_device_memory *memory, void *stream);

/* What was put on stream uses the memory: until it is done, the memory is not ready. */
mmf_status mmf_gpu_used(mmf_device_memory *memory, void *stream);

/* What was put on stream reads the memory: it is given back behind that, but other streams need not
 * wait for it. */
mmf_status mmf_gpu_read(mmf_device_memory *memory, void *stream);

/* A consumer works on the memory on this stream from now on, and says nothing when it is done: the
 * stream waits until the memory is ready, and the memory is given back behind the stream's work. */
mmf_status mmf_gpu_lend(mmf_device_memory *memory, void *stream);

/* Let one stream wait for what is on another now; not if either is being captured. */
mmf_status mmf_gpu_order(mmf_device device, void *before, void *after);

/* Copy bytes between two memories of one device on a stream; both are in use until that is done. */
mmf_status mmf_gpu_copy(mmf_device_memory *to, mmf_device_memory *from, size_t bytes, void *stream);

/* Give it back. Nobody is there to take an error: a driver that refuses keeps the memory, and so
 * does one that took no note of a use. Memory that was lent stays until its consumer's stream is
 * seen again: the consumer owns that stream and may have destroyed it by now, so it may not be
 * touched before. */
void mmf_gpu_free(mmf_device_memory *memory);

/* A caller works on this stream now, so it exists: give back what waited for it. */
void mmf_gpu_stream_seen(mmf_device device, void *stream);

/* Wait for the device and give back, on stream, all that waits for streams there. False if nothing
 * did. */
bool mmf_gpu_drain(mmf_device device, void *stream);

#endif
