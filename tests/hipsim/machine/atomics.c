/* Read-modify-write of device memory and of LDS, lane after lane; with device memory against other
 * workgroups on other host threads.
 * Path of a launch: the loop of run.c, classes MEMORY and LDS. */
#include "memory.h"

typedef uint64_t (*combine)(uint64_t old, uint64_t data);

#define COMBINE(name, expression)                                                                  \
    static uint64_t name(uint64_t old, uint64_t data)                                              \
    {                                                                                              \
        return (expression);                                                                       \
    }
COMBINE(swap, ((void)old, data))
COMBINE(add, old + data)
COMBINE(subtract, old - data)
COMBINE(bit_and, old &data)
COMBINE(bit_or, old | data)
COMBINE(bit_xor, old ^ data)
COMBINE(umin32, (uint32_t)old < (uint32_t)data ? old : data)
COMBINE(umax32, (uint32_t)old > (uint32_t)data ? old : data)
COMBINE(smin32, (int32_t)old < (int32_t)data ? old : data)
COMBINE(smax32, (int32_t)old > (int32_t)data ? old : data)
COMBINE(umax64, old > data ? old : data)
COMBINE(umin64, old < data ? old : data)
COMBINE(increment, (uint32_t)old >= (uint32_t)data ? 0 : old + 1)
COMBINE(add_f32, as_u32(as_f32((uint32_t)old) + as_f32((uint32_t)data)))
COMBINE(add_f64, as_u64(as_f64(old) + as_f64(data)))

static uint64_t add_pk_f16(uint64_t old, uint64_t data)
{
    uint32_t low = float_to_half(half_to_float(old & 0xffff) + half_to_float(data & 0xffff));
    uint32_t high =
        float_to_half(half_to_float((uint32_t)old >> 16) + half_to_float((uint32_t)data >> 16));
    return low | high << 16;
}

static uint64_t add_pk_bf16(uint64_t old, uint64_t data)
{
    uint32_t a = (uint32_t)old, b = (uint32_t)data;
    uint32_t low = float_to_bf16(as_f32(a << 16) + as_f32(b << 16));
    uint32_t high = float_to_bf16(as_f32(a & 0xffff0000) + as_f32(b & 0xffff0000));
    return low | high << 16;
}

static uint64_t apply32(void *p, combine f, uint64_t data, const uint32_t *compare)
{
    uint32_t *at = p, old = __atomic_load_n(at, __ATOMIC_RELAXED), new;
    do {
        new = compare ? (old == *compare ? (uint32_t)data : old) : (uint32_t)f(old, data);
    } while (
        !__atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return old;
}

static uint64_t apply64(void *p, combine f, uint64_t data, const uint64_t *compare)
{
    uint64_t *at = p, old = __atomic_load_n(at, __ATOMIC_RELAXED), new;
    do {
        new = compare ? (old == *compare ? data : old) : f(old, data);
    } while (
        !__atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return old;
}

static uint64_t data_of(struct wave *w, unsigned reg, int lane, unsigned bytes)
{
    return w->v[reg][lane] | (bytes == 8 ? (uint64_t)w->v[reg + 1][lane] << 32 : 0);
}

/* One lane; `f` NULL compares and swaps: the data are the new value, then the compared one. */
static void apply(struct wave *w, const struct op *o, void *p, combine f, unsigned reg, int lane)
{
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES;
    uint64_t data = data_of(w, reg, lane, bytes), old;
    if (bytes == 4) {
        uint32_t compare = f ? 0 : w->v[reg + 1][lane];
        old = apply32(p, f, data, f ? NULL : &compare);
    } else {
        uint64_t compare = f ? 0 : data_of(w, reg + 2, lane, 8);
        old = apply64(p, f, data, f ? NULL : &compare);
    }
    if (!o->destinations)
        return;
    w->v[o->dst[0].first][lane] = (uint32_t)old;
    if (bytes == 8)
        w->v[o->dst[0].first + 1][lane] = (uint32_t)(old >> 32);
}

static void global_atomic(struct wave *w, const struct op *o, combine f)
{
    uint64_t address[LANES];
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES;
    const struct operand *v = &o->src[0], *s = &o->src[2];
    bool based = s->kind == OPERAND_SREG && s->first != SREG_NULL;
    for (int i = 0; i < LANES; i++)
        address[i] = (uint64_t)(int64_t)o->offset +
                     (based ? get_s64(w, s->first) + w->v[v->first][i]
                            : w->v[v->first][i] | (uint64_t)w->v[v->first + 1][i] << 32);
    uint64_t good = reach_lanes(w, address, w->exec, bytes, true);
    for (uint64_t left = good; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (address[i] % bytes) {
            report(w, HIPSIM_VIOLATION_ASSERTION, i, "an atomic at 0x%llx is misaligned",
                   (unsigned long long)address[i]);
            continue;
        }
        apply(w, o, (void *)(uintptr_t)address[i], f, o->src[1].first, i);
    }
    w->thread->counters.atomics += (unsigned)__builtin_popcountll(good);
}

static void lds_atomic(struct wave *w, const struct op *o, combine f)
{
    uint32_t address[LANES];
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES;
    for (int i = 0; i < LANES; i++)
        address[i] = w->v[o->src[0].first][i] + (uint32_t)o->offset;
    uint64_t good = reach_lds_atomic(w, address, w->exec, bytes);
    for (uint64_t left = good; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (address[i] % bytes)
            report(w, HIPSIM_VIOLATION_ASSERTION, i, "an atomic at LDS %u is misaligned",
                   address[i]);
        else
            apply(w, o, w->group->lds + address[i], f, o->src[1].first, i);
    }
}

#define BOTH(name, f)                                                                              \
    void global_atomic_##name(struct wave *w, const struct op *o)                                  \
    {                                                                                              \
        global_atomic(w, o, f);                                                                    \
    }                                                                                              \
    void ds_atomic_##name(struct wave *w, const struct op *o)                                      \
    {                                                                                              \
        lds_atomic(w, o, f);                                                                       \
    }
BOTH(swap, swap)
BOTH(cmpswap, NULL)
BOTH(add, add)
BOTH(sub, subtract)
BOTH(and, bit_and)
BOTH(or, bit_or)
BOTH(xor, bit_xor)
BOTH(umin, umin32)
BOTH(umax, umax32)
BOTH(smin, smin32)
BOTH(smax, smax32)
BOTH(umin64, umin64)
BOTH(umax64, umax64)
BOTH(inc, increment)
BOTH(add_f32, add_f32)
BOTH(add_f64, add_f64)
BOTH(pk_add_f16, add_pk_f16)
BOTH(pk_add_bf16, add_pk_bf16)
