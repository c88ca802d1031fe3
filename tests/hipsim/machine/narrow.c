/* Floats of 8, 6 and 4 bits, and their conversions. The scaled ones (gfx950) take the exponent of a
 * float32 as the scale. Path of a launch: the loop of run.c, class VALU.
 *
 * Left out, and so fatal: stochastic rounding and conversions of 32 elements at once. */
#include "narrow.h"

#include "matrix.h"

#include <math.h>

struct narrow narrow_of(const struct wave *w, enum narrow_kind kind)
{
    static const struct narrow kinds[NARROW_KINDS] = {
        [NARROW_FP8] = {.bits = 8, .mantissa = 3, .bias = 7, .nan = true},
        [NARROW_BF8] = {.bits = 8, .mantissa = 2, .bias = 15, .infinity = true, .nan = true},
        [NARROW_FP6] = {.bits = 6, .mantissa = 3, .bias = 1},
        [NARROW_BF6] = {.bits = 6, .mantissa = 2, .bias = 3},
        [NARROW_FP4] = {.bits = 4, .mantissa = 1, .bias = 1},
    };
    struct narrow f = kinds[kind];
    if (f.bits == 8 && w->thread->launch->arch->family == HIPSIM_CDNA3) {
        f.fnuz = true;
        f.infinity = false;
        f.bias++;
    }
    return f;
}

float narrow_to_float(struct narrow f, uint32_t code)
{
    uint32_t sign_bit = 1u << (f.bits - 1), ones = (1u << f.mantissa) - 1;
    uint32_t last = (sign_bit - 1) >> f.mantissa;
    uint32_t exponent = code >> f.mantissa & last, fraction = code & ones;
    float sign = code & sign_bit ? -1.0f : 1.0f;
    if (f.fnuz && code == sign_bit)
        return NAN;
    if (!f.fnuz && f.infinity && exponent == last)
        return fraction ? NAN : sign * INFINITY;
    if (!f.fnuz && f.nan && exponent == last && fraction == ones)
        return NAN;
    int power = (int)(exponent ? exponent : 1) - f.bias - f.mantissa;
    return sign * ldexpf((float)(exponent ? fraction + ones + 1 : fraction), power);
}

uint32_t narrow_from(struct narrow f, double x)
{
    uint32_t sign_bit = 1u << (f.bits - 1), sign = signbit(x) ? sign_bit : 0;
    uint32_t infinity = (sign_bit - 1) & ~((1u << f.mantissa) - 1);
    uint32_t nan = f.fnuz ? sign_bit : sign | (sign_bit - 1);
    uint32_t largest = sign_bit - 1;
    if (!f.fnuz)
        largest = f.infinity ? infinity - 1 : f.nan ? sign_bit - 2 : sign_bit - 1;
    uint32_t beyond = f.infinity ? sign | infinity : f.fnuz || f.nan ? nan : sign | largest;
    if (x != x)
        return f.fnuz || f.nan ? nan : sign | largest;
    double size = fabs(x);
    if (isinf(x))
        return beyond;
    int e, least = 1 - f.bias;
    frexp(size, &e);
    e = size == 0 || e - 1 < least ? least : e - 1;
    /* In units of the last place: below 2^mantissa only of the least exponent. */
    double units = rint(ldexp(size, f.mantissa - e));
    if (ldexp(units, e - f.mantissa) > (double)narrow_to_float(f, largest))
        return beyond;
    uint32_t code = ((uint32_t)(e - least) << f.mantissa) + (uint32_t)units;
    return code == 0 && f.fnuz ? 0 : sign | code;
}

double scale_of(uint32_t code)
{
    return code == 255 ? NAN : ldexp(1, (int)code - 127);
}

static double scale_in(float x)
{
    return scale_of(as_u32(x) >> 23 & 255);
}

/* --- from narrow floats --- */

/* `count` codes from bit `shift` of each lane of source 0, times the scale of source 1 if there is
 * one, into out[0] and out[1]. */
