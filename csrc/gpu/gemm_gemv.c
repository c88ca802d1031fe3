/* The families gemm_gemv, on Hopper and on AMD GPUs, and gemm_mma_thin, on Hopper: few rows of A
 * times lines of B, as fast as memory gives B. Path of a call: asked by the plan; run() ends in
 * launch_plan.c. */
#include "gpu/amd_tiles.h"
#include "gpu/describe.h"
#include "gpu/nvidia_tiles.h"

#include <math.h>
#include <stdio.h>

enum { GFLOPS = (int)MMF_AMD_GFLOPS }; /* of a compute unit: what work() counts in */
enum { LINE_ALIGN = 16 };              /* bytes: what a lane loads */
enum { RUN = 8 };                      /* elements of 16 bits that a lane loads */
enum { MAX_K = 1 << 30 };              /* kernels count k in 31 bits */
enum { AMD_MAX_K = 1 << 28 };          /* and on AMD GPUs the bytes of a line */

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

static bool b_in_lines(const mmf_problem *p, int operand)
{
    const mmf_strides *s = &p->strides[operand];
    return in_lines(p, operand, p->k, s->row, p->n, s->col);
}

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    const bool amd = p->device.type == MMF_ROCM;
    const int most_k = amd ? AMD_MAX_K : MAX_K;
    mmf_gpu *gpu;
    if (!mmf_gpu_gemm_supports(kernel, p, reason))
        return false;
    if (!amd && (mmf_gpu_get(p->device, &gpu) || !gpu->driver->encode_tensor_map)) {
        snprintf(reason, MMF_REASON_TEXT,
                 "needs launches that overlap: a driver of CUDA 12.0 or later");
        return false;
    }
    if (p->m > kernel->tile_m || p->k == 0 || p->k > most_k) {
        snprintf(reason, MMF_REASON_TEXT, "takes M up to %d and K from 1 to %d", kernel->tile_m,
                 most_k);
        return false;
    }
    if (!a_in_lines(p) || !b_in_lines(p, MMF_B) ||
        (mmf_problem_gated(p) && !b_in_lines(p, MMF_B_UP))) {
        snprintf(reason, MMF_REASON_TEXT,
                 "needs A and B with stride 1 along K, and multiples of 16 bytes along the other "
                 "axis and the batch");
        return false;
    }
    return true;
}

/* The time is given as one tile whose operations take as long. */
static void set_microseconds(mmf_work *w, double microseconds)
{
    w->tiles = 1;
    w->tile_flops = microseconds * 1e3 * GFLOPS;
}

/* Microseconds besides those of memory, which the cost model adds, fitted to an H200: what the
 * first tile takes, and a step of k of as many tiles as run at once. A row with four steps was
 * fastest; one with half or twice as many reads memory 3 % slower, as if there were more of it. */
static void hopper_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    enum { THREADS_AT_ONCE = 768, FEWER_AT_ONCE = 512, BEST_STEPS = 4, DEEP = 2048 };
    const double first = 1.5, step = 0.8, slower = 0.03;
    const int threads = mmf_gpu_instances[kernel->instance].threads;
    const bool few = kernel->tile_m > 1 || kernel->tile_k == DEEP;
    const double at_once =
        (double)mmf_gpu_units(p->device) * ((few ? FEWER_AT_ONCE : THREADS_AT_ONCE) / threads);
    if (at_once <= 0)
        return;
    const double turns = w->tiles <= at_once ? 1 : w->tiles / at_once;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const double octaves = fabs(log2((double)p->k / kernel->tile_k / BEST_STEPS));
    const double bytes =
        w->tiles * kernel->tile_n * (double)p->k * mmf_dtypes[p->dtype[MMF_B]].size;
    w->bytes = octaves * slower * bytes;
    if (kernel->tile_m > 1) /* memory is not hidden, and the next workgroups find it idle */
        set_microseconds(w, 2.9 + ceil(turns) * steps * 0.2 + (ceil(turns) - 1) * 3 +
                                1e6 * mmf_nvidia_b_seconds(p));
    else
        set_microseconds(w, first + turns * steps * step);
}

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    (p->device.type == MMF_ROCM ? mmf_amd_gemv_work : hopper_work)(kernel, p, w);
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_launch_plan *plan = (mmf_launch_plan *)config->own;
    mmf_gpu_gemm_configure(kernel, p, config);
    for (int i = 0; p->device.type == MMF_CUDA && i < plan->launches; i++) {
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

static bool supports_thin(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (!supports(kernel, p, reason) || !mmf_gpu_gemm_may_truncate(p, reason))
        return false;
    if (p->k % RUN != 0) {
        snprintf(reason, MMF_REASON_TEXT, "takes K in multiples of %d", RUN);
        return false;
    }
    return true;
}

/* As hopper_work(), but memory is not hidden: where B is large, gemm_wgmma is faster. */
static void thin_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    enum { AT_ONCE = 2, FEW = 4 }; /* workgroups of a unit; rows that take less */
    const double first = p->m <= FEW ? 1.7 : 2.5, step = 0.6;
    const double at_once = (double)mmf_gpu_units(p->device) * AT_ONCE;
    if (at_once <= 0)
        return;
    const double turns = w->tiles <= at_once ? 1 : w->tiles / at_once;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    set_microseconds(w, first + turns * steps * step + 1e6 * mmf_nvidia_b_seconds(p));
}

const mmf_family mmf_gpu_mma_thin = {
    .name = "gemm_mma_thin",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports_thin,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .work = thin_work,
    .gflops_float = GFLOPS,
};
