/* Back ends by device, and their prepacked layouts. Not on the path of a call: prepack, info and
 * set_num_threads. */
#include "plan/backends.h"

#include "cpu/features.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/team.h"
#include "gpu/parts.h"
#include "gpu/reorder.h"
#include "plan/plan.h"
#include "problem/environment.h"
#include "problem/kernel.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

_Static_assert(MMF_HOST_THREADS == MMF_MAX_THREADS, "the pool's limit");

static mmf_status pack_panels(const mmf_weight *w, void *packed)
{
    mmf_cpu_pack_panels(w->dtype, w->k, w->n, w->data, w->row, w->col, packed, w->interrupt);
    return MMF_OK;
}

static mmf_status unpack_panels(const mmf_weight *w, const void *packed)
{
    mmf_cpu_unpack_panels(w->dtype, w->k, w->n, packed, w->row, w->col, w->data, w->interrupt);
    return MMF_OK;
}

static mmf_status pack_pairs(const mmf_weight *w, void *packed)
{
    mmf_cpu_pack_pairs(w->dtype, w->k, w->n, w->data, w->row, w->col, packed, w->interrupt);
    return MMF_OK;
}

static mmf_status unpack_pairs(const mmf_weight *w, const void *packed)
{
    mmf_cpu_unpack_pairs(w->dtype, w->k, w->n, packed, w->row, w->col, w->data, w->interrupt);
    return MMF_OK;
}

/* Columns lie as those of a GPU do. */
static mmf_status pack_columns(const mmf_weight *w, void *packed)
{
    mmf_cpu_copy_columns(w->dtype, w->k, w->n, w->data, w->row, w->col, packed, 1,
                         mmf_gpu_columns_pitch(w->dtype, w->k), w->interrupt);
    return MMF_OK;
}

static mmf_status unpack_columns(const mmf_weight *w, const void *packed)
{
    mmf_cpu_copy_columns(w->dtype, w->k, w->n, packed, 1, mmf_gpu_columns_pitch(w->dtype, w->k),
                         w->data, w->row, w->col, w->interrupt);
    return MMF_OK;
}

/* The prepacked layouts, of each back end the most special last: what they are called, and the
 * functions of the back end that reads them. */
typedef struct layout_row {
    int id;
    bool on_gpu;
    const char *name;
    uint32_t dtypes; /* MMF_DTYPE_BIT() of those that it holds */
    int64_t (*bytes)(mmf_dtype dtype, int64_t k, int64_t n);
    int64_t (*pitch)(mmf_dtype dtype, int64_t k); /* NULL: kernels see no strides */
    /* Is there code to pack, and to read it? NULL: always. */
    mmf_status (*check)(mmf_device device, mmf_dtype dtype, const char *name);
    mmf_status (*pack)(const mmf_weight *weight, void *packed);
    mmf_status (*unpack)(const mmf_weight *weight, const void *packed);
    int of_k, of_n; /* what K, and N of each stream, must be multiples of; 0: of nothing */
    int align;      /* mmf_prepack_borrowed_align() */
} layout_row;

#define SHORT (MMF_DTYPE_BIT(MMF_FLOAT16) | MMF_DTYPE_BIT(MMF_BFLOAT16))

