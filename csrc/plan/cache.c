/* The plan cache: entries by slot, found by a hash of the shapes and compared by everything that
 * problem/ and plan/ look at but the pointers. Path of a call: see cache.h. */
#include "plan/cache.h"

#include "plan/backends.h"
#include "problem/checks.h"
#include "problem/overlap.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_WORDS = 64, SCALAR_WORDS = 6 };

/* data[to] is that of an operand of the request, so many bytes further (a stream of a gate). */
typedef struct pointer {
    int64_t offset;
    uint8_t to, from;
} pointer;

/* The addresses of an operand that is not empty, from its data. */
typedef struct reach {
    int64_t low, high;
    uint8_t operand;
} reach;

typedef struct mmf_known {
    mmf_prepared prepared;
    bool in_use;
    int words, pointers, reaches, inputs; /* inputs: reaches before those of outputs */
    uint64_t key[KEY_WORDS];
    pointer pointer[MMF_OPERANDS];
    reach reach[MMF_OPERANDS];
} mmf_known;

/* Everything but pointers. Returns the words written, 0: none of the usual, which are not kept. */
static int make_key(const mmf_request *r, uint64_t *key)
{
    int words = 0;
#pragma GCC unroll 16
    for (int i = 0; i < MMF_OPERANDS; i++) {
        const mmf_tensor *t = r->operand[i];
        if (!t)
            continue;
        if (words + 1 + 2 * t->ndim > KEY_WORDS - SCALAR_WORDS || t->device.type != MMF_CPU)
            return 0;
        key[words++] = (uint64_t)i | (uint64_t)t->dtype << 8 | (uint64_t)t->readonly << 16 |
                       (uint64_t)t->ndim << 24;
        for (int axis = 0; axis < t->ndim; axis++) {
            key[words++] = (uint64_t)t->shape[axis];
            key[words++] = (uint64_t)t->strides[axis];
        }
    }
    const double scalars[4] = {r->alpha, r->beta, r->parameters[0], r->parameters[1]};
    memcpy(key + words, scalars, sizeof scalars);
    key[words + 4] = (uint64_t)r->activation | (uint64_t)r->gate_layout << 8 |
                     (uint64_t)r->out_dtype << 16 | (uint64_t)r->packed << 24 |
                     (uint64_t)r->packed_gate << 32 | (uint64_t)r->beta_given << 40 |
                     (uint64_t)r->allow_tf32 << 41 | (uint64_t)mmf_host_get_threads() << 44;
    key[words + 5] = (uint64_t)(uintptr_t)mmf_plan_forced();
    return words + SCALAR_WORDS;
}

/* Never 0. */
static uint64_t hash_of(const mmf_request *r)
{
    const mmf_tensor *a = r->a, *b = r->b;
    if (a->ndim < 1 || b->ndim < 1)
        return 1;
    uint64_t hash = (uint64_t)a->shape[0] * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= (uint64_t)a->shape[a->ndim - 1] * UINT64_C(0xbf58476d1ce4e5b9);
    hash ^= (uint64_t)b->shape[b->ndim - 1] * UINT64_C(0x94d049bb133111eb);
    hash ^= ((uint64_t)b->strides[0] + ((uint64_t)a->dtype << 32)) * UINT64_C(0xd6e8feb86659fd93);
    hash ^= (uint64_t)((int)r->activation + 64 * (r->out != NULL) + 128 * (r->bias != NULL)) *
            UINT64_C(0xff51afd7ed558ccd);
    return hash | 1;
}

static int slot_of(uint64_t hash)
{
    return (int)(hash >> 58);
}

_Static_assert(MMF_CACHE_SLOTS == 1 << 6, "slot_of() takes the upper six bits");

/* As mmf_check_aliasing(), which is asked where ranges meet. */
static mmf_status check_aliasing(const mmf_known *known, const mmf_request *r)
{
    for (int o = known->inputs; o < known->reaches; o++) {
        const reach *output = &known->reach[o];
        const int64_t data = (int64_t)(intptr_t)r->operand[output->operand]->data;
        const int64_t low = data + output->low, high = data + output->high;
        for (int i = 0; i < o; i++) {
            const reach *other = &known->reach[i];
            const int64_t at = (int64_t)(intptr_t)r->operand[other->operand]->data;
            if (low < at + other->high && at + other->low < high)
                return mmf_check_aliasing(r, r->alpha != 0, known->prepared.problem.beta != 0);
        }
    }
    return MMF_OK;
}

