/* Vector comparison: a bit per lane into a scalar pair, or into EXEC (v_cmpx).
 * Path of a launch: the loop of run.c, class VALU. */
#include "lanes.h"

#include <math.h>

/* v_cmpx of gfx9 names a result too; later ones have none. */
static void put_both(struct wave *w, const struct op *o, uint64_t mask)
{
    if (o->destinations)
        put_mask(w, o->dst[0].first, mask);
    set_exec(w, mask);
}

#define COMPARE(name, type, test)                                                                  \
    static uint64_t name##_mask(struct wave *w, const struct op *o)                                \
    {                                                                                              \
        SOURCE(type, a, 0) SOURCE(type, b, 1) uint32_t *d = w->temporary[0];                       \
        FOR_LANES(i)                                                                               \
        {                                                                                          \
            LANE_##type a = a_[i], b = b_[i];                                                      \
            (void)a, (void)b;                                                                      \
            d[i] = (test) ? 1 : 0;                                                                 \
        }                                                                                          \
        return mask_of(w, d);                                                                      \
    }                                                                                              \
    void v_cmp_##name(struct wave *w, const struct op *o)                                          \
    {                                                                                              \
        put_mask(w, o->dst[0].first, name##_mask(w, o));                                           \
    }                                                                                              \
    void v_cmpx_##name(struct wave *w, const struct op *o)                                         \
    {                                                                                              \
        put_both(w, o, name##_mask(w, o));                                                         \
    }

#define COMPARE_INTEGERS(type)                                                                     \
    COMPARE(lt_##type, type, a < b)                                                                \
    COMPARE(eq_##type, type, a == b)                                                               \
    COMPARE(le_##type, type, a <= b)                                                               \
    COMPARE(gt_##type, type, a > b)                                                                \
    COMPARE(ne_##type, type, a != b)                                                               \
    COMPARE(ge_##type, type, a >= b)
COMPARE_INTEGERS(u32)
COMPARE_INTEGERS(i32)
COMPARE_INTEGERS(u64)
COMPARE_INTEGERS(i64)
COMPARE_INTEGERS(u16)
COMPARE_INTEGERS(i16)

#define COMPARE_FLOATS(type)                                                                       \
    COMPARE(lt_##type, type, a < b)                                                                \
    COMPARE(eq_##type, type, a == b)                                                               \
    COMPARE(le_##type, type, a <= b)                                                               \
    COMPARE(gt_##type, type, a > b)                                                                \
    COMPARE(lg_##type, type, a<b || a> b)                                                          \
    COMPARE(ge_##type, type, a >= b)                                                               \
    COMPARE(o_##type, type, a == a && b == b)                                                      \
    COMPARE(u_##type, type, a != a || b != b)                                                      \
    COMPARE(nge_##type, type, !(a >= b))                                                           \
    COMPARE(nlg_##type, type, !(a < b || a > b))                                                   \
    COMPARE(ngt_##type, type, !(a > b))                                                            \
    COMPARE(nle_##type, type, !(a <= b))                                                           \
    COMPARE(neq_##type, type, a != b)                                                              \
    COMPARE(nlt_##type, type, !(a < b))
COMPARE_FLOATS(f32)
COMPARE_FLOATS(f64)
COMPARE_FLOATS(f16)

/* A bit each: signalling NaN, quiet NaN, -inf, -normal, -subnormal, -0, then the same upwards. */
static uint32_t class_bits(uint64_t fraction, unsigned exponent, unsigned top, bool negative,
                           bool quiet)
{
    if (exponent == top && fraction)
        return quiet ? 2 : 1;
    int kind = exponent == top ? 0 : exponent ? 1 : fraction ? 2 : 3;
    return negative ? 4u << kind : 512u >> kind;
}

static uint32_t class_f32(uint32_t x)
{
    return class_bits(x & 0x7fffff, x >> 23 & 255, 255, x >> 31, x >> 22 & 1);
}

static uint32_t class_f64(uint64_t x)
{
    return class_bits(x & ((UINT64_C(1) << 52) - 1), x >> 52 & 2047, 2047, x >> 63, x >> 51 & 1);
}

static uint32_t class_f16(uint32_t x)
{
    return class_bits(x & 0x3ff, x >> 10 & 31, 31, x >> 15 & 1, x >> 9 & 1);
}

#define CLASSIFY(type, bits, words)                                                                \
    static uint64_t class_##type##_mask(struct wave *w, const struct op *o)                        \
    {                                                                                              \
        SOURCE(words, a, 0) SOURCE(u32, b, 1) uint32_t *d = w->temporary[0];                       \
        for (int i = 0; i < w->lanes; i++) {                                                       \
            LANE_##words x = a_[i] & ~(LANE_##words)(o->src[0].absolute ? bits : 0);               \
            d[i] = class_##type(x ^ (o->src[0].negate ? bits : 0)) & b_[i];                        \
        }                                                                                          \
        return mask_of(w, d);                                                                      \
    }                                                                                              \
    void v_cmp_class_##type(struct wave *w, const struct op *o)                                    \
    {                                                                                              \
        put_mask(w, o->dst[0].first, class_##type##_mask(w, o));                                   \
    }                                                                                              \
    void v_cmpx_class_##type(struct wave *w, const struct op *o)                                   \
    {                                                                                              \
        put_both(w, o, class_##type##_mask(w, o));                                                 \
    }
CLASSIFY(f32, 0x80000000u, u32)
CLASSIFY(f64, UINT64_C(1) << 63, u64)
CLASSIFY(f16, 0x8000u, u16)
