/* The host side that gemm_mma and gemm_fma share. Path of a call: see nvidia_tiles.h. */
#include "gpu/nvidia_tiles.h"

#include "gpu/describe.h"

#include <stdio.h>
#include <stdlib.h>

/* Bytes: 64 lines and 32 k of them are below 2^31. */
enum { MAX_STEP = 1 << 24 };

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

bool mmf_nvidia_tiles_supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    mmf_gpu *gpu;
    if (!mmf_gpu_gemm_supports(kernel, p, reason))
        return false;
    if (mmf_gpu_get(p->device, &gpu) || !gpu->driver->allow_shared) {
        snprintf(reason, MMF_REASON_TEXT,
                 "needs more than 48 KiB of shared memory, which this driver cannot give");
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

void mmf_nvidia_tiles_work(const mmf_tile_time *rows, size_t count, double gflops,
                           const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    const double units = mmf_gpu_units(p->device);
    const mmf_dtype dtype = p->dtype[MMF_A] == MMF_BFLOAT16 ? MMF_FLOAT16 : p->dtype[MMF_A];
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const bool wide = is_wide(p, MMF_A) && is_wide(p, MMF_B);
    for (size_t i = 0; i < count && units > 0; i++) {
        const mmf_tile_time *t = &rows[i];
        if (t->dtype != dtype || t->tile_m != kernel->tile_m || t->tile_n != kernel->tile_n)
            continue;
        const double each = w->tiles <= units ? 1 : w->tiles / units;
        const double turns = (double)(int64_t)each + (each > (double)(int64_t)each);
        const double busy = turns * t->shared, step = busy > t->alone ? busy : t->alone;
        const double seconds =
            1e-6 * (steps * step * (wide ? 1 : t->slow) + t->first + (turns - 1) * t->later);
        w->tiles = 1;
        w->tile_flops = seconds * 1e9 * gflops;
        return;
    }
}

void mmf_nvidia_tiles_configure(const mmf_kernel *kernel, const mmf_problem *p,
                                uint32_t dynamic_bytes, mmf_config *config)
{
    mmf_launch_plan *plan = (mmf_launch_plan *)config->own;
    mmf_gpu_gemm_configure(kernel, p, config);
    for (int i = 0; i < plan->launches; i++)
        plan->launch[i].dynamic_bytes = dynamic_bytes;
}
