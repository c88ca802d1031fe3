/* The family gemm_gemv: few rows of A times lines of B on Hopper, as fast as memory gives B. Path
 * of a call: asked by the plan; run() ends in launch_plan.c. */
#include "gpu/gemm.h"

#include "gpu/describe.h"

#include <stdio.h>

enum { GFLOPS = 200 };    /* of a compute unit: what work() counts in */
enum { LINE_ALIGN = 16 }; /* bytes: what a lane loads */
enum { MAX_K = 1 << 30 }; /* kernels count k in 31 bits */

/* Does every line of an operand begin at a multiple of 16 bytes, its elements next to each other?
 */
static bool in_lines(const mmf_problem *p, int operand, int64_t length, int64_t along,
                     int64_t lines, int64_t apart)
{
    const int64_t size = mmf_dtypes[p->dtype[operand]].size;
    return (along == 1 || length == 1) && (lines == 1 || apart * size % LINE_ALIGN == 0) &&
           mmf_gpu_aligned(p, operand);
}

static bool a_in_lines(const mmf_problem *p)
{
    const mmf_strides *s = &p->strides[MMF_A];
    return in_lines(p, MMF_A, p->k, s->col, p->m, s->row);
}

/* Along n in whole 16 bytes. */
static bool b_in_lines(const mmf_problem *p, int operand, bool along_k)
{
    const mmf_strides *s = &p->strides[operand];
    return along_k ? in_lines(p, operand, p->k, s->row, p->n, s->col)
                   : in_lines(p, operand, p->n, s->col, p->k, s->row) &&
                         p->n * mmf_dtypes[p->dtype[operand]].size % LINE_ALIGN == 0;
}

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    mmf_gpu *gpu;
    if (!mmf_gpu_gemm_supports(kernel, p, reason))
        return false;
    if (mmf_gpu_get(p->device, &gpu) || !gpu->driver->encode_tensor_map) {
        snprintf(reason, MMF_REASON_TEXT,
                 "needs launches that overlap: a driver of CUDA 12.0 or later");
        return false;
    }
    if (p->m > kernel->tile_m || p->k == 0 || p->k > MAX_K) {
        snprintf(reason, MMF_REASON_TEXT, "takes M up to %d and K from 1 to %d", kernel->tile_m,
                 MAX_K);
        return false;
    }
    const bool along_k = mmf_gpu_instances[kernel->instance].layout == MMF_GPU_LAYOUT_NT;
    if (!a_in_lines(p) || !b_in_lines(p, MMF_B, along_k) ||
        (mmf_problem_gated(p) && !b_in_lines(p, MMF_B_UP, along_k))) {
        snprintf(reason, MMF_REASON_TEXT,
                 "needs A with stride 1 along K and B along %s, and multiples of 16 bytes along "
                 "the other axis and the batch",
                 along_k ? "K" : "N, in whole 16 bytes");
        return false;
    }
    return true;
}

/* Microseconds besides those of memory, which the cost model adds: what the first tile takes, and a
 * step of k of as many tiles as run at once. Counted from the loads in flight, not measured. */
static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    enum { THREADS_AT_ONCE = 768, FEWER = 512 };
    const double first = 1.5, step = 0.7 + 0.1 * kernel->tile_m;
    const int threads = mmf_gpu_instances[kernel->instance].threads;
    const int resident = (kernel->tile_m == 1 ? THREADS_AT_ONCE : FEWER) / threads;
    const double at_once = (double)mmf_gpu_units(p->device) * resident;
    if (at_once <= 0)
        return;
    const double turns = w->tiles <= at_once ? 1 : w->tiles / at_once;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    /* The time is given as one tile whose operations take as long. */
    w->tiles = 1;
    w->tile_flops = (first + turns * steps * step) * 1e3 * GFLOPS;
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_launch_plan *plan = (mmf_launch_plan *)config->own;
    mmf_gpu_gemm_configure(kernel, p, config);
    for (int i = 0; i < plan->launches; i++) {
        plan->launch[i].cluster = 1;
        plan->launch[i].overlaps = true;
    }
}

const mmf_family mmf_gpu_gemv = {
    .name = "gemm_gemv",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = false, /* parts of k are as long as the row's tile_k says */
    .work = work,
    .gflops_float = GFLOPS,
};
