/* The rows of the GPU kernels: which instance takes a problem, or why none does. Path of a call:
 * asked by the plan; run() ends in launch.c. */
#include "gpu/rows.h"

#include "gpu/devices.h"
#include "gpu/launch.h"

#include <stdio.h>
#include <string.h>

enum { LEAST_TILE = 32 }; /* rows or columns of out that a tile has at least */

/* A refusal that calls meet on their way to another row: formatting would be felt. */
static bool refuse(char *reason, const char *text)
{
    memcpy(reason, text, strlen(text) + 1);
    return false;
}

/* What every GPU row wants: kernels count the tiles of a matrix in 31 bits, their workgroups in
 * fewer. */
static bool on_gpu(const mmf_problem *p, mmf_gpu **gpu, char *reason)
{
    if (p->device.type == MMF_CPU) {
        snprintf(reason, MMF_REASON_TEXT, "runs on GPUs, the operands are on the CPU");
        return false;
    }
    if (mmf_gpu_get(p->device, gpu)) {
        snprintf(reason, MMF_REASON_TEXT, "%.150s", mmf_error_text());
        return false;
    }
    if (p->packed) {
        snprintf(reason, MMF_REASON_TEXT, "does not read prepacked weights");
        return false;
    }
    int64_t tiles;
    if (__builtin_mul_overflow(p->m / LEAST_TILE + 1, p->n / LEAST_TILE + 1, &tiles) ||
        tiles >= INT64_C(1) << 31) {
        snprintf(reason, MMF_REASON_TEXT, "the result has too many tiles");
        return false;
    }
    return true;
}

static void configure_instance(int instance, mmf_config *config)
{
    const mmf_gpu_instance *row = &mmf_gpu_instances[instance];
    *config = (mmf_config){.tile_m = row->tile_m,
                           .tile_n = row->tile_n,
                           .tile_k = row->tile_k,
                           .threads = row->threads};
    config->own[0] = instance;
}

static mmf_status run(const mmf_problem *problem, const mmf_config *config)
{
    return mmf_gpu_launch(problem, (int)config->own[0]);
}

/* --- gemm_simt: the generic kernel --- */

static int simt_instance(const mmf_problem *p)
{
    static const int by_dtype[MMF_DTYPE_COUNT] = {
        [MMF_FLOAT32] = MMF_GPU_gemm_simt_f32,
        [MMF_FLOAT64] = MMF_GPU_gemm_simt_f64,
        [MMF_FLOAT16] = MMF_GPU_gemm_simt_f16,
        [MMF_BFLOAT16] = MMF_GPU_gemm_simt_bf16,
    };
    return by_dtype[p->dtype[MMF_A]];
}

static bool simt_supports(const mmf_problem *p, char *reason)
{
    mmf_gpu *gpu;
    return on_gpu(p, &gpu, reason) && mmf_gpu_has_code(gpu, simt_instance(p), reason);
}

static void simt_configure(const mmf_problem *p, mmf_config *config)
{
    configure_instance(simt_instance(p), config);
}

const mmf_kernel_row mmf_gpu_simt = {
    .name = "gemm_simt",
    .supports = simt_supports,
    .configure = simt_configure,
    .run = run,
    .rows_independent_of_m = true,
    .gflops_float = 100, /* of a compute unit: assumed, not measured */
    .gflops_double = 50,
};

/* --- gemm_mfma: matrix cores of CDNA3 and CDNA4 --- */

/* What the kernel can count with: a line of k lies inside the 0x7ffffff0 bytes of a descriptor. */
enum { MAX_LEADING = 1 << 23, MAX_K = 0x7ffffff0 / 2 };

/* Is a matrix read along an axis of stride 1, with rows that lie apart from each other? */
static bool readable(int64_t unit, int64_t extent, int64_t leading, int64_t rows)
{
    return (unit == 1 || extent <= 1) &&
           (rows <= 1 || (extent <= leading && leading < MAX_LEADING));
}

static bool b_readable(const mmf_problem *p, bool along_n)
{
    for (int i = MMF_B; i <= (mmf_problem_gated(p) ? MMF_B_UP : MMF_B); i++) {
        const mmf_strides *s = &p->strides[i];
        if (along_n ? !readable(s->col, p->n, s->row, p->k) : !readable(s->row, p->k, s->col, p->n))
            return false;
    }
    return true;
}

/* The layout of the product, or ANY if no instance has it. */
static mmf_gpu_layout layout_of(const mmf_problem *p)
{
    const mmf_strides *a = &p->strides[MMF_A];
    if (p->k == 0) /* nothing is read */
        return MMF_GPU_LAYOUT_NN;
    bool b_n = b_readable(p, true), b_k = b_readable(p, false);
    if (!b_n && !b_k)
        return MMF_GPU_LAYOUT_ANY;
    if (readable(a->col, p->k, a->row, p->m))
        return b_n ? MMF_GPU_LAYOUT_NN : MMF_GPU_LAYOUT_NT;
    if (readable(a->row, p->m, a->col, p->k))
        return b_n ? MMF_GPU_LAYOUT_TN : MMF_GPU_LAYOUT_TT;
    return MMF_GPU_LAYOUT_ANY;
}

/* The instance for a problem's dtype and layout, or -1. */
static int mfma_instance(const mmf_problem *p)
{
    mmf_gpu_layout layout = layout_of(p);
    for (int i = 0; layout != MMF_GPU_LAYOUT_ANY && i < MMF_GPU_INSTANCES; i++)
        if (mmf_gpu_instances[i].layout == layout &&
            mmf_gpu_instances[i].operands == p->dtype[MMF_A] &&
            strcmp(mmf_gpu_instances[i].family, "mfma") == 0)
            return i;
    return -1;
}

static bool mfma_supports(const mmf_problem *p, char *reason)
{
    mmf_gpu *gpu;
    if (!on_gpu(p, &gpu, reason))
        return false;
    if (!gpu->has_mfma)
        return refuse(reason, "this build has none for this GPU");
    if (p->dtype[MMF_A] != MMF_FLOAT16 && p->dtype[MMF_A] != MMF_BFLOAT16)
        return refuse(reason, "takes float16 and bfloat16 only");
    if (p->k > MAX_K) {
        snprintf(reason, MMF_REASON_TEXT, "takes K up to %d, K is %lld", MAX_K, (long long)p->k);
        return false;
    }
    int instance = mfma_instance(p);
    if (instance < 0)
        return refuse(reason, "needs A and B each with stride 1 along one matrix axis, and along "
                              "the other a stride that keeps rows apart, below 2^23");
    return mmf_gpu_has_code(gpu, instance, reason);
}

static void mfma_configure(const mmf_problem *p, mmf_config *config)
{
    configure_instance(mfma_instance(p), config);
}

const mmf_kernel_row mmf_gpu_mfma = {
    .name = "gemm_mfma",
    .supports = mfma_supports,
    .configure = mfma_configure,
    .run = run,
    .rows_independent_of_m = true,
    .gflops_float = 1500, /* of a compute unit: assumed, not measured */
};