mmf_status mmf_plan_recall(mmf_plan_cache *cache, const mmf_request *r, mmf_known **found)
{
    uint64_t key[KEY_WORDS];
    mmf_known *known = cache->slots[slot_of(hash_of(r))];
    *found = NULL;
    if (!known || known->in_use || make_key(r, key) != known->words ||
        memcmp(key, known->key, sizeof *key * (size_t)known->words))
        return MMF_OK;
    mmf_problem *problem = &known->prepared.problem;
    for (int i = 0; i < known->pointers; i++) {
        const pointer *p = &known->pointer[i];
        const uintptr_t data = (uintptr_t)r->operand[p->from]->data;
        problem->data[p->to] = (void *)(data + (uintptr_t)p->offset);
    }
    if (r->packed)
        problem->data[MMF_B_UP] = r->panels_up;
    mmf_status status = check_aliasing(known, r);
    if (status)
        return status;
    known->in_use = true;
    *found = known;
    return MMF_OK;
}

mmf_prepared *mmf_known_call(mmf_known *known)
{
    return &known->prepared;
}

void mmf_known_release(mmf_known *known)
{
    known->in_use = false;
}

/* The operand of the request that has the elements of an operand of the problem. */
static int source_of(const mmf_request *r, int operand)
{
    if (r->operand[operand])
        return operand;
    switch (operand) { /* the second stream of one operand */
    case MMF_B_UP:
    case MMF_BIAS_UP:
    case MMF_C_UP:
    case MMF_PREACTIVATION_UP:
        return operand - 1;
    default:
        return operand;
    }
}

static void find_pointers(mmf_known *known, const mmf_request *r)
{
    const mmf_problem *problem = &known->prepared.problem;
    known->pointers = 0;
    for (int i = 0; i < MMF_OPERANDS; i++) {
        const int from = source_of(r, i);
        if (problem->dtype[i] == MMF_ABSENT || !r->operand[from] || (i == MMF_B_UP && r->packed))
            continue; /* a new result, and the panels of a second stream, are set by each call */
        const uintptr_t data = (uintptr_t)r->operand[from]->data;
        known->pointer[known->pointers++] =
            (pointer){(int64_t)((uintptr_t)problem->data[i] - data), (uint8_t)i, (uint8_t)from};
    }
}

static void find_reaches(mmf_known *known, const mmf_request *r)
{
    known->reaches = known->inputs = 0;
    for (int i = 0; i < MMF_OPERANDS; i++) {
        const mmf_tensor *t = r->operand[i];
        const mmf_extent extent = t ? mmf_tensor_extent(t) : (mmf_extent){0, 0};
        if (extent.begin == extent.end)
            continue;
        const int64_t data = (int64_t)(intptr_t)t->data;
        known->reach[known->reaches++] =
            (reach){extent.begin - data, extent.end - data, (uint8_t)i};
        known->inputs += i < MMF_PREACTIVATION;
    }
}

void mmf_plan_remember(mmf_plan_cache *cache, const mmf_request *r, const mmf_prepared *prepared)
{
    const uint64_t hash = hash_of(r);
    const int slot = slot_of(hash);
    mmf_known *known = cache->slots[slot];
    if (cache->seen[slot] != hash) { /* shapes that never come again are not worth an entry */
        cache->seen[slot] = hash;
        return;
    }
    uint64_t key[KEY_WORDS];
    const int words = make_key(r, key);
    if (words == 0 || (known && known->in_use))
        return;
    if (!known) {
        known = malloc(sizeof *known);
        if (!known)
            return;
        cache->slots[slot] = known;
    }
    known->in_use = false;
    known->words = words;
    memcpy(known->key, key, sizeof key);
    known->prepared = *prepared;
    find_pointers(known, r);
    find_reaches(known, r);
    /* a configuration may refer to its problem */
    prepared->plan.row->configure(&known->prepared.problem, &known->prepared.plan.config);
}

void mmf_plan_cache_clear(mmf_plan_cache *cache)
{
    for (int i = 0; i < MMF_CACHE_SLOTS; i++) {
        free(cache->slots[i]);
        cache->slots[i] = NULL;
    }
}
