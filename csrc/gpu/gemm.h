/* What the families of GEMM kernels share: the checks that all of them make, and a problem as the
 * argument and the grid of one launch. Path of a call: under supports() and configure() of the
 * families. */
#ifndef MMF_GPU_GEMM_H
#define MMF_GPU_GEMM_H

#include "gpu/kernels/common/gemm_args.h"
#include "gpu/launch_plan.h"

/* What a kernel that ends in the general epilogue, kernels/common/epilogue_general.h, implements.
 */
#define MMF_GPU_EPILOGUE_FEATURES                                                                  \
    (MMF_HAS(MMF_A) | MMF_HAS(MMF_B) | MMF_HAS(MMF_B_UP) | MMF_HAS(MMF_BIAS) |                     \
     MMF_HAS(MMF_BIAS_UP) | MMF_HAS(MMF_C) | MMF_HAS(MMF_C_UP) | MMF_HAS(MMF_MULTIPLY) |           \
     MMF_HAS(MMF_PREACTIVATION) | MMF_HAS(MMF_PREACTIVATION_UP) | MMF_HAS(MMF_OUT) |               \
     MMF_HAS(MMF_FEATURE_GATED) | MMF_HAS(MMF_FEATURE_IMMEDIATES))
#define MMF_GPU_EPILOGUE_DTYPES                                                                    \
    (MMF_DTYPE_BIT(MMF_FLOAT32) | MMF_DTYPE_BIT(MMF_FLOAT64) | MMF_DTYPE_BIT(MMF_FLOAT16) |        \
     MMF_DTYPE_BIT(MMF_BFLOAT16))

/* Is there code of an instance for the problem's GPU? False with the reason. */
bool mmf_gpu_gemm_has(const mmf_problem *problem, int instance, char *reason);

/* Is there code for the GPU, and can a grid count the tiles? */
bool mmf_gpu_gemm_supports(const mmf_kernel *kernel, const mmf_problem *problem, char *reason);

/* May the sums be truncated, as matrix instructions of NVIDIA do? False with the reason. They lose
 * 3 u of the sum for each 16 products of float16 that have one sign, 1.5 u of bfloat16 (u = 2^-24;
 * measured on an H200). Those of RDNA: see gemm_wmma.c. */
bool mmf_gpu_gemm_may_truncate(const mmf_problem *problem, char *reason);

/* Tiles along one axis. */
static inline int64_t mmf_gpu_tiles(int64_t length, int64_t tile)
{
    return length / tile + (length % tile != 0);
}

/* Does every matrix of an operand begin at a multiple of 16 bytes? */
bool mmf_gpu_aligned(const mmf_problem *problem, int operand);

int64_t mmf_gpu_batches(const mmf_problem *problem);

/* Set the tile of config, and begin its plan. */
mmf_launch_plan *mmf_gpu_gemm_begin(const mmf_kernel *kernel, mmf_config *config);

/* Fill all but the addresses and first_tile of an argument that is 0, for the tiles of an instance.
 * general: not the epilogue in registers. */
void mmf_gpu_gemm_arguments(int instance, const mmf_problem *problem, bool general,
                            mmf_gemm_args *args);

/* Put the addresses of a call, and its immediates, into an argument. */
void mmf_gpu_gemm_bind(const mmf_problem *problem, const mmf_buffers *buffers, mmf_gemm_args *args);

/* Tiles of all matrices of the batch. */
int64_t mmf_gpu_gemm_tiles(const mmf_problem *problem, const mmf_gemm_args *args);

/* Add a launch of an instance with a workgroup for each of its tiles, batch by batch: sizes,
 * operands and epilogue are those of the problem. */
mmf_launch *mmf_gpu_gemm_add(mmf_launch_plan *plan, int instance, const mmf_problem *problem,
                             bool general_epilogue);

/* bind() of plans whose first launch alone has a mmf_gemm_args. */
mmf_status mmf_gpu_gemm_bind_one(const mmf_launch_plan *plan, const mmf_problem *problem,
                                 const mmf_buffers *buffers, unsigned char *arguments);

/* One launch, a workgroup for each tile. */
void mmf_gpu_gemm_configure(const mmf_kernel *kernel, const mmf_problem *problem,
                            mmf_config *config);

mmf_status mmf_gpu_gemm_run(const mmf_problem *problem, const mmf_config *config,
                            const mmf_buffers *buffers, mmf_interrupt *interrupt);

#endif
