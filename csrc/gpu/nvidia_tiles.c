/* The host side that gemm_mma, gemm_fma and their split forms share. Path of a call: see
 * nvidia_tiles.h. */
#include "gpu/nvidia_tiles.h"

#include "gpu/describe.h"
#include "gpu/epilogue_form.h"
#include "gpu/parts.h"

#include <math.h>
#include <stdio.h>

/* Bytes: 64 lines and 32 k of them are below 2^31. */
enum { MAX_STEP = 1 << 24 };

/* Of shared memory, besides the dynamic ones, which begin at a multiple of it. */
enum { STATIC_BYTES = 1024 };

static bool is_near(int64_t stride, int64_t length, int64_t size)
{
    return length <= 1 || (stride <= MAX_STEP / size && stride >= -MAX_STEP / size);
}

static bool strides_are_near(const mmf_problem *p)
{
    const int64_t size = mmf_dtypes[p->dtype[MMF_A]].size;
    const mmf_strides *a = &p->strides[MMF_A], *b = &p->strides[MMF_B], *up = &p->strides[MMF_B_UP];
    const bool alike = !mmf_problem_gated(p) ||
                       ((p->n <= 1 || up->col == b->col) && (p->k <= 1 || up->row == b->row));
    return is_near(a->row, p->m, size) && is_near(a->col, p->k, size) &&
           is_near(b->col, p->n, size) && is_near(b->row, p->k, size) && alike;
}

bool mmf_nvidia_tiles_supports(const mmf_kernel *kernel, const mmf_problem *p,
                               uint32_t dynamic_bytes, char *reason)
{
    mmf_gpu *gpu;
    if (!mmf_gpu_gemm_supports(kernel, p, reason))
        return false;
    if (mmf_gpu_get(p->device, &gpu) || !gpu->driver->allow_shared) {
        snprintf(reason, MMF_REASON_TEXT,
                 "needs more than 48 KiB of shared memory, which this driver cannot give");
        return false;
    }
    if ((int64_t)dynamic_bytes + STATIC_BYTES > gpu->facts.shared_most) {
        snprintf(reason, MMF_REASON_TEXT, "needs %d bytes of shared memory, this GPU has %d",
                 (int)dynamic_bytes + STATIC_BYTES, gpu->facts.shared_most);
        return false;
    }
    if (!strides_are_near(p)) {
        snprintf(reason, MMF_REASON_TEXT,
                 "needs strides of A and B up to 2^24 bytes, and the same "
                 "of both weights of a gate");
        return false;
    }
    return true;
}

/* Are lines of A and B copied in units of 16 bytes? */
static bool is_wide(const mmf_problem *p, int operand)
{
    const int64_t size = mmf_dtypes[p->dtype[operand]].size;
    const mmf_strides *s = &p->strides[operand];
    const int64_t other = s->col == 1 ? s->row : s->col;
    return (s->col == 1 || s->row == 1) && other * size % 16 == 0 && p->offset[operand] % 16 == 0;
}

/* The row of a kernel, or NULL. */
static const mmf_tile_time *time_of(const mmf_tile_time *rows, size_t count,
                                    const mmf_kernel *kernel, const mmf_problem *p)
{
    const mmf_dtype dtype = p->dtype[MMF_A] == MMF_BFLOAT16 ? MMF_FLOAT16 : p->dtype[MMF_A];
    for (size_t i = 0; i < count; i++)
        if (rows[i].dtype == dtype && rows[i].tile_m == kernel->tile_m &&
            rows[i].tile_n == kernel->tile_n)
            return &rows[i];
    return NULL;
}

static double tiles_of(const mmf_kernel *kernel, const mmf_problem *p)
{
    const int64_t columns = mmf_problem_gated(p) ? kernel->tile_n / 2 : kernel->tile_n;
    return (double)mmf_gpu_tiles(p->m, kernel->tile_m) * (double)mmf_gpu_tiles(p->n, columns) *
           (double)mmf_gpu_batches(p);
}

/* Compute units that clusters of so many workgroups fill: larger ones leave some of a GPC idle. */
static double units_of(const mmf_problem *p, int parts)
{
    return mmf_gpu_units(p->device) * (parts > 2 ? 0.9 : 1);
}

