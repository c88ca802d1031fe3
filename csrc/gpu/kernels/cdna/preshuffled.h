/* B in the prepacked layout "preshuffle_16x16" of 16-bit elements: blocks of 16 columns, each with
 * all of its k: chunks of 8 k, 16 bytes, of column after column, then those of the next 8 k. So a
 * wave's fragment, 16 columns by 32 k, is 1 KB without a gap, a chunk a lane. N is whole blocks, K
 * whole fragments. Path of a call: where gemm_thin, gemm_pingpong and gemm_pingpong_staged load B.
 */
#ifndef MMF_CDNA_PRESHUFFLED_H
#define MMF_CDNA_PRESHUFFLED_H

#include "gpu/kernels/common/amd.h"

enum { BLOCK_COLUMNS = 16, BLOCK_K_BYTES = BLOCK_COLUMNS * 2 }; /* of all columns of a block */

/* Bytes from the begin of a block of columns to a chunk: k is a multiple of 8. */
MMF_DEVICE unsigned place_in_block(unsigned column, unsigned k)
{
    return column % BLOCK_COLUMNS * 16 + k * BLOCK_K_BYTES;
}

#endif