static void read_codes(struct wave *w, const struct op *o, enum narrow_kind kind, int shift,
                       int count, float out[2][LANES])
{
    SOURCE(u32, a, 0)
    _Alignas(64) uint32_t buffer[LANES];
    const float *scale = o->sources > 1 ? source_f32(w, &o->src[1], buffer) : NULL;
    struct narrow f = narrow_of(w, kind);
    for (int k = 0; k < count; k++)
        for (int i = 0; i < w->lanes; i++) {
            uint32_t code = a_[i] >> (shift + k * f.bits) & ((1u << f.bits) - 1);
            float x = narrow_to_float(f, code);
            out[k][i] = scale ? (float)(x * scale_in(scale[i])) : x;
        }
}

/* gfx12 names the byte by byte_sel, the scaled forms by op_sel, SDWA has moved it already. */
static void to_f32(struct wave *w, const struct op *o, enum narrow_kind kind, int shift, int count)
{
    _Alignas(64) float x[2][LANES];
    read_codes(w, o, kind, shift, count, x);
    for (int k = 0; k < count; k++)
        merge32(w, o->dst[0].first + (unsigned)k, (const uint32_t *)x[k]);
}

#define FROM_8(kind, number)                                                                       \
    void v_cvt_f32_##kind(struct wave *w, const struct op *o)                                      \
    {                                                                                              \
        to_f32(w, o, number, 8 * o->offset1, 1);                                                   \
    }                                                                                              \
    void v_cvt_pk_f32_##kind(struct wave *w, const struct op *o)                                   \
    {                                                                                              \
        to_f32(w, o, number, 16 * (o->op_sel & 1), 2);                                             \
    }                                                                                              \
    void v_cvt_scalef32_f32_##kind(struct wave *w, const struct op *o)                             \
    {                                                                                              \
        to_f32(w, o, number, 8 * (o->op_sel & 3), 1);                                              \
    }
FROM_8(fp8, NARROW_FP8)
FROM_8(bf8, NARROW_BF8)

void v_cvt_scalef32_pk_f32_fp4(struct wave *w, const struct op *o)
{
    to_f32(w, o, NARROW_FP4, 8 * (o->op_sel & 3), 2);
}

/* A pair of 16-bit floats. */
static void to_16(struct wave *w, const struct op *o, enum narrow_kind kind, int shift,
                  uint32_t (*round)(float))
{
    _Alignas(64) float x[2][LANES];
    uint32_t *d = w->temporary[0];
    read_codes(w, o, kind, shift, 2, x);
    for (int i = 0; i < w->lanes; i++)
        d[i] = round(x[0][i]) | round(x[1][i]) << 16;
    merge32(w, o->dst[0].first, d);
}

#define PAIR_OF_16(name, number, shift, round)                                                     \
    void v_cvt_scalef32_pk_##name(struct wave *w, const struct op *o)                              \
    {                                                                                              \
        to_16(w, o, number, shift, round);                                                         \
    }
PAIR_OF_16(f16_fp8, NARROW_FP8, 16 * (o->op_sel & 1), float_to_half)
PAIR_OF_16(f16_bf8, NARROW_BF8, 16 * (o->op_sel & 1), float_to_half)
PAIR_OF_16(f16_fp4, NARROW_FP4, 8 * (o->op_sel & 3), float_to_half)
PAIR_OF_16(bf16_fp8, NARROW_FP8, 16 * (o->op_sel & 1), float_to_bf16)
PAIR_OF_16(bf16_bf8, NARROW_BF8, 16 * (o->op_sel & 1), float_to_bf16)
PAIR_OF_16(bf16_fp4, NARROW_FP4, 8 * (o->op_sel & 3), float_to_bf16)

/* --- to narrow floats --- */

