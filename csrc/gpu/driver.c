/* Owner of the driver tables: one per kind of device, opened by the first caller that needs it.
 * Path of a call: under devices.c; after the first call a look into a table.
 * Fork rule: a child of a process that had opened a driver may not use it; CUDA and HIP do not
 * survive a fork, so it gets an error instead of a crash. A child forked before the first use is
 * like any other process. */
#include "gpu/driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* Codes of hipError_t and CUresult. A machine without a GPU gives either. */
enum { NO_DEVICE = 100, INVALID_DEVICE = 101 };

typedef struct slot {
    mmf_driver driver;
    atomic_bool open;
    bool forked; /* opened by a parent of this process */
    const char *what;
    bool (*fill)(mmf_driver *driver, char *reason, size_t size);
} slot;

static slot slots[] = {
    [MMF_CUDA] = {.what = "NVIDIA GPUs", .fill = mmf_driver_cuda_open},
    [MMF_ROCM] = {.what = "AMD GPUs", .fill = mmf_driver_hip_open},
};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of opening */
static atomic_bool opening;

static void after_fork(void)
{
    for (int i = MMF_CUDA; i <= MMF_ROCM; i++)
        slots[i].forked |= atomic_load(&slots[i].open) || atomic_load(&opening);
    pthread_mutex_init(&mutex, NULL);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

static const char *name_of(const mmf_driver *driver, mmf_driver_call call)
{
    static const char *const names[][2] = {
#define X(what, hip, cuda) {hip, cuda},
        MMF_DRIVER_CALLS(X)
#undef X
    };
    return names[call][driver->type == MMF_CUDA];
}

/* Initialise a driver whose table is filled. */
static bool start(mmf_driver *d, char *reason, size_t size)
{
    const char *name = NULL, *text = NULL, *maker = d->type == MMF_CUDA ? "NVIDIA" : "AMD";
    mmf_driver_call call = MMF_CALL_INIT;
    int code = d->init(0);
    if (!code) {
        call = MMF_CALL_COUNT;
        code = d->count(&d->devices);
    }
    if (!code && d->devices > 0) {
        d->read_version(d->version);
        return true;
    }
    d->error_text(code, &name, &text);
    if (!code)
        snprintf(reason, size, "%s finds no %s GPU", d->path, maker);
    else if (code == NO_DEVICE || code == INVALID_DEVICE)
        snprintf(reason, size, "%s finds no %s GPU (%s: %s)", d->path, maker, name_of(d, call),
                 name ? name : "no device");
    else
        snprintf(reason, size, "%s: %s: %s (%s)", d->path, name_of(d, call),
                 name ? name : "unknown error", text ? text : "no text");
    if (d->forget_error)
        d->forget_error();
    return false;
}

__attribute__((cold)) static mmf_status open_slot(slot *s, mmf_device_type type)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char reason[PATH_MAX + 512] = "";
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&mutex);
    if (!atomic_load(
            &s->open)) { /* a failure is tried again: another package may bring the library */
        s->driver = (mmf_driver){.type = type};
        atomic_store(&opening, true);
        bool started =
            s->fill(&s->driver, reason, sizeof reason) && start(&s->driver, reason, sizeof reason);
        atomic_store(&opening, false);
        if (started)
            atomic_store_explicit(&s->open, true, memory_order_release);
    }
    pthread_mutex_unlock(&mutex);
    return atomic_load(&s->open)
               ? MMF_OK
               : mmf_fail(MMF_DEVICE_ERROR, "%s cannot be used: %s", s->what, reason);
}

mmf_status mmf_driver_get(mmf_device_type type, const mmf_driver **driver)
{
    slot *s = &slots[type];
    *driver = &s->driver;
    if (s->forked)
        return mmf_fail(MMF_DEVICE_ERROR,
                        "%s cannot be used: a parent of this process used them before it forked; "
                        "start processes "
                        "with the spawn method of multiprocessing",
                        s->what);
    if (atomic_load_explicit(&s->open, memory_order_acquire))
        return MMF_OK;
    return open_slot(s, type);
}

mmf_status mmf_driver_of(mmf_device device, const mmf_driver **driver)
{
    char text[24];
    mmf_status status = mmf_driver_get(device.type, driver);
    if (status || (device.id >= 0 && device.id < (*driver)->devices && device.id < MMF_MAX_DEVICES))
        return status;
    return mmf_fail(MMF_DEVICE_ERROR, "there is no device %s; %s finds %d (%s)",
                    mmf_device_name(device, text), (*driver)->vendor, (*driver)->devices,
                    (*driver)->path);
}

mmf_status mmf_driver_enter(const mmf_driver *driver, int ordinal, mmf_device_scope *scope)
{
    mmf_driver_call call;
    int code = driver->enter(ordinal, scope, &call);
    return code ? mmf_driver_fail(driver, code, call, ordinal) : MMF_OK;
}

mmf_status mmf_driver_fail(const mmf_driver *driver, int code, mmf_driver_call call, int ordinal)
{
    const char *name = NULL, *text = NULL;
    char device[24];
    driver->error_text(code, &name, &text);
    mmf_device_name((mmf_device){driver->type, ordinal}, device);
    if (driver->forget_error)
        driver->forget_error();
    return mmf_fail(MMF_DEVICE_ERROR, "%s on %s: %s (%s)", name_of(driver, call), device,
                    name ? name : "unknown error", text ? text : "no text");
}
