/* Vector arithmetic in float32, float16 and float64. Products and sums are rounded once (the build
 * forbids contraction), fma is a real one; the approximate instructions (rcp, rsq, sqrt, exp, log)
 * come nearly correctly rounded and flush float32 subnormals as the hardware does.
 * Path of a launch: the loop of run.c, class VALU. */
#include "lanes.h"

#include <math.h>

static inline float flush(float x)
{
    uint32_t bits = as_u32(x);
    return (bits & 0x7f800000) ? x : as_f32(bits & 0x80000000);
}

/* 2^a in float64, so that the one rounding to float32 decides: 2^n times the series of 2^f, f in
 * [-1/2, 1/2], to 3e-13. */
static inline float exp2_f32(float a)
{
    const double magic = 0x1.8p52; /* adding it rounds to an integer, in the low bits */
    double x = a > 160 ? 160 : a < -160 ? -160 : a, shifted = x + magic, f = x - (shifted - magic);
    double p = 7.0549116208011233e-09;
    p = p * f + 1.0178086009239699e-07;
    p = p * f + 1.3215486790144309e-06;
    p = p * f + 1.5252733804059840e-05;
    p = p * f + 1.5403530393381608e-04;
    p = p * f + 1.3333558146428443e-03;
    p = p * f + 9.6181291076284769e-03;
    p = p * f + 5.5504108664821576e-02;
    p = p * f + 2.4022650695910072e-01;
    p = p * f + 6.9314718055994531e-01;
    p = p * f + 1;
    return (float)(p * as_f64((as_u64(shifted) + 1023) << 52));
}

/* IEEE minNum and maxNum; -0 is below +0. */
static inline float min_f32(float a, float b)
{
    float equal = as_f32(as_u32(a) | as_u32(b));
    return a != a ? b : b != b ? a : a < b ? a : b < a ? b : equal;
}

static inline float max_f32(float a, float b)
{
    float equal = as_f32(as_u32(a) & as_u32(b));
    return a != a ? b : b != b ? a : a > b ? a : b > a ? b : equal;
}

static inline float minimum_f32(float a, float b)
{
    return a != a ? a : b != b ? b : min_f32(a, b);
}

static inline float maximum_f32(float a, float b)
{
    return a != a ? a : b != b ? b : max_f32(a, b);
}

static inline double min_f64(double a, double b)
{
    return a != a ? b : b != b ? a : a < b ? a : b < a ? b : as_f64(as_u64(a) | as_u64(b));
}

static inline double max_f64(double a, double b)
{
    return a != a ? b : b != b ? a : a > b ? a : b > a ? b : as_f64(as_u64(a) & as_u64(b));
}

/* Median of three; any NaN gives the least of the numbers, as v_med3 does. */
static inline float med3_f32(float a, float b, float c)
{
    if (a != a || b != b || c != c)
        return min_f32(min_f32(a, b), c);
    return max_f32(min_f32(a, b), min_f32(max_f32(a, b), c));
}

VALU2(v_add_f32, f32, f32, f32, a + b)
VALU2(v_sub_f32, f32, f32, f32, a - b)
VALU2(v_subrev_f32, f32, f32, f32, b - a)
VALU2(v_mul_f32, f32, f32, f32, a *b)
VALU2(v_mul_legacy_f32, f32, f32, f32, a == 0 || b == 0 ? 0 : a * b)
VALU2(v_min_f32, f32, f32, f32, min_f32(a, b))
VALU2(v_max_f32, f32, f32, f32, max_f32(a, b))
VALU2(v_minimum_f32, f32, f32, f32, minimum_f32(a, b))
VALU2(v_maximum_f32, f32, f32, f32, maximum_f32(a, b))
VALU3(v_fma_f32, f32, f32, f32, f32, __builtin_fmaf(a, b, c))
VALU3(v_mad_f32, f32, f32, f32, f32, a *b + c)
VALU3(v_min3_f32, f32, f32, f32, f32, min_f32(min_f32(a, b), c))
VALU3(v_max3_f32, f32, f32, f32, f32, max_f32(max_f32(a, b), c))
VALU3(v_minmax_f32, f32, f32, f32, f32, max_f32(min_f32(a, b), c))
VALU3(v_maxmin_f32, f32, f32, f32, f32, min_f32(max_f32(a, b), c))
VALU3(v_med3_f32, f32, f32, f32, f32, med3_f32(a, b, c))
VALU3(v_minimum3_f32, f32, f32, f32, f32, minimum_f32(minimum_f32(a, b), c))
VALU3(v_maximum3_f32, f32, f32, f32, f32, maximum_f32(maximum_f32(a, b), c))

