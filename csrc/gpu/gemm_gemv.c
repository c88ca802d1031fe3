/* The families gemm_gemv, on Hopper and on AMD GPUs, and gemm_mma_thin, on Hopper: few rows of A
 * times lines of B, as fast as memory gives B. Path of a call: asked by the plan; run() ends in
 * launch_plan.c. */
#include "gpu/amd_tiles.h"
#include "gpu/describe.h"
#include "gpu/kernels/nvidia/stream_args.h"
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

/* How often as many workgroups as run at once take their turn; 0: the GPU is not known. */
static double turns_of(const mmf_kernel *kernel, const mmf_problem *p, double tiles, int threads)
{
    const int each = threads / mmf_gpu_instances[kernel->instance].threads;
    const double at_once = (double)mmf_gpu_units(p->device) * each;
    return at_once <= 0 ? 0 : tiles <= at_once ? 1 : tiles / at_once;
}

/* One row. Microseconds besides those of memory, which the cost model adds, fitted to an H200: what
 * the first tile takes, and a step of k of as many tiles as run at once. A row of kernels.def with
 * four steps was fastest; one with half or twice as many reads memory 3 % slower, as if there were
 * more of it. */
static void one_row_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    enum { THREADS = 768, FEWER = 512, BEST_STEPS = 4, DEEP = 2048 }; /* threads of a unit */
    const double first = 1.5, step = 0.8, slower = 0.03;
    const double turns = turns_of(kernel, p, w->tiles, kernel->tile_k == DEEP ? FEWER : THREADS);
    if (turns <= 0)
        return;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const double octaves = fabs(log2((double)p->k / kernel->tile_k / BEST_STEPS));
    const double bytes =
        w->tiles * kernel->tile_n * (double)p->k * mmf_dtypes[p->dtype[MMF_B]].size;
    w->bytes = octaves * slower * bytes;
    mmf_nvidia_set_microseconds(w, first + turns * steps * step, GFLOPS);
}

/* Two to four rows: memory is not hidden, and the workgroups of a later turn find it idle. */
static void few_rows_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    enum { THREADS = 512 };
    const double first = 2.9, later = 3, step = 0.2;
    const double turns = ceil(turns_of(kernel, p, w->tiles, THREADS));
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    if (turns > 0)
        mmf_nvidia_set_microseconds(
            w, first + turns * steps * step + (turns - 1) * later + 1e6 * mmf_nvidia_b_seconds(p),
            GFLOPS);
}

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    (p->device.type == MMF_ROCM ? mmf_amd_gemv_work
     : kernel->tile_m == 1      ? one_row_work
                                : few_rows_work)(kernel, p, w);
    mmf_nvidia_add_epilogue(p, w, GFLOPS);
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

/* A tile of gemm_gemv_stream has as many columns, gated or not. */
static int64_t stream_tiles(const mmf_problem *p)
{
    return mmf_gpu_tiles(p->n, MMF_STREAM_LINES);
}

static uint32_t stream_bytes(const mmf_kernel *kernel, const mmf_problem *p)
{
    return (uint32_t)MMF_STREAM_BYTES(kernel->tile_k, mmf_dtypes[p->dtype[MMF_A]].size);
}

static bool supports_stream(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (!supports(kernel, p, reason) ||
        !mmf_nvidia_tiles_supports(kernel, p, stream_bytes(kernel, p), reason))
        return false;
    if (p->batch_ndim > 0) {
        snprintf(reason, MMF_REASON_TEXT, "takes no batch");
        return false;
    }
    return true;
}

/* Microseconds, fitted so that an H200 takes the faster of this and gemm_gemv: a workgroup takes
 * its tiles by turns; the more of them run, the longer takes a stage of each. Other GPUs may wait
 * for memory. */
static void stream_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    const double units = mmf_gpu_units(p->device), tiles = (double)stream_tiles(p);
    if (units <= 0)
        return;
    const double busy = tiles < units ? tiles / units : 1;
    const double first = 1.2 + 0.3 * busy, stage = 0.37 + 0.07 * busy;
    const double turns = ceil(tiles / units), weights = mmf_problem_gated(p) ? 2 : 1;
    const double taken = turns * (double)mmf_gpu_tiles(p->k, kernel->tile_k) * weights * stage;
    const double memory = 0.84 * 1e6 * mmf_nvidia_b_seconds(p);
    w->bytes = -(double)p->n * (double)p->k * weights *
               mmf_dtypes[p->dtype[MMF_B]].size; /* they are counted here */
    mmf_nvidia_set_microseconds(w, first + (taken > memory ? taken : memory), GFLOPS);
    mmf_nvidia_add_epilogue(p, w, GFLOPS);
}

static void configure_stream(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_launch_plan *plan = (mmf_launch_plan *)config->own;
    configure(kernel, p, config);
    for (int i = 0; i < plan->launches; i++) {
        mmf_launch *launch = &plan->launch[i];
        const int64_t units = mmf_gpu_units(p->device), tiles = stream_tiles(p);
        launch->dynamic_bytes = stream_bytes(kernel, p);
        launch->first = 0; /* a workgroup takes one tile after the other */
        launch->grid_x = units > 0 && units < tiles ? units : tiles;
    }
}

const mmf_family mmf_gpu_gemv_stream = {
    .name = "gemm_gemv_stream",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports_stream,
    .configure = configure_stream,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = stream_work,
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

/* As few_rows_work(); where B is large, gemm_wgmma is faster. */
static void thin_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    enum { THREADS = 512, FEW = 4 }; /* rows that take less */
    const double first = p->m <= FEW ? 1.7 : 2.5, step = 0.6;
    const double turns = turns_of(kernel, p, w->tiles, THREADS);
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    if (turns > 0)
        mmf_nvidia_set_microseconds(w, first + turns * steps * step + 1e6 * mmf_nvidia_b_seconds(p),
                                    GFLOPS);
    mmf_nvidia_add_epilogue(p, w, GFLOPS);
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
