/* The host's view of kernels/common/kernels.def: every instance, by number, and those of them that
 * are GEMMs as the plan sees them. Path of a call: the plan chooses one, the launch reads its
 * sizes.
 */
#ifndef MMF_GPU_INSTANCES_H
#define MMF_GPU_INSTANCES_H

#include "problem/kernel.h"

enum { /* index of an instance */
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    MMF_GPU_##name,
#define MMF_GPU_STEP MMF_GPU_KERNEL
#include "gpu/kernels/common/kernels.def"
#undef MMF_GPU_KERNEL
#undef MMF_GPU_STEP
       MMF_GPU_INSTANCES
};

enum { /* GEMMs */
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    +1
#define MMF_GPU_STEP(name, source, operands, tile_m, tile_n, tile_k, threads, lds, layout, targets)
       MMF_GPU_KERNELS = 0
#include "gpu/kernels/common/kernels.def"
#undef MMF_GPU_KERNEL
#undef MMF_GPU_STEP
};

/* Which index of A and of B has stride 1. */
typedef enum mmf_gpu_layout {
    MMF_GPU_LAYOUT_ANY,
    MMF_GPU_LAYOUT_NN, /* A: k, B: n */
    MMF_GPU_LAYOUT_NT, /* A: k, B: k */
    MMF_GPU_LAYOUT_TN, /* A: m, B: n */
    MMF_GPU_LAYOUT_TT, /* A: m, B: k */
    MMF_GPU_LAYOUT_NP, /* A: k, B: MMF_GPU_PRESHUFFLED */
} mmf_gpu_layout;

extern const char *const mmf_gpu_layout_names[]; /* "NN" */

typedef struct mmf_gpu_instance {
    const char *name;         /* of the function and of its object */
    const char *family;       /* "gemm_simt"; of a step, which is no GEMM: its source */
    const mmf_kernel *kernel; /* of mmf_gpu_kernels; NULL: a step */
    uint8_t operands;         /* mmf_dtype */
    int tile_m, tile_n, tile_k;
    mmf_gpu_layout layout;
    int threads;         /* of a workgroup */
    int lds;             /* bytes of LDS or shared memory, all static */
    const char *targets; /* as kernels.def has them: "ALL", "GFX942 | GFX950" */
} mmf_gpu_instance;

extern const mmf_kernel mmf_gpu_kernels[MMF_GPU_KERNELS]; /* in order; not by instance */
extern const mmf_gpu_instance mmf_gpu_instances[MMF_GPU_INSTANCES];

/* --- the families, one file each --- */

extern const mmf_family mmf_gpu_simt;                   /* any layout, any dtype, any GPU */
extern const mmf_family mmf_gpu_simt_splitk;            /* the same, for few tiles and a long K */
extern const mmf_family mmf_gpu_pingpong;               /* matrix cores of gfx950, whole chunks */
extern const mmf_family mmf_gpu_pingpong_staged;        /* the same of gfx942 */
extern const mmf_family mmf_gpu_thin;                   /* matrix cores of CDNA, few rows */
extern const mmf_family mmf_gpu_pingpong_splitk;        /* with K cut, for few tiles */
extern const mmf_family mmf_gpu_pingpong_staged_splitk; /* the same of gfx942 */
extern const mmf_family mmf_gpu_thin_splitk;            /* the same, few rows */
extern const mmf_family mmf_gpu_mfma;      /* matrix cores of CDNA; float16, bfloat16 */
extern const mmf_family mmf_gpu_mfma_f32;  /* the same, float32 */
extern const mmf_family mmf_gpu_mfma_xf32; /* the same of gfx942, float32 rounded to 11 bits */
extern const mmf_family mmf_gpu_mfma_f64;  /* the same, float64 */
extern const mmf_family mmf_gpu_wmma;      /* of RDNA3 and RDNA4; float16, bfloat16, whole chunks */
extern const mmf_family mmf_gpu_wmma_thin; /* the same, few rows */
extern const mmf_family mmf_gpu_wgmma; /* matrix instructions of sm_90a; float16, bfloat16, tf32 */
extern const mmf_family mmf_gpu_wgmma_pingpong;     /* the same, short K or a long epilogue */
extern const mmf_family mmf_gpu_wgmma_pingpong_aux; /* the same with more operands in registers */
extern const mmf_family mmf_gpu_mma_thin;           /* few rows; sm_90a; float16, bfloat16 */
extern const mmf_family mmf_gpu_gemv;        /* few rows; sm_90a, AMD; float16, bfloat16, float32 */
extern const mmf_family mmf_gpu_gemv_stream; /* one row, a large B; sm_90a; float16, bfloat16 */
extern const mmf_family mmf_gpu_mma; /* of sm_80 and later; float16, bfloat16, tf32, float64 */
extern const mmf_family mmf_gpu_mma_split; /* the same of float64 on sm_90a, few tiles */
extern const mmf_family mmf_gpu_fma;       /* large tiles of float32 on sm_80 and later */
extern const mmf_family mmf_gpu_fma_split; /* the same on sm_90a, few tiles */

#endif