VALU1(v_rcp_f32, f32, f32, flush(1.0f / flush(a)))
VALU1(v_rsq_f32, f32, f32, (float)(1.0 / sqrt((double)flush(a))))
VALU1(v_sqrt_f32, f32, f32, sqrtf(flush(a)))
VALU1(v_exp_f32, f32, f32, flush(exp2_f32(flush(a))))
VALU1(v_log_f32, f32, f32, log2f(flush(a)))
VALU1(v_sin_f32, f32, f32, (float)sin(6.283185307179586 * ((double)a - floor((double)a))))
VALU1(v_cos_f32, f32, f32, (float)cos(6.283185307179586 * ((double)a - floor((double)a))))
VALU1(v_trunc_f32, f32, f32, __builtin_truncf(a))
VALU1(v_floor_f32, f32, f32, __builtin_floorf(a))
VALU1(v_ceil_f32, f32, f32, __builtin_ceilf(a))
VALU1(v_rndne_f32, f32, f32, __builtin_rintf(a))
VALU1(v_fract_f32, f32, f32, min_f32(a - __builtin_floorf(a), 0x1.fffffep-1f))

static inline int exponent_f32(float x)
{
    int e = 0;
    if (x != x || isinf(x) || x == 0)
        return 0;
    frexpf(x, &e);
    return e;
}

static inline float mantissa_f32(float x)
{
    int e;
    return x != x || isinf(x) ? x : frexpf(x, &e);
}

static inline int exponent_f64(double x)
{
    int e = 0;
    if (x != x || isinf(x) || x == 0)
        return 0;
    frexp(x, &e);
    return e;
}

static inline double mantissa_f64(double x)
{
    int e;
    return x != x || isinf(x) ? x : frexp(x, &e);
}

VALU1(v_frexp_exp_i32_f32, i32, f32, exponent_f32(a))
VALU1(v_frexp_mant_f32, f32, f32, mantissa_f32(a))
VALU1(v_frexp_exp_i32_f64, i32, f64, exponent_f64(a))
VALU1(v_frexp_mant_f64, f64, f64, mantissa_f64(a))
VALU2(v_ldexp_f32, f32, f32, i32, ldexpf(a, b))
VALU2(v_ldexp_f64, f64, f64, i32, ldexp(a, b))

VALU2(v_add_f64, f64, f64, f64, a + b)
VALU2(v_mul_f64, f64, f64, f64, a *b)
VALU2(v_min_f64, f64, f64, f64, min_f64(a, b))
VALU2(v_max_f64, f64, f64, f64, max_f64(a, b))
VALU3(v_fma_f64, f64, f64, f64, f64, __builtin_fma(a, b, c))
VALU1(v_trunc_f64, f64, f64, __builtin_trunc(a))
VALU1(v_floor_f64, f64, f64, __builtin_floor(a))
VALU1(v_ceil_f64, f64, f64, __builtin_ceil(a))
VALU1(v_rndne_f64, f64, f64, __builtin_rint(a))
VALU1(v_fract_f64, f64, f64, min_f64(a - __builtin_floor(a), 0x1.fffffffffffffp-1))

/* The float64 approximations promise about 2^-23..2^-29; the low bits are taken away, so that code
 * which forgets to refine them shows it. */
