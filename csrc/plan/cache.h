/* Calls that came before, by what was asked: a call that differs from one of them in its pointers
 * alone takes over problem and plan. Path of a call: after the import, instead of problem/ and
 * plan/. */
#ifndef MMF_PLAN_CACHE_H
#define MMF_PLAN_CACHE_H

#include "plan/plan.h"

/* What a call does. */
typedef struct mmf_prepared {
    mmf_problem problem;
    mmf_tensor result; /* of mmf_problem_make(): out, or what is to be allocated */
    mmf_plan plan;
} mmf_prepared;

enum { MMF_CACHE_SLOTS = 64 };

/* All zeros: empty. The caller serialises; an entry is used by one call at a time, also where that
 * lets other threads go on while it computes. Fork: what another thread is using stays in use in
 * the child and is not found there. */
typedef struct mmf_plan_cache {
    struct mmf_known *slots[MMF_CACHE_SLOTS];
    uint64_t seen[MMF_CACHE_SLOTS]; /* what was asked last that had no entry */
} mmf_plan_cache;

/* Find a call on the CPU like this one, with its pointers set (MMF_OUT if out is given); until
 * mmf_known_release() it is the caller's. *known is NULL where there is none. VALUE_ERROR: an
 * output shares memory with an operand. */
mmf_status mmf_plan_recall(mmf_plan_cache *cache, const mmf_request *request,
                           struct mmf_known **known);
mmf_prepared *mmf_known_call(struct mmf_known *known);
void mmf_known_release(struct mmf_known *known);

/* Keep a call on the CPU that was prepared without the cache, when it is asked for again. */
void mmf_plan_remember(mmf_plan_cache *cache, const mmf_request *request,
                       const mmf_prepared *prepared);

void mmf_plan_cache_clear(mmf_plan_cache *cache);

#endif
