/* Scalar loads, global and flat memory, and the allocation check that all of device memory goes
 * through. An access outside every allocation is suppressed, reported and a fault.
 * Path of a launch: the loop of run.c, classes SMEM and MEMORY. */
#include "memory.h"

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

static bool allows(const struct hipsim_allocation *a, unsigned bytes, bool write)
{
    return a && a->size >= bytes && (a->writable || !write);
}

uint64_t reach_lanes(struct wave *w, const uint64_t *address, uint64_t lanes, unsigned bytes,
                     bool write)
{
    uint64_t good = lanes;
    for (int i = 0; i < w->lanes; i++) /* misses overlap; an address that is none does no harm */
        __builtin_prefetch((const void *)(uintptr_t)address[i]);
    for (uint64_t left = lanes; left;) {
        int first = __builtin_ctzll(left);
        const struct hipsim_allocation *a = allocation_of(w->thread, address[first]);
        if (allows(a, bytes, write)) {
            uint64_t base = a->base, last = a->size - bytes;
            MASK_LANES(inside, i, address[i] - base <= last)
            left &= ~inside;
        }
        if (left >> first & 1) {
            out_of_bounds(w, first, address[first], bytes, write);
            left &= left - 1;
            good &= ~(UINT64_C(1) << first);
        }
    }
    return good;
}

const void *reach_scalar(struct wave *w, uint64_t address, unsigned bytes)
{
    const struct hipsim_allocation *a = allocation_of(w->thread, address);
    if (allows(a, bytes, false) && address - a->base <= a->size - bytes)
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

typedef uint32_t quad __attribute__((vector_size(16)));
typedef uint64_t pair __attribute__((vector_size(16)));
typedef uint32_t unaligned_quad __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t unaligned_u64 __attribute__((aligned(1), may_alias));
typedef uint32_t unaligned_u32 __attribute__((aligned(1), may_alias));
typedef uint16_t unaligned_u16 __attribute__((aligned(1), may_alias));
#define AT(type, address) (*(type *)(uintptr_t)(address))

/* gcc before 12 has only the other one. */
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (quad){__VA_ARGS__})
#endif

/* 4 lanes of 4 words to 4 words of 4 lanes, and back. */
static inline void transpose(quad x[4])
{
    quad a = SHUFFLE(x[0], x[1], 0, 4, 1, 5), b = SHUFFLE(x[0], x[1], 2, 6, 3, 7);
    quad c = SHUFFLE(x[2], x[3], 0, 4, 1, 5), d = SHUFFLE(x[2], x[3], 2, 6, 3, 7);
    x[0] = SHUFFLE(a, c, 0, 1, 4, 5);
    x[1] = SHUFFLE(a, c, 2, 3, 6, 7);
    x[2] = SHUFFLE(b, d, 0, 1, 4, 5);
    x[3] = SHUFFLE(b, d, 2, 3, 6, 7);
}

/* Lanes of `bytes` bytes each to registers, a narrow value in the low bits; and back. */
static void gather(const uint64_t *from, unsigned bytes, int lanes, uint32_t (*out)[LANES])
{
    if (bytes == 16) {
        for (int i = 0; i < lanes; i += 4) {
            quad x[4];
            for (int k = 0; k < 4; k++)
                x[k] = AT(const unaligned_quad, from[i + k]);
            transpose(x);
            for (int k = 0; k < 4; k++)
                *(quad *)&out[k][i] = x[k];
        }
    } else if (bytes == 8) {
        for (int i = 0; i < lanes; i += 4) {
            quad x = (quad)(pair){AT(const unaligned_u64, from[i]),
                                  AT(const unaligned_u64, from[i + 1])};
            quad y = (quad)(pair){AT(const unaligned_u64, from[i + 2]),
                                  AT(const unaligned_u64, from[i + 3])};
            *(quad *)&out[0][i] = SHUFFLE(x, y, 0, 2, 4, 6);
            *(quad *)&out[1][i] = SHUFFLE(x, y, 1, 3, 5, 7);
        }
    } else if (bytes >= 4) {
        for (unsigned k = 0; 4 * k < bytes; k++)
            for (int i = 0; i < lanes; i++)
                out[k][i] = AT(const unaligned_u32, from[i] + 4 * k);
    } else {
        for (int i = 0; i < lanes; i++)
            out[0][i] = bytes == 1 ? AT(const uint8_t, from[i]) : AT(const unaligned_u16, from[i]);
    }
}

