/* Conversions, panels, activations and the accuracy of long sums. */
#include "check.h"
#include "cpu/convert.h"

static const mmf_kernel *const rows[] = {VECTOR_ROWS};

/* The 16-bit value nearest to x, ties to even, by search among neighbours. */
static uint16_t nearest16(int dtype, double x)
{
    const uint16_t infinity = dtype == MMF_FLOAT16 ? 0x7c00 : 0x7f80,
                   sign = signbit(x) ? 0x8000 : 0;
    const double magnitude = fabs(x);
    uint16_t low = 0, high = infinity;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (decode(dtype, &middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    uint16_t below_low = (uint16_t)(low - 1);
    double a = decode(dtype, &low), b = decode(dtype, &high);
    if (high == infinity) /* the value that would follow if the format went on */
        b = a + (a - decode(dtype, &below_low));
    if (magnitude == INFINITY)
        return sign | infinity;
    const double to_a = magnitude - a, to_b = b - magnitude;
    return sign | (to_a < to_b || (to_a == to_b && low % 2 == 0) ? low : high);
}

static void check_both(double x)
{
    const float f = (float)x;
    const bool ok = mmf_float_to_f16(f) == nearest16(MMF_FLOAT16, f) &&
                    mmf_float_to_bf16(f) == nearest16(MMF_BFLOAT16, f) &&
                    mmf_double_to_f16(x) == nearest16(MMF_FLOAT16, x) &&
                    mmf_double_to_bf16(x) == nearest16(MMF_BFLOAT16, x);
    if (!ok || random_below(1000) == 0)
        check(ok, "convert %a", x);
}

void test_convert(void)
{
    bool round_trip = true;
    for (int bits = 0; bits < 0x10000; bits++) {
        const uint16_t h = (uint16_t)bits;
        const double f16 = decode(MMF_FLOAT16, &h), bf16 = decode(MMF_BFLOAT16, &h);
        const float a = mmf_f16_to_float(h), b = mmf_bf16_to_float(h);
        round_trip = round_trip && (isnan(f16) ? isnan(a)
                                               : a == f16 && mmf_float_to_f16(a) == h &&
                                                     mmf_double_to_f16(a) == h);
        round_trip = round_trip && (isnan(bf16) ? isnan(b)
                                                : b == bf16 && mmf_float_to_bf16(b) == h &&
                                                      mmf_double_to_bf16(b) == h);
        if (isfinite(f16) &&
            isfinite(bf16)) { /* at, and just beside, the middle between neighbours */
            const uint16_t next = (uint16_t)(h + 1);
            const double middles[] = {(f16 + decode(MMF_FLOAT16, &next)) / 2,
                                      (bf16 + decode(MMF_BFLOAT16, &next)) / 2};
            for (int m = 0; m < 2; m++) {
                if (!isfinite(middles[m]))
                    continue;
                check_both(middles[m]);
                check_both(nextafter(middles[m], INFINITY));
                check_both(nextafter(middles[m], -INFINITY));
            }
        }
    }
    check(round_trip, "16-bit round trip");
    for (int i = 0; i < 100000; i++)
        check_both(ldexp((double)(int64_t)random_bits(), random_below(300) - 210));
    check_both(65519.999999), check_both(65520), check_both(1e300), check_both(-1e300),
        check_both(1e-300);
    check_both(INFINITY), check_both(0.0), check_both(-0.0), check_both(0x1.fefffffp127),
        check_both(0x1.ffp127);
    bool nan_kept = true;
    for (uint32_t bits = 0x7f800001; bits < 0x80000000; bits += 4093) {
        const uint16_t a = mmf_float_to_f16(mmf_bits_float(bits)),
                       b = mmf_float_to_bf16(mmf_bits_float(bits));
        const uint16_t c = mmf_double_to_f16(mmf_bits_float(bits)),
                       d = mmf_double_to_bf16(mmf_bits_float(bits));
        nan_kept = nan_kept && isnan(decode(MMF_FLOAT16, &a)) && isnan(decode(MMF_BFLOAT16, &b)) &&
                   isnan(decode(MMF_FLOAT16, &c)) && isnan(decode(MMF_BFLOAT16, &d));
    }
    check(nan_kept, "NaN stays NaN");
}

/* Whether the last panel holds zeros where the weight has no columns. */
static bool zero_beyond(mmf_dtype dtype, int64_t k, int64_t n, const void *panels)
{
    const int64_t size = element_size(dtype), columns = dtype == MMF_FLOAT64 ? 8 : 16;
    const char *last = (const char *)panels + (n - 1) / columns * columns * k * size;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = (n - 1) % columns + 1; j < columns; j++)
            if (decode(dtype, last + (i * columns + j) * size) != 0)
                return false;
    return true;
}

void test_panels(void)
{
    for (int t = 0; t < 200; t++) {
        const mmf_dtype dtype = (mmf_dtype)(t % 4);
        const int64_t k = 1 + random_below(90), n = 1 + random_below(70),
                      size = element_size(dtype);
        const bool columns = random_below(2);
        const int64_t row = columns ? 1 : n + 3, col = columns ? k + 2 : 1;
        const size_t bytes = (size_t)((k + 3) * (n + 3) * size);
        char *weight = malloc(bytes), *back = malloc(bytes);
        for (size_t e = 0; e < bytes; e += (size_t)size)
            store_random(dtype, weight + e);
        memcpy(back, weight, bytes);
        const size_t packed = (size_t)mmf_cpu_panels_bytes(dtype, k, n);
        void *panels = aligned_alloc(64, packed);
        memset(panels, 0xff, packed); /* NaN */
        mmf_cpu_pack_panels(dtype, k, n, weight, row, col, panels, NULL);
        check(zero_beyond(dtype, k, n, panels), "zeros beyond column %d of dtype %d", (int)n,
              dtype);
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < n; j++)
                memset(back + (i * row + j * col) * size, 0xff, (size_t)size);
        mmf_cpu_unpack_panels(dtype, k, n, panels, row, col, back, NULL);
        check(memcmp(back, weight, bytes) == 0, "panels of dtype %d, %d x %d", dtype, (int)k,
              (int)n);
        free(weight), free(back), free(panels);
    }
}

