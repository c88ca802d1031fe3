/* Which kernel runs a problem. Path of a call: after problem/, before cpu/ or gpu/. */
#ifndef MMF_PLAN_H
#define MMF_PLAN_H

#include "plan/kernels.h"

typedef struct mmf_plan {
    const mmf_kernel *kernel;
    double tuned; /* seconds that tune() measured; 0: the cost model chose */
    mmf_config config;
} mmf_plan;

/* Take MATMUL_FUSED_KERNEL and MATMUL_FUSED_DISABLE over, once, at import. */
void mmf_plan_read_environment(void);

/* True if a kernel takes the problem; else false and the reason: what it does not implement, its
 * own, or that it is disabled or not a forced one. */
bool mmf_plan_accepts(int kernel, const mmf_problem *problem, char *reason);

/* The measured choice if it is accepted, else the kernel of the best score among those that accept
 * (of equals the faster, then the first), configured. None: NOT_IMPLEMENTED with the reasons of
 * all. */
mmf_status mmf_plan_choose(const mmf_problem *problem, mmf_plan *plan);

/* The kernel of the best score, or NULL: what runs where nothing was measured. */
const mmf_kernel *mmf_plan_modelled(const mmf_problem *problem);

/* Do both give the same bits for every problem that both accept? */
bool mmf_plan_same_bits(const mmf_kernel *a, const mmf_kernel *b);

/* What the cost model predicts for a large product of the CPU whose weight is in a prepacked
 * layout, by the best kernel that is not disabled and may run on this thread; infinite if none
 * reads it. */
double mmf_plan_layout_seconds(mmf_dtype dtype, int layout);

/* Name of a launch of a plan on a GPU, or NULL past the last one. */
const char *mmf_plan_launch(const mmf_plan *plan, int launch);

/* Bytes of the distinct elements of all operands. */
double mmf_plan_bytes(const mmf_problem *problem);

/* Seconds that the cost model predicts for a kernel on so many threads or compute units; bytes are
 * mmf_plan_bytes(): a model, not a measurement. */
double mmf_plan_seconds(const mmf_problem *problem, const mmf_kernel *kernel, double units,
                        double bytes);

/* What one thread or compute unit sustains, 1e9 operations a second, by the cost model. */
double mmf_plan_gflops(const mmf_problem *problem, const mmf_kernel *kernel);

/* The units that kernels are compared for: one thread of the CPU, all units of a GPU. Nothing that
 * may change between two calls: equal calls get equal kernels, and equal bits. */
double mmf_plan_units(mmf_device device);

/* Floating point operations of the products. */
double mmf_plan_flops(const mmf_problem *problem);

/* Elements of the result. */
double mmf_plan_outputs(const mmf_problem *problem);

/* Let only the named kernels, instances or families separated by commas, run on this thread (NULL:
 * any). A device for which none is named is unaffected; "general_epilogue" among the names lets
 * those of GPUs end in that. *previous gets the set forced before, which
 * may be empty. */
mmf_status mmf_plan_force(const char *names, mmf_kernel_set *previous);

/* The set that is forced on this thread, empty if none is. */
const mmf_kernel_set *mmf_plan_forced(void);

#endif
