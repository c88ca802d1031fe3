/* Owner of the GPUs' facts and of their loaded code: filled on first use, kept for the life of the
 * process. Path of a call: asked by the kernel rows; after the first call a look into a table. */
#include "gpu/devices.h"

#include "gpu/attempt.h"
#include "gpu/siblings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(mmf_gpu *) gpus[MMF_ROCM + 1][MMF_MAX_DEVICES];
/* Of filling a vendor's table. After a fork nobody but the other vendor's users gets here. */
static pthread_mutex_t filling[MMF_ROCM + 1] = {[MMF_CUDA] = PTHREAD_MUTEX_INITIALIZER,
                                                [MMF_ROCM] = PTHREAD_MUTEX_INITIALIZER};

static void find_objects(mmf_gpu *gpu);

__attribute__((cold)) static mmf_status add_gpu(const mmf_driver *driver, int ordinal)
{
    mmf_status status = MMF_OK;
    pthread_mutex_lock(&filling[driver->type]);
    if (!atomic_load(&gpus[driver->type][ordinal])) {
        mmf_gpu *gpu = calloc(1, sizeof *gpu);
        if (!gpu) {
            status = mmf_fail(MMF_NO_MEMORY, "no memory for the facts of a device");
        } else {
            gpu->driver = driver;
            gpu->ordinal = ordinal;
            gpu->loading = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
            mmf_driver_call call;
            int code = driver->facts(ordinal, &gpu->facts, &call);
            if (code) {
                free(gpu);
                status = mmf_driver_fail(driver, code, call, ordinal);
            } else {
                find_objects(gpu);
                atomic_store_explicit(&gpus[driver->type][ordinal], gpu, memory_order_release);
            }
        }
    }
    pthread_mutex_unlock(&filling[driver->type]);
    return status;
}

mmf_status mmf_gpu_get(mmf_device device, mmf_gpu **gpu)
{
    const mmf_driver *driver;
    mmf_status status = mmf_driver_of(device, &driver);
    if (status)
        return status;
    _Atomic(mmf_gpu *) *slot = &gpus[device.type][device.id];
    *gpu = atomic_load_explicit(slot, memory_order_acquire);
    if (*gpu)
        return MMF_OK;
    status = add_gpu(driver, device.id);
    *gpu = atomic_load(slot);
    return status;
}

/* --- code objects --- */

/* AMD: an object of its own, else its elder's. */
static int suits_amd(const mmf_gpu *gpu, const mmf_device_object *object)
{
    const char *elder = mmf_gpu_elder(gpu->facts.arch);
    if (strcmp(object->arch, gpu->facts.arch) == 0)
        return 2;
    return elder && strcmp(object->arch, elder) == 0;
}

/* How well an object of `arch` suits a GPU; 0: not at all. NVIDIA: PTX serves every later GPU,
 * machine code the later minor versions of its major one, and an "a" its own version only. */
static int suits(const mmf_gpu *gpu, const mmf_device_object *object)
{
    if (gpu->driver->type == MMF_ROCM)
        return suits_amd(gpu, object);
    char *end;
    if (strncmp(object->arch, "sm_", 3))
        return 0;
    long wanted = strtol(object->arch + 3, &end, 10), have = strtol(gpu->facts.arch + 3, NULL, 10);
    bool machine_code = object->end - object->begin > 4 && memcmp(object->begin, "\177ELF", 4) == 0;
    if (wanted > have || (*end == 'a' && wanted != have) ||
        (machine_code && wanted / 10 != have / 10))
        return 0;
    return (int)wanted * 4 + (*end == 'a') * 2 + machine_code;
}

/* The best object of every kernel. */
static void find_objects(mmf_gpu *gpu)
{
    for (int i = 0; i < MMF_GPU_INSTANCES; i++) {
        int best = 0;
        for (int o = 0; o < mmf_device_object_count; o++) {
            const mmf_device_object *object = &mmf_device_objects[o];
            int score = strcmp(object->file, mmf_gpu_instances[i].name) ? 0 : suits(gpu, object);
            if (score > best) {
                gpu->objects[i] = object;
                best = score;
            }
        }
    }
}

const char *mmf_gpu_code_arch(const mmf_gpu *gpu, int instance)
{
    return gpu->objects[instance] ? gpu->objects[instance]->arch : NULL;
}

/* Only the generic kernel, and only where the vendor brings a compiler. */
static bool can_compile(const mmf_gpu *gpu, int instance)
{
    return gpu->driver->type == MMF_ROCM && *mmf_device_source_simt &&
           mmf_gpu_instances[instance].kernel &&
           mmf_gpu_instances[instance].kernel->family == &mmf_gpu_simt;
}

/* Does this build have an object of the instance's family for the GPU? */
static bool has_family(const mmf_gpu *gpu, int instance)
{
    for (int i = 0; i < MMF_GPU_INSTANCES; i++)
        if (gpu->objects[i] &&
            strcmp(mmf_gpu_instances[i].family, mmf_gpu_instances[instance].family) == 0)
            return true;
    return false;
}

bool mmf_gpu_has_code(const mmf_gpu *gpu, int instance, char *reason)
{
    const mmf_gpu_instance *row = &mmf_gpu_instances[instance];
    if (gpu->objects[instance] || can_compile(gpu, instance))
        return true;
    if (mmf_device_object_count)
        snprintf(reason, MMF_REASON_TEXT, "this build has no %s for %s",
                 has_family(gpu, instance) ? row->name : row->family, gpu->facts.arch);
    else
        snprintf(reason, MMF_REASON_TEXT, "this build has no device code: %s",
                 mmf_device_build_note);
    return false;
}

