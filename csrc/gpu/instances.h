/* The host's view of kernels/kernels.def: one entry per instance of a kernel. Path of a call: the
 * rows choose one, the launch reads its sizes. */
#ifndef MMF_GPU_INSTANCES_H
#define MMF_GPU_INSTANCES_H

#include "problem/tensor.h"

enum { /* index of an instance */
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    MMF_GPU_##name,
#include "gpu/kernels/kernels.def"
#undef MMF_GPU_KERNEL
       MMF_GPU_INSTANCES
};

/* Which index of A and of B has stride 1. */
typedef enum mmf_gpu_layout {
    MMF_GPU_LAYOUT_ANY,
    MMF_GPU_LAYOUT_NN, /* A: k, B: n */
    MMF_GPU_LAYOUT_NT, /* A: k, B: k */
    MMF_GPU_LAYOUT_TN, /* A: m, B: n */
    MMF_GPU_LAYOUT_TT, /* A: m, B: k */
} mmf_gpu_layout;

typedef struct mmf_gpu_instance {
    const char *name; /* of the kernel and of its object */
    const char *family;
    mmf_dtype operands;
    mmf_gpu_layout layout;
    int tile_m, tile_n, tile_k; /* tile_n counts columns of z */
    int threads;
} mmf_gpu_instance;

extern const mmf_gpu_instance mmf_gpu_instances[MMF_GPU_INSTANCES];

#endif
