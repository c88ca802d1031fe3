/* The families gemm_thin_splitk (gfx942), gemm_pingpong_splitk (gfx950) and
 * gemm_pingpong_staged_splitk (gfx90a, gfx942): the matrix kernels with K cut into pieces, so that
 * the last wave of tiles leaves no units idle. The waves before it may have tiles whose K is not
 * cut, in a launch of their own: Stream-K's hybrid form (Osama et al., arXiv 2301.03598) with
 * pieces of one length. Path of a call: asked by the plan; splitk.c makes the plan; run() ends in
 * launch_plan.c. */
#include "gpu/amd_tiles.h"
#include "gpu/amd_waves.h"
#include "gpu/describe.h"
#include "gpu/parts.h"
#include "gpu/splitk.h"

#include <stdio.h>

/* More of them take more of the workspace's time than they give. Bytes of sums that the last cache
 * of CDNA3 and CDNA4 keeps. */
enum { PIECES = 16, KEPT = 256 << 20 };

/* What the families differ in. */
typedef struct form {
    mmf_amd_time *tiles;     /* the time of tiles */
    const mmf_family *whole; /* of the waves whose K is not cut; NULL: none */
} form;

/* How a call is cut. */
typedef struct cut {
    int64_t columns;         /* of the waves whose K is not cut; 0: there are none */
    const mmf_kernel *whole; /* their row */
    mmf_splitk sums;         /* of the other columns */
    mmf_work work;           /* of all launches */
} cut;

/* As tile_flops: the time to read the sums, in a launch without products. */
static double time_to_read(const mmf_gpu_part *gpu, const mmf_kernel *kernel, int64_t bytes)
{
    const double rate = !gpu ? 0 : bytes > KEPT ? gpu->reached : gpu->cache;
    return rate > 0 ? (double)bytes / rate * kernel->family->gflops_float * 1e9 : 0;
}

/* Cut K of all tiles into as many pieces as take the least time: one is all of K. False: sums of
 * too many bytes to count. */
static bool cut_k(const form *f, const mmf_kernel *kernel, const mmf_problem *p, cut *c)
{
    const int64_t steps = mmf_gpu_tiles(p->k, kernel->tile_k);
    const int64_t tiles = mmf_amd_tiles(kernel, p), units = mmf_gpu_units(p->device);
    const mmf_gpu_part *gpu = mmf_gpu_part_of(p->device);
    bool found = false;
    for (int64_t pieces = 1; pieces <= PIECES && pieces <= steps; pieces++) {
        mmf_problem piece = *p;
        mmf_splitk l;
        if (!mmf_splitk_lay_out(p, mmf_gpu_tiles(steps, pieces) * kernel->tile_k, &l))
            break;
        piece.k = l.piece < p->k ? l.piece : p->k;
        mmf_work w = {.tiles = (double)(tiles * l.pieces), .launches = 2};
        f->tiles(kernel, &piece, &w);
        if (tiles * l.pieces > units)
            w.tile_flops *= MMF_AMD_DOUBT;
        w.tile_flops += time_to_read(gpu, kernel, l.bytes);
        w.bytes = w.bytes * (double)l.pieces + (double)l.bytes; /* written beside products */
        if (found && w.tile_flops >= c->work.tile_flops)
            continue;
        *c = (cut){.sums = l, .work = w};
        found = true;
    }
    return found;
}

/* Cut K of all tiles, or of those behind whole waves, whichever takes less time. */
static bool cut_of(const form *f, const mmf_kernel *kernel, const mmf_problem *p, cut *best)
{
    const double launch = MMF_LAUNCH_SECONDS * kernel->family->gflops_float * 1e9;
    mmf_problem part = *p;
    const mmf_kernel *row;
    if (!cut_k(f, kernel, p, best))
        return false;
    for (int next = 0; f->whole && (row = mmf_amd_next_row(f->whole, kernel, p, &next));) {
        const int64_t columns = mmf_amd_whole_waves(row, p);
        cut c;
        part.n = p->n - columns;
        if (columns == 0 || !cut_k(f, kernel, &part, &c) || c.sums.pieces == 1)
            continue;
        part.n = columns;
        c.work.tile_flops += mmf_amd_launch_time(f->tiles, row, &part);
        c.work.tile_flops *= MMF_AMD_DOUBT;
        if (c.work.tile_flops + launch >= best->work.tile_flops)
            continue;
        c.work.launches = 3;
        c.columns = columns;
        c.whole = row;
        *best = c;
    }
    return true;
}

