/* The tests of csrc/cpu without Python: test_cpu [cases of random problems], or test_cpu time. */
#include <stdarg.h>

#include "check.h"

int tests_passed, tests_failed;

bool check(bool ok, const char *format, ...)
{
    if (ok) {
        tests_passed++;
        return true;
    }
    if (tests_failed++ < 20) {
        va_list arguments;
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
        printf("\n");
    }
    return false;
}

uint64_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d;
}

int random_below(int n)
{
    return (int)((random_bits() >> 20) % (uint64_t)n);
}

int element_size(int dtype)
{
    return dtype == MMF_FLOAT64 ? 8 : dtype == MMF_FLOAT32 ? 4 : 2;
}

static double decode16(uint16_t bits, int fraction_bits, int bias)
{
    const int fraction = bits & ((1 << fraction_bits) - 1), top = (1 << (15 - fraction_bits)) - 1;
    const int exponent = bits >> fraction_bits & top;
    double value;
    if (exponent == top)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - bias - fraction_bits);
    else
        value = ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return bits >> 15 ? -value : value;
}

double decode(int dtype, const void *element)
{
    float f;
    double d;
    uint16_t h;
    switch (dtype) {
    case MMF_FLOAT32:
        memcpy(&f, element, sizeof f);
        return f;
    case MMF_FLOAT64:
        memcpy(&d, element, sizeof d);
        return d;
    default:
        memcpy(&h, element, sizeof h);
        return dtype == MMF_FLOAT16 ? decode16(h, 10, 15) : decode16(h, 7, 127);
    }
}

/* A value of magnitude 2^-6 to 2. */
void store_random(int dtype, void *element)
{
    const uint64_t bits = random_bits();
    const double value = ldexp((double)(bits >> 12) / 4503599627370496.0 + 1, -(int)(bits & 7) % 7);
    const float f = (float)(bits & 8 ? -value : value);
    const double d = bits & 8 ? -value : value;
    uint16_t h = (uint16_t)(bits >> 48 & 0x83ff) | (uint16_t)((9 + (bits & 7) % 7) << 10);
    if (dtype == MMF_BFLOAT16)
        h = (uint16_t)(bits >> 48 & 0x807f) | (uint16_t)((121 + (bits & 7) % 7) << 7);
    memcpy(element,
           dtype == MMF_FLOAT32   ? (const void *)&f
           : dtype == MMF_FLOAT64 ? (const void *)&d
                                  : &h,
           (size_t)element_size(dtype));
}

void store_nan(int dtype, void *element)
{
    const float f = NAN;
    const double d = NAN;
    const uint16_t h = 0x7fc1;
    memcpy(element,
           dtype == MMF_FLOAT32   ? (const void *)&f
           : dtype == MMF_FLOAT64 ? (const void *)&d
                                  : &h,
           (size_t)element_size(dtype));
}

bool same_bits(int dtype, const void *a, const void *b)
{
    return memcmp(a, b, (size_t)element_size(dtype)) == 0;
}

double unit_in_last_place(int dtype, double x)
{
    static const int digits[] = {24, 53, 11, 8}, least[] = {-126, -1022, -14, -126};
    int exponent = least[dtype];
    if (x != 0 && isfinite(x))
        exponent = ilogb(x) > exponent ? ilogb(x) : exponent;
    return ldexp(1, exponent - digits[dtype] + 1);
}

bool is_gated(int id)
{
    return id >= MMF_ACT_SWIGLU;
}

static long double sigmoid(long double z)
{
    return 1 / (1 + expl(-z));
}

static long double gelu(long double z)
{
    return z / 2 * erfcl(-z * sqrtl(0.5L));
}

static long double gelu_tanh(long double z)
{
    /* (1 + tanh(y)) / 2 is sigmoid(2 y): no cancellation. */
    return z * sigmoid(2 * sqrtl(2 / acosl(-1)) * (z + 0.044715L * z * z * z));
}

static long double clamp(long double x, long double low, long double high)
{
    return fminl(fmaxl(x, low), high);
}

static long double bounded(long double x, double bound)
{
    return isinf(bound) ? x : bound * tanhl(x / bound);
}

