/* Conversions between number types. Floats to integers truncate and saturate, NaN becomes 0; floats
 * to narrower floats round to nearest even unless the name says rtz.
 * Path of a launch: the loop of run.c, class VALU. */
#include "lanes.h"

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
