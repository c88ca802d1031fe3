/* exp, expm1, log1p, tanh and the normal distribution's cdf of float and double as the activations
 * need them: device code has no mathematical library here. C11 and C++, so that the tests compile
 * it for the host. Needs MMF_DEVICE (how a function is declared), MMF_UNROLL, fast_exp2 (2^x of a
 * float), fast_rcp (1 / x), bits_of, float_of. Path of a call: under activate.inc.
 *
 * Goal: every row of activations.def within 8 u |exact| + 4 L u |z|. Errors that grow with |z| are
 * therefore fine (exp: |z| u), errors of many u near a root are not. Series are Taylor's unless an
 * error is stated: that of a minimax fit. NaN comes through everywhere. */
#ifndef MMF_ELEMENTARY_H
#define MMF_ELEMENTARY_H

/* result = the polynomial in x whose coefficients stand from the constant term up. */
#define MMF_POLYNOMIAL(real, result, x, ...)                                                       \
    do {                                                                                           \
        const real coefficients[] = {__VA_ARGS__};                                                 \
        const int terms = (int)(sizeof coefficients / sizeof coefficients[0]);                     \
        result = coefficients[terms - 1];                                                          \
        MMF_UNROLL                                                                                 \
        for (int term = terms - 2; term >= 0; term--)                                              \
            result = result * (x) + coefficients[term];                                            \
    } while (0)

MMF_DEVICE float divided_float(float a, float b)
{
    return a * fast_rcp(b);
}

MMF_DEVICE float exp_float(float x)
{
    return fast_exp2(x * 1.44269504f);
}

MMF_DEVICE float ramp_float(float x)
{
    return x < 0 ? 0 : x;
}

MMF_DEVICE float expm1_float(float x)
{
    float sum;
    MMF_POLYNOMIAL(float, sum, x, 1, 1.f / 2, 1.f / 6, 1.f / 24, 1.f / 120, 1.f / 720, 1.f / 5040,
                   1.f / 40320, 1.f / 362880);
    return __builtin_fabsf(x) < 0.5f ? x * sum : exp_float(x) - 1;
}

/* 0 <= x < 2^100. With s = 2^-e and f = (1 + x) s - 1 in [sqrt(1/2) - 1, sqrt(2) - 1]:
 * log(1 + x) = e log(2) + 2 atanh(f / (2 + f)); f is rounded once, however small x is. */
MMF_DEVICE float log1p_float(float x)
{
    const int exponent = (int)(bits_of(1 + x) - 0x3f3504f3) >> 23;
    const float scale = float_of((unsigned)(127 - exponent) << 23);
    const float f = __builtin_fmaf(x, scale, scale - 1), q = divided_float(f, 2 + f);
    float sum;
    MMF_POLYNOMIAL(float, sum, q *q, 1, 1.f / 3, 1.f / 5, 1.f / 7, 1.f / 9);
    return (float)exponent * 0.693147181f + 2 * q * sum;
}

MMF_DEVICE float tanh_float(float x)
{
    const float magnitude = __builtin_fabsf(x), square = x * x;
    float sum;
    /* (tanh(x) / x - 1) / x^2 for |x| <= 0.6: 3.0e-8 */
    MMF_POLYNOMIAL(float, sum, square, -0.33333331f, 0.13332915f, -0.053873949f, 0.021110959f,
                   -0.0062691197f);
    const float near = x + x * square * sum, far = 1 - 2 * fast_rcp(exp_float(2 * magnitude) + 1);
    return magnitude < 0.6f ? near : __builtin_copysignf(far, x);
}

/* log2(1 / cdf(x) - 1) / x in x^2, of the normal distribution's cdf: as a cdf for |x| <= 6.5 it
 * errs by 2.9e-8. Beyond it stays negative, so that cdf(x) runs to 0 and 1. */
#define MMF_LOGIT_OF_CDF                                                                           \
    -2.30220938f, -0.104835123f, 9.40492173e-05f, 0.00015957994f, -1.14398345e-05f,                \
        3.8163131e-07f, -5.0672373e-09f

MMF_DEVICE float cdf_float(float x)
{
    float logit;
    MMF_POLYNOMIAL(float, logit, x *x, MMF_LOGIT_OF_CDF);
    return fast_rcp(1 + fast_exp2(x * logit));
}

MMF_DEVICE float z_cdf_float(float z)
{
    return z * cdf_float(z);
}

/* z cdf(z) with one exponential and no reciprocal, for results of 16 bits in NVIDIA's epilogues of
 * fragments and of single runs; -0 becomes 0. It is z / 2 + |z / 2| - a cdf(-a) of a = |z|. The
 * polynomial is log2(cdf(-a)): as a cdf for a <= 6 it errs by 1.5e-7, and it falls to -185 at 16,
 * where its power of two is 0. */
