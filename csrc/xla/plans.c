/* Owner of the plan cache of calls under jax.jit: one for the process, as its threads have no
 * module. Nobody waits for it: a thread that finds it taken plans for itself. Fork rule: so does a
 * child whose parent held it. Path of a call: see plans.h. */
#include "xla/plans.h"

#include <pthread.h>
#include <stdatomic.h>

static mmf_plan_cache plans;
static unsigned known;                                    /* the changes that plans saw */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of both */
static atomic_uint changes;

void mmf_xla_forget_plans(void)
{
    atomic_fetch_add(&changes, 1);
}

/* Take the cache, without the plans that were made before the latest change. */
static bool take_plans(void)
{
    if (pthread_mutex_trylock(&mutex))
        return false;
    const unsigned now = atomic_load(&changes);
    if (known != now)
        mmf_cache_forget(&plans);
    known = now;
    return true;
}

static mmf_status find(const mmf_request *request, mmf_buffers *buffers, mmf_prepared *prepared,
                       bool *found)
{
    struct mmf_cache_entry *entry = NULL;
    *found = false;
    if (!take_plans())
        return MMF_OK;
    mmf_status status = mmf_cache_find(&plans, request, buffers, &entry);
    if (entry) {
        *prepared = *mmf_cache_prepared(entry);
        mmf_cache_release(entry);
        *found = true;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static mmf_status make(const mmf_request *request, mmf_buffers *buffers, mmf_prepared *prepared)
{
    mmf_status status = mmf_problem_make(request, &prepared->problem, buffers, &prepared->result);
    if (status)
        return status;
    mmf_problem_set_out(&prepared->problem, buffers, request, &prepared->result);
    return mmf_plan_choose(&prepared->problem, &prepared->plan);
}

mmf_status mmf_xla_prepare(const mmf_request *request, mmf_buffers *buffers, mmf_prepared *prepared)
{
    const unsigned before = atomic_load(&changes);
    bool found;
    mmf_status status = find(request, buffers, prepared, &found);
    if (status || found)
        return status;
    status = make(request, buffers, prepared);
    if (status || !take_plans())
        return status;
    if (known == before) /* else it may have been made by what was valid then */
        mmf_cache_keep(&plans, request, buffers, prepared);
    pthread_mutex_unlock(&mutex);
    return MMF_OK;
}