/* z as the bias of a problem without products: the activation alone, as each row compiled it. */
static void apply(const mmf_kernel *row, int id, int64_t n, mmf_dtype dtype, const void *z,
                  const void *ones, int out_dtype, void *out)
{
    mmf_problem p = {.m = 1, .n = n, .activation = (uint8_t)id, .alpha = 1};
    mmf_buffers buffers = {0};
    mmf_config config;
    memset(p.dtype, MMF_ABSENT, sizeof p.dtype);
    test_parameters(id, p.parameters);
    p.gate_layout = is_gated(id) ? MMF_GATE_PAIR : MMF_GATE_NONE;
    p.dtype[MMF_A] = p.dtype[MMF_B] = p.dtype[MMF_BIAS] = dtype;
    p.dtype[MMF_OUT] = (uint8_t)out_dtype;
    buffers.data[MMF_BIAS] = (void *)z, buffers.data[MMF_OUT] = out;
    p.strides[MMF_BIAS].col = p.strides[MMF_BIAS_UP].col = p.strides[MMF_OUT].col = 1;
    if (is_gated(id))
        p.dtype[MMF_B_UP] = p.dtype[MMF_BIAS_UP] = dtype, buffers.data[MMF_BIAS_UP] = (void *)ones;
    set_features(&p);
    row->family->configure(row, &p, &config);
    row->family->run(&p, &config, &buffers, NULL);
}

#define CHUNK 4096

/* The largest |f - exact| / (8 u |exact| + 4 L u |z| + 2^-148), the last for subnormal results. */
static double worst_error(const mmf_kernel *row, int id, uint64_t step, bool by_reference,
                          float *where)
{
    static float z[CHUNK], ones[CHUNK], got[CHUNK];
    static double exact[CHUNK];
    const double u = 0x1p-24;
    double worst = 0, p[MMF_MAX_PARAMETERS];
    test_parameters(id, p);
    const double factor = is_gated(id) ? (double)fabsl(exact_up(id, 1, p)) : 1;
    for (int i = 0; i < CHUNK; i++)
        ones[i] = 1;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += CHUNK * step) {
        for (uint64_t i = 0; i < CHUNK; i++)
            z[i] = mmf_bits_float((uint32_t)(bits + i * step));
        apply(row, id, CHUNK, MMF_FLOAT32, z, ones, MMF_FLOAT32, got);
        if (by_reference)
            apply(&mmf_cpu_reference, id, CHUNK, MMF_FLOAT32, z, ones, MMF_FLOAT64, exact);
        for (int i = 0; i < CHUNK; i++) {
            if (!isfinite(z[i]))
                continue;
            const double ref = by_reference ? exact[i] : (double)exact_activation(id, z[i], 1, p);
            if (fabs(ref) > 0x1.fffffefp127 && isinf(got[i]))
                continue;
            const double reach = u * (fabs(z[i]) + shift_of(id));
            const double bound =
                8 * u * fabs(ref) + 4 * factor * lipschitz(id, z[i], p) * reach + 0x1p-148;
            const double share = fabs(got[i] - ref) / bound;
            if (!(share <= worst))
                worst = share, *where = z[i];
            if (isnan(share))
                return share;
        }
    }
    return worst;
}