static bool supports_form(const form *f, const mmf_kernel *kernel, const mmf_problem *p,
                          char *reason)
{
    cut c;
    if (!mmf_amd_takes_chunks(kernel, p, reason))
        return false;
    const bool fits = cut_of(f, kernel, p, &c);
    if (!mmf_splitk_supports(p, fits ? c.sums.bytes : INT64_MAX, reason))
        return false;
    const int64_t tiles = mmf_amd_tiles(kernel, p), units = mmf_gpu_units(p->device);
    if (c.sums.pieces > 1 || 2 * tiles <= units)
        return true;
    snprintf(reason, MMF_REASON_TEXT,
             "cuts K where that takes less time: %lld tiles are for %lld compute units",
             (long long)tiles, (long long)units);
    return false;
}

static void work_of_form(const form *f, const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    cut c;
    if (p->k > 0 && cut_of(f, kernel, p, &c))
        *w = c.work;
}

/* Of the waves whose K is not cut, if there are any, and of the pieces. */
static mmf_status bind(const mmf_launch_plan *plan, const mmf_problem *problem,
                       const mmf_buffers *buffers, unsigned char *arguments)
{
    mmf_buffers rest = *buffers;
    if (plan->launches == 3) {
        mmf_gemm_args *whole = (mmf_gemm_args *)(arguments + plan->launch[0].argument);
        mmf_gpu_gemm_bind(problem, buffers, whole);
        mmf_amd_columns_from(whole->n, problem, buffers, &rest);
    }
    return mmf_splitk_bind(plan, problem, &rest, arguments);
}

static void configure_form(const form *f, const mmf_kernel *kernel, const mmf_problem *p,
                           mmf_config *config)
{
    mmf_launch_plan *plan = mmf_gpu_gemm_begin(kernel, config);
    mmf_problem part = *p;
    cut c;
    if (mmf_amd_tiles(kernel, p) == 0 || !cut_of(f, kernel, p, &c))
        return; /* what cannot be cut, supports() refused */
    if (c.columns) {
        part.n = c.columns;
        mmf_gpu_gemm_add(plan, c.whole->instance, &part, config->general_epilogue);
    }
    part.n = p->n - c.columns;
    mmf_splitk_add(plan, kernel, &part, &c.sums, config);
    plan->bind = bind;
}

#define FAMILY(NAME, TILES, WHOLE)                                                                 \
    static const form form_of_##NAME = {TILES, WHOLE};                                             \
    static bool supports_##NAME(const mmf_kernel *kernel, const mmf_problem *p, char *reason)      \
    {                                                                                              \
        return supports_form(&form_of_##NAME, kernel, p, reason);                                  \
    }                                                                                              \
    static void work_##NAME(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)           \
    {                                                                                              \
        work_of_form(&form_of_##NAME, kernel, p, w);                                               \
    }                                                                                              \
    static void configure_##NAME(const mmf_kernel *kernel, const mmf_problem *p,                   \
                                 mmf_config *config)                                               \
    {                                                                                              \
        configure_form(&form_of_##NAME, kernel, p, config);                                        \
    }                                                                                              \
    const mmf_family mmf_gpu_##NAME = {                                                            \
        .name = "gemm_" #NAME,                                                                     \
        .features = MMF_GPU_EPILOGUE_FEATURES,                                                     \
        .dtypes = MMF_GPU_EPILOGUE_DTYPES,                                                         \
        .supports = supports_##NAME,                                                               \
        .configure = configure_##NAME,                                                             \
        .run = mmf_gpu_gemm_run,                                                                   \
        .rows_independent_of_m = false, /* how K is cut depends on the tiles */                    \
        .work = work_##NAME,                                                                       \
        .gflops_float = MMF_AMD_GFLOPS,                                                            \
    }

FAMILY(thin_splitk, mmf_amd_thin_work, NULL);
FAMILY(pingpong_splitk, mmf_amd_pingpong_work, &mmf_gpu_pingpong);
FAMILY(pingpong_staged_splitk, mmf_amd_pingpong_work, &mmf_gpu_pingpong_staged);
