/* Which kernel runs a problem. Path of a call: after problem/, before cpu/ or gpu/. */
#ifndef MMF_PLAN_H
#define MMF_PLAN_H

#include "problem/kernel_row.h"

typedef struct mmf_plan {
    const mmf_kernel_row *row;
    mmf_config config;
} mmf_plan;

/* Take MATMUL_FUSED_KERNEL and MATMUL_FUSED_DISABLE over, once, at import. */
void mmf_plan_read_environment(void);

/* The ordered list, best first; NULL past the end. */
const mmf_kernel_row *mmf_kernel_list(int index);

/* Is row number index one of GPUs? */
bool mmf_kernel_list_is_gpu(int index);

/* True if the row takes the problem; else false and the reason: its own, or that it is disabled or
 * not the forced one. */
bool mmf_plan_accepts(const mmf_kernel_row *row, const mmf_problem *problem, char *reason);

/* The first row that accepts, configured. None: NOT_IMPLEMENTED with the reasons of every row. */
mmf_status mmf_plan_choose(const mmf_problem *problem, mmf_plan *plan);

/* Seconds that the cost model predicts: a model, not a measurement. */
double mmf_plan_seconds(const mmf_problem *problem, const mmf_plan *plan);

/* Floating point operations of the products. */
double mmf_plan_flops(const mmf_problem *problem);

/* Elements of the result. */
double mmf_plan_outputs(const mmf_problem *problem);

/* Let only the row called name run on this thread (NULL: any). *previous gets the row forced
 * before, or NULL. */
mmf_status mmf_plan_force(const char *name, const char **previous);

/* The row that is forced on this thread, or NULL. */
const mmf_kernel_row *mmf_plan_forced(void);

#endif
