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

/* The parameters of an activation in the type of z. */
#define GIVEN(real) (real) p[0], (real)p[1], (real)p[2], (real)p[3]

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
static float apply_float(int id, float z, const double *p)
{
    switch (id) {
#define MMF_ACTIVATION(id, name, formula, source, f)                                               \
    case MMF_ACT_##id:                                                                             \
        return act_##id##_float(z, GIVEN(float));
#define MMF_GATED(id, name, formula, source, f)                                                    \
    case MMF_ACT_##id:                                                                             \
        return act_##id##_float(z, 1, GIVEN(float));
#include "problem/activations.def"
    default:
        return NAN;
    }
}

/* Gelu of results of 16 bits on NVIDIA's GPUs. */
static float apply_short_gelu(int id, float z, const double *p)
{
    (void)id, (void)p;
    return short_z_cdf_float(z);
}

static double apply_double(int id, double z, const double *p)
{
    switch (id) {
#define MMF_ACTIVATION(id, name, formula, source, f)                                               \
    case MMF_ACT_##id:                                                                             \
        return act_##id##_double(z, GIVEN(double));
#define MMF_GATED(id, name, formula, source, f)                                                    \
    case MMF_ACT_##id:                                                                             \
        return act_##id##_double(z, 1, GIVEN(double));
#include "problem/activations.def"
    default:
        return NAN;
    }
}

/* |got - exact| as a share of `share` u |exact| + 4 L u |z|, and two subnormal units. */
static double error_share(int id, double z, double got, long double exact, const double *p,
                          double u, double least, double share)
{
    const double factor = is_gated(id) ? (double)fabsl(exact_up(id, 1, p)) : 1;
    const double allowed = share * u * (double)fabsl(exact) +
                           4 * factor * lipschitz(id, z, p) * u * (fabs(z) + shift_of(id)) + least;
    const double error = (double)fabsl(got - exact);
    return (long double)got == exact ? 0 : error <= allowed ? error / allowed : INFINITY;
}

static void test_float(int id, float apply(int, float, const double *), const char *name,
                       const double *p, bool full)
{
    double worst = 0, where = 0;
    for (uint64_t bits = 0, step; bits < 0x100000000; bits += step) {
        const float z = float_of((unsigned)bits);
        step = !full ? 16411 : fabsf(z) >= 0x1p-30f && fabsf(z) <= 128 ? 16 : 4112;
        const long double exact = exact_activation(id, z, 1, p);
        if (!isfinite(z) || fabsl(exact) > 0x1.fffffep127L)
            continue;
        for (skew = -1; skew <= 1; skew++) {
            const double got = apply(id, z, p);
            const double share = error_share(id, z, got, exact, p, 0x1p-24, 0x1p-148, 8);
            if (share > worst)
                worst = share, where = z;
        }
    }
    check(worst <= 1, "device %s, float: %.3f of the bound at %a", name, worst, where);
    if (full)
        printf("device %s: at most %.3f of the bound, at %.9g\n", name, worst, where);
    check(isnan(apply(id, NAN, p)), "device %s, float: NaN is lost", name);
}

static void test_double(int id, const char *name, const double *p)
{
    double worst = 0, where = 0;
    for (int i = 0; i < 20000; i++) {
        const double z = ldexp((double)(int64_t)random_bits(), random_below(80) - 120);
        const long double exact = exact_activation(id, z, 1, p);
        const double got = apply_double(id, z, p);
        const double share = error_share(id, z, got, exact, p, 0x1p-53, 0x1p-1073, 8);
        if (share > worst)
            worst = share, where = z;
    }
    check(worst <= 1, "device %s, double: %.3f of the bound at %a", name, worst, where);
    check(isnan(apply_double(id, NAN, p)), "device %s, double: NaN is lost", name);
}

void test_device_activations(void)
{
    const char *every = getenv("MMF_TEST_EVERY_16TH"); /* "device": minutes */
    const bool full = every && strcmp(every, "device") == 0;
    for (int id = 0; id < MMF_ACT_COUNT; id++) {
        const char *name = mmf_activation_row_of((mmf_activation)id)->name;
        double p[MMF_MAX_PARAMETERS];
        test_parameters(id, p);
        test_float(id, apply_float, name, p, full);
        test_double(id, name, p);
        if (id == MMF_ACT_GELU) {
            test_float(id, apply_short_gelu, "gelu of 16 bits", p, full);
            check(short_z_cdf_float(INFINITY) == INFINITY && isnan(short_z_cdf_float(-INFINITY)),
                  "device gelu of 16 bits: infinities");
        }
    }
}
