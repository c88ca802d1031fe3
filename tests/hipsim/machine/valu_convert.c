/* Conversions between number types. Floats to integers truncate and saturate, NaN becomes 0; floats
 * to narrower floats round to nearest even unless the name says rtz.
 * Path of a launch: the loop of run.c, class VALU. */
#include "matrix.h"

#include <math.h>

static inline uint32_t to_u32(double x)
{
    return !(x > 0) ? 0 : x >= 4294967295.0 ? UINT32_MAX : (uint32_t)(int64_t)x;
}

static inline int32_t to_i32(double x)
{
    return x != x ? 0 : x <= -2147483648.0 ? INT32_MIN : x >= 2147483647.0 ? INT32_MAX : (int32_t)x;
}

static inline uint32_t to_u16(float x)
{
    return !(x > 0) ? 0 : x >= 65535.0f ? 65535 : (uint32_t)x;
}

static inline int32_t to_i16(float x)
{
    return x != x ? 0 : x <= -32768.0f ? -32768 : x >= 32767.0f ? 32767 : (int32_t)x;
}

VALU1(v_cvt_u32_f32, u32, f32, to_u32(a))
VALU1(v_cvt_i32_f32, i32, f32, to_i32(a))
VALU1(v_cvt_u32_f64, u32, f64, to_u32(a))
VALU1(v_cvt_i32_f64, i32, f64, to_i32(a))
VALU1(v_cvt_nearest_i32_f32, i32, f32, to_i32(floor((double)a + 0.5)))
VALU1(v_cvt_floor_i32_f32, i32, f32, to_i32(floor((double)a)))
VALU1(v_cvt_f32_u32, f32, u32, (float)a)
VALU1(v_cvt_f32_i32, f32, i32, (float)a)
VALU1(v_cvt_f64_u32, f64, u32, (double)a)
VALU1(v_cvt_f64_i32, f64, i32, (double)a)
VALU1(v_cvt_f32_f64, f32, f64, (float)a)
VALU1(v_cvt_f64_f32, f64, f32, (double)a)
VALU1(v_cvt_f32_f16, f32, f16, a)
VALU1(v_cvt_f16_f32, f16, f32, a)
VALU1(v_cvt_f32_bf16, f32, bf16, a)
VALU1(v_cvt_f16_u16, f16, u16, (float)a)
VALU1(v_cvt_f16_i16, f16, i16, (float)a)
VALU1(v_cvt_u16_f16, u16, f16, to_u16(a))
VALU1(v_cvt_i16_f16, i16, f16, to_i16(a))
VALU1(v_cvt_f32_ubyte0, f32, u32, (float)(a & 255))
VALU1(v_cvt_f32_ubyte1, f32, u32, (float)(a >> 8 & 255))
VALU1(v_cvt_f32_ubyte2, f32, u32, (float)(a >> 16 & 255))
VALU1(v_cvt_f32_ubyte3, f32, u32, (float)(a >> 24))
VALU2(v_cvt_pk_bf16_f32, u32, f32, f32, float_to_bf16(a) | float_to_bf16(b) << 16)
VALU2(v_cvt_pk_f16_f32, u32, f32, f32, float_to_half(a) | float_to_half(b) << 16)
VALU2(v_cvt_pk_u16_u32, u32, u32, u32, (a > 65535 ? 65535 : a) | (b > 65535 ? 65535 : b) << 16)
VALU2(v_pack_b32_f16, u32, u16, u16, a | b << 16)

/* Toward zero: the nearest, one step back where it went past. */
static inline uint32_t half_toward_zero(float x)
{
    uint32_t h = float_to_half(x);
    float back = half_to_float(h);
    bool past = x == x && fabsf(back) > fabsf(x);
    return past ? h - 1 : h;
}
VALU2(v_cvt_pkrtz_f16_f32, u32, f32, f32, half_toward_zero(a) | half_toward_zero(b) << 16)

/* 8-bit floats. gfx942 has the FNUZ kinds (no infinity, no -0, 0x80 is NaN, bias one higher), later
 * parts the OCP ones; E5M2 keeps infinities, E4M3 has none. */
struct byte_format {
    int mantissa, bias;
    bool fnuz, infinity;
};

static struct byte_format byte_format(const struct wave *w, bool bf8)
{
    bool fnuz = w->thread->launch->arch->family == HIPSIM_CDNA3;
    return (struct byte_format){bf8 ? 2 : 3, (bf8 ? 15 : 7) + fnuz, fnuz, bf8 && !fnuz};
}

