/* How the tiles of gemm_wgmma share a GPU, and what they take. Path of a call: under work() and
 * configure() of gemm_wgmma.c. */
#ifndef MMF_GPU_WGMMA_TIME_H
#define MMF_GPU_WGMMA_TIME_H

#include "gpu/gemm.h"

/* log2 of the workgroups that share a tile, each a part of k. */
int mmf_wgmma_parts_log(const mmf_kernel *kernel, const mmf_problem *problem);

/* Columns of B that each warpgroup of a tile of fewer than 128 rows has, where sums go to out by
 * tensor copies. */
uint32_t mmf_wgmma_width(const mmf_kernel *kernel, const mmf_problem *problem, int parts_log);

/* Do two workgroups, one above the other, share B, where none has a part of k? */
bool mmf_wgmma_shares_b(const mmf_kernel *kernel, const mmf_problem *problem);

/* Does a kernel finish its tiles with the general epilogue? One of ping-pong hides the other behind
 * the products of another tile. */
bool mmf_wgmma_is_general(const mmf_kernel *kernel, const mmf_problem *problem);

/* Tiles run down groups of so many rows of clusters. */
unsigned mmf_wgmma_group_rows(const mmf_problem *problem);

/* Of the product's launch; 0: the GPU is not known. */
double mmf_wgmma_seconds(const mmf_kernel *kernel, const mmf_problem *problem, double tiles);

#endif
