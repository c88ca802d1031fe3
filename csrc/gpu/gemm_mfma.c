/* The families gemm_mfma (float16, bfloat16), gemm_mfma_f32, gemm_mfma_xf32 (float32 rounded to 11
 * bits) and gemm_mfma_f64: matrix cores of CDNA. Path of a call: asked by the plan; run() ends in
 * launch_plan.c. */
#include "gpu/amd_tiles.h"

#include <stdio.h>

/* What the kernels can count with, in bytes: the lines of half a tile lie within 2^31, a line of k
 * inside of a descriptor. */
enum { MAX_LEADING = 1 << 24, MAX_LINE = 0x7ffffff0 };

/* An element of A and of B. */
static int64_t size_of(const mmf_problem *p)
{
    return mmf_dtypes[p->dtype[MMF_A]].size;
}

/* Unit stride along one axis; leading dimension >= extent (rows do not overlap) and < most. */
static bool readable(int64_t unit, int64_t extent, int64_t leading, int64_t rows, int64_t most)
{
    return (unit == 1 || extent <= 1) && (rows <= 1 || (extent <= leading && leading < most));
}

static bool b_readable(const mmf_problem *p, bool along_n)
{
    const int64_t most = MAX_LEADING / size_of(p);
    for (int i = MMF_B; i <= (mmf_problem_gated(p) ? MMF_B_UP : MMF_B); i++) {
        const mmf_strides *s = &p->strides[i];
        if (along_n ? !readable(s->col, p->n, s->row, p->k, most)
                    : !readable(s->row, p->k, s->col, p->n, most))
            return false;
    }
    return true;
}

/* The layout of the product, or ANY if no instance has it. */
static mmf_gpu_layout layout_of(const mmf_problem *p)
{
    const mmf_strides *a = &p->strides[MMF_A];
    const int64_t most = MAX_LEADING / size_of(p);
    if (p->k == 0) /* nothing is read */
        return MMF_GPU_LAYOUT_NN;
    bool b_n = b_readable(p, true), b_k = b_readable(p, false);
    if (!b_n && !b_k)
        return MMF_GPU_LAYOUT_ANY;
    if (readable(a->col, p->k, a->row, p->m, most))
        return b_n ? MMF_GPU_LAYOUT_NN : MMF_GPU_LAYOUT_NT;
    if (readable(a->row, p->m, a->col, p->k, most))
        return b_n ? MMF_GPU_LAYOUT_TN : MMF_GPU_LAYOUT_TT;
    return MMF_GPU_LAYOUT_ANY;
}

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (!mmf_gpu_gemm_supports(kernel, p, reason))
        return false;
    if (p->k > MAX_LINE / size_of(p)) {
        snprintf(reason, MMF_REASON_TEXT, "takes K up to %lld, K is %lld",
                 (long long)(MAX_LINE / size_of(p)), (long long)p->k);
        return false;
    }
    const mmf_gpu_layout layout = layout_of(p), own = mmf_gpu_instances[kernel->instance].layout;
    if (layout == MMF_GPU_LAYOUT_ANY)
        snprintf(reason, MMF_REASON_TEXT,
                 "needs A and B each with stride 1 along one matrix axis, and along "
                 "the other a stride that keeps rows apart, below 2^24 bytes");
    else if (layout != own)
        snprintf(reason, MMF_REASON_TEXT, "is for the layout %s, A and B are %s",
                 mmf_gpu_layout_names[own], mmf_gpu_layout_names[layout]);
    return layout == own;
}

/* Makes the matrix cores as busy as the loop of 16 bits was modelled: 0.89 on gfx942, 0.80 on
 * gfx950. Products of float32 and float64 take longer, so that as much beside them counts less. */
enum { IDLE = 64 };

/* xf32 has four times the products of float32 in a cycle. A wave rounds for 450 cycles of a step
 * beside products of 1024, of 512 in tiles of 64 x 64; how much of it the products of another wave
 * hide is not known. This makes the matrix cores busy for 0.80 and 0.67. */
enum { FASTER = 4, IDLE_ROUNDED = 128 };

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_amd_tiles_work(IDLE, kernel, p, w);
}

const mmf_family mmf_gpu_mfma = {
    .name = "gemm_mfma",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_float = MMF_AMD_GFLOPS,
};

const mmf_family mmf_gpu_mfma_f32 = {
    .name = "gemm_mfma_f32",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_float = MMF_AMD_GFLOPS,
};

static bool supports_rounded(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (!supports(kernel, p, reason))
        return false;
    if (!p->allow_tf32)
        snprintf(reason, MMF_REASON_TEXT, "rounds float32 to 11 bits, which allow_tf32 allows");
    return p->allow_tf32;
}

static void work_rounded(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_amd_faster_tiles_work(FASTER, IDLE_ROUNDED, kernel, p, w);
}

const mmf_family mmf_gpu_mfma_xf32 = {
    .name = "gemm_mfma_xf32",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports_rounded,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work_rounded,
    .gflops_float = MMF_AMD_GFLOPS,
};

const mmf_family mmf_gpu_mfma_f64 = {
    .name = "gemm_mfma_f64",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = mmf_gpu_gemm_configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_double = MMF_AMD_GFLOPS,
};
