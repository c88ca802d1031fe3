/* Scalar loads, global and flat memory, and the allocation check that all of device memory goes
 * through. An access outside every allocation is suppressed, reported and a fault.
 * Path of a launch: the loop of run.c, classes SMEM and MEMORY. */
#include "memory.h"

static bool inside(const struct hipsim_allocation *a, uint64_t first, uint64_t last)
{
    return first >= a->base && last >= first && last <= a->base + a->size;
}

/* The allocation of an address, from this thread's last few. */
static const struct hipsim_allocation *allocation_of(struct thread *thread, uint64_t address)
{
    const size_t entries = sizeof thread->cache / sizeof *thread->cache;
    for (size_t i = 0; i < entries; i++) {
        const struct hipsim_allocation *a = &thread->cache[i];
        if (address - a->base < a->size)
            return a;
    }
    struct hipsim_allocation found;
    const struct hipsim_memory *memory = thread->launch->memory;
    if (!memory->find(memory->context, address, &found))
        return NULL;
    struct hipsim_allocation *slot = &thread->cache[thread->cache_next++ % entries];
    *slot = found;
    return slot;
}

static void out_of_bounds(struct wave *w, int lane, uint64_t address, unsigned bytes, bool write)
{
    const struct hipsim_allocation *a = allocation_of(w->thread, address);
    const char *verb = write ? "store" : "load";
    pthread_mutex_lock(&w->thread->launch->report);
    w->thread->launch->out_of_bounds = true;
    pthread_mutex_unlock(&w->thread->launch->report);
    if (!a)
        report(w, HIPSIM_VIOLATION_BOUNDS, lane, "%s of %u bytes at 0x%llx: in no allocation", verb,
               bytes, (unsigned long long)address);
    else if (write && !a->writable)
        report(w, HIPSIM_VIOLATION_BOUNDS, lane, "store of %u bytes at 0x%llx: read-only memory",
               bytes, (unsigned long long)address);
    else
        report(w, HIPSIM_VIOLATION_BOUNDS, lane,
               "%s of %u bytes at 0x%llx: past the end of the allocation 0x%llx of %llu bytes",
               verb, bytes, (unsigned long long)address, (unsigned long long)a->base,
               (unsigned long long)a->size);
}

uint64_t reach_lanes(struct wave *w, const uint64_t *address, uint64_t lanes, unsigned bytes,
                     bool write)
{
    uint64_t least = UINT64_MAX, greatest = 0, good = lanes;
    if (!lanes)
        return 0;
    for (uint64_t left = lanes; left; left &= left - 1) {
        uint64_t x = address[__builtin_ctzll(left)];
        least = x < least ? x : least;
        greatest = x > greatest ? x : greatest;
    }
    const struct hipsim_allocation *a = allocation_of(w->thread, least);
    if (a && inside(a, least, greatest + bytes) && (a->writable || !write))
        return lanes;
    for (uint64_t left = lanes; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        a = allocation_of(w->thread, address[i]);
        if (a && inside(a, address[i], address[i] + bytes) && (a->writable || !write))
            continue;
        out_of_bounds(w, i, address[i], bytes, write);
        good &= ~(UINT64_C(1) << i);
    }
    return good;
}

const void *reach_scalar(struct wave *w, uint64_t address, unsigned bytes)
{
    const struct hipsim_allocation *a = allocation_of(w->thread, address);
    if (a && inside(a, address, address + bytes))
        return (const void *)(uintptr_t)address;
    out_of_bounds(w, -1, address, bytes, false);
    return NULL;
}

/* Row parameter: bytes; sign-extended narrow ones have ACCESS_SIGN. */
static void load_scalar(struct wave *w, const struct op *o, const void *from)
{
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES, reg = o->dst[0].first;
    uint32_t words[16] = {0};
    if (from)
        memcpy(words, from, bytes);
    if (o->parameter & ACCESS_SIGN)
        words[0] = bytes == 1 ? (uint32_t)(int8_t)words[0] : (uint32_t)(int16_t)words[0];
    for (unsigned i = 0; 4 * i < bytes; i++)
        put_s32(w, reg + (reg == SREG_NULL ? 0 : i), words[i]);
}