/* The same of double, u = 2^-53, against long double: random magnitudes, and where activations
 * bend. */
static double worst_double_error(const mmf_kernel *row, int id, double *where)
{
    static double z[CHUNK], ones[CHUNK], got[CHUNK];
    double worst = 0, p[MMF_MAX_PARAMETERS];
    test_parameters(id, p);
    const double u = 0x1p-53, factor = is_gated(id) ? (double)fabsl(exact_up(id, 1, p)) : 1;
    for (int i = 0; i < CHUNK; i++) {
        const double random = (double)(int64_t)random_bits();
        ones[i] = 1;
        z[i] = i % 2 ? ldexp(random, random_below(80) - 120) : ldexp(random, -58 + i % 24 / 4);
    }
    apply(row, id, CHUNK, MMF_FLOAT64, z, ones, MMF_FLOAT64, got);
    for (int i = 0; i < CHUNK; i++) {
        const long double exact = exact_activation(id, z[i], 1, p);
        const double reach = u * (fabs(z[i]) + shift_of(id));
        const double bound =
            8 * u * (double)fabsl(exact) + 4 * factor * lipschitz(id, z[i], p) * reach + 0x1p-1073;
        if (isinf(got[i]) && exact > 0x1.fffffffffffffp1023L)
            continue;
        const double share = (double)fabsl(got[i] - exact) / bound;
        if (!(share <= worst))
            worst = share, *where = z[i];
        if (isnan(share))
            return share;
    }
    return worst;
}

/* torch 2.13 at infinity, -infinity: n NaN, i inf, 0, 1, m -1 (elu), l -inf, a -0.75, b 1.25, ?
 * a number. */
static const char *const at_infinity[MMF_ACT_COUNT] = {
    [MMF_ACT_NONE] = "il",       [MMF_ACT_RELU] = "i0",         [MMF_ACT_GELU] = "in",
    [MMF_ACT_GELU_TANH] = "in",  [MMF_ACT_SILU] = "in",         [MMF_ACT_SIGMOID] = "10",
    [MMF_ACT_TANH] = "1m",       [MMF_ACT_RELU_SQUARED] = "i0", [MMF_ACT_QUICK_GELU] = "in",
    [MMF_ACT_LEAKY_RELU] = "il", [MMF_ACT_ELU] = "im",          [MMF_ACT_HARDSWISH] = "in",
    [MMF_ACT_SOFTPLUS] = "i0",   [MMF_ACT_MISH] = "in",         [MMF_ACT_CLAMP] = "ba",
    [MMF_ACT_SWIGLU] = "in",     [MMF_ACT_GEGLU] = "in",        [MMF_ACT_GEGLU_TANH] = "in",
    [MMF_ACT_REGLU] = "i0",      [MMF_ACT_GLU] = "10",          [MMF_ACT_SWIGLU_OAI] = "?n",
    [MMF_ACT_HARDTANH] = "1m",   [MMF_ACT_HARDSIGMOID] = "10",  [MMF_ACT_SELU] = "i?",
    [MMF_ACT_CELU] = "im",       [MMF_ACT_SOFTSIGN] = "nn",     [MMF_ACT_LOGSIGMOID] = "0l",
    [MMF_ACT_THRESHOLD] = "i?",  [MMF_ACT_SOFTSHRINK] = "il",   [MMF_ACT_HARDSHRINK] = "il",
    [MMF_ACT_TANHSHRINK] = "il", [MMF_ACT_EXPONENTIAL] = "i0",  [MMF_ACT_GELU_10] = "?n",
    [MMF_ACT_LAPLACE] = "10",    [MMF_ACT_XIELU] = "ii",        [MMF_ACT_SWIGLU_CLAMPED] = "?n",
    [MMF_ACT_SITUGLU] = "?0",    [MMF_ACT_SWIGLUSTEP] = "?n",   [MMF_ACT_FATREGLU] = "i0"};

static bool is_special(double value, char code)
{
    switch (code) {
    case 'n':
        return isnan(value);
    case 'i':
        return value == INFINITY;
    case 'l':
        return value == -INFINITY;
    case '0':
        return value == 0;
    case '1':
        return value == 1;
    case 'm':
        return value == -1;
    case 'a':
        return value == -0.75f;
    case 'b':
        return value == 1.25f;
    default:
        return !isnan(value);
    }
}