static long double xielu(long double z, const double *p, bool positive)
{
    const long double least = fminl(z, p[3]);
    return positive ? p[0] * z * z + p[2] * z
                    : p[1] * expm1l(least) + ((long double)p[2] - p[1]) * z;
}

long double exact_gate(int id, long double z, const double *p)
{
    switch (id) {
    case MMF_ACT_NONE:
        return z;
    case MMF_ACT_RELU:
    case MMF_ACT_REGLU:
        return fmaxl(z, 0);
    case MMF_ACT_GELU:
    case MMF_ACT_GEGLU:
        return gelu(z);
    case MMF_ACT_GELU_TANH:
    case MMF_ACT_GEGLU_TANH:
        return gelu_tanh(z);
    case MMF_ACT_SILU:
    case MMF_ACT_SWIGLU:
        return z * sigmoid(z);
    case MMF_ACT_SIGMOID:
    case MMF_ACT_GLU:
        return sigmoid(z);
    case MMF_ACT_TANH:
        return tanhl(z);
    case MMF_ACT_RELU_SQUARED:
        return fmaxl(z, 0) * fmaxl(z, 0);
    case MMF_ACT_QUICK_GELU:
        return z * sigmoid(1.702L * z);
    case MMF_ACT_LEAKY_RELU:
        return z < 0 ? p[0] * z : z;
    case MMF_ACT_ELU:
        return z < 0 ? p[0] * expm1l(z) : z;
    case MMF_ACT_HARDSWISH:
        return z * clamp(z + 3, 0, 6) / 6;
    case MMF_ACT_SOFTPLUS:
        return z > 20 ? z : log1pl(expl(z));
    case MMF_ACT_MISH:
        return z * tanhl(z > 50 ? z : log1pl(expl(z)));
    case MMF_ACT_CLAMP:
    case MMF_ACT_HARDTANH:
        return clamp(z, p[0], p[1]);
    case MMF_ACT_HARDSIGMOID:
        return clamp(z + 3, 0, 6) / 6;
    case MMF_ACT_SELU:
        return 1.0507009873554804934L * (z < 0 ? 1.6732632423543772848L * expm1l(z) : z);
    case MMF_ACT_CELU:
        return z < 0 ? p[0] * expm1l(z / p[0]) : z;
    case MMF_ACT_SOFTSIGN:
        return z / (1 + fabsl(z));
    case MMF_ACT_LOGSIGMOID:
        return fminl(z, 0) - log1pl(expl(-fabsl(z)));
    case MMF_ACT_THRESHOLD:
        return z > p[0] ? z : p[1];
    case MMF_ACT_SOFTSHRINK:
        return fabsl(z) > p[0] ? z - copysignl(p[0], z) : 0;
    case MMF_ACT_HARDSHRINK:
        return fabsl(z) > p[0] ? z : 0;
    case MMF_ACT_TANHSHRINK: /* by its series where it cancels */
        return fabsl(z) < 1e-3L ? z * z * z / 3 * (1 - z * z * 2 / 5) : z - tanhl(z);
    case MMF_ACT_EXPONENTIAL:
        return expl(z);
    case MMF_ACT_GELU_10:
        return clamp(gelu(z), -10, 10);
    case MMF_ACT_LAPLACE:
        return erfcl((0.707107L - z) / (0.282095L * sqrtl(2))) / 2;
    case MMF_ACT_XIELU:
        return xielu(z, p, z > 0);
    case MMF_ACT_SWIGLU_OAI:
    case MMF_ACT_SWIGLU_CLAMPED:
        return fminl(z, p[0]) * sigmoid(p[1] * fminl(z, p[0]));
    case MMF_ACT_SITUGLU:
        return bounded(z, p[0]) * sigmoid(z);
    case MMF_ACT_SWIGLUSTEP:
        return fminl(z * sigmoid(z), p[0]);
    case MMF_ACT_FATREGLU:
        return z > p[0] ? z : 0;
    default:
        return NAN;
    }
}

