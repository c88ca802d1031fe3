/* Back ends by device; prepacked layouts so far on the CPU only. Not on the path of a call:
 * prepack, info and set_num_threads. */
#include "plan/backends.h"

#include "cpu/pool.h"
#include "cpu/rows.h"
#include "plan/plan.h"
#include "problem/environment.h"

#include <pthread.h>
#include <string.h>

_Static_assert(MMF_HOST_THREADS == MMF_MAX_THREADS, "the pool's limit");

/* The prepacked layouts by id: a name, and the functions of the back end that reads it. */
static const struct {
    const char *name;
    uint32_t dtypes; /* MMF_DTYPE_BIT() of those that it holds */
    int64_t (*bytes)(mmf_dtype dtype, int64_t k, int64_t n);
    void (*pack)(mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row, int64_t col,
                 void *packed);
    void (*unpack)(mmf_dtype dtype, int64_t k, int64_t n, const void *packed, int64_t row,
                   int64_t col, void *data);
} layouts[] = {
    [MMF_CPU_PANELS64] = {"panels64", UINT32_MAX, mmf_cpu_panels_bytes, mmf_cpu_pack_panels,
                          mmf_cpu_unpack_panels},
    [MMF_CPU_PAIRS64] = {"pairs64", MMF_DTYPE_BIT(MMF_BFLOAT16), mmf_cpu_pairs_bytes,
                         mmf_cpu_pack_pairs, mmf_cpu_unpack_pairs},
};

mmf_status mmf_prepack_layout(mmf_device device, mmf_dtype dtype, const char *name, int *layout)
{
    char text[24];
    if (device.type != MMF_CPU)
        return mmf_fail(MMF_NOT_IMPLEMENTED,
                        "B is on %s; prepack works on the CPU only in this version",
                        mmf_device_name(device, text));
    *layout = strcmp(name, "auto") ? 0 : MMF_CPU_PANELS64;
    for (int i = MMF_CPU_PANELS64; i <= MMF_CPU_PAIRS64; i++)
        if (strcmp(name, layouts[i].name) == 0)
            *layout = i;
    if (!*layout)
        return mmf_fail(MMF_VALUE_ERROR,
                        "unknown layout \"%s\"; on the CPU it is \"auto\", \"%s\" or \"%s\"", name,
                        layouts[MMF_CPU_PANELS64].name, layouts[MMF_CPU_PAIRS64].name);
    if (!(layouts[*layout].dtypes & MMF_DTYPE_BIT(dtype)))
        return mmf_fail(MMF_VALUE_ERROR, "layout \"%s\" holds bfloat16 only, but B is %s",
                        layouts[*layout].name, mmf_dtypes[dtype].name);
    return MMF_OK;
}

const char *mmf_prepack_layout_name(int layout)
{
    return layouts[layout].name;
}

int64_t mmf_prepack_bytes(int layout, mmf_dtype dtype, int64_t k, int64_t n)
{
    return layouts[layout].bytes(dtype, k, n);
}

void mmf_prepack(int layout, mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                 int64_t col, void *packed)
{
    layouts[layout].pack(dtype, k, n, data, row, col, packed);
}

void mmf_unpack(int layout, mmf_dtype dtype, int64_t k, int64_t n, const void *packed, int64_t row,
                int64_t col, void *data)
{
    layouts[layout].unpack(dtype, k, n, packed, row, col, data);
}

static void read_environment(void)
{
    mmf_environment_load();
    mmf_plan_read_environment();
    mmf_cpu_read_environment();
}

void mmf_read_environment(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
}

int mmf_device_units(mmf_device device)
{
    return mmf_gpu_units(device);
}

const char *mmf_host_features(void)
{
    return mmf_cpu_features();
}

int mmf_host_get_threads(void)
{
    return mmf_cpu_get_threads();
}

void mmf_host_set_threads(int threads)
{
    mmf_cpu_set_threads(threads);
}
