/* The families gemm_pingpong (gfx950) and gemm_pingpong_staged (gfx90a, gfx942): matrix cores,
 * whole chunks of 16 bytes. Path of a call: asked by the plan; run() ends in launch_plan.c. */
#include "gpu/amd_tiles.h"
#include "gpu/amd_waves.h"
#include "gpu/reorder.h"

#include <stdio.h>

/* Bytes of a chunk, and those that the 31 bits of an offset reach. */
enum { CHUNK = 16, REACH = 0x7ffffff0, TILE_LINES = 256 };

static int element_of(const mmf_problem *p)
{
    return mmf_dtypes[p->dtype[MMF_A]].size;
}

/* Whole chunks of `length` elements of so many bytes, `unit` apart, in lines `pitch` apart of which
 * `reached` ones lie within reach of an offset. */
static bool in_chunks(int size, int64_t length, int64_t unit, int64_t lines, int64_t pitch,
                      int64_t reached)
{
    const int64_t run = CHUNK / size, most = REACH / size;
    return unit == 1 && length % run == 0 && length <= most &&
           (lines <= 1 || (pitch >= 0 && pitch % run == 0 &&
                           pitch <= (most - length) / (reached < lines ? reached : lines)));
}

static bool a_in_chunks(const mmf_problem *p)
{
    const mmf_strides *s = &p->strides[MMF_A];
    return in_chunks(element_of(p), p->k, s->col, p->m, s->row, TILE_LINES) &&
           mmf_gpu_aligned(p, MMF_A);
}

/* Rows of B: a tile reaches all of them, and those of a gate have one pitch. */
static bool b_in_chunks(const mmf_problem *p, bool along_k)
{
    const bool gated = mmf_problem_gated(p);
    for (int i = MMF_B; i <= (gated ? MMF_B_UP : MMF_B); i++) {
        const mmf_strides *s = &p->strides[i];
        const int size = element_of(p);
        const bool fits = along_k ? in_chunks(size, p->k, s->row, p->n, s->col, TILE_LINES)
                                  : in_chunks(size, p->n, s->col, p->k, s->row, p->k);
        if (!fits || !mmf_gpu_aligned(p, i))
            return false;
    }
    return along_k || !gated || p->strides[MMF_B].row == p->strides[MMF_B_UP].row;
}

/* A row of layout NP has preshuffled weights alone, the others none; they are whole chunks. */
static bool takes_preshuffled(bool of_row, const mmf_problem *p, char *reason)
{
    const int last = mmf_problem_gated(p) ? MMF_B_UP : MMF_B;
    bool fits = a_in_chunks(p) && p->k <= REACH / TILE_LINES;
    for (int i = MMF_B; i <= last; i++)
        fits = fits && p->offset[i] % MMF_PRESHUFFLED_ALIGN == 0;
    if (!of_row || !p->packed)
        snprintf(reason, MMF_REASON_TEXT, "is for %s",
                 of_row ? "B in the layout preshuffle_16x16" : "plain B, it is preshuffled");
    else if (!fits)
        snprintf(reason, MMF_REASON_TEXT,
                 "needs A in lines of whole 16 bytes along K at multiples of 16 bytes, 256 of them "
                 "within 2^31 bytes, and K up to %d",
                 REACH / TILE_LINES);
    return of_row && p->packed && fits;
}

bool mmf_amd_takes_chunks(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (!mmf_gpu_gemm_supports(kernel, p, reason))
        return false;
    const int run = CHUNK / element_of(p);
    if (p->k == 0 || p->k % run) {
        snprintf(reason, MMF_REASON_TEXT, "needs K to be a multiple of %d and not 0, K is %lld",
                 run, (long long)p->k);
        return false;
    }
    if (kernel->tile_n % 3 == 0 && mmf_problem_gated(p)) {
        snprintf(reason, MMF_REASON_TEXT,
                 "takes no gate: its waves have three groups of columns, gate and up are two");
        return false;
    }
    const mmf_gpu_layout layout = mmf_gpu_instances[kernel->instance].layout;
    if (p->packed || layout == MMF_GPU_LAYOUT_NP)
        return takes_preshuffled(layout == MMF_GPU_LAYOUT_NP, p, reason);
    const bool along_k = layout == MMF_GPU_LAYOUT_NT;
    const bool fits = a_in_chunks(p) && b_in_chunks(p, along_k);
    if (!fits && a_in_chunks(p) && b_in_chunks(p, !along_k))
        snprintf(reason, MMF_REASON_TEXT, "is for the layout %s, A and B are %s",
                 along_k ? "NT" : "NN", along_k ? "NN" : "NT");
    else if (!fits)
        snprintf(
            reason, MMF_REASON_TEXT,
            "needs A, and B, in lines of whole 16 bytes at multiples of 16 bytes, A's along K, "
            "and 256 lines (NN: all of B) within 2^31 bytes");
    return fits;
}

/* The instructions between the products of two waves: bench/AMD_MODEL.md. */
enum { IDLE = 12 };

void mmf_amd_pingpong_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_amd_tiles_work(IDLE, kernel, p, w);
}

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_amd_waves_work(mmf_amd_pingpong_work, kernel, p, w);
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_amd_waves_configure(mmf_amd_pingpong_work, kernel, p, config);
}

const mmf_family mmf_gpu_pingpong = {
    .name = "gemm_pingpong",
    .features = MMF_GPU_EPILOGUE_FEATURES | MMF_HAS(MMF_FEATURE_PACKED),
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = mmf_amd_takes_chunks,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_float = MMF_AMD_GFLOPS,
};

const mmf_family mmf_gpu_pingpong_staged = {
    .name = "gemm_pingpong_staged",
    .features = MMF_GPU_EPILOGUE_FEATURES | MMF_HAS(MMF_FEATURE_PACKED),
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = mmf_amd_takes_chunks,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = true,
    .same_bits = true,
    .work = work,
    .gflops_float = MMF_AMD_GFLOPS,
};