static const layout_row layouts[] = {
    {MMF_CPU_PANELS64, false, "panels64", UINT32_MAX, mmf_cpu_panels_bytes, NULL, NULL, pack_panels,
     unpack_panels, 0, 0, 0},
    {MMF_CPU_PAIRS64, false, "pairs64", MMF_DTYPE_BIT(MMF_BFLOAT16), mmf_cpu_pairs_bytes, NULL,
     NULL, pack_pairs, unpack_pairs, 0, 0, 0},
    {MMF_CPU_COLUMNS, false, "columns", UINT32_MAX, mmf_gpu_columns_bytes, mmf_gpu_columns_pitch,
     NULL, pack_columns, unpack_columns, 0, 0, 0},
    {MMF_GPU_PRESHUFFLED, true, "preshuffle_16x16", SHORT, mmf_gpu_preshuffled_bytes, NULL,
     mmf_gpu_check_preshuffled, mmf_gpu_preshuffle, mmf_gpu_unshuffle, MMF_PRESHUFFLED_K,
     MMF_PRESHUFFLED_N, MMF_PRESHUFFLED_ALIGN},
    {MMF_GPU_COLUMNS, true, "columns", UINT32_MAX, mmf_gpu_columns_bytes, mmf_gpu_columns_pitch,
     mmf_gpu_check_columns, mmf_gpu_pack_columns, mmf_gpu_unpack_columns, 0, 0, 0},
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

bool mmf_prepack_has_size(int64_t k, int64_t n)
{
    int64_t limit;
    return !__builtin_add_overflow(n, 64, &limit) && !__builtin_add_overflow(k, 32, &k) &&
           !__builtin_mul_overflow(k, limit, &limit) && !__builtin_mul_overflow(limit, 64, &limit);
}

/* Do so few columns of each stream stay columns on the CPU? Those that AMX takes have tiles. */
static bool keeps_columns(mmf_dtype dtype, int64_t k, int64_t n)
{
    const bool pairs = dtype == MMF_BFLOAT16 && mmf_cpu_has_avx512_bf16(),
               dots = mmf_cpu_has_avx512() && (dtype != MMF_BFLOAT16 || mmf_cpu_lacks_amx());
    return n <= MMF_CPU_FEW_COLUMNS || (dots && mmf_cpu_dots_columns(dtype, pairs, k, n));
}

/* The name of the layout that large products read fastest, of those that are at most a tenth larger
 * than the first; of equals the last, which kernels need not bring into another. On a GPU, and
 * where keeps_columns(), that which every kernel reads. */
static const char *best_layout(const mmf_tensor *weight, int streams)
{
    const mmf_dtype dtype = weight->dtype;
    const int64_t k = weight->shape[0], n = weight->shape[1];
    const bool strided = weight->device.type != MMF_CPU || keeps_columns(dtype, k, n / streams);
    const layout_row *best = NULL;
    for (int i = 0; i < LAYOUTS; i++) {
        const layout_row *row = &layouts[i];
        if (row->on_gpu != (weight->device.type != MMF_CPU) ||
            !(row->dtypes & MMF_DTYPE_BIT(dtype)) || (row->pitch != NULL) != strided)
            continue;
        if (!best) {
            best = row;
        } else if (!mmf_prepack_has_size(k, n)) {
            break;
        } else if (10 * row->bytes(dtype, k, n) <= 11 * best->bytes(dtype, k, n)) {
            const double seconds = mmf_plan_layout_seconds(dtype, row->id);
            if (seconds < INFINITY && seconds <= mmf_plan_layout_seconds(dtype, best->id))
                best = row;
        }
    }
    return best->name;
}

/* Whole pieces along K, and along N of each stream? */
static mmf_status check_size(const layout_row *row, const mmf_tensor *weight, int streams,
                             const char *argument)
{
    const int64_t k = weight->shape[0], n = weight->shape[1] / streams;
    if (!row->of_k || (k % row->of_k == 0 && n % row->of_n == 0))
        return MMF_OK;
    return mmf_fail(
        MMF_VALUE_ERROR,
        "layout \"%s\" needs K to be a multiple of %d and %s of %d, but %s has K = %lld "
        "and N = %lld%s; pad it with zeros, or pass the plain weight",
        row->name, row->of_k, streams == 2 ? "N of gate and of up each" : "N", row->of_n, argument,
        (long long)k, (long long)n, streams == 2 ? " each" : "");
}

mmf_status mmf_prepack_layout(const mmf_tensor *weight, int streams, const char *argument,
                              const char *name, int *layout)
{
    const mmf_dtype dtype = weight->dtype;
    const bool on_gpu = weight->device.type != MMF_CPU;
    const char *wanted = strcmp(name, "auto") ? name : best_layout(weight, streams);
    for (int i = 0; i < LAYOUTS; i++) {
        const layout_row *row = &layouts[i];
        const bool anywhere = row->id == MMF_GPU_PRESHUFFLED; /* its check() tells of the device */
        if ((row->on_gpu != on_gpu && !anywhere) || strcmp(wanted, row->name))
            continue;
        if (anywhere && weight->device.type != MMF_ROCM)
            return row->check(weight->device, dtype, argument);
        if (!(row->dtypes & MMF_DTYPE_BIT(dtype)))
            return mmf_fail(MMF_VALUE_ERROR, "layout \"%s\" holds %sbfloat16 only, but %s is %s",
                            row->name, row->dtypes == SHORT ? "float16 and " : "", argument,
                            mmf_dtypes[dtype].name);
        *layout = row->id;
        mmf_status status = row->check ? row->check(weight->device, dtype, argument) : MMF_OK;
        return status ? status : check_size(row, weight, streams, argument);
    }
    return mmf_fail(MMF_VALUE_ERROR, "unknown layout \"%s\"; on %s", name,
                    weight->device.type == MMF_ROCM
                        ? "an AMD GPU it is \"auto\", \"columns\" or \"preshuffle_16x16\""
                    : on_gpu ? "a GPU it is \"auto\" or \"columns\""
                             : "the CPU it is \"auto\", \"panels64\", \"pairs64\" or \"columns\"");
}

static const layout_row *row_of(int id)
{
    const layout_row *row = layouts;
    while (row->id != id)
        row++;
    return row;
}

const char *mmf_prepack_layout_name(int layout)
{
    return row_of(layout)->name;
}

int64_t mmf_prepack_bytes(int layout, mmf_dtype dtype, int64_t k, int64_t n)
{
    return row_of(layout)->bytes(dtype, k, n);
}

void mmf_prepack_strides(int layout, mmf_tensor *tensor)
{
    const layout_row *row = row_of(layout);
    if (layout & MMF_PACKED_COMPACT)
        mmf_tensor_set_compact(tensor);
    if (!row->pitch)
        return;
    tensor->strides[0] = 1;
    tensor->strides[1] = row->pitch(tensor->dtype, tensor->shape[0]);
}

int mmf_prepack_borrowed_align(int layout)
{
    return row_of(layout)->align;
}

mmf_status mmf_prepack(int layout, const mmf_weight *weight, void *packed)
{
    return weight->k && weight->n ? row_of(layout)->pack(weight, packed) : MMF_OK;
}

mmf_status mmf_unpack(int layout, const mmf_weight *weight, const void *packed)
{
    return weight->k && weight->n ? row_of(layout)->unpack(weight, packed) : MMF_OK;
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

double mmf_device_bandwidth(mmf_device device)
{
    return mmf_gpu_bandwidth(device);
}

void mmf_device_identity(mmf_device device, char *text, size_t size)
{
    *text = 0;
    if (device.type != MMF_CPU)
        mmf_gpu_identity(device, text, size);
}

double mmf_host_bandwidth(void)
{
    return mmf_cpu_bytes_per_second();
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

int mmf_host_use_threads(int threads)
{
    return mmf_cpu_use_threads(threads);
}

void mmf_host_join_threads(void)
{
    mmf_team_find();
}
