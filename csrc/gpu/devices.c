/* Owner of the GPUs' facts and of their loaded code: filled on first use, kept for the life of the
 * process. Path of a call: asked by the kernel rows; after the first call a look into a table. */
#include "gpu/devices.h"

#include "gpu/checks.h"
#include "gpu/objects.h"
#include "problem/kernel_row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ORDINAL = 64 };

static _Atomic(mmf_gpu *) gpus[MMF_ROCM + 1][MAX_ORDINAL];
/* Of filling a vendor's table. After a fork nobody but the other vendor's users gets here. */
static pthread_mutex_t filling[MMF_ROCM + 1] = {[MMF_CUDA] = PTHREAD_MUTEX_INITIALIZER,
                                                [MMF_ROCM] = PTHREAD_MUTEX_INITIALIZER};

const mmf_gpu_instance mmf_gpu_instances[MMF_GPU_INSTANCES] = {
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    {#name, #family, MMF_##operands, MMF_GPU_LAYOUT_##layout, tile_m, tile_n, tile_k, threads},
#include "gpu/kernels/kernels.def"
#undef MMF_GPU_KERNEL
};

static bool has_family(const mmf_gpu *gpu, const char *family)
{
    for (int i = 0; i < MMF_GPU_INSTANCES; i++)
        if (strcmp(mmf_gpu_instances[i].family, family) == 0 && mmf_gpu_code_arch(gpu, i))
            return true;
    return false;
}

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
                gpu->has_mfma = has_family(gpu, "mfma");
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
    mmf_status status = mmf_driver_get(device.type, &driver);
    if (status)
        return status;
    if (device.id < 0 || device.id >= driver->devices || device.id >= MAX_ORDINAL) {
        char text[24];
        return mmf_fail(MMF_DEVICE_ERROR, "there is no device %s; %s finds %d (%s)",
                        mmf_device_name(device, text), driver->vendor, driver->devices,
                        driver->path);
    }
    _Atomic(mmf_gpu *) *slot = &gpus[device.type][device.id];
    *gpu = atomic_load_explicit(slot, memory_order_acquire);
    if (*gpu)
        return MMF_OK;
    status = add_gpu(driver, device.id);
    *gpu = atomic_load(slot);
    return status;
}

mmf_status mmf_attempt_begin(mmf_device device, mmf_attempt *a)
{
    mmf_gpu *gpu;
    mmf_status status = mmf_gpu_get(device, &gpu);
    if (status)
        return status;
    *a = (mmf_attempt){.driver = gpu->driver, .ordinal = device.id};
    return mmf_driver_enter(a->driver, device.id, &a->scope);
}

bool mmf_attempt_note(mmf_attempt *a, int code, mmf_driver_call call)
{
    if (a->code == 0 && code) {
        a->code = code;
        a->call = call;
    }
    return a->code == 0;
}

mmf_status mmf_attempt_end(mmf_attempt *a)
{
    a->driver->leave(&a->scope);
    return a->code ? mmf_driver_fail(a->driver, a->code, a->call, a->ordinal) : MMF_OK;
}

/* --- code objects --- */

/* How well an object of `arch` suits a GPU; 0: not at all. NVIDIA: PTX serves every later GPU,
 * machine code the later minor versions of its major one, and an "a" its own version only. */
static int suits(const mmf_gpu *gpu, const mmf_device_object *object)
{
    if (gpu->driver->type == MMF_ROCM)
        return strcmp(object->arch, gpu->facts.arch) == 0;
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

static const mmf_device_object *find_object(const mmf_gpu *gpu, const char *name)
{
    const mmf_device_object *best = NULL;
    int best_score = 0;
    for (int i = 0; i < mmf_device_object_count; i++) {
        const mmf_device_object *object = &mmf_device_objects[i];
        int score = strcmp(object->file, name) ? 0 : suits(gpu, object);
        if (score > best_score) {
            best = object;
            best_score = score;
        }
    }
    return best;
}

const char *mmf_gpu_code_arch(const mmf_gpu *gpu, int instance)
{
    const mmf_device_object *object = find_object(gpu, mmf_gpu_instances[instance].name);
    return object ? object->arch : NULL;
}

/* Only the generic kernel, and only where the vendor brings a compiler. */
static bool can_compile(const mmf_gpu *gpu, int instance)
{
    return gpu->driver->type == MMF_ROCM && *mmf_device_source_simt &&
           strcmp(mmf_gpu_instances[instance].family, "simt") == 0;
}

bool mmf_gpu_has_code(const mmf_gpu *gpu, int instance, char *reason)
{
    if (atomic_load_explicit(&gpu->functions[instance], memory_order_acquire) ||
        find_object(gpu, mmf_gpu_instances[instance].name) || can_compile(gpu, instance))
        return true;
    if (mmf_device_object_count)
        snprintf(reason, MMF_REASON_TEXT, "this build has no %s for %s",
                 mmf_gpu_instances[instance].name, gpu->facts.arch);
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

static mmf_status load(mmf_gpu *gpu, int instance)
{
    const mmf_driver *driver = gpu->driver;
    const mmf_device_object *object = find_object(gpu, mmf_gpu_instances[instance].name);
    mmf_device_scope scope;
    void *module = NULL, *function = NULL;
    char *compiled = NULL;
    int capture_mode = MMF_CAPTURE_RELAXED;
    mmf_status status = object ? MMF_OK : mmf_hiprtc_compile(gpu, instance, &compiled);
    if (status)
        return status;
    status = mmf_driver_enter(driver, gpu->ordinal, &scope);
    if (status) {
        free(compiled);
        return status;
    }
    /* What other threads capture meanwhile would break: loading is no part of it. */
    bool relaxed = set_capture_mode(driver, &capture_mode);
    int code = driver->module_load(&module, object ? (const void *)object->begin : compiled);
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
    free(compiled);
    return status;
}

static mmf_status refuse_capture(const mmf_gpu *gpu, int instance, void *stream)
{
    bool capturing = false;
    mmf_status status =
        mmf_gpu_is_capturing((mmf_device){gpu->driver->type, gpu->ordinal}, stream, &capturing);
    if (status || !capturing)
        return status;
    return mmf_fail(MMF_DEVICE_ERROR,
                    "the stream is being captured and %s is not loaded yet; make one such call "
                    "before the capture",
                    mmf_gpu_instances[instance].name);
}

mmf_status mmf_gpu_function(mmf_gpu *gpu, int instance, void *stream, void **function)
{
    *function = atomic_load_explicit(&gpu->functions[instance], memory_order_acquire);
    if (*function)
        return MMF_OK;
    mmf_status status = refuse_capture(gpu, instance, stream);
    if (status)
        return status;
    pthread_mutex_lock(&gpu->loading);
    *function = atomic_load(&gpu->functions[instance]);
    if (!*function)
        status = load(gpu, instance);
    pthread_mutex_unlock(&gpu->loading);
    *function = atomic_load(&gpu->functions[instance]);
    return status;
}