/* Offset: a constant is signed, a register unsigned; op.offset comes on top of a register. */
static uint64_t scalar_offset(const struct wave *w, const struct op *o)
{
    const struct operand *s = &o->src[1];
    if (s->kind == OPERAND_CONSTANT)
        return (uint64_t)(int64_t)(int32_t)s->value + (uint64_t)(int64_t)o->offset;
    return w->s[s->first] + (uint64_t)(int64_t)o->offset;
}

void s_load(struct wave *w, const struct op *o)
{
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES;
    uint64_t address = scalar64(w, &o->src[0]) + scalar_offset(w, o);
    if (bytes >= 4)
        address &= ~UINT64_C(3);
    load_scalar(w, o, reach_scalar(w, address, bytes));
}

void s_buffer_load(struct wave *w, const struct op *o)
{
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES, first = o->src[0].first;
    uint64_t base = get_s64(w, first) & ((UINT64_C(1) << 48) - 1);
    uint64_t offset = scalar_offset(w, o) & ~UINT64_C(3);
    bool in_range = offset + bytes <= w->s[first + 2];
    load_scalar(w, o, in_range ? reach_scalar(w, base + offset, bytes) : NULL);
}

void put_loaded(struct wave *w, const struct op *o, unsigned reg, int lane, const void *from,
                unsigned access)
{
    unsigned bytes = access & ACCESS_BYTES;
    (void)o;
    if (bytes >= 4) {
        for (unsigned k = 0; 4 * k < bytes; k++)
            memcpy(&w->v[reg + k][lane], (const uint8_t *)from + 4 * k, 4);
        return;
    }
    uint32_t x = 0, *d = &w->v[reg][lane];
    memcpy(&x, from, bytes);
    if (access & ACCESS_SIGN)
        x = bytes == 1 ? (uint32_t)(int8_t)x : (uint32_t)(int16_t)x;
    if (access & ACCESS_D16)
        x = access & ACCESS_HIGH ? (*d & 0xffff) | x << 16 : (*d & 0xffff0000) | (x & 0xffff);
    *d = x;
}

void take_stored(struct wave *w, unsigned reg, int lane, void *to, unsigned access)
{
    unsigned bytes = access & ACCESS_BYTES;
    if (bytes < 4) {
        uint32_t x = access & ACCESS_HIGH ? w->v[reg][lane] >> 16 : w->v[reg][lane];
        memcpy(to, &x, bytes);
        return;
    }
    for (unsigned k = 0; 4 * k < bytes; k++)
        memcpy((uint8_t *)to + 4 * k, &w->v[reg + k][lane], 4);
}

typedef uint32_t quad __attribute__((vector_size(16)));
typedef uint32_t unaligned_quad __attribute__((vector_size(16), aligned(1), may_alias));

/* 4 lanes of 4 words to 4 words of 4 lanes, and back. */
static inline void transpose(quad x[4])
{
    const quad low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
    quad a = __builtin_shuffle(x[0], x[1], low), b = __builtin_shuffle(x[0], x[1], high);
    quad c = __builtin_shuffle(x[2], x[3], low), d = __builtin_shuffle(x[2], x[3], high);
    x[0] = __builtin_shuffle(a, c, first);
    x[1] = __builtin_shuffle(a, c, second);
    x[2] = __builtin_shuffle(b, d, first);
    x[3] = __builtin_shuffle(b, d, second);
}

void load_all_lanes(struct wave *w, unsigned reg, const uint8_t *const from[LANES], unsigned bytes)
{
    if (bytes != 16) {
        for (unsigned k = 0; 4 * k < bytes; k++)
            for (int i = 0; i < w->lanes; i++)
                memcpy(&w->v[reg + k][i], from[i] + 4 * k, 4);
        return;
    }
    for (int i = 0; i < w->lanes; i += 4) {
        quad x[4];
        for (int k = 0; k < 4; k++)
            x[k] = *(const unaligned_quad *)from[i + k];
        transpose(x);
        for (unsigned k = 0; k < 4; k++)
            *(quad *)&w->v[reg + k][i] = x[k];
    }
}

