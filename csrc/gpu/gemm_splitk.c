/* The families gemm_thin_splitk (gfx942), gemm_pingpong_splitk (gfx950) and
 * gemm_pingpong_staged_splitk (gfx90a, gfx942): the matrix kernels with K cut into pieces, for
 * fewer tiles than units. Path of a call: asked by the plan; splitk.c makes the plan; run() ends in
 * launch_plan.c. */
#include "gpu/amd_tiles.h"
#include "gpu/describe.h"
#include "gpu/splitk.h"

#include <stdio.h>

/* More of them take more of the workspace's time than they give. */
enum { PIECES = 16 };

static double tiles_of(const mmf_kernel *kernel, const mmf_problem *p)
{
    const int64_t columns = mmf_problem_gated(p) ? kernel->tile_n / 2 : kernel->tile_n;
    return (double)mmf_gpu_tiles(p->m, kernel->tile_m) * (double)mmf_gpu_tiles(p->n, columns) *
           (double)mmf_gpu_batches(p);
}

/* Products of a piece, whole steps of the tile: as many pieces as leave no unit more than one. It
 * depends on the shape and the device. */
static int64_t piece_of(const mmf_kernel *kernel, const mmf_problem *p)
{
    const double tiles = tiles_of(kernel, p), units = mmf_gpu_units(p->device);
    int64_t pieces = 1;
    while (pieces < PIECES && tiles * (double)(pieces + 1) <= units)
        pieces++;
    return mmf_gpu_tiles(mmf_gpu_tiles(p->k, kernel->tile_k), pieces) * kernel->tile_k;
}

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (!mmf_amd_takes_chunks(kernel, p, reason) ||
        !mmf_splitk_supports(p, piece_of(kernel, p), reason))
        return false;
    const double tiles = tiles_of(kernel, p), units = mmf_gpu_units(p->device);
    if (2 * tiles > units)
        snprintf(reason, MMF_REASON_TEXT,
                 "cuts K where tiles are no more than half of the %.0f compute units, it has %.0f",
                 units, tiles);
    return 2 * tiles <= units;
}

/* Let w be the time of the pieces of all tiles, which of_tiles tells of whole ones. */
static void work_of_pieces(void (*of_tiles)(const mmf_kernel *, const mmf_problem *, mmf_work *),
                           const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_problem piece = *p;
    mmf_splitk l;
    if (p->k == 0 || !mmf_splitk_lay_out(p, piece_of(kernel, p), &l))
        return;
    piece.k = l.piece < p->k ? l.piece : p->k;
    w->tiles *= (double)l.pieces;
    of_tiles(kernel, &piece, w);
    w->bytes *= (double)l.pieces;
    mmf_splitk_work(&l, w);
}

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    work_of_pieces(mmf_amd_pingpong_work, kernel, p, w);
}

static void thin_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    work_of_pieces(mmf_amd_thin_work, kernel, p, w);
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_splitk_configure(kernel, p, piece_of(kernel, p), config);
}

#define FAMILY(NAME, WORK)                                                                         \
    const mmf_family mmf_gpu_##NAME = {                                                            \
        .name = "gemm_" #NAME,                                                                     \
        .features = MMF_GPU_EPILOGUE_FEATURES,                                                     \
        .dtypes = MMF_GPU_EPILOGUE_DTYPES,                                                         \
        .supports = supports,                                                                      \
        .configure = configure,                                                                    \
        .run = mmf_gpu_gemm_run,                                                                   \
        .rows_independent_of_m = false, /* k is split where tiles are few */                       \
        .work = WORK,                                                                              \
        .gflops_float = MMF_AMD_GFLOPS,                                                            \
    }

FAMILY(thin_splitk, thin_work);
FAMILY(pingpong_splitk, work);
FAMILY(pingpong_staged_splitk, work);
