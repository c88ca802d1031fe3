/* The three instructions that surround a division: div_scale keeps the operands in range, div_fmas
 * undoes it, div_fixup puts the special cases back. After the pseudo-code of the ISA documents,
 * with two readings that only make the scaling consistent: div_fmas multiplies by 2^64 or 2^-64
 * (2^128 or 2^-128) after the exponent of its quotient, and a huge denominator of a subnormal
 * quotient is scaled down. Path of a launch: the loop of run.c, class VALU. */
#include "lanes.h"

#include <math.h>

static int biased_f32(float x)
{
    return (int)(as_u32(x) >> 23 & 255);
}

static int biased_f64(double x)
{
    return (int)(as_u64(x) >> 52 & 2047);
}

static bool subnormal_f32(float x)
{
    return biased_f32(x) == 0 && x != 0;
}

static bool subnormal_f64(double x)
{
    return biased_f64(x) == 0 && x != 0;
}

/* s0 is the denominator s1 or the numerator s2; whichever it is comes back scaled. */
#define SCALE(name, real, biased, subnormal, scale, step, wide, tiny)                              \
    static real name(real s0, real s1, real s2, bool *scaled)                                      \
    {                                                                                              \
        *scaled = false;                                                                           \
        if (s1 == 0 || s2 == 0)                                                                    \
            return (real)NAN;                                                                      \
        if (biased(s2) - biased(s1) >= wide) {                                                     \
            *scaled = true;                                                                        \
            return s0 == s1 ? scale(s0, step) : s0;                                                \
        }                                                                                          \
        if (subnormal(s1))                                                                         \
            return scale(s0, step);                                                                \
        bool small_inverse = subnormal((real)1 / s1), small = subnormal(s2 / s1);                  \
        if (small_inverse && small) {                                                              \
            *scaled = true;                                                                        \
            return s0 == s1 ? scale(s0, -(step)) : s0;                                             \
        }                                                                                          \
        if (small_inverse)                                                                         \
            return scale(s0, -(step));                                                             \
        if (small) {                                                                               \
            *scaled = true;                                                                        \
            return s0 == s2 ? scale(s0, step) : s0;                                                \
        }                                                                                          \
        return biased(s2) <= tiny ? scale(s0, step) : s0;                                          \
    }
SCALE(scale_f32, float, biased_f32, subnormal_f32, ldexpf, 64, 96, 23)
SCALE(scale_f64, double, biased_f64, subnormal_f64, ldexp, 128, 768, 53)

#define DIV_SCALE(name, type, scale)                                                               \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        SOURCE(type, a, 0)                                                                         \
        SOURCE(type, b, 1) SOURCE(type, c, 2) _Alignas(64) LANE_##type d_[LANES];                  \
        uint64_t mask = 0;                                                                         \
        for (int i = 0; i < w->lanes; i++) {                                                       \
            bool scaled;                                                                           \
            d_[i] = scale(a_[i], b_[i], c_[i], &scaled);                                           \
            mask |= (uint64_t)scaled << i;                                                         \
        }                                                                                          \
        FINISH_##type(d_) put_mask(w, o->dst[1].first, mask & w->exec);                            \
    }
DIV_SCALE(v_div_scale_f32, f32, scale_f32)
DIV_SCALE(v_div_scale_f64, f64, scale_f64)

/* Scaled before it is rounded, once: a subnormal quotient stays correct. */
static float fmas_f32(float a, float b, float c, bool scaled)
{
    if (!scaled)
        return __builtin_fmaf(a, b, c);
    return (float)(((double)a * b + c) * (biased_f32(c) > 127 ? 0x1p64 : 0x1p-64));
}

static double fmas_f64(double a, double b, double c, bool scaled)
{
    if (!scaled)
        return __builtin_fma(a, b, c);
    return (double)(((__float128)a * b + c) * (biased_f64(c) > 1023 ? 0x1p128 : 0x1p-128));
}

#define DIV_FMAS(type)                                                                             \
    void v_div_fmas_##type(struct wave *w, const struct op *o)                                     \
    {                                                                                              \
        SOURCE(type, a, 0)                                                                         \
        SOURCE(type, b, 1) SOURCE(type, c, 2) _Alignas(64) LANE_##type d_[LANES];                  \
        uint64_t vcc = get_mask(w, SREG_VCC);                                                      \
        for (int i = 0; i < w->lanes; i++)                                                         \
            d_[i] = fmas_##type(a_[i], b_[i], c_[i], vcc >> i & 1);                                \
        FINISH_##type(d_)                                                                          \
    }
DIV_FMAS(f32)
DIV_FMAS(f64)

/* a is the quotient, b the denominator, c the numerator. */
#define FIXUP(name, real, biased, copy, under, top)                                                \
    static real name(real a, real b, real c)                                                       \
    {                                                                                              \
        real sign = copy((real)1, b) * copy((real)1, c);                                           \
        if (c != c)                                                                                \
            return c;                                                                              \
        if (b != b)                                                                                \
            return b;                                                                              \
        if ((b == 0 && c == 0) || (isinf(b) && isinf(c)))                                          \
            return (real)NAN;                                                                      \
        if (b == 0 || isinf(c))                                                                    \
            return sign * (real)INFINITY;                                                          \
        if (isinf(b) || c == 0)                                                                    \
            return sign * (real)0;                                                                 \
        if (biased(c) - biased(b) < under)                                                         \
            return sign * (real)0;                                                                 \
        if (biased(b) == top)                                                                      \
            return sign * (real)INFINITY;                                                          \
        if (a != a) /* the quotient overflowed on the way */                                       \
            return sign * (real)INFINITY;                                                          \
        return copy(a, sign);                                                                      \
    }
FIXUP(fixup_f32, float, biased_f32, copysignf, -150, 255)
FIXUP(fixup_f64, double, biased_f64, copysign, -1075, 2047)

VALU3(v_div_fixup_f32, f32, f32, f32, f32, fixup_f32(a, b, c))
VALU3(v_div_fixup_f64, f64, f64, f64, f64, fixup_f64(a, b, c))
VALU3(v_div_fixup_f16, f16, f16, f16, f16, fixup_f32(a, b, c))
