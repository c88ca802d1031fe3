/* A GPU of this process: its facts, and the kernels loaded on it. Path of a call: asked by the rows
 * and the launch. */
#ifndef MMF_GPU_DEVICES_H
#define MMF_GPU_DEVICES_H

#include "gpu/driver.h"
#include "gpu/instances.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct mmf_gpu {
    const mmf_driver *driver;
    int ordinal;
    mmf_device_facts facts;
    bool has_mfma;                                /* this build has a gemm_mfma for it */
    pthread_mutex_t loading;                      /* held for seconds where code is compiled */
    _Atomic(void *) functions[MMF_GPU_INSTANCES]; /* NULL: not loaded yet */
} mmf_gpu;

/* The GPU of a tensor, asked about on first use. DEVICE_ERROR if there is none. */
mmf_status mmf_gpu_get(mmf_device device, mmf_gpu **gpu);

/* Calls of a driver on one device: the code of the first that failed, and which one it was. */
typedef struct mmf_attempt {
    const mmf_driver *driver;
    mmf_device_scope scope;
    int ordinal, code;
    mmf_driver_call call;
} mmf_attempt;

/* Make the device current until mmf_attempt_end(). */
mmf_status mmf_attempt_begin(mmf_device device, mmf_attempt *attempt);

/* Note the result of a call; true if it and all before it succeeded. */
bool mmf_attempt_note(mmf_attempt *attempt, int code, mmf_driver_call call);

/* The first error, if there was one. */
mmf_status mmf_attempt_end(mmf_attempt *attempt);

/* Can this instance run on the GPU, as far as code goes? False with a reason (MMF_REASON_TEXT
 * bytes). */
bool mmf_gpu_has_code(const mmf_gpu *gpu, int instance, char *reason);

/* The architecture of the embedded object that would be loaded for an instance, or NULL. */
const char *mmf_gpu_code_arch(const mmf_gpu *gpu, int instance);

/* The function of an instance, loaded on first use (not while stream is being captured:
 * DEVICE_ERROR). */
mmf_status mmf_gpu_function(mmf_gpu *gpu, int instance, void *stream, void **function);

/* Compile an instance of the generic kernel for a GPU that this build has no code for. *code is to
 * be freed. */
mmf_status mmf_hiprtc_compile(const mmf_gpu *gpu, int instance, char **code);

#endif
