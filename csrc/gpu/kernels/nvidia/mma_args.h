/* How the kernels gemm_mma and gemm_fma lay out their dynamic shared memory: read by the host (C11)
 * and by device code (C++). Their argument is mmf_gemm_args. Path of a call: from configure() of
 * gpu/gemm_mma.c and gpu/gemm_fma.c to the kernels. */
#ifndef MMF_MMA_ARGS_H
#define MMF_MMA_ARGS_H

/* Of gemm_mma: bytes of k that a stage has, of every line of A and B; stages in memory at once. */
enum { MMF_MMA_LINE = 128, MMF_MMA_STAGES = 3 };

/* Of gemm_fma: stages in memory at once. One has tile_k of each line. */
enum { MMF_FMA_STAGES = 6 };

/* Lines of sums, and rows of gemm_fma's stages, are so many elements longer than the tile, so that
 * columns lie in several banks. */
enum { MMF_MMA_PADDING = 4 };

/* The stages, then, in the same place, the sums. */
#define MMF_MMA_STAGE_BYTES(tile_m, tile_n) (((tile_m) + (tile_n)) * MMF_MMA_LINE)
#define MMF_FMA_STAGE_BYTES(tile_m, tile_n, tile_k)                                                \
    (((tile_m) + (tile_n) + 2 * MMF_MMA_PADDING) * (tile_k) * 4)
#define MMF_MMA_SUM_BYTES(tile_m, tile_n, sum_bytes)                                               \
    ((tile_m) * ((tile_n) + MMF_MMA_PADDING) * (sum_bytes))
#define MMF_MMA_MOST(a, b) ((a) > (b) ? (a) : (b))
#define MMF_MMA_BYTES(tile_m, tile_n, sum_bytes)                                                   \
    MMF_MMA_MOST(MMF_MMA_STAGES *MMF_MMA_STAGE_BYTES(tile_m, tile_n),                              \
                 MMF_MMA_SUM_BYTES(tile_m, tile_n, sum_bytes))
#define MMF_FMA_BYTES(tile_m, tile_n, tile_k)                                                      \
    MMF_MMA_MOST(MMF_FMA_STAGES *MMF_FMA_STAGE_BYTES(tile_m, tile_n, tile_k),                      \
                 MMF_MMA_SUM_BYTES(tile_m, tile_n, 4))

#endif