long double exact_up(int id, long double u, const double *p)
{
    switch (id) {
    case MMF_ACT_SWIGLU_OAI:
        return clamp(u, -p[0], p[0]) + 1;
    case MMF_ACT_SWIGLU_CLAMPED:
        return clamp(u, -p[0], p[0]) + p[2];
    case MMF_ACT_SWIGLUSTEP:
        return clamp(u, -p[0], p[0]);
    case MMF_ACT_SITUGLU:
        return bounded(u, p[1]);
    default:
        return u;
    }
}

long double exact_activation(int id, long double z, long double u, const double *p)
{
    return is_gated(id) ? exact_gate(id, z, p) * exact_up(id, u, p) : exact_gate(id, z, p);
}

bool other_branch(int id, long double z, long double e, const double *p, long double *value)
{
    switch (id) {
    case MMF_ACT_THRESHOLD:
        *value = z > p[0] ? p[1] : z;
        return fabsl(z - p[0]) <= e;
    case MMF_ACT_FATREGLU:
        *value = z > p[0] ? 0 : z;
        return fabsl(z - p[0]) <= e;
    case MMF_ACT_HARDSHRINK:
        *value = fabsl(z) > p[0] ? 0 : z;
        return fabsl(fabsl(z) - p[0]) <= e;
    case MMF_ACT_XIELU:
        *value = xielu(z, p, z <= 0);
        return fabsl(z) <= e;
    default:
        return false;
    }
}

double lipschitz(int id, double z, const double *p)
{
    switch (id) {
    case MMF_ACT_RELU_SQUARED:
        return 2 * fabs(z) + 1e-30;
    case MMF_ACT_GELU:
    case MMF_ACT_GELU_TANH:
    case MMF_ACT_GEGLU:
    case MMF_ACT_GEGLU_TANH:
    case MMF_ACT_GELU_10:
        return 1.13;
    case MMF_ACT_SILU:
    case MMF_ACT_QUICK_GELU:
    case MMF_ACT_SWIGLU:
    case MMF_ACT_SWIGLU_OAI:
    case MMF_ACT_SWIGLU_CLAMPED:
    case MMF_ACT_SWIGLUSTEP:
    case MMF_ACT_SITUGLU:
        return 1.1;
    case MMF_ACT_MISH:
        return 1.09;
    case MMF_ACT_SIGMOID:
    case MMF_ACT_GLU:
        return 0.25;
    case MMF_ACT_HARDSIGMOID:
        return 1.0 / 6;
    case MMF_ACT_HARDSWISH:
        return 1.5;
    case MMF_ACT_LEAKY_RELU:
    case MMF_ACT_ELU:
        return fmax(1, fabs(p[0]));
    case MMF_ACT_SELU:
        return 1.7581;
    case MMF_ACT_EXPONENTIAL:
        return exp(z);
    case MMF_ACT_LAPLACE:
        return 1.41422;
    case MMF_ACT_XIELU:
        return fmax(z > 0 ? 2 * fabs(p[0]) * z : 0, fabs(p[2] - p[1])) + fabs(p[2]);
    default:
        return 1;
    }
}

double shift_of(int id)
{
    return id == MMF_ACT_LAPLACE ? 0.707107 : 0;
}

void test_parameters(int id, double p[MMF_MAX_PARAMETERS])
{
    static const double given[MMF_ACT_COUNT][2] = {[MMF_ACT_CLAMP] = {-0.75, 1.25},
                                                   [MMF_ACT_THRESHOLD] = {0.25, -2},
                                                   [MMF_ACT_SWIGLU_CLAMPED] = {1.5, 1.25},
                                                   [MMF_ACT_SITUGLU] = {4, 25}};
    const mmf_activation_row *row = mmf_activation_row_of((mmf_activation)id);
    for (int i = 0; i < MMF_MAX_PARAMETERS; i++) {
        const bool set = given[id][0] != 0 && i < 2;
        p[i] = (float)(set ? given[id][i] : row->parameter[i].value);
    }
}

int main(int count, char **arguments)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 1 && strcmp(arguments[1], "time") == 0) {
        time_rows();
        return 0;
    }
    test_convert();
    test_panels();
    test_activations();
    test_device_activations();
    test_rows(count > 1 ? atoi(arguments[1]) : 3000);
    test_accuracy();
    test_pool();
    printf("%d passed, %d failed\n", tests_passed, tests_failed);
    return tests_failed != 0;
}