void store_all_lanes(struct wave *w, unsigned reg, uint8_t *const to[LANES], unsigned bytes)
{
    if (bytes != 16) {
        for (unsigned k = 0; 4 * k < bytes; k++)
            for (int i = 0; i < w->lanes; i++)
                memcpy(to[i] + 4 * k, &w->v[reg + k][i], 4);
        return;
    }
    for (int i = 0; i < w->lanes; i += 4) {
        quad x[4];
        for (unsigned k = 0; k < 4; k++)
            x[k] = *(const quad *)&w->v[reg + k][i];
        transpose(x);
        for (int k = 0; k < 4; k++)
            *(unaligned_quad *)to[i + k] = x[k];
    }
}

/* Address operand, then scalar base or off. */
static void global_addresses(struct wave *w, const struct op *o, int vector, uint64_t *address)
{
    const struct operand *v = &o->src[vector], *s = &o->src[o->sources - 1];
    uint64_t offset = (uint64_t)(int64_t)o->offset;
    uint32_t buffer[LANES];
    if (s->kind == OPERAND_SREG && s->first != SREG_NULL) {
        uint64_t base = get_s64(w, s->first) + offset;
        if (v->kind == OPERAND_NONE) {
            for (int i = 0; i < LANES; i++)
                address[i] = base;
            return;
        }
        const uint32_t *low = lanes32(w, v, 0, buffer);
        for (int i = 0; i < LANES; i++)
            address[i] = base + low[i];
        return;
    }
    const uint32_t *low = w->v[v->first], *high = w->v[v->first + 1];
    for (int i = 0; i < LANES; i++)
        address[i] = (low[i] | (uint64_t)high[i] << 32) + offset;
}

void global_load(struct wave *w, const struct op *o)
{
    uint64_t address[LANES];
    unsigned access = (unsigned)o->parameter, bytes = access & ACCESS_BYTES;
    access |= o->dst[0].half == HALF_HIGH ? ACCESS_D16 | ACCESS_HIGH : 0;
    global_addresses(w, o, 0, address);
    uint64_t good = reach_lanes(w, address, w->exec, bytes, false);
    w->thread->counters.bytes_loaded += bytes * (unsigned)__builtin_popcountll(w->exec);
    if (good == w->all && bytes >= 4) {
        load_all_lanes(w, o->dst[0].first, (const uint8_t *const *)address, bytes);
        return;
    }
    static const uint32_t zero[4];
    for (uint64_t left = w->exec; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        const void *from = good >> i & 1 ? (const void *)(uintptr_t)address[i] : zero;
        put_loaded(w, o, o->dst[0].first, i, from, access);
    }
}

/* Sources: address, data, base. */
void global_store(struct wave *w, const struct op *o)
{
    uint64_t address[LANES];
    unsigned access = (unsigned)o->parameter, bytes = access & ACCESS_BYTES;
    access |= o->src[1].half == HALF_HIGH ? ACCESS_HIGH : 0;
    global_addresses(w, o, 0, address);
    uint64_t good = reach_lanes(w, address, w->exec, bytes, true);
    for (uint64_t left = good; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        take_stored(w, o->src[1].first, i, (void *)(uintptr_t)address[i], access);
    }
    w->thread->counters.bytes_stored += bytes * (unsigned)__builtin_popcountll(good);
}

/* Straight to LDS: lane i writes at M0 + offset + i * bytes. */
void global_load_lds(struct wave *w, const struct op *o)
{
    uint64_t address[LANES];
    uint32_t to[LANES];
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES;
    global_addresses(w, o, 0, address);
    for (int i = 0; i < LANES; i++)
        to[i] = w->s[SREG_M0] + (uint32_t)o->offset + (uint32_t)i * bytes;
    uint64_t good = reach_lanes(w, address, w->exec, bytes, false);
    good &= reach_lds_dma(w, to, w->exec, bytes);
    for (uint64_t left = good; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        memcpy(w->group->lds + to[i], (const void *)(uintptr_t)address[i], bytes);
    }
    w->thread->counters.bytes_to_lds += bytes * (unsigned)__builtin_popcountll(good);
}