static void test_double_activation(const mmf_kernel *row, int id)
{
    const char *name = mmf_activation_row_of((mmf_activation)id)->name;
    double worst = 0, where = 0;
    for (int i = 0; i < 16 && !isnan(worst); i++) {
        double at = 0;
        const double share = worst_double_error(row, id, &at);
        if (!(share <= worst))
            worst = share, where = at;
    }
    check(worst <= 1, "%s %s, double: %.3f of the bound at %a", row->name, name, worst, where);
    if (getenv("MMF_TEST_VERBOSE"))
        printf("%s %s, double: at most %.3f of the bound, at %.9g\n", row->name, name, worst,
               where);
    const double z[3] = {INFINITY, -INFINITY, NAN}, ones[3] = {1, 1, 1};
    double out[3];
    apply(row, id, 3, MMF_FLOAT64, z, ones, MMF_FLOAT64, out);
    const char *codes = at_infinity[id];
    check(isnan(out[2]) && codes && is_special(out[0], codes[0]) && is_special(out[1], codes[1]),
          "%s %s, double: %g %g %g at infinity, -infinity, NaN", row->name, name, out[0], out[1],
          out[2]);
}

void test_activations(void)
{
    const char *full =
        getenv("MMF_TEST_EVERY_16TH"); /* a row's name. Minutes: the source of the stated maxima */
    const mmf_problem nothing = {0};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (!takes(rows[r], &nothing) || (full && strcmp(full, rows[r]->name) != 0))
            continue;
        for (int id = 0; id < MMF_ACT_COUNT; id++) {
            float where = 0;
            const char *name = mmf_activation_row_of((mmf_activation)id)->name;
            const double share = worst_error(rows[r], id, full ? 16 : 16411, true, &where);
            const double independent = worst_error(rows[r], id, 65539, false, &where);
            check(share <= 1 && independent <= 1, "%s %s: %.3f, %.3f of the bound at %a",
                  rows[r]->name, name, share, independent, (double)where);
            if (full)
                printf("%s %s: at most %.3f of the bound, at %.9g\n", rows[r]->name, name, share,
                       (double)where);
            const float z[3] = {INFINITY, -INFINITY, NAN}, ones[3] = {1, 1, 1};
            float out[3];
            apply(rows[r], id, 3, MMF_FLOAT32, z, ones, MMF_FLOAT32, out);
            check(isnan(out[2]), "%s %s: NaN is lost", rows[r]->name, name);
            const char *codes = at_infinity[id];
            check(codes && is_special(out[0], codes[0]) && is_special(out[1], codes[1]),
                  "%s %s: %g %g at infinity", rows[r]->name, name, (double)out[0], (double)out[1]);
            test_double_activation(rows[r], id);
        }
    }
}

/* Rounded to a type of 16 bits. */
static void narrow(int dtype, float *values, uint16_t *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = (dtype == MMF_FLOAT16 ? mmf_float_to_f16 : mmf_float_to_bf16)(values[i]);
        values[i] = (float)decode(dtype, &to[i]);
    }
}

