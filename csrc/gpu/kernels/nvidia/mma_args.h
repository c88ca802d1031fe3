/* How the kernels gemm_mma and gemm_fma lay out their dynamic shared memory: read by the host (C11)
 * and by device code (C++). Their argument is mmf_gemm_args. Path of a call: from configure() of
 * gpu/gemm_mma.c and gpu/gemm_fma.c to the kernels. */
#ifndef MMF_MMA_ARGS_H
#define MMF_MMA_ARGS_H

/* Bytes of k that a step multiplies, of every line of A and B; steps in memory at once. */
enum { MMF_MMA_LINE = 128, MMF_MMA_STAGES = 3 };

/* Lines of sums are so many elements longer than the tile, so that columns lie in several banks. */
enum { MMF_MMA_PADDING = 4 };

/* The stages, then, in the same place, the sums. */
#define MMF_MMA_STAGE_BYTES(tile_m, tile_n) (((tile_m) + (tile_n)) * MMF_MMA_LINE)
#define MMF_MMA_SUM_BYTES(tile_m, tile_n, sum_bytes)                                               \
    ((tile_m) * ((tile_n) + MMF_MMA_PADDING) * (sum_bytes))
#define MMF_MMA_MOST(a, b) ((a) > (b) ? (a) : (b))
#define MMF_MMA_BYTES(tile_m, tile_n, sum_bytes)                                                   \
    MMF_MMA_MOST(MMF_MMA_STAGES *MMF_MMA_STAGE_BYTES(tile_m, tile_n),                              \
                 MMF_MMA_SUM_BYTES(tile_m, tile_n, sum_bytes))

/* Of gemm_fma: a stage has rows of k, which are padded like lines of sums. */
#define MMF_FMA_BYTES(tile_m, tile_n)                                                              \
    MMF_MMA_MOST(MMF_MMA_STAGES *MMF_MMA_STAGE_BYTES((tile_m) + MMF_MMA_PADDING,                   \
                                                     (tile_n) + MMF_MMA_PADDING),                  \
                 MMF_MMA_SUM_BYTES(tile_m, tile_n, 4))

#endif