MMF_DEVICE float short_z_cdf_float(float z)
{
    const float a = __builtin_fminf(__builtin_fabsf(z), 16), half = 0.5f * z;
    float log;
    MMF_POLYNOMIAL(float, log, a, -0.999999583f, -1.15112698f, -0.459030777f, -0.0530261658f,
                   0.00780799147f, -0.000679312972f, 2.20416459e-05f);
    return half + __builtin_fabsf(half) - a * fast_exp2(log);
}

MMF_DEVICE double ramp_double(double x)
{
    return x < 0 ? 0 : x;
}

MMF_DEVICE double divided_double(double a, double b)
{
    return a / b;
}

/* 2^exponent; -1022 <= exponent <= 1023 */
MMF_DEVICE double power_of_two(int exponent)
{
    const unsigned long long bits = (unsigned long long)(exponent + 1023) << 52;
    double value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

MMF_DEVICE double exp_double(double x)
{
    const double top = x > 720 ? 720 : x < -760 ? -760 : x; /* infinity and 0 from here on */
    /* Adding 1.5 * 2^52 rounds to an integer, which then stands in the low bits; a conversion of
     * NaN to int would be undefined. */
    const double shift = 6755399441055744.0, shifted = top * 1.4426950408889634 + shift;
    const double n = shifted - shift;
    double r = __builtin_fma(n, -0.6931471803691238, top), sum;
    r = __builtin_fma(n, -1.9082149292705877e-10, r);
    unsigned long long bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    const int exponent = (int)(unsigned)bits;
    MMF_POLYNOMIAL(double, sum, r, 1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040,
                   1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600,
                   1. / 6227020800);
    return sum * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
}

MMF_DEVICE double expm1_double(double x)
{
    double sum;
    MMF_POLYNOMIAL(double, sum, x, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040,
                   1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600,
                   1. / 6227020800, 1. / 87178291200);
    return __builtin_fabs(x) < 0.35 ? x * sum : exp_double(x) - 1;
}

/* As log1p_float; 0 <= x < 2^1000. */
MMF_DEVICE double log1p_double(double x)
{
    const double one_more = 1 + x;
    unsigned long long bits;
    __builtin_memcpy(&bits, &one_more, sizeof bits);
    const int exponent = (int)(unsigned)((bits - 0x3fe6a09e667f3bcdULL) >> 32) >> 20;
    const double scale = power_of_two(-exponent);
    const double f = __builtin_fma(x, scale, scale - 1), q = f / (2 + f);
    double sum;
    MMF_POLYNOMIAL(double, sum, q *q, 1, 1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15,
                   1. / 17, 1. / 19, 1. / 21);
    return exponent * 0.6931471805599453 + 2 * q * sum;
}

MMF_DEVICE double tanh_double(double x)
{
    const double magnitude = __builtin_fabs(x), top = magnitude > 22 ? 22 : magnitude;
    const double grown = expm1_double(2 * top);
    return __builtin_copysign(grown / (grown + 2), x);
}

MMF_DEVICE double erf_double(double x)
{
    const double magnitude = __builtin_fabs(x), top = magnitude > 6 ? 6 : magnitude;
    const double t = (top - 2.5) / (top + 2.5);
    double near, far;
    /* erf(x) / x for |x| <= 1: 7.4e-18 */
    MMF_POLYNOMIAL(double, near, x *x, 1.1283791670955126, -0.37612638903183543,
                   0.11283791670945006, -0.02686617064323777, 0.0052239776071164225,
                   -0.0008548325975389692, 0.00012055294904839707, -1.492473690741966e-05,
                   1.6447424703317362e-06, -1.6208483801871705e-07, 1.3720064546777686e-08,
                   -7.795898827002142e-10);
    /* (1 - erf(x)) exp(x^2) for 1 <= x <= 6: 1.0e-17; beyond, erf is 1 */
    MMF_POLYNOMIAL(double, far, t, 0.21080636406114356, -0.3717367339489732, 0.251713193217456,
                   -0.12503305237885554, 0.0399225390747838, -0.0039937011641469865,
                   -0.002642365927759658, 0.0008759154019168855, 0.00022837955896605415,
                   -0.00012887649615317198, -3.4172229273553035e-05, 1.8609712314617464e-05,
                   7.48480117852628e-06, -2.2842173094341345e-06, -1.5625258507743158e-06,
                   8.134380709229634e-08);
    return magnitude < 1 ? x * near : __builtin_copysign(1 - far * exp_double(-top * top), x);
}

/* Of the normal distribution. */
MMF_DEVICE double cdf_double(double x)
{
    return 0.5 * (1 + erf_double(x * 0.70710678118654752440));
}

MMF_DEVICE double z_cdf_double(double z)
{
    return z * cdf_double(z);
}

#endif
