/* A GPU of this process: its facts, and the kernels loaded on it. Path of a call: asked by the rows
 * and the launch. */
#ifndef MMF_GPU_DEVICES_H
#define MMF_GPU_DEVICES_H

#include "gpu/driver.h"
#include "gpu/instances.h"
#include "gpu/objects.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct mmf_gpu {
    const mmf_driver *driver;
    int ordinal;
    mmf_device_facts facts;
    pthread_mutex_t loading; /* held for seconds where code is compiled */
    /* by instance: its code in this build, or NULL; its function, NULL: not loaded yet; the dynamic
     * shared memory that the driver was asked to allow it */
    const mmf_device_object *objects[MMF_GPU_INSTANCES];
    _Atomic(void *) functions[MMF_GPU_INSTANCES];
    void *made[MMF_GPU_INSTANCES]; /* code that is not embedded in this form; under `loading` */
    _Atomic(uint32_t) allowed_bytes[MMF_GPU_INSTANCES];
} mmf_gpu;

/* The GPU of a tensor, asked about on first use. DEVICE_ERROR if there is none. */
mmf_status mmf_gpu_get(mmf_device device, mmf_gpu **gpu);

/* Can this instance run on the GPU, as far as code goes? False with a reason (MMF_REASON_TEXT
 * bytes). */
bool mmf_gpu_has_code(const mmf_gpu *gpu, int instance, char *reason);

/* The architecture of the embedded object that would be loaded for an instance, or NULL. */
const char *mmf_gpu_code_arch(const mmf_gpu *gpu, int instance);

/* The function of an instance, loaded on first use (not while stream is being captured:
 * DEVICE_ERROR), which may be launched with so much dynamic shared memory. */
mmf_status mmf_gpu_function(mmf_gpu *gpu, int instance, uint32_t dynamic_bytes, void *stream,
                            void **function);

/* Load an instance for calls to come. Nothing happens while stream is being captured. */
mmf_status mmf_gpu_preload(mmf_gpu *gpu, int instance, void *stream);

/* Compile an instance of the generic kernel for a GPU that this build has no code for. *code is to
 * be freed. */
mmf_status mmf_hiprtc_compile(const mmf_gpu *gpu, int instance, char **code);

#endif
