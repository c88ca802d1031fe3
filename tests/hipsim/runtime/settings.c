/* Settings: from the environment at the first call, later through hipsim_set.
 * - HIPSIM_DEVICES=gfx942,gfx1100: the parts, by ordinal; "none": no GPU (default gfx942)
 * - HIPSIM_CHECK=waits,races: the machine's checks (default all)
 * - HIPSIM_SEED=7: order of streams, waves and workgroups (default 1)
 * - HIPSIM_ORDER=late: work runs at a synchronisation (default); early: as soon as it may
 * - HIPSIM_THREADS=2: host threads of a kernel (default: the processors)
 * - HIPSIM_LIMIT=1000000: instructions of a wave, after which it is said to hang (default 2^40)
 * - HIPSIM_XF32=truncate: what matrix instructions of xf32 do with their inputs (default: nearest)
 * - HIPSIM_HIP_VERSION=60443484: of hipRuntimeGetVersion; some answers depend on it (default 7.2)
 * - HIPSIM_LLVM=PATH: the library with LLVM's disassembler */
#include "rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Why the settings were refused; read by hipsim_problem. */
static char problem[256];

static bool refuse(const char *name, const char *value)
{
    snprintf(problem, sizeof problem, "%s=%.160s is not understood", name, value);
    return false;
}

static bool parse_number(const char *name, const char *value, uint64_t *number)
{
    char *end;
    *number = strtoull(value, &end, 0);
    return *value && !*end ? true : refuse(name, value);
}

static bool set_devices(const char *value)
{
    if (rt.ready)
        return refuse("devices", "a change after the first call");
    rt.device_count = 0;
    if (strcmp(value, "none") == 0)
        return true;
    char names[256];
    if (strlen(value) >= sizeof names)
        return refuse("HIPSIM_DEVICES", value);
    strcpy(names, value);
    char *rest = names;
    for (char *name; (name = strsep(&rest, ","));) {
        const struct hipsim_arch *arch = hipsim_arch_find(name);
        if (!arch || rt.device_count == RT_MAX_DEVICES)
            return refuse("HIPSIM_DEVICES", name);
        rt.devices[rt.device_count] = (struct rt_device){.arch = arch, .ordinal = rt.device_count};
        rt.device_count++;
    }
    return true;
}

static bool set_checks(const char *value)
{
    const char *unknown;
    return hipsim_checks_parse(value, &rt.checks, &unknown) ? true
                                                            : refuse("HIPSIM_CHECK", unknown);
}

static bool set_seed(const char *value)
{
    if (!parse_number("HIPSIM_SEED", value, &rt.seed))
        return false;
    rt.random = rt.seed;
    return true;
}

static bool set_order(const char *value)
{
    rt.early = strcmp(value, "early") == 0;
    return rt.early || strcmp(value, "late") == 0 ? true : refuse("HIPSIM_ORDER", value);
}

static bool set_threads(const char *value)
{
    uint64_t number;
    if (!parse_number("HIPSIM_THREADS", value, &number) || number < 1 || number > 1024)
        return refuse("HIPSIM_THREADS", value);
    rt.threads = (int)number;
    return true;
}

static bool set_limit(const char *value)
{
    return parse_number("HIPSIM_LIMIT", value, &rt.instruction_limit);
}

static bool set_xf32(const char *value)
{
    rt.truncate_xf32 = strcmp(value, "truncate") == 0;
    return rt.truncate_xf32 || strcmp(value, "nearest") == 0 ? true : refuse("HIPSIM_XF32", value);
}

static bool set_version(const char *value)
{
    uint64_t number;
    if (!parse_number("HIPSIM_HIP_VERSION", value, &number) || number > INT32_MAX)
        return refuse("HIPSIM_HIP_VERSION", value);
    rt.version = (int)number;
    return true;
}

static bool set_llvm(const char *value)
{
    hipsim_set_llvm(value);
    return true;
}

static const struct {
    const char *name, *variable;
    bool (*set)(const char *value);
} settings[] = {
    {"devices", "HIPSIM_DEVICES", set_devices}, {"checks", "HIPSIM_CHECK", set_checks},
    {"seed", "HIPSIM_SEED", set_seed},          {"order", "HIPSIM_ORDER", set_order},
    {"threads", "HIPSIM_THREADS", set_threads}, {"limit", "HIPSIM_LIMIT", set_limit},
    {"xf32", "HIPSIM_XF32", set_xf32},          {"version", "HIPSIM_HIP_VERSION", set_version},
    {"llvm", "HIPSIM_LLVM", set_llvm},
};

static bool make_devices(void)
{
    for (int i = 0; i < rt.device_count; i++) {
        struct rt_device *device = &rt.devices[i];
        struct rt_stream *stream = calloc(1, sizeof *stream);
        device->null_stream = stream;
        device->packet = rt_allocate(i, hipMemoryTypeDevice, 64, RT_INTERNAL);
        if (!stream || !device->packet)
            return false;
        *stream = (struct rt_stream){.device = i, .null = true, .next = rt.streams};
        rt.streams = stream;
        device->packet->writable = false;
    }
    return true;
}

bool rt_settings_read(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    rt.threads = processors < 1 ? 1 : (int)processors;
    rt.checks = HIPSIM_CHECK_ALL;
    rt.version = RT_DEFAULT_VERSION;
    rt.seed = rt.random = 1;
    if (!set_devices("gfx942"))
        return false;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *value = getenv(settings[i].variable);
        if (value && *value && !settings[i].set(value))
            return false;
    }
    return make_devices();
}

/* Change a setting of the list above by its lower-case name ("seed"); 0, or -1 with hipsim_problem.
 */
RT_EXPORT int hipsim_set(const char *name, const char *value);
RT_EXPORT const char *hipsim_problem(void);

int hipsim_set(const char *name, const char *value)
{
    int result = -1;
    pthread_mutex_lock(&rt.lock);
    refuse(name, value); /* until the name is found */
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (strcmp(settings[i].name, name) == 0)
            result = settings[i].set(value) ? 0 : -1;
    }
    pthread_mutex_unlock(&rt.lock);
    return result;
}

const char *hipsim_problem(void)
{
    return problem;
}
