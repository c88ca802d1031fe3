/* The plan cache: entries by slot, found by a hash of the shapes and compared by everything that
 * problem/ and plan/ look at. Path of a call: see cache.h.
 *
 * The key is made of the request, not of the problem: to build a problem costs more than the rest
 * of a small call. */
#include "plan/cache.h"

#include "plan/backends.h"
#include "problem/checks.h"
#include "problem/overlap.h"

#include <stdlib.h>
#include <string.h>

enum {
    TERM_WORDS = sizeof(mmf_terms) / 8,
    FIXED_WORDS = TERM_WORDS + 1 + MMF_SET_WORDS, /* terms, threads, forced kernels */
    KEY_WORDS = 60 + FIXED_WORDS
};
_Static_assert(sizeof(mmf_terms) % 8 == 0, "mmf_terms is compared in words");

/* data[to] is that of an operand of the request, so many bytes further (a stream of a gate). */
typedef struct pointer {
    int64_t offset;
    uint8_t to, from;
} pointer;

/* The addresses of an operand that is not empty, from its data. */
typedef struct range {
    int64_t low, high;
    uint8_t operand;
} range;

typedef struct mmf_cache_entry {
    mmf_prepared prepared;
    int users;
    int words, pointers, ranges, inputs; /* inputs: ranges before those of outputs */
    uint64_t key[KEY_WORDS];
    pointer pointer[MMF_OPERANDS];
    range range[MMF_OPERANDS];
} mmf_cache_entry;

/* Everything but addresses; of those on a GPU, what they are mod 64: kernels load vectors. Returns
 * the words written, 0: too many axes, such calls are not kept. */
static int make_key(const mmf_request *r, uint64_t *key)
{
    int words = 0;
#pragma GCC unroll 16
    for (int i = 0; i < MMF_OPERANDS; i++) {
        const mmf_tensor *t = r->operand[i];
        if (!t)
            continue;
        if (words + 1 + 2 * t->ndim > KEY_WORDS - FIXED_WORDS)
            return 0;
        key[words++] = (uint64_t)i | (uint64_t)t->dtype << 8 | (uint64_t)t->readonly << 16 |
                       (uint64_t)t->ndim << 24 | (uint64_t)t->device.type << 32 |
                       (t->device.type == MMF_CPU ? 0 : ((uint64_t)(uintptr_t)t->data & 63) << 40) |
                       (uint64_t)(uint16_t)t->device.id << 48;
        for (int axis = 0; axis < t->ndim; axis++) {
            key[words++] = (uint64_t)t->shape[axis];
            key[words++] = (uint64_t)t->strides[axis];
        }
    }
    memcpy(key + words, &r->terms, sizeof r->terms);
    words += TERM_WORDS;
    key[words++] = (uint64_t)mmf_host_get_threads();
    memcpy(key + words, mmf_plan_forced(), sizeof(mmf_kernel_set));
    return words + MMF_SET_WORDS;
}

/* Never 0. */
static uint64_t hash_of(const mmf_request *r)
{
    const mmf_tensor *a = r->operand[MMF_A], *b = r->operand[MMF_B];
    if (a->ndim < 1 || b->ndim < 1)
        return 1;
    const uint64_t rows = a->ndim > 1 ? (uint64_t)a->shape[a->ndim - 2] : 0;
    const int given = 64 * (r->operand[MMF_OUT] != NULL) + 128 * (r->operand[MMF_BIAS] != NULL);
    uint64_t hash = (uint64_t)a->shape[0] * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= (uint64_t)a->shape[a->ndim - 1] * UINT64_C(0xbf58476d1ce4e5b9);
    hash ^= (rows + ((uint64_t)a->device.id << 48)) * UINT64_C(0xc2b2ae3d27d4eb4f);
    hash ^= (uint64_t)b->shape[b->ndim - 1] * UINT64_C(0x94d049bb133111eb);
    hash ^= ((uint64_t)b->strides[0] + ((uint64_t)a->dtype << 32)) * UINT64_C(0xd6e8feb86659fd93);
    hash ^= (uint64_t)(r->terms.activation + given) * UINT64_C(0xff51afd7ed558ccd);
    return hash | 1;
}

static int slot_of(uint64_t hash)
{
    return (int)(hash >> 58);
}

_Static_assert(MMF_CACHE_SLOTS == 1 << 6, "slot_of() takes the upper six bits");

/* As mmf_check_aliasing(), which is asked where ranges meet. */
static mmf_status check_aliasing(const mmf_cache_entry *entry, const mmf_request *r)
{
    for (int o = entry->inputs; o < entry->ranges; o++) {
        const range *output = &entry->range[o];
        const int64_t data = (int64_t)(intptr_t)r->operand[output->operand]->data;
        const int64_t low = data + output->low, high = data + output->high;
        for (int i = 0; i < o; i++) {
            const range *other = &entry->range[i];
            const int64_t at = (int64_t)(intptr_t)r->operand[other->operand]->data;
            if (low < at + other->high && at + other->low < high)
                return mmf_check_aliasing(r, !mmf_is_zero(r->terms.alpha),
                                          !mmf_is_zero(entry->prepared.problem.beta));
        }
    }
    return MMF_OK;
}

