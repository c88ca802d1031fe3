/* What a kernel is to the plan: one row of the ordered list in plan/kernel_list.c. Path of a call:
 * plan/ asks supports() and configure(), the binding calls run(). */
#ifndef MMF_KERNEL_ROW_H
#define MMF_KERNEL_ROW_H

#include "problem/problem.h"

/* What configure() decided: sizes in elements. */
typedef struct mmf_config {
    int32_t tile_m, tile_n, tile_k; /* shown by explain */
    int32_t threads;
    int64_t own[20]; /* what the row's run() needs besides; nobody else reads it */
} mmf_config;

#define MMF_REASON_TEXT 160

typedef struct mmf_kernel_row {
    const char *name; /* the name that force_kernel, explain and profilers show */
    /* True, or false with a reason ("needs AVX2, which this CPU lacks") in reason[MMF_REASON_TEXT].
     */
    bool (*supports)(const mmf_problem *problem, char *reason);
    /* A row of the CPU goes by anything but data[], in both: the answers are kept for calls with
     * other pointers. */
    void (*configure)(const mmf_problem *problem, mmf_config *config);
    /* Compute the very problem that configure() saw, data[] being that of this call now. Called
     * without the GIL where that pays. Either writes all of out and returns MMF_OK, or writes
     * nothing and returns an error. */
    mmf_status (*run)(const mmf_problem *problem, const mmf_config *config);
    bool rows_independent_of_m; /* a row of the result has the same bits whatever M is */
    /* For the cost model: what one thread (at 2.5 to 3.5 GHz) or one compute unit sustains, 1e9
     * operations a second, by the type of the sums. */
    double gflops_float, gflops_double;
} mmf_kernel_row;

#endif
