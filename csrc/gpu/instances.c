/* The tables of GPU kernels, from kernels/common/kernels.def. Path of a call: see instances.h. */
#include "gpu/instances.h"

#include <stddef.h>

const char *const mmf_gpu_layout_names[] = {"any", "NN", "NT", "TN", "TT", "NP"};

/* The type of device that runs a target; ALL is for every one. */
enum {
    GFX90A = 1 << MMF_ROCM,
    GFX942 = 1 << MMF_ROCM,
    GFX950 = 1 << MMF_ROCM,
    GFX1100 = 1 << MMF_ROCM,
    GFX1201 = 1 << MMF_ROCM,
    SM_80 = 1 << MMF_CUDA,
    SM_90A = 1 << MMF_CUDA,
    ALL = 1 << MMF_ROCM | 1 << MMF_CUDA,
};

#define MMF_GPU_STEP(name, source, operands, tile_m, tile_n, tile_k, threads, lds, layout, targets)
const mmf_kernel mmf_gpu_kernels[MMF_GPU_KERNELS] = {
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    {#name,                                                                                        \
     &mmf_gpu_##family,                                                                            \
     MMF_GPU_##name,                                                                               \
     targets,                                                                                      \
     MMF_DTYPE_BIT(MMF_##operands),                                                                \
     tile_m,                                                                                       \
     tile_n,                                                                                       \
     tile_k},
#include "gpu/kernels/common/kernels.def"
#undef MMF_GPU_KERNEL
};

enum { /* index into mmf_gpu_kernels */
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    KERNEL_##name,
#include "gpu/kernels/common/kernels.def"
#undef MMF_GPU_KERNEL
};
#undef MMF_GPU_STEP

#define INSTANCE(name, family, kernel, operands, tile_m, tile_n, tile_k, threads, lds, layout,     \
                 targets)                                                                          \
    {#name,   family, kernel,  MMF_##operands, tile_m, tile_n, tile_k, MMF_GPU_LAYOUT_##layout,    \
     threads, lds,    #targets},

const mmf_gpu_instance mmf_gpu_instances[MMF_GPU_INSTANCES] = {
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    INSTANCE(name, "gemm_" #family, &mmf_gpu_kernels[KERNEL_##name], operands, tile_m, tile_n,     \
             tile_k, threads, lds, layout, targets)
#define MMF_GPU_STEP(name, source, operands, tile_m, tile_n, tile_k, threads, lds, layout,         \
                     targets)                                                                      \
    INSTANCE(name, #source, NULL, operands, tile_m, tile_n, tile_k, threads, lds, layout, targets)
#include "gpu/kernels/common/kernels.def"
#undef MMF_GPU_KERNEL
#undef MMF_GPU_STEP
};
