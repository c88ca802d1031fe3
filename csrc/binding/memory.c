/* Memory of our own objects. Path of a call: results where A's library makes none; prepack. */
#include "binding/memory.h"

#include "binding/state.h"

#include <stdlib.h>

/* Memory that no consumer uses any more may wait for that consumer's stream: where the device is
 * full, wait for the device instead. */
static mmf_status new_on_gpu(mmf_device device, size_t bytes, void *stream,
                             const mmf_remedy *remedy, mmf_memory *memory)
{
    bool full;
    mmf_status status = mmf_gpu_alloc(device, bytes, stream, remedy, memory, &full);
    if (!full)
        return status;
    PyThreadState *thread = PyEval_SaveThread(); /* the device may wait for Python */
    if (mmf_gpu_drain(device, stream))
        status = mmf_gpu_alloc(device, bytes, stream, remedy, memory, &full);
    PyEval_RestoreThread(thread);
    return status;
}

mmf_status mmf_memory_new(mmf_device device, size_t bytes, void *stream, const mmf_remedy *remedy,
                          mmf_memory *memory)
{
    if (device.type != MMF_CPU)
        return new_on_gpu(device, bytes, stream, remedy, memory);
    *memory = (mmf_memory){.device = device};
    memory->data = aligned_alloc(64, (bytes / 64 + 1) * 64);
    return memory->data ? MMF_OK : mmf_fail(MMF_NO_MEMORY, "no memory for %zu bytes", bytes);
}

void mmf_memory_free(mmf_memory *memory)
{
    if (memory->device.type == MMF_CPU)
        free(memory->data);
    else
        mmf_gpu_free(memory);
}