static float byte_to_float(struct byte_format f, uint32_t byte)
{
    int top = f.mantissa == 2 ? 31 : 15, exponent = (int)(byte >> f.mantissa & (unsigned)top);
    int fraction = (int)(byte & ((1u << f.mantissa) - 1)), ones = (1 << f.mantissa) - 1;
    bool nan =
        f.fnuz ? byte == 0x80 : exponent == top && (f.infinity ? fraction != 0 : fraction == ones);
    float sign = byte & 0x80 ? -1.0f : 1.0f;
    if (nan)
        return NAN;
    if (!f.fnuz && f.infinity && exponent == top)
        return sign * INFINITY;
    if (exponent == 0)
        return sign * ldexpf((float)fraction, 1 - f.bias - f.mantissa);
    return sign * ldexpf((float)(fraction + ones + 1), exponent - f.bias - f.mantissa);
}

static uint32_t float_to_byte(struct byte_format f, float x)
{
    uint32_t sign = as_u32(x) >> 24 & 0x80;
    uint32_t nan = f.fnuz ? 0x80 : sign | 0x7f;
    uint32_t largest = f.fnuz ? 0x7f : f.infinity ? 0x7b : 0x7e;
    if (x != x)
        return nan;
    float limit = byte_to_float(f, largest), size = fabsf(x);
    if (isinf(x))
        return f.infinity ? sign | 0x7c : nan;
    int e;
    frexpf(size, &e);
    e = e - 1 < 1 - f.bias ? 1 - f.bias : e - 1;
    float unit = ldexpf(1.0f, e - f.mantissa), rounded = __builtin_rintf(size / unit) * unit;
    if (rounded > limit)
        return f.infinity ? sign | 0x7c : nan;
    uint32_t code;
    if (rounded < ldexpf(1.0f, 1 - f.bias)) {
        code = (uint32_t)(rounded / unit);
    } else {
        frexpf(rounded, &e);
        float fraction = ldexpf(rounded, f.mantissa + 1 - e) - (float)(1 << f.mantissa);
        code = (uint32_t)(e - 1 + f.bias) << f.mantissa | (uint32_t)fraction;
    }
    return code == 0 && f.fnuz ? 0 : sign | code;
}

static void pack_bytes(struct wave *w, const struct op *o, bool bf8)
{
    SOURCE(f32, a, 0) SOURCE(f32, b, 1) struct byte_format f = byte_format(w, bf8);
    const uint32_t *old = w->v[o->dst[0].first];
    uint32_t *d = w->temporary[0];
    bool high = o->op_sel & 4;
    for (int i = 0; i < w->lanes; i++) {
        uint32_t pair = float_to_byte(f, a_[i]) | float_to_byte(f, b_[i]) << 8;
        d[i] = high ? (old[i] & 0xffff) | pair << 16 : (old[i] & 0xffff0000) | pair;
    }
    merge32(w, o->dst[0].first, d);
}

void v_cvt_pk_fp8_f32(struct wave *w, const struct op *o)
{
    pack_bytes(w, o, false);
}

void v_cvt_pk_bf8_f32(struct wave *w, const struct op *o)
{
    pack_bytes(w, o, true);
}

static void unpack_bytes(struct wave *w, const struct op *o, bool bf8, int count)
{
    SOURCE(u32, a, 0)
    struct byte_format f = byte_format(w, bf8);
    int shift = o->op_sel & 1 ? 16 : 0;
    for (int k = 0; k < count; k++) {
        uint32_t *d = w->temporary[k];
        for (int i = 0; i < w->lanes; i++)
            d[i] = as_u32(byte_to_float(f, a_[i] >> (shift + 8 * k) & 255));
    }
    for (int k = 0; k < count; k++)
        merge32(w, o->dst[0].first + (unsigned)k, w->temporary[k]);
}

void v_cvt_f32_fp8(struct wave *w, const struct op *o)
{
    unpack_bytes(w, o, false, 1);
}

void v_cvt_f32_bf8(struct wave *w, const struct op *o)
{
    unpack_bytes(w, o, true, 1);
}

void v_cvt_pk_f32_fp8(struct wave *w, const struct op *o)
{
    unpack_bytes(w, o, false, 2);
}

void v_cvt_pk_f32_bf8(struct wave *w, const struct op *o)
{
    unpack_bytes(w, o, true, 2);
}

void byte_table(struct wave *w, bool bf8, float *table)
{
    struct byte_format f = byte_format(w, bf8);
    for (uint32_t i = 0; i < 256; i++)
        table[i] = byte_to_float(f, i);
}
