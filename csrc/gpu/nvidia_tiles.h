/* What gemm_mma, gemm_fma and their split forms share: which problems their tiles take, what a tile
 * takes, measured. Path of a call: under supports(), work() and configure() of both. */
#ifndef MMF_GPU_NVIDIA_TILES_H
#define MMF_GPU_NVIDIA_TILES_H

#include "gpu/gemm.h"

/* Is there code, shared memory enough besides the static one, and strides that the kernels can
 * count with? False with the reason. */
bool mmf_nvidia_tiles_supports(const mmf_kernel *kernel, const mmf_problem *problem,
                               uint32_t dynamic_bytes, char *reason);

/* Microseconds of a compute unit: a step of tile_k with one tile on the unit, and a tile's share of
 * a step with as many tiles as it runs at once; what the first turn takes besides, and those after
 * it. slow: how many times as long steps take whose elements are not copied in units of 16 bytes.
 * resident: workgroups that a unit runs at once. dtype: of A, FLOAT16 for BFLOAT16 too. */
typedef struct mmf_tile_time {
    mmf_dtype dtype;
    int tile_m, tile_n;
    double alone, shared, first, later, slow;
    int resident;
} mmf_tile_time;

/* Set *work to one tile whose operations take, at `gflops`, what the row of this kernel says. */
void mmf_nvidia_tiles_work(const mmf_tile_time *rows, size_t count, double gflops,
                           const mmf_kernel *kernel, const mmf_problem *problem, mmf_work *work);

/* Set *work to one tile whose operations take so long at `gflops`. */
void mmf_nvidia_set_microseconds(mmf_work *work, double microseconds, double gflops);

/* What the general epilogue takes beside what the times of tiles contain. */
double mmf_nvidia_general_seconds(const mmf_problem *problem);

/* Add it to the work of a kernel that has it where the one in registers is refused. Nothing on
 * other vendors' GPUs. */
void mmf_nvidia_add_epilogue(const mmf_problem *problem, mmf_work *work, double gflops);

/* What B takes from memory, or the weights of a gate: where kernels wait for it, what they do
 * before and after comes on top. */
double mmf_nvidia_b_seconds(const mmf_problem *problem);

/* One launch, a workgroup for each tile, with so many bytes of shared memory besides the static
 * ones. */
void mmf_nvidia_tiles_configure(const mmf_kernel *kernel, const mmf_problem *problem,
                                uint32_t dynamic_bytes, mmf_config *config);

/* --- the same for gemm_mma_split and gemm_fma_split, where the workgroups of a cluster share a
 * tile, each a part of k; how many: the fewest that take the least time --- */

/* Besides what mmf_nvidia_tiles_supports() says: are there clusters, and few tiles? */
bool mmf_nvidia_split_supports(const mmf_tile_time *rows, size_t count, const mmf_kernel *kernel,
                               const mmf_problem *problem, uint32_t dynamic_bytes, char *reason);

void mmf_nvidia_split_work(const mmf_tile_time *rows, size_t count, double gflops,
                           const mmf_kernel *kernel, const mmf_problem *problem, mmf_work *work);

void mmf_nvidia_split_configure(const mmf_tile_time *rows, size_t count, const mmf_kernel *kernel,
                                const mmf_problem *problem, uint32_t dynamic_bytes,
                                mmf_config *config);

#endif
