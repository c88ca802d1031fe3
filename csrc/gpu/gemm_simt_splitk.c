/* The family gemm_simt_splitk: the generic kernel with K cut into pieces, for few tiles and a long
 * K. Path of a call: asked by the plan; splitk.c makes the plan; run() ends in launch_plan.c. */
#include "gpu/nvidia_tiles.h"
#include "gpu/splitk.h"

#define GFLOPS 100 /* of a compute unit: as gemm_simt */

/* Products of a piece: from 64 on, doubled until there are 32 pieces at most. It depends on K
 * alone: so do the bits of a row. */
enum { SHORTEST = 64, PIECES = 32 };

static int64_t piece_of(const mmf_problem *p)
{
    int64_t piece = SHORTEST;
    while (mmf_gpu_tiles(p->k, piece) > PIECES)
        piece *= 2;
    return piece;
}

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    mmf_splitk l;
    const bool counts = mmf_splitk_lay_out(p, piece_of(p), &l);
    return mmf_gpu_gemm_supports(kernel, p, reason) &&
           mmf_splitk_supports(p, counts ? l.bytes : INT64_MAX, reason);
}

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    mmf_splitk l;
    if (p->k == 0 || !mmf_splitk_lay_out(p, piece_of(p), &l))
        return;
    w->tiles *= (double)l.pieces;
    w->tile_flops =
        2.0 * kernel->tile_m * kernel->tile_n * (double)(l.piece < p->k ? l.piece : p->k);
    mmf_splitk_work(&l, w);
    mmf_nvidia_add_epilogue(p, w, GFLOPS);
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_splitk_configure(kernel, p, piece_of(p), config);
}

const mmf_family mmf_gpu_simt_splitk = {
    .name = "gemm_simt_splitk",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .work = work,
    .rows_independent_of_m = true,
    .gflops_float = GFLOPS,
};
