/* The family gemm_mfma: matrix cores of CDNA3 and CDNA4. Path of a call: asked by the plan; run()
 * ends in launch_plan.c. */
#include "gpu/amd_tiles.h"

#include <stdio.h>

/* What the kernel can count with: a line of k lies inside the 0x7ffffff0 bytes of a descriptor. */
enum { MAX_LEADING = 1 << 23, MAX_K = 0x7ffffff0 / 2 };

/* Unit stride along one axis; leading dimension >= extent (rows do not overlap) and < MAX_LEADING.
 */
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

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (!mmf_gpu_gemm_supports(kernel, p, reason))
        return false;
    if (p->k > MAX_K) {
        snprintf(reason, MMF_REASON_TEXT, "takes K up to %d, K is %lld", MAX_K, (long long)p->k);
        return false;
    }
    const mmf_gpu_layout layout = layout_of(p), own = mmf_gpu_instances[kernel->instance].layout;
    if (layout == MMF_GPU_LAYOUT_ANY)
        snprintf(reason, MMF_REASON_TEXT,
                 "needs A and B each with stride 1 along one matrix axis, and along "
                 "the other a stride that keeps rows apart, below 2^23");
    else if (layout != own)
        snprintf(reason, MMF_REASON_TEXT, "is for the layout %s, A and B are %s",
                 mmf_gpu_layout_names[own], mmf_gpu_layout_names[layout]);
    return layout == own;
}

/* Makes the matrix cores as busy as the loop was modelled: 0.89 on gfx942, 0.80 on gfx950. */
enum { IDLE = 64 };

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
    .work = work,
    .gflops_float = MMF_AMD_GFLOPS,
};
