/* What a kernel is to the plan: what it is called, what it implements, how it is configured and
 * run. Path of a call: plan/ asks supports(), the score and configure(); the binding calls run().
 */
#ifndef MMF_KERNEL_H
#define MMF_KERNEL_H

#include "problem/interrupt.h"
#include "problem/problem.h"

enum { MMF_CONFIG_BYTES = 4096, MMF_MAX_LAUNCHES = 3 };

/* What configure() decided: sizes in elements. */
typedef struct mmf_config {
    int32_t tile_m, tile_n, tile_k; /* shown by explain */
    int32_t threads;
    int64_t workspace_bytes; /* of a GPU, per call; the binding allocates them */
    /* Of a GPU, with a workspace: instances of the plan of calls that can have none. run() loads
     * them too, so that a call that is captured later finds them. */
    int16_t spare[MMF_MAX_LAUNCHES];
    int16_t spares;
    /* Set before configure(): of the forms of its epilogue, a GPU's kernel is to take the general
     * one, which every problem may take. */
    bool general_epilogue;
    /* What the kernel's run() needs besides; nobody else reads it. */
    _Alignas(64) unsigned char own[MMF_CONFIG_BYTES];
} mmf_config;

#define MMF_REASON_TEXT 160

typedef struct mmf_kernel mmf_kernel;

#define MMF_WORKSPACE_ALIGN 256

/* Of another launch in a call on a GPU, by the cost model. */
#define MMF_LAUNCH_SECONDS 10e-6

/* What the cost model counts of a GPU's kernel. */
typedef struct mmf_work {
    double tiles, tile_flops;
    double bytes; /* read and written besides the operands */
    int launches;
} mmf_work;

/* Kernels that share their host code, and what all of them implement. */
typedef struct mmf_family {
    const char *name;
    uint32_t features; /* MMF_HAS() of the operands and features that it implements */
    uint32_t dtypes;   /* MMF_DTYPE_BIT() of every dtype that an operand of the epilogue may have */
    /* True, or false with a reason ("needs AVX2, which this CPU lacks") in reason[MMF_REASON_TEXT].
     * Features, dtypes and the device's type have been checked. */
    bool (*supports)(const mmf_kernel *kernel, const mmf_problem *problem, char *reason);
    /* Both may look at nothing but the problem, the kernel and facts that never change: their
     * answers are kept for calls with other buffers. */
    void (*configure)(const mmf_kernel *kernel, const mmf_problem *problem, mmf_config *config);
    /* Compute the problem that configure() saw. Called without the GIL where that pays. Either
     * writes all of out and returns MMF_OK, or writes nothing and returns an error; or it was
     * cancelled through interrupt (NULL: it cannot be). */
    mmf_status (*run)(const mmf_problem *problem, const mmf_config *config,
                      const mmf_buffers *buffers, mmf_interrupt *interrupt);
    /* Of a GPU: what differs from one launch of whole tiles, which *work is when this is called.
     * NULL: nothing. */
    void (*work)(const mmf_kernel *kernel, const mmf_problem *problem, mmf_work *work);
    bool rows_independent_of_m; /* a row of the result has the same bits whatever M is */
    /* Its kernels that take a problem form every sum in the same order of k, by the same
     * instructions, and end it alike, whatever their tile: they give the same bits. */
    bool same_bits;
    /* For the cost model: what one thread (at 2.5 to 3.5 GHz) or one compute unit sustains, 1e9
     * operations a second, by the type of the sums. */
    double gflops_float, gflops_double;
    /* The same of sums of float where it depends on the CPU's make or on the problem; NULL:
     * gflops_float. */
    double (*rate)(const mmf_problem *problem);
} mmf_family;

struct mmf_kernel {
    const char *name; /* what force_kernel, explain and profilers show */
    const mmf_family *family;
    int instance;                   /* of a GPU: of kernels.def */
    uint32_t devices;               /* 1 << mmf_device_type of every device that may have it */
    uint32_t operands;              /* MMF_DTYPE_BIT() of the dtypes of A and B that it takes */
    int32_t tile_m, tile_n, tile_k; /* of a GPU: tile_n counts columns of z */
};

#define MMF_DTYPE_BIT(dtype) (UINT32_C(1) << (dtype))

#endif