static inline double rough(double x)
{
    return x != x || isinf(x) ? x : as_f64(as_u64(x) & ~UINT64_C(0xfffffff));
}

VALU1(v_rcp_f64, f64, f64, rough(1.0 / a))
VALU1(v_rsq_f64, f64, f64, rough(1.0 / sqrt(a)))
VALU1(v_sqrt_f64, f64, f64, rough(sqrt(a)))

VALU2(v_add_f16, f16, f16, f16, a + b)
VALU2(v_sub_f16, f16, f16, f16, a - b)
VALU2(v_subrev_f16, f16, f16, f16, b - a)
VALU2(v_mul_f16, f16, f16, f16, a *b)
VALU2(v_min_f16, f16, f16, f16, min_f32(a, b))
VALU2(v_max_f16, f16, f16, f16, max_f32(a, b))
VALU3(v_med3_f16, f16, f16, f16, f16, med3_f32(a, b, c))
VALU3(v_max3_f16, f16, f16, f16, f16, max_f32(max_f32(a, b), c))
VALU3(v_min3_f16, f16, f16, f16, f16, min_f32(min_f32(a, b), c))
VALU1(v_rcp_f16, f16, f16, 1.0f / a)
VALU1(v_rsq_f16, f16, f16, (float)(1.0 / sqrt((double)a)))
VALU1(v_sqrt_f16, f16, f16, sqrtf(a))
VALU1(v_exp_f16, f16, f16, exp2f(a))
VALU1(v_log_f16, f16, f16, log2f(a))
VALU1(v_trunc_f16, f16, f16, __builtin_truncf(a))
VALU1(v_floor_f16, f16, f16, __builtin_floorf(a))
VALU1(v_ceil_f16, f16, f16, __builtin_ceilf(a))
VALU1(v_rndne_f16, f16, f16, __builtin_rintf(a))
VALU2(v_ldexp_f16, f16, f16, i16, ldexpf(a, b))

void v_fma_f16(struct wave *w, const struct op *o)
{
    SOURCE(f16, a, 0) SOURCE(f16, b, 1) SOURCE(f16, c, 2) uint32_t *d = w->temporary[1];
    FOR_LANES(i) d[i] = double_to_half((double)a_[i] * b_[i] + c_[i]);
    if (o->clamp | o->omod) {
        float *f = (float *)w->temporary[0];
        FOR_LANES(i) f[i] = half_to_float(d[i]);
        modify_f32(o, f);
        FOR_LANES(i) d[i] = float_to_half(f[i]);
    }
    merge16(w, o, d);
}

void modify_f32(const struct op *o, float *lanes)
{
    static const float factors[] = {1, 2, 4, 0.5f};
    for (int i = 0; i < LANES; i++) {
        float x = lanes[i] * factors[o->omod];
        if (o->clamp)
            x = x > 1 ? 1 : x > 0 ? x : 0; /* NaN becomes 0 too */
        lanes[i] = x;
    }
}

void modify_f64(const struct op *o, double *lanes)
{
    static const double factors[] = {1, 2, 4, 0.5};
    for (int i = 0; i < LANES; i++) {
        double x = lanes[i] * factors[o->omod];
        if (o->clamp)
            x = x > 1 ? 1 : x > 0 ? x : 0;
        lanes[i] = x;
    }
}

void merge16(struct wave *w, const struct op *o, const uint32_t *lanes)
{
    uint32_t *d = w->v[o->dst[0].first];
    bool keep = o->dst[0].half != HALF_WHOLE || o->row->parameter == KEEP_HIGH ||
                w->thread->launch->arch->family >= HIPSIM_RDNA3;
    bool high = o->dst[0].half == HALF_HIGH;
    uint32_t mask = high ? 0xffff0000 : keep ? 0xffff : UINT32_MAX;
    int shift = high ? 16 : 0;
    FOR_LANES(i)
    {
        uint32_t of_lane = mask & w->lane_mask[i];
        d[i] = ((lanes[i] & 0xffff) << shift & of_lane) | (d[i] & ~of_lane);
    }
}
