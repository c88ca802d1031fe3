/* Memory that this library's own objects own, of the host or a GPU: an mf.Array's elements, a
 * PackedMatrix's panels. Path of a call: results where A's library makes none; prepack. */
#ifndef MMF_MEMORY_H
#define MMF_MEMORY_H

#include "plan/backends.h"
#include "problem/status.h"

/* `device` says whose it is; on the host only `data` is used. */
typedef mmf_device_memory mmf_memory;

/* At least 64-byte aligned; on a GPU for work on stream, and where that is refused, the error ends
 * in the remedy. NO_MEMORY on the host: the caller knows what it was for and says so. */
mmf_status mmf_memory_new(mmf_device device, size_t bytes, void *stream, const mmf_remedy *remedy,
                          mmf_memory *memory);

/* Give it back, behind the last use that is known. */
void mmf_memory_free(mmf_memory *memory);

#endif
