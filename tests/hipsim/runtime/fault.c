/* Fault injection and call counts: the next call of an entry point, or the one after some more,
 * fails with a code. */
#include "rt.h"

#include <string.h>

static const char *const names[] = {
#define HIP_ENTRY(name, parameters, arguments) #name,
#define HIP_ENTRY_NEW HIP_ENTRY
#include "entry_points.def"
#undef HIP_ENTRY
#undef HIP_ENTRY_NEW
};
static uint64_t calls[RT_ENTRY_POINTS];
static hipError_t waiting[RT_ENTRY_POINTS];
static uint64_t skips[RT_ENTRY_POINTS];

hipError_t rt_fault(enum rt_entry_point entry)
{
    calls[entry]++;
    hipError_t error = waiting[entry];
    if (error == hipSuccess || skips[entry]-- > 0)
        return hipSuccess;
    waiting[entry] = hipSuccess;
    skips[entry] = 0;
    return error;
}

static int entry_named(const char *name)
{
    for (int i = 0; i < RT_ENTRY_POINTS; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

/* After `skip` more successful calls, the next one fails with `error`; 0 takes a waiting fault
 * back. -1: no such entry point. */
RT_EXPORT int hipsim_fail_next(const char *name, int error, uint64_t skip);
/* Is a fault still waiting? A test that injects one should see it used up. */
RT_EXPORT int hipsim_fault_waits(const char *name);
RT_EXPORT uint64_t hipsim_calls(const char *name);
/* The name of an entry point by index; NULL past the end. */
RT_EXPORT const char *hipsim_entry_point(int index);

int hipsim_fail_next(const char *name, int error, uint64_t skip)
{
    int entry = entry_named(name);
    if (entry < 0)
        return -1;
    pthread_mutex_lock(&rt.lock);
    waiting[entry] = error;
    skips[entry] = skip;
    pthread_mutex_unlock(&rt.lock);
    return 0;
}

int hipsim_fault_waits(const char *name)
{
    int entry = entry_named(name);
    return entry < 0 ? -1 : waiting[entry] != hipSuccess;
}

uint64_t hipsim_calls(const char *name)
{
    int entry = entry_named(name);
    return entry < 0 ? UINT64_MAX : calls[entry];
}

const char *hipsim_entry_point(int index)
{
    return index >= 0 && index < RT_ENTRY_POINTS ? names[index] : NULL;
}