/* Microseconds of the call with so many workgroups for each tile. */
static double microseconds(const mmf_tile_time *t, const mmf_kernel *kernel, const mmf_problem *p,
                           int parts)
{
    const double units = units_of(p, parts), tiles = tiles_of(kernel, p) * parts;
    const double steps = (double)mmf_gpu_tiles(mmf_gpu_tiles(p->k, kernel->tile_k), parts);
    const bool wide = is_wide(p, MMF_A) && is_wide(p, MMF_B);
    const double at_once = units * t->resident, turns = ceil(tiles / at_once);
    /* Two that share a unit end at once, and the next two begin there. */
    const bool in_pairs = turns > 1 && t->resident == 2;
    const double of_last = in_pairs ? 2 : ceil((tiles - (turns - 1) * at_once) / units);
    const double last = of_last * t->shared > t->alone ? of_last * t->shared : t->alone;
    return steps * ((turns - 1) * t->resident * t->shared + last) * (wide ? 1 : t->slow) +
           t->first + (turns - 1) * t->later;
}

/* Bytes of a weight's distinct elements. */
static double weight_bytes(const mmf_problem *p, int operand)
{
    double bytes = (double)p->n * (double)p->k * mmf_dtypes[p->dtype[operand]].size;
    for (int axis = 0; axis < p->batch_ndim; axis++)
        bytes *= p->strides[operand].batch[axis] ? (double)p->batch_shape[axis] : 1;
    return bytes;
}

double mmf_nvidia_b_seconds(const mmf_problem *p)
{
    const double of_units = 30e9 * mmf_gpu_units(p->device); /* as plan/cost.c has it */
    const double reached = mmf_gpu_bandwidth(p->device);
    const double bytes =
        weight_bytes(p, MMF_B) + (mmf_problem_gated(p) ? weight_bytes(p, MMF_B_UP) : 0);
    return bytes / (reached > 0 && reached < of_units ? reached : of_units);
}

double mmf_nvidia_general_seconds(const mmf_problem *p)
{
    /* Nanoseconds of a compute unit for an element, for its activation, and for each operand;
     * fitted to gemm_wgmma on an H200. The times of float64, which has no other epilogue, contain
     * it. */
    const double element = 0.2, activation = 0.27, operand = 0.5;
    static const mmf_operand operands[] = {MMF_BIAS,    MMF_BIAS_UP,       MMF_C,
                                           MMF_C_UP,    MMF_PREACTIVATION, MMF_PREACTIVATION_UP,
                                           MMF_MULTIPLY};
    const double elements = (double)p->m * (double)p->n * (double)mmf_gpu_batches(p);
    double each =
        (mmf_problem_gated(p) ? 2 : 1) * element + (p->activation != MMF_ACT_NONE ? activation : 0);
    if (p->dtype[MMF_A] == MMF_FLOAT64 || mmf_gpu_units(p->device) <= 0)
        return 0;
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++)
        each += p->dtype[operands[i]] != MMF_ABSENT ? operand : 0;
    return 1e-9 * each * elements / mmf_gpu_units(p->device);
}

void mmf_nvidia_add_epilogue(const mmf_problem *p, mmf_work *w, double gflops)
{
    const double units = mmf_gpu_units(p->device);
    if (p->device.type != MMF_CUDA || units <= 0 ||
        mmf_gpu_epilogue_form(p, false) != MMF_EPILOGUE_GENERAL)
        return;
    const double waves = w->tiles <= units ? 1 : w->tiles / units; /* as plan/cost.c has it */
    w->tile_flops += mmf_nvidia_general_seconds(p) * gflops * 1e9 / waves;
}

void mmf_nvidia_set_microseconds(mmf_work *w, double microseconds, double gflops)
{
    w->tiles = 1;
    w->tile_flops = microseconds * 1e3 * gflops;
}

void mmf_nvidia_tiles_work(const mmf_tile_time *rows, size_t count, double gflops,
                           const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    const mmf_tile_time *t = time_of(rows, count, kernel, p);
    if (t && mmf_gpu_units(p->device) > 0)
        mmf_nvidia_set_microseconds(w, microseconds(t, kernel, p, 1), gflops);
    mmf_nvidia_add_epilogue(p, w, gflops);
}