static void scatter(const uint64_t *to, unsigned bytes, int lanes, const uint32_t (*in)[LANES],
                    int shift)
{
    if (bytes == 16) {
        for (int i = 0; i < lanes; i += 4) {
            quad x[4];
            for (int k = 0; k < 4; k++)
                x[k] = *(const quad *)&in[k][i];
            transpose(x);
            for (int k = 0; k < 4; k++)
                AT(unaligned_quad, to[i + k]) = x[k];
        }
    } else if (bytes == 8) {
        for (int i = 0; i < lanes; i += 4) {
            quad low = *(const quad *)&in[0][i], high = *(const quad *)&in[1][i];
            pair x = (pair)SHUFFLE(low, high, 0, 4, 1, 5), y = (pair)SHUFFLE(low, high, 2, 6, 3, 7);
            AT(unaligned_u64, to[i]) = x[0];
            AT(unaligned_u64, to[i + 1]) = x[1];
            AT(unaligned_u64, to[i + 2]) = y[0];
            AT(unaligned_u64, to[i + 3]) = y[1];
        }
    } else {
        for (int i = 0; i < lanes; i++) {
            if (bytes == 1)
                AT(uint8_t, to[i]) = (uint8_t)(in[0][i] >> shift);
            else if (bytes == 2)
                AT(unaligned_u16, to[i]) = (uint16_t)(in[0][i] >> shift);
            else
                for (unsigned k = 0; 4 * k < bytes; k++)
                    AT(unaligned_u32, to[i] + 4 * k) = in[k][i];
        }
    }
}

/* Lanes outside `good` go to `elsewhere`. */
static void divert(struct wave *w, uint64_t *address, uint64_t good, const void *elsewhere)
{
    if (good == w->all)
        return;
    for (int i = 0; i < w->lanes; i++)
        address[i] = good >> i & 1 ? address[i] : (uintptr_t)elsewhere;
}

void load_lanes(struct wave *w, unsigned reg, uint64_t *address, uint64_t good, unsigned access)
{
    static const _Alignas(16) uint8_t zero[16];
    unsigned bytes = access & ACCESS_BYTES;
    uint32_t (*out)[LANES] = w->full && bytes >= 4 ? &w->v[reg] : w->temporary;
    uint32_t *x = out[0], *old = w->v[reg];
    divert(w, address, good, zero);
    gather(address, bytes, w->lanes, out);
    if (access & ACCESS_SIGN)
        FOR_LANES(i) x[i] = bytes == 1 ? (uint32_t)(int8_t)x[i] : (uint32_t)(int16_t)x[i];
    if ((access & ACCESS_D16) && (access & ACCESS_HIGH))
        FOR_LANES(i) x[i] = (old[i] & 0xffff) | x[i] << 16;
    else if (access & ACCESS_D16)
        FOR_LANES(i) x[i] = (old[i] & 0xffff0000) | (x[i] & 0xffff);
    for (unsigned k = 0; k < (bytes + 3) / 4; k++)
        merge32(w, reg + k, out[k]);
}

void store_lanes(struct wave *w, unsigned reg, uint64_t *address, uint64_t good, unsigned access)
{
    _Alignas(16) uint8_t nowhere[16];
    divert(w, address, good, nowhere);
    scatter(address, access & ACCESS_BYTES, w->lanes, &w->v[reg], access & ACCESS_HIGH ? 16 : 0);
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
    load_lanes(w, o->dst[0].first, address, good, access);
}

/* Sources: address, data, base. */
void global_store(struct wave *w, const struct op *o)
{
    uint64_t address[LANES];
    unsigned access = (unsigned)o->parameter, bytes = access & ACCESS_BYTES;
    access |= o->src[1].half == HALF_HIGH ? ACCESS_HIGH : 0;
    global_addresses(w, o, 0, address);
    uint64_t good = reach_lanes(w, address, w->exec, bytes, true);
    store_lanes(w, o->src[1].first, address, good, access);
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
