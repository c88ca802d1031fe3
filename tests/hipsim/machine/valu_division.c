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

/* Nothing is scaled: both exponents and their difference are far from the ends. */
#define UNSCALED(name, real, biased, top, wide, tiny)                                              \
    static inline bool name(real s1, real s2)                                                      \
    {                                                                                              \
        int e1 = biased(s1), e2 = biased(s2), apart = e2 - e1;                                     \
        return (e1 >= 1) & (e1 <= top - 3) & (e2 > tiny) & (e2 < top) & (apart < wide) &           \
               (apart >= 2 - top / 2);                                                             \
    }
UNSCALED(unscaled_f32, float, biased_f32, 255, 96, 23)
UNSCALED(unscaled_f64, double, biased_f64, 2047, 768, 53)

#define DIV_SCALE(name, type)                                                                      \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        SOURCE(type, a, 0)                                                                         \
        SOURCE(type, b, 1) SOURCE(type, c, 2) _Alignas(64) LANE_##type d_[LANES];                  \
        MASK_LANES(easy, i, unscaled_##type(b_[i], c_[i]))                                         \
        uint64_t mask = 0;                                                                         \
        FOR_LANES(i) d_[i] = a_[i];                                                                \
        for (uint64_t left = w->exec & ~easy; left; left &= left - 1) {                            \
            int i = __builtin_ctzll(left);                                                         \
            bool scaled;                                                                           \
            d_[i] = scale_##type(a_[i], b_[i], c_[i], &scaled);                                    \
            mask |= (uint64_t)scaled << i;                                                         \
        }                                                                                          \
        FINISH_##type(d_) put_mask(w, o->dst[1].first, mask);                                      \
    }
DIV_SCALE(v_div_scale_f32, f32)
DIV_SCALE(v_div_scale_f64, f64)

#ifdef __SIZEOF_FLOAT128__
typedef __float128 quadruple;
#else
typedef long double quadruple; /* aarch64: 128 bits too */
#endif

/* Scaled before it is rounded, once: a subnormal quotient stays correct. */
static float scaled_f32(float a, float b, float c)
{
    return (float)(((double)a * b + c) * (biased_f32(c) > 127 ? 0x1p64 : 0x1p-64));
}

static double scaled_f64(double a, double b, double c)
{
    return (double)(((quadruple)a * b + c) * (biased_f64(c) > 1023 ? 0x1p128 : 0x1p-128));
}
#define fma_f32 __builtin_fmaf
#define fma_f64 __builtin_fma

#define DIV_FMAS(type)                                                                             \
    void v_div_fmas_##type(struct wave *w, const struct op *o)                                     \
    {                                                                                              \
        SOURCE(type, a, 0)                                                                         \
        SOURCE(type, b, 1) SOURCE(type, c, 2) _Alignas(64) LANE_##type d_[LANES];                  \
        uint64_t vcc = get_mask(w, SREG_VCC) & w->exec;                                            \
        FOR_LANES(i) d_[i] = fma_##type(a_[i], b_[i], c_[i]);                                      \
        for (uint64_t left = vcc; left; left &= left - 1) {                                        \
            int i = __builtin_ctzll(left);                                                         \
            d_[i] = scaled_##type(a_[i], b_[i], c_[i]);                                            \
        }                                                                                          \
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

/* Numbers with nothing special about them or their quotient: only the sign is put right. */
#define UNFIXED(name, real, biased, under, top)                                                    \
    static inline bool name(real a, real b, real c)                                                \
    {                                                                                              \
        int eb = biased(b), ec = biased(c);                                                        \
        return (a == a) & (eb >= 1) & (eb < top) & (ec >= 1) & (ec < top) & (ec - eb >= under);    \
    }
UNFIXED(unfixed_f32, float, biased_f32, -150, 255)
UNFIXED(unfixed_f64, double, biased_f64, -1075, 2047)

static inline float signed_f32(float a, float b, float c)
{
    return as_f32((as_u32(a) & 0x7fffffff) | ((as_u32(b) ^ as_u32(c)) & 0x80000000));
}

static inline double signed_f64(double a, double b, double c)
{
    uint64_t sign = UINT64_C(1) << 63;
    return as_f64((as_u64(a) & ~sign) | ((as_u64(b) ^ as_u64(c)) & sign));
}

#define DIV_FIXUP(type)                                                                            \
    void v_div_fixup_##type(struct wave *w, const struct op *o)                                    \
    {                                                                                              \
        SOURCE(type, a, 0)                                                                         \
        SOURCE(type, b, 1) SOURCE(type, c, 2) _Alignas(64) LANE_##type d_[LANES];                  \
        MASK_LANES(easy, i, unfixed_##type(a_[i], b_[i], c_[i]))                                   \
        FOR_LANES(i) d_[i] = signed_##type(a_[i], b_[i], c_[i]);                                   \
        for (uint64_t left = w->exec & ~easy; left; left &= left - 1) {                            \
            int i = __builtin_ctzll(left);                                                         \
            d_[i] = fixup_##type(a_[i], b_[i], c_[i]);                                             \
        }                                                                                          \
        FINISH_##type(d_)                                                                          \
    }
DIV_FIXUP(f32)
DIV_FIXUP(f64)
VALU3(v_div_fixup_f16, f16, f16, f16, f16, fixup_f32(a, b, c))