void mmf_nvidia_tiles_configure(const mmf_kernel *kernel, const mmf_problem *p,
                                uint32_t dynamic_bytes, mmf_config *config)
{
    mmf_launch_plan *plan = (mmf_launch_plan *)config->own;
    mmf_gpu_gemm_configure(kernel, p, config);
    for (int i = 0; i < plan->launches; i++)
        plan->launch[i].dynamic_bytes = dynamic_bytes;
}

/* Workgroups of a cluster: 8 are the most that every GPU takes, 5 and 7 were slow. Steps of k in a
 * part, at least. */
static const int all_parts[] = {2, 3, 4, 6, 8};
enum { ALL_PARTS = sizeof all_parts / sizeof *all_parts, FEWEST_STEPS = 2 };

/* Microseconds that a tile takes longer where several workgroups share it: the barriers, and the
 * sums of each of them. */
static double exchange(int parts)
{
    return 1 + 0.25 * parts;
}

/* Workgroups of a tile, and the microseconds of the call. All of them run at once. */
static int parts_of(const mmf_tile_time *rows, size_t count, const mmf_kernel *kernel,
                    const mmf_problem *p, double *least)
{
    const mmf_tile_time *t = time_of(rows, count, kernel, p);
    const int64_t steps = mmf_gpu_tiles(p->k, kernel->tile_k);
    int found = 1;
    *least = 0;
    if (!t || mmf_gpu_units(p->device) <= 0)
        return found;
    /* Unsplit it is given the exchange of two: the family that does not split is as fast, and keeps
     * the bits of a row. */
    *least = microseconds(t, kernel, p, 1) + exchange(2);
    for (int i = 0; i < ALL_PARTS; i++) {
        const int parts = all_parts[i];
        if (steps / parts < FEWEST_STEPS ||
            tiles_of(kernel, p) * parts > t->resident * units_of(p, parts))
            break;
        const double time = microseconds(t, kernel, p, parts) + exchange(parts);
        if (time < *least) {
            *least = time;
            found = parts;
        }
    }
    return found;
}

bool mmf_nvidia_split_supports(const mmf_tile_time *rows, size_t count, const mmf_kernel *kernel,
                               const mmf_problem *p, uint32_t dynamic_bytes, char *reason)
{
    double time;
    mmf_gpu *gpu;
    if (!mmf_nvidia_tiles_supports(kernel, p, dynamic_bytes, reason))
        return false;
    if (mmf_gpu_get(p->device, &gpu) || !gpu->driver->encode_tensor_map) {
        snprintf(reason, MMF_REASON_TEXT, "needs clusters: a driver of CUDA 12.0 or later");
        return false;
    }
    if (tiles_of(kernel, p) * parts_of(rows, count, kernel, p, &time) > MMF_MAX_GRID) {
        snprintf(reason, MMF_REASON_TEXT, "is for few tiles, the result has more than a launch");
        return false;
    }
    return true;
}

void mmf_nvidia_split_work(const mmf_tile_time *rows, size_t count, double gflops,
                           const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    double time;
    parts_of(rows, count, kernel, p, &time);
    if (time > 0)
        mmf_nvidia_set_microseconds(w, time, gflops);
    mmf_nvidia_add_epilogue(p, w, gflops);
}

void mmf_nvidia_split_configure(const mmf_tile_time *rows, size_t count, const mmf_kernel *kernel,
                                const mmf_problem *p, uint32_t dynamic_bytes, mmf_config *config)
{
    double time;
    mmf_launch_plan *plan = (mmf_launch_plan *)config->own;
    mmf_nvidia_tiles_configure(kernel, p, dynamic_bytes, config);
    for (int i = 0; i < plan->launches; i++) {
        mmf_launch *launch = &plan->launch[i];
        launch->cluster = (uint32_t)parts_of(rows, count, kernel, p, &time);
        launch->grid_x *= launch->cluster;
        launch->first = 0; /* supports() saw that one launch holds them */
    }
}
