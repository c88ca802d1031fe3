/* The plan cache: calls that differ in their addresses alone share a checked problem and a plan.
 * Path of a call: after the import, instead of problem/ and plan/. */
#ifndef MMF_PLAN_CACHE_H
#define MMF_PLAN_CACHE_H

#include "plan/plan.h"

/* What a call does. Immutable once it is complete. */
typedef struct mmf_prepared {
    mmf_problem problem;
    mmf_tensor result; /* of mmf_problem_make(): out, or what is to be allocated */
    mmf_plan plan;
} mmf_prepared;

enum { MMF_CACHE_SLOTS = 64 };

/* All zeros: empty. The caller serialises; several calls may use an entry at a time, also where
 * that lets other threads go on while they compute. Fork: what another thread is using stays in use
 * in the child, which never replaces it. */
typedef struct mmf_plan_cache {
    struct mmf_cache_entry *slots[MMF_CACHE_SLOTS];
    uint64_t seen[MMF_CACHE_SLOTS]; /* hash of the latest request that had no entry */
} mmf_plan_cache;

/* Find a call like this one; *buffers gets all addresses but those of a new result and the stream.
 * The entry stays until mmf_cache_release(). *entry is NULL where there is none. VALUE_ERROR: an
 * output shares memory with an operand. */
mmf_status mmf_cache_find(mmf_plan_cache *cache, const mmf_request *request, mmf_buffers *buffers,
                          struct mmf_cache_entry **entry);
const mmf_prepared *mmf_cache_prepared(const struct mmf_cache_entry *entry);
void mmf_cache_release(struct mmf_cache_entry *entry);

/* Keep a call that was prepared without the cache, when it is made for the second time. buffers are
 * its addresses. */
void mmf_cache_keep(mmf_plan_cache *cache, const mmf_request *request, const mmf_buffers *buffers,
                    const mmf_prepared *prepared);

/* Find no entry of before any more: what plans are made by has changed. Entries in use stay until
 * they are released. */
void mmf_cache_forget(mmf_plan_cache *cache);

void mmf_cache_clear(mmf_plan_cache *cache);

#endif
