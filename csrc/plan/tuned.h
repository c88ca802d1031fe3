/* The choices that were measured: problem -> kernel. Path of a call: the choice among kernels asks
 * here before the cost model, where no plan is cached. */
#ifndef MMF_PLAN_TUNED_H
#define MMF_PLAN_TUNED_H

#include "plan/kernels.h"

/* What a choice is kept under: the shapes, strides, alignment, dtypes and epilogue of a problem, by
 * operands rather than by numbers such as alpha, on a kind of device. The same in every process of
 * a version. */
typedef struct mmf_tuned_key {
    uint64_t word[2];
} mmf_tuned_key;

mmf_tuned_key mmf_tuned_key_of(const mmf_problem *problem);

typedef struct mmf_tuned {
    mmf_tuned_key key;
    double seconds; /* measured */
    int kernel;
} mmf_tuned;

/* The choice for a problem, or NULL, on any thread. */
const mmf_tuned *mmf_tuned_find(const mmf_problem *problem);

/* Replace all choices by a copy of these. The caller serialises this (the GIL) and drops its cached
 * plans. NO_MEMORY: nothing has changed. */
mmf_status mmf_tuned_set(const mmf_tuned *choices, int count);

#endif
