/* The argument of the kernels gemm_wgmma, by value, and how they lay out their dynamic shared
 * memory: read by the host (C11) and by device code (C++). Path of a call: from gpu/gemm_wgmma.c to
 * the kernel. */
#ifndef MMF_WGMMA_ARGS_H
#define MMF_WGMMA_ARGS_H

#include "gpu/kernels/common/gemm_args.h"

/* CUtensorMap of the driver API. */
typedef struct mmf_tensor_map {
    __attribute__((aligned(64))) unsigned char opaque[128];
} mmf_tensor_map;

/* A cluster is 1 << cluster_log workgroups. Either they have neighbouring tiles along m and share
 * the columns of B, of which each of them loads a part; gemm.tiles_m counts clusters. Or, of tiles
 * of fewer than 128 rows, they share a tile, and each multiplies one of 1 << parts_log parts of k.
 * A batch index that an operand does not have is 0. */
typedef struct mmf_wgmma_args {
    mmf_gemm_args gemm;
    mmf_tensor_map a, b, b_up, out;
    unsigned cluster_log, parts_log;
    unsigned group_rows; /* of clusters, down which tiles run */
    unsigned width;      /* columns of B that are loaded at once: a half of a tile's, at most */
    unsigned char a_batched, b_batched, b_up_batched;
    unsigned char out_by_copies; /* of tiles of fewer than 128 rows: swapped_epilogue.h */
} mmf_wgmma_args;

/* Bytes of a swizzled line. */
enum { MMF_WGMMA_LINE = 128, MMF_WGMMA_CONSUMERS = 2 };
/* Rows of a tile; where it has fewer, B is the tall operand. */
enum { MMF_WGMMA_TALL_ROWS = 64 * MMF_WGMMA_CONSUMERS };
/* Does a workgroup take one tile after the other? Else it has one, as always of float32. */
#define MMF_WGMMA_TAKES_TURNS(tile_m, tile_k, args)                                                \
    ((tile_m) < MMF_WGMMA_TALL_ROWS                                                                \
         ? (args).out_by_copies && !(args).parts_log                                               \
         : (tile_k) * 4 != MMF_WGMMA_LINE && (args).gemm.epilogue != MMF_EPILOGUE_GENERAL)
enum { MMF_WGMMA_STORE_BYTES = 64 * 128 }; /* 64 rows of a line each, on their way to out */
/* Rows of a box of out: of a warp of tiles of 128 rows, and of tiles of fewer. */
enum { MMF_WGMMA_WARP_ROWS = 16, MMF_WGMMA_STORED_ROWS = 8 };
enum { MMF_WGMMA_BIAS_BYTES = (256 + 16) * 4 }; /* of 256 columns: fragment_epilogue.h */
enum { MMF_WGMMA_PLACE_COUNT = 16, MMF_WGMMA_PLACE_BYTES = 16 }; /* of tiles: wgmma_tile.h */
enum { MMF_WGMMA_SHARED_BYTES = 227 * 1024 };                    /* of a unit for one workgroup */

/* Bytes, in this order: the bias of the tile's columns for each consumer; the ring's barriers and
 * that of the sums of other parts of k; the matrices of a tile, or of a tile for each consumer; the
 * places of tiles; store buffers; stages of A and B, as many as fit.
 * Columns of a tile in multiples of 64: two store buffers for each consumer, of a swizzled line's
 * columns; swapped_epilogue.h has the sums of other parts there. In multiples of 32: one for each
 * consumer, of half of the columns. Else one for both, of all columns. */
#define MMF_WGMMA_BIASES 0
#define MMF_WGMMA_BARRIERS (MMF_WGMMA_BIASES + MMF_WGMMA_CONSUMERS * MMF_WGMMA_BIAS_BYTES)
#define MMF_WGMMA_SHARED_BARRIER (MMF_WGMMA_BARRIERS + 248)
#define MMF_WGMMA_MATRICES (MMF_WGMMA_BARRIERS + 256)
#define MMF_WGMMA_PLACES (MMF_WGMMA_MATRICES + MMF_WGMMA_CONSUMERS * 128)
#define MMF_WGMMA_STORES                                                                           \
    ((MMF_WGMMA_PLACES + MMF_WGMMA_PLACE_COUNT * MMF_WGMMA_PLACE_BYTES + 1023) / 1024 * 1024)
#define MMF_WGMMA_STORED_COLUMNS(tile_n)                                                           \
    ((tile_n) % 64 == 0 ? 64 : (tile_n) % 32 ? (tile_n) : (tile_n) / 2)
#define MMF_WGMMA_RING(tile_n)                                                                     \
    (MMF_WGMMA_STORES + ((tile_n) % 64 ? 4 * MMF_WGMMA_WARP_ROWS * 2 * (tile_n)                    \
                                       : MMF_WGMMA_CONSUMERS * 2 * MMF_WGMMA_STORE_BYTES))
#define MMF_WGMMA_STAGE_BYTES(tile_m, tile_n) (((tile_m) + (tile_n)) * MMF_WGMMA_LINE)
#define MMF_WGMMA_STAGES(tile_m, tile_n)                                                           \
    ((MMF_WGMMA_SHARED_BYTES - MMF_WGMMA_RING(tile_n)) / MMF_WGMMA_STAGE_BYTES(tile_m, tile_n))
#define MMF_WGMMA_BYTES(tile_m, tile_n)                                                            \
    (MMF_WGMMA_RING(tile_n) +                                                                      \
     MMF_WGMMA_STAGES(tile_m, tile_n) * MMF_WGMMA_STAGE_BYTES(tile_m, tile_n))

#endif
