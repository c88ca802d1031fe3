/* How the threads of gemm_gemv share a tile, and their loads. Path of a call: under gemm_gemv.hip.
 */
#ifndef MMF_NVIDIA_GEMV_H
#define MMF_NVIDIA_GEMV_H

#include "gpu/kernels/common/run.h"
#include "gpu/kernels/common/tile.h"
#include "gpu/kernels/nvidia/ring.h"

typedef this_row row;
typedef run<row::operands> form;

enum {
    WARP = 32,
    WARPS = row::threads / WARP,
    RUN = form::count,                       /* elements of 16 bytes */
    ALONG_K = row::layout == LAYOUT_NT,      /* B's lines */
    COLUMNS = ALONG_K ? 4 : (int)RUN,        /* of a lane */
    LANES = ALONG_K ? 1 : row::tile_n / RUN, /* of a warp, with columns of their own */
    PARTS = ALONG_K ? WARPS * COLUMNS / row::tile_n : (int)WARPS, /* of k, a warp each */
    ACROSS = WARP / LANES * RUN, /* k of one load of a warp; B along n: of RUN loads */
    AT_ONCE = row::tile_k / (PARTS * ACROSS),
    LINE = 128, /* bytes of a line of the last cache */
};
static_assert(row::layout == LAYOUT_NT || row::layout == LAYOUT_NN, "lines of A along k");
static_assert(AT_ONCE * PARTS * ACROSS == row::tile_k && AT_ONCE > 0, "kernels.def");
static_assert(row::tile_n % (4 * COLUMNS) == 0, "half a tile, of a gate, is whole lanes");

/* 16 bytes that are read once: not kept in the first cache. In order with the others. */
MMF_DEVICE mmf_uint4 load_once(const char *at)
{
    mmf_uint4 bits;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"((MMF_GLOBAL const char *)at));
    return bits;
}

#endif