/* A field of the result's register; its other bits stay. */
static void write_field(struct wave *w, const struct op *o, const uint32_t *codes, int shift,
                        int bits)
{
    const uint32_t *old = w->v[o->dst[0].first], mask = ((1u << bits) - 1) << shift;
    uint32_t *d = w->temporary[0];
    for (int i = 0; i < w->lanes; i++)
        d[i] = (old[i] & ~mask) | (codes[i] << shift & mask);
    merge32(w, o->dst[0].first, d);
}

/* One half of the result. */
static void to_half(struct wave *w, const struct op *o, enum narrow_kind kind)
{
    _Alignas(64) float x[2][LANES];
    uint32_t codes[LANES];
    read_codes(w, o, kind, 8 * (o->op_sel & 3), 1, x);
    for (int i = 0; i < w->lanes; i++)
        codes[i] = float_to_half(x[0][i]);
    write_field(w, o, codes, o->op_sel & 4 ? 16 : 0, 16);
}

void v_cvt_scalef32_f16_fp8(struct wave *w, const struct op *o)
{
    to_half(w, o, NARROW_FP8);
}

void v_cvt_scalef32_f16_bf8(struct wave *w, const struct op *o)
{
    to_half(w, o, NARROW_BF8);
}

/* A pair of codes into 16 or 8 bits of the result: which, two bits of op_sel say for fp4, the last
 * of them for 8-bit codes. `at` is the source of the scale; -1: none. */
static void pack_pair(struct wave *w, const struct op *o, enum narrow_kind kind,
                      const float *const x[2], int at, int high)
{
    _Alignas(64) uint32_t buffer[LANES];
    uint32_t codes[LANES];
    const float *scale = at >= 0 ? source_f32(w, &o->src[at], buffer) : NULL;
    struct narrow f = narrow_of(w, kind);
    for (int i = 0; i < w->lanes; i++) {
        double s = scale ? scale_in(scale[i]) : 1;
        codes[i] = narrow_from(f, x[0][i] / s) | narrow_from(f, x[1][i] / s) << f.bits;
    }
    int part = kind == NARROW_FP4 ? o->op_sel >> 2 & 3 : o->op_sel >> high & 1;
    write_field(w, o, codes, part * 2 * f.bits, 2 * f.bits);
}

static void pack_f32(struct wave *w, const struct op *o, enum narrow_kind kind, int at)
{
    SOURCE(f32, a, 0) SOURCE(f32, b, 1) const float *x[2] = {a_, b_};
    pack_pair(w, o, kind, x, at, at < 0 ? 2 : 3);
}

static void pack_16(struct wave *w, const struct op *o, enum narrow_kind kind,
                    unpack_function unpack)
{
    SOURCE(u32, a, 0)
    _Alignas(64) float low[LANES], high[LANES];
    const float *x[2] = {low, high};
    unpack(a_, low, high, w->lanes);
    pack_pair(w, o, kind, x, 1, 2);
}

#define PACK(kind, number)                                                                         \
    void v_cvt_scalef32_pk_##kind##_f32(struct wave *w, const struct op *o)                        \
    {                                                                                              \
        pack_f32(w, o, number, 2);                                                                 \
    }                                                                                              \
    void v_cvt_scalef32_pk_##kind##_f16(struct wave *w, const struct op *o)                        \
    {                                                                                              \
        pack_16(w, o, number, unpack_f16);                                                         \
    }                                                                                              \
    void v_cvt_scalef32_pk_##kind##_bf16(struct wave *w, const struct op *o)                       \
    {                                                                                              \
        pack_16(w, o, number, unpack_bf16);                                                        \
    }
PACK(fp8, NARROW_FP8)
PACK(bf8, NARROW_BF8)
PACK(fp4, NARROW_FP4)

void v_cvt_pk_fp8_f32(struct wave *w, const struct op *o)
{
    pack_f32(w, o, NARROW_FP8, -1);
}

void v_cvt_pk_bf8_f32(struct wave *w, const struct op *o)
{
    pack_f32(w, o, NARROW_BF8, -1);
}
