/* The exported entry points and the process-wide state. Every one: lock, prepare the state, count,
 * inject a fault, call rt_<name>, keep the error for hipGetLastError, unlock. */
#include "rt.h"

struct rt_state rt = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
_Thread_local struct rt_thread rt_thread;

static bool works_without_device(enum rt_entry_point entry)
{
    return entry == RT_hipGetDeviceCount || entry == RT_hipDriverGetVersion ||
           entry == RT_hipRuntimeGetVersion || entry == RT_hipDrvGetErrorName ||
           entry == RT_hipDrvGetErrorString;
}

/* A forked child has the parent's handles but none of its work: the real runtime is unusable there
 * too. The lock may be held by a thread that the child does not have. */
static void after_fork(void)
{
    rt.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    rt.broken = true;
}

static hipError_t prepare(void)
{
    if (!rt.ready && !rt.broken) {
        rt.broken =
            !rt_memory_init() || !rt_settings_read() || pthread_atfork(NULL, NULL, after_fork) != 0;
        rt.ready = !rt.broken;
    }
    return rt.broken ? hipErrorNotInitialized : hipSuccess;
}

static hipError_t enter(enum rt_entry_point entry)
{
    pthread_mutex_lock(&rt.lock);
    hipError_t error = prepare();
    if (error == hipSuccess)
        error = rt_fault(entry);
    if (error == hipSuccess && rt.device_count == 0 && !works_without_device(entry))
        error = hipErrorNoDevice;
    return error;
}

static hipError_t leave(hipError_t error)
{
    if (error != hipSuccess && error != hipErrorNotReady)
        rt_thread.last_error = error;
    rt_thread.last_result = error;
    rt_memory_close();
    pthread_mutex_unlock(&rt.lock);
    return error;
}

#define HIP_ENTRY(name, parameters, arguments)                                                     \
    RT_EXPORT hipError_t name parameters;                                                          \
    hipError_t name parameters                                                                     \
    {                                                                                              \
        hipError_t error = enter(RT_##name);                                                       \
        return leave(error == hipSuccess ? rt_##name arguments : error);                           \
    }
#define HIP_ENTRY_NEW HIP_ENTRY
#include "entry_points.def"
#undef HIP_ENTRY
#undef HIP_ENTRY_NEW