/* dtype: of A and B, float32 or of 16 bits. */
static void rms_of(const mmf_kernel *row, int dtype, int64_t m, int64_t n, int64_t k,
                   bool transposed, bool positive)
{
    float *a = malloc((size_t)(m * k) * 4), *b = malloc((size_t)(n * k) * 4),
          *out = malloc((size_t)(m * n) * 4);
    for (int64_t i = 0; i < m * k; i++)
        a[i] = (float)((double)(random_bits() >> 11) * 0x1p-53 - (positive ? 0 : 0.5));
    for (int64_t i = 0; i < n * k; i++)
        b[i] = (float)((double)(random_bits() >> 11) * 0x1p-53 - (positive ? 0 : 0.5));
    mmf_problem p = {.m = m, .n = n, .k = k, .alpha = 1};
    mmf_buffers buffers = {0};
    memset(p.dtype, MMF_ABSENT, sizeof p.dtype);
    p.dtype[MMF_A] = p.dtype[MMF_B] = (uint8_t)dtype, p.dtype[MMF_OUT] = MMF_FLOAT32;
    uint16_t *narrow_a = malloc((size_t)(m * k) * 2), *narrow_b = malloc((size_t)(n * k) * 2);
    buffers.data[MMF_A] = a, buffers.data[MMF_B] = b, buffers.data[MMF_OUT] = out;
    if (dtype != MMF_FLOAT32) {
        narrow(dtype, a, narrow_a, m * k), narrow(dtype, b, narrow_b, n * k);
        buffers.data[MMF_A] = narrow_a, buffers.data[MMF_B] = narrow_b;
    }
    p.strides[MMF_A] = (mmf_strides){.row = k, .col = 1};
    p.strides[MMF_B] =
        transposed ? (mmf_strides){.row = 1, .col = k} : (mmf_strides){.row = n, .col = 1};
    p.strides[MMF_OUT] = (mmf_strides){.row = n, .col = 1};
    mmf_config config;
    set_features(&p);
    row->family->configure(row, &p, &config);
    row->family->run(&p, &config, &buffers, NULL);
    double errors = 0, units = 0, sizes = 0;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0;
            for (int64_t x = 0; x < k; x++) {
                double product =
                    (double)a[i * k + x] * b[x * p.strides[MMF_B].row + j * p.strides[MMF_B].col];
                sum += product, size += fabs(product);
            }
            const double unit = 0.3 * unit_in_last_place(MMF_FLOAT32, sum);
            errors += (out[i * n + j] - sum) * (out[i * n + j] - sum), units += unit * unit,
                sizes += size * size;
        }
    }
    const double limit = sqrt(units / (double)(m * n)) + 0x1p-24 * sqrt(sizes / (double)(m * n));
    const double rms = sqrt(errors / (double)(m * n));
    check(rms <= limit, "%s: RMS error %.3f of the limit, %d x %d x %d %s %s", row->name,
          rms / limit, (int)m, (int)n, (int)k, transposed ? "NT" : "NN",
          positive ? "positive" : "signed");
    if (getenv("MMF_TEST_VERBOSE"))
        printf("%s: RMS %.3f of the limit, %d x %d x %d %s\n", row->name, rms / limit, (int)m,
               (int)n, (int)k, transposed ? "NT" : "NN");
    free(a), free(b), free(out), free(narrow_a), free(narrow_b);
}

/* An infinite product in the first piece of K stays infinite through the compensated sums. */
static void infinity_of(const mmf_kernel *row)
{
    enum { M = 16, N = 24, K = 2000 };
    static float a[M * K], b[K * N], out[M * N];
    for (int i = 0; i < M * K; i++)
        a[i] = 1;
    for (int i = 0; i < K * N; i++)
        b[i] = 1;
    a[3 * K] = INFINITY;
    mmf_problem p = {.m = M, .n = N, .k = K, .alpha = 1};
    mmf_buffers buffers = {0};
    memset(p.dtype, MMF_ABSENT, sizeof p.dtype);
    p.dtype[MMF_A] = p.dtype[MMF_B] = p.dtype[MMF_OUT] = MMF_FLOAT32;
    buffers.data[MMF_A] = a, buffers.data[MMF_B] = b, buffers.data[MMF_OUT] = out;
    p.strides[MMF_A] = (mmf_strides){.row = K, .col = 1};
    p.strides[MMF_B] = p.strides[MMF_OUT] = (mmf_strides){.row = N, .col = 1};
    mmf_config config;
    set_features(&p);
    row->family->configure(row, &p, &config);
    row->family->run(&p, &config, &buffers, NULL);
    bool right = true;
    for (int i = 0; i < M * N; i++)
        right = right && out[i] == (i / N == 3 ? INFINITY : (float)K);
    check(right, "%s: an infinite sum", row->name);
}

void test_accuracy(void)
{
    static const int depths[] = {16, 24, 32, 64, 127, 384, 500, 1024, 3000, 8192};
    mmf_problem plain = {.m = 64, .n = 64, .k = 64};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const uint32_t operands = rows[r]->operands;
        const int dtype = operands & MMF_DTYPE_BIT(MMF_FLOAT32)   ? MMF_FLOAT32
                          : operands & MMF_DTYPE_BIT(MMF_FLOAT16) ? MMF_FLOAT16
                                                                  : MMF_BFLOAT16;
        plain.dtype[MMF_A] = plain.dtype[MMF_B] = (uint8_t)dtype;
        if (!takes(rows[r], &plain))
            continue;
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
            rms_of(rows[r], dtype, 64, 64, depths[d], false, true);
            rms_of(rows[r], dtype, dtype == MMF_FLOAT32 ? 8 : 16, 512, depths[d], true, true);
            rms_of(rows[r], dtype, 64, 64, depths[d], true, false);
        }
        rms_of(rows[r], dtype, 64, 64, 40000, false, true); /* needs the compensated sums */
        if (dtype == MMF_FLOAT32)
            infinity_of(rows[r]);
    }
}