mmf_status mmf_cache_find(mmf_plan_cache *cache, const mmf_request *r, mmf_buffers *buffers,
                          mmf_cache_entry **found)
{
    uint64_t key[KEY_WORDS];
    mmf_cache_entry *entry = cache->slots[slot_of(hash_of(r))];
    *found = NULL;
    if (!entry || make_key(r, key) != entry->words ||
        memcmp(key, entry->key, sizeof *key * (size_t)entry->words))
        return MMF_OK;
    memset(buffers, 0, sizeof *buffers);
    for (int i = 0; i < entry->pointers; i++) {
        const pointer *p = &entry->pointer[i];
        const uintptr_t data = (uintptr_t)r->operand[p->from]->data;
        buffers->data[p->to] = (void *)(data + (uintptr_t)p->offset);
    }
    if (r->terms.packed)
        buffers->data[MMF_B_UP] = r->panels_up;
    mmf_status status = check_aliasing(entry, r);
    if (status)
        return status;
    entry->users++;
    *found = entry;
    return MMF_OK;
}

const mmf_prepared *mmf_cache_prepared(const mmf_cache_entry *entry)
{
    return &entry->prepared;
}

void mmf_cache_release(mmf_cache_entry *entry)
{
    entry->users--;
}

/* The operand of the request that has the elements of an operand of the problem. */
static int source_of(const mmf_request *r, int operand)
{
    const bool second = mmf_operands[operand].stream == MMF_STREAM_UP && !r->operand[operand];
    return second ? operand - 1 : operand;
}

static void find_pointers(mmf_cache_entry *entry, const mmf_request *r, const mmf_buffers *buffers)
{
    const mmf_problem *problem = &entry->prepared.problem;
    entry->pointers = 0;
    for (int i = 0; i < MMF_OPERANDS; i++) {
        const int from = source_of(r, i);
        if (problem->dtype[i] == MMF_ABSENT || !r->operand[from] ||
            (i == MMF_B_UP && r->terms.packed))
            continue; /* a new result, and the panels of a second stream, are set by each call */
        const uintptr_t data = (uintptr_t)r->operand[from]->data;
        entry->pointer[entry->pointers++] =
            (pointer){(int64_t)((uintptr_t)buffers->data[i] - data), (uint8_t)i, (uint8_t)from};
    }
}

static void find_ranges(mmf_cache_entry *entry, const mmf_request *r)
{
    entry->ranges = entry->inputs = 0;
    for (int i = 0; i < MMF_OPERANDS; i++) {
        const mmf_tensor *t = r->operand[i];
        const mmf_extent extent = t ? mmf_tensor_extent(t) : (mmf_extent){0, 0};
        if (extent.begin == extent.end || r->terms.immediates & mmf_immediate((mmf_operand)i))
            continue;
        const int64_t data = (int64_t)(intptr_t)t->data;
        entry->range[entry->ranges++] = (range){extent.begin - data, extent.end - data, (uint8_t)i};
        entry->inputs += mmf_operands[i].access == MMF_READ;
    }
}

void mmf_cache_keep(mmf_plan_cache *cache, const mmf_request *r, const mmf_buffers *buffers,
                    const mmf_prepared *prepared)
{
    const uint64_t hash = hash_of(r);
    const int slot = slot_of(hash);
    mmf_cache_entry *entry = cache->slots[slot];
    if (cache->seen[slot] != hash) { /* shapes that never come again are not worth an entry */
        cache->seen[slot] = hash;
        return;
    }
    uint64_t key[KEY_WORDS];
    const int words = make_key(r, key);
    if (words == 0 || (entry && entry->users))
        return;
    if (!entry) {
        void *memory;
        if (posix_memalign(&memory, _Alignof(mmf_cache_entry), sizeof *entry) != 0)
            return; /* the next call plans again */
        entry = memory;
        cache->slots[slot] = entry;
    }
    entry->users = 0;
    entry->words = words;
    memcpy(entry->key, key, sizeof *key * (size_t)words);
    entry->prepared = *prepared;
    find_pointers(entry, r, buffers);
    find_ranges(entry, r);
}

void mmf_cache_forget(mmf_plan_cache *cache)
{
    for (int i = 0; i < MMF_CACHE_SLOTS; i++)
        if (cache->slots[i])
            cache->slots[i]->words = -1; /* of no key */
}

void mmf_cache_clear(mmf_plan_cache *cache)
{
    for (int i = 0; i < MMF_CACHE_SLOTS; i++) {
        free(cache->slots[i]);
        cache->slots[i] = NULL;
    }
}