/* Set this thread's capture mode; *mode becomes the one before. */
static bool set_capture_mode(const mmf_driver *driver, int *mode)
{
    int code = driver->exchange_capture_mode ? driver->exchange_capture_mode(mode) : 0;
    if (code && driver->forget_error)
        driver->forget_error();
    return driver->exchange_capture_mode && !code;
}

/* The code of an instance: embedded, or in *made, compiled or an elder's under the GPU's name. */
static mmf_status find_code(const mmf_gpu *gpu, int instance, const void **code, char **made)
{
    const mmf_device_object *object = gpu->objects[instance];
    mmf_status status = MMF_OK;
    if (!object) {
        status = mmf_hiprtc_compile(gpu, instance, made);
    } else if (gpu->driver->type == MMF_ROCM && strcmp(object->arch, gpu->facts.arch)) {
        unsigned char *copy = NULL;
        status = mmf_gpu_object_for(object, gpu->facts.arch, &copy);
        *made = (char *)copy;
    }
    *code = *made ? *made : object ? (const char *)object->begin : NULL;
    return status;
}

static mmf_status load(mmf_gpu *gpu, int instance)
{
    const mmf_driver *driver = gpu->driver;
    mmf_device_scope scope;
    void *module = NULL, *function = NULL;
    const void *bytes = NULL;
    char *made = NULL;
    int capture_mode = MMF_CAPTURE_RELAXED;
    mmf_status status = find_code(gpu, instance, &bytes, &made);
    if (status)
        return status;
    status = mmf_driver_enter(driver, gpu->ordinal, &scope);
    if (status) {
        free(made);
        return status;
    }
    /* What other threads capture meanwhile would break: loading is no part of it. */
    bool relaxed = set_capture_mode(driver, &capture_mode);
    int code = driver->module_load(&module, bytes);
    if (code) {
        status = mmf_driver_fail(driver, code, MMF_CALL_LOAD, gpu->ordinal);
    } else {
        code = driver->module_function(&function, module, mmf_gpu_instances[instance].name);
        if (code) {
            status = mmf_driver_fail(driver, code, MMF_CALL_FUNCTION, gpu->ordinal);
            driver->module_unload(module); /* the first error is the one to tell */
        }
        atomic_store_explicit(&gpu->functions[instance], function, memory_order_release);
    }
    if (relaxed)
        set_capture_mode(driver, &capture_mode);
    driver->leave(&scope);
    if (status)
        free(made);
    else
        gpu->made[instance] = made; /* debuggers read it where it was loaded from */
    return status;
}

static mmf_status is_capturing(const mmf_gpu *gpu, void *stream, bool *capturing)
{
    *capturing = false;
    return mmf_driver_is_capturing((mmf_device){gpu->driver->type, gpu->ordinal}, stream,
                                   capturing);
}

static mmf_status refuse_capture(const mmf_gpu *gpu, int instance, void *stream)
{
    bool capturing;
    mmf_status status = is_capturing(gpu, stream, &capturing);
    if (status || !capturing)
        return status;
    return mmf_fail(MMF_DEVICE_ERROR,
                    "the stream is being captured and %s is not loaded yet; make one such call "
                    "before the capture",
                    mmf_gpu_instances[instance].name);
}

/* Let a loaded function have so many bytes of dynamic shared memory. Under `loading`. */
static mmf_status allow_bytes(mmf_gpu *gpu, int instance, void *function, uint32_t bytes)
{
    mmf_device_scope scope;
    if (bytes <= atomic_load(&gpu->allowed_bytes[instance])) /* by another thread */
        return MMF_OK;
    mmf_status status = mmf_driver_enter(gpu->driver, gpu->ordinal, &scope);
    if (status)
        return status;
    int code = gpu->driver->allow_shared(function, bytes);
    gpu->driver->leave(&scope);
    if (code)
        return mmf_driver_fail(gpu->driver, code, MMF_CALL_FUNCTION_ATTRIBUTE, gpu->ordinal);
    atomic_store_explicit(&gpu->allowed_bytes[instance], bytes, memory_order_release);
    return MMF_OK;
}

mmf_status mmf_gpu_function(mmf_gpu *gpu, int instance, uint32_t dynamic_bytes, void *stream,
                            void **function)
{
    mmf_status status = MMF_OK;
    *function = atomic_load_explicit(&gpu->functions[instance], memory_order_acquire);
    if (!*function) {
        status = refuse_capture(gpu, instance, stream);
        if (status)
            return status;
        pthread_mutex_lock(&gpu->loading);
        *function = atomic_load(&gpu->functions[instance]);
        if (!*function)
            status = load(gpu, instance);
        pthread_mutex_unlock(&gpu->loading);
        *function = atomic_load(&gpu->functions[instance]);
    }
    if (!status && gpu->driver->allow_shared &&
        dynamic_bytes > atomic_load_explicit(&gpu->allowed_bytes[instance], memory_order_acquire)) {
        pthread_mutex_lock(&gpu->loading);
        status = allow_bytes(gpu, instance, *function, dynamic_bytes);
        pthread_mutex_unlock(&gpu->loading);
    }
    return status;
}

mmf_status mmf_gpu_preload(mmf_gpu *gpu, int instance, void *stream)
{
    bool capturing;
    void *function;
    if (atomic_load_explicit(&gpu->functions[instance], memory_order_acquire))
        return MMF_OK;
    mmf_status status = is_capturing(gpu, stream, &capturing);
    return status || capturing ? status : mmf_gpu_function(gpu, instance, 0, stream, &function);
}
