/* The activations of device code (csrc/gpu/kernels), compiled for the host: their bound, with the
 * errors that a device's exponential and reciprocal may have planted in both directions. Divisions
 * of floats are products with a reciprocal. */
#include "check.h"
#include "problem/activation.h"

#define MMF_DEVICE static inline
#define MMF_UNROLL

static int
    skew; /* units in the last place: PTX's ex2.approx is off by at most 2^-22.5, 1.4 units */

static inline unsigned bits_of(float value)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(unsigned bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Subnormals may be 0. */
static inline float fast_exp2(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y > 0x1.fffffcp127f ? y : float_of(bits_of(y) + (unsigned)skew);
}

/* Off by less than one unit, in the other direction: 1 / (1 + 2^x) gets the sum of both errors. */
static inline float fast_rcp(float x)
{
    const double exact = 1 / (double)x;
    const float y = (float)exact;
    if (!(fabsf(y) >= 0x1p-126f && fabsf(y) <= 0x1.fffffcp127f))
        return fabsf(y) < 0x1p-126f ? 0 : y;
    return float_of(bits_of(y) - (unsigned)(skew * ((fabs(y) - fabs(exact)) * skew > 0)));
}

#include "gpu/kernels/common/elementary.h"

#define MMF_REAL float
#define T(name) name##_float
#include "gpu/kernels/common/activate.inc"
#undef MMF_REAL
#undef T
#define MMF_REAL double
#define T(name) name##_double
#include "gpu/kernels/common/activate.inc"
#undef MMF_REAL
#undef T

/* The activation id at z; up column 1. */
static float apply_float(int id, float z, float p0, float p1)
{
    switch (id) {
#define MMF_ACTIVATION(id, name, parameters, default0, default1, f)                                \
    case MMF_ACT_##id:                                                                             \
        return act_##id##_float(z, p0, p1);
#define MMF_GATED(id, name, parameters, default0, default1, f)                                     \
    case MMF_ACT_##id:                                                                             \
        return act_##id##_float(z, 1, p0, p1);
#define MMF_ALIAS(name, id)
#include "problem/activations.def"
#undef MMF_ACTIVATION
#undef MMF_GATED
    default:
        return NAN;
    }
}

static double apply_double(int id, double z, double p0, double p1)
{
    switch (id) {
#define MMF_ACTIVATION(id, name, parameters, default0, default1, f)                                \
    case MMF_ACT_##id:                                                                             \
        return act_##id##_double(z, p0, p1);
#define MMF_GATED(id, name, parameters, default0, default1, f)                                     \
    case MMF_ACT_##id:                                                                             \
        return act_##id##_double(z, 1, p0, p1);
#include "problem/activations.def"
#undef MMF_ACTIVATION
#undef MMF_GATED
#undef MMF_ALIAS
    default:
        return NAN;
    }
}

/* |got - exact| as a share of `share` u |exact| + 4 L u |z|, and two subnormal units. */
static double error_share(int id, double z, double got, long double exact, double p0, double u,
                          double least, double share)
{
    const double factor = id == MMF_ACT_SWIGLU_OAI ? 2 : 1; /* its up + 1 at 1 */
    const double allowed =
        share * u * (double)fabsl(exact) + 4 * factor * lipschitz(id, z, p0) * u * fabs(z) + least;
    const double error = (double)fabsl(got - exact);
    return (long double)got == exact ? 0 : error <= allowed ? error / allowed : INFINITY;
}

static void test_one(int id, bool full)
{
    const mmf_activation_row *row = mmf_activation_row_of((mmf_activation)id);
    const bool clamp = id == MMF_ACT_CLAMP;
    const double p0 = clamp ? -0.75 : row->defaults[0], p1 = clamp ? 1.25 : row->defaults[1];
    double worst = 0, where = 0;
    for (uint64_t bits = 0, step; bits < 0x100000000; bits += step) {
        const float z = float_of((unsigned)bits);
        step = !full ? 16411 : fabsf(z) >= 0x1p-30f && fabsf(z) <= 128 ? 16 : 4112;
        const long double exact = exact_activation(id, z, 1, (float)p0, (float)p1);
        if (!isfinite(z) || fabsl(exact) > 0x1.fffffep127L)
            continue;
        for (skew = -1; skew <= 1; skew++) {
            const double got = apply_float(id, z, (float)p0, (float)p1);
            const double share = error_share(id, z, got, exact, p0, 0x1p-24, 0x1p-148, 8);
            if (share > worst)
                worst = share, where = z;
        }
    }
    check(worst <= 1, "device %s, float: %.3f of the bound at %a", row->name, worst, where);
    if (full)
        printf("device %s: at most %.3f of the bound, at %.9g\n", row->name, worst, where);

    worst = 0;
    for (int i = 0; i < 20000; i++) {
        const double z = ldexp((double)(int64_t)random_bits(), random_below(80) - 120);
        const long double exact = exact_activation(id, z, 1, p0, p1);
        const double got = apply_double(id, z, p0, p1);
        const double share = error_share(id, z, got, exact, p0, 0x1p-53, 0x1p-1073, 8);
        if (share > worst)
            worst = share, where = z;
    }
    check(worst <= 1, "device %s, double: %.3f of the bound at %a", row->name, worst, where);
    check(isnan(apply_float(id, NAN, (float)p0, (float)p1)) && isnan(apply_double(id, NAN, p0, p1)),
          "device %s: NaN is lost", row->name);
}

void test_device_activations(void)
{
    const char *full = getenv("MMF_TEST_EVERY_16TH"); /* "device": minutes */
    for (int id = 0; id < MMF_ACT_COUNT; id++)
        test_one(id, full && strcmp(full, "device") == 0);
}
