/* How a vector instruction reads its sources and writes its result, by type. Sources come as
 * arrays of 64 lanes, straight from the register where that is possible; a result goes straight to
 * its register where every lane is active, else to a temporary that is merged.
 *
 * SOURCE(f32, a, 0) declares a_, lanes of source 0 as float; RESULT(f32) declares d_; FINISH_f32
 * applies clamp and omod and merges. valu.h builds instructions from them. */
#ifndef HIPSIM_LANES_H
#define HIPSIM_LANES_H

#include "internal.h"

/* Lanes of a 32-bit source without modifiers; `buffer` holds a broadcast scalar. */
static inline const uint32_t *lanes32(struct wave *w, const struct operand *s, int dword,
                                      uint32_t *buffer)
{
    if (s->kind == OPERAND_VGPR)
        return w->v[s->first + dword];
    if (s->kind != OPERAND_SREG)
        return s->splat + LANES * dword;
    uint32_t value = s->scc ? w->scc : w->s[s->first + dword];
    for (int i = 0; i < LANES; i++)
        buffer[i] = value;
    return buffer;
}

static inline const uint32_t *source_u32(struct wave *w, const struct operand *s, uint32_t *buffer)
{
    const uint32_t *p = lanes32(w, s, 0, buffer);
    if (__builtin_expect(s->half == HALF_WHOLE, 1))
        return p;
    int shift = s->half == HALF_HIGH ? 16 : 0;
    for (int i = 0; i < LANES; i++)
        buffer[i] = p[i] >> shift & 0xffff;
    return buffer;
}

static inline const float *source_f32(struct wave *w, const struct operand *s, uint32_t *buffer)
{
    const uint32_t *p = lanes32(w, s, 0, buffer);
    if (s->negate | s->absolute) {
        uint32_t keep = s->absolute ? 0x7fffffff : 0xffffffff, flip = s->negate ? 0x80000000 : 0;
        for (int i = 0; i < LANES; i++)
            buffer[i] = (p[i] & keep) ^ flip;
        return (const float *)buffer;
    }
    return (const float *)p;
}

/* Exact: a multiplication by 2^112 moves the exponent, subnormals included. */
static inline float half_to_float(uint32_t h)
{
    uint32_t magnitude = (h & 0x7fff) << 13;
    float f = as_f32(magnitude) * 0x1p112f;
    uint32_t bits = magnitude >= 0x7c00u << 13 ? magnitude | 0x7f800000u : as_u32(f);
    return as_f32(bits | (h & 0x8000) << 16);
}

/* Round to nearest even; NaN stays a quiet NaN. */
static inline uint32_t float_to_half(float f)
{
    uint32_t bits = as_u32(f), sign = bits >> 16 & 0x8000, m = bits & 0x7fffffff;
    uint32_t normal = (m + 0xfff + (m >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t subnormal = as_u32(as_f32(m) + 0.5f) - 0x3f000000u;
    uint32_t h = m < 0x38800000u ? subnormal : normal;
    h = m >= 0x47800000u ? 0x7c00 : h;
    h = m > 0x7f800000u ? 0x7e00 | (m >> 13 & 0x3ff) : h;
    return sign | h;
}

/* Through a float rounded to odd, so that the two roundings are one. */
static inline uint32_t double_to_half(double x)
{
    float f = (float)x;
    uint32_t bits = as_u32(f);
    if ((double)f != x && x == x && !(bits & 1)) {
        bool away = (f < 0 ? -(double)f : (double)f) > (x < 0 ? -x : x);
        bits += away ? -1u : 1u;
    }
    return float_to_half(as_f32(bits));
}

static inline uint32_t float_to_bf16(float f)
{
    uint32_t bits = as_u32(f);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000u ? bits >> 16 | 0x40 : rounded;
}

static inline const float *source_f16(struct wave *w, const struct operand *s, uint32_t *buffer)
{
    const uint32_t *p = lanes32(w, s, 0, buffer);
    int shift = s->half == HALF_HIGH ? 16 : 0;
    uint32_t keep = s->absolute ? 0x7fff : 0xffff, flip = s->negate ? 0x8000 : 0;
    for (int i = 0; i < LANES; i++)
        buffer[i] = as_u32(half_to_float((p[i] >> shift & keep) ^ flip));
    return (const float *)buffer;
}

static inline const float *source_bf16(struct wave *w, const struct operand *s, uint32_t *buffer)
{
    const uint32_t *p = lanes32(w, s, 0, buffer);
    int shift = s->half == HALF_HIGH ? 16 : 0;
    uint32_t keep = s->absolute ? 0x7fff : 0xffff, flip = s->negate ? 0x8000 : 0;
    for (int i = 0; i < LANES; i++)
        buffer[i] = ((p[i] >> shift & keep) ^ flip) << 16;
    return (const float *)buffer;
}

static inline const uint32_t *source_u16(struct wave *w, const struct operand *s, uint32_t *buffer)
{
    const uint32_t *p = lanes32(w, s, 0, buffer);
    int shift = s->half == HALF_HIGH ? 16 : 0;
    for (int i = 0; i < LANES; i++)
        buffer[i] = p[i] >> shift & 0xffff;
    return buffer;
}

static inline const int32_t *source_i16(struct wave *w, const struct operand *s, uint32_t *buffer)
{
    const uint32_t *p = lanes32(w, s, 0, buffer);
    int shift = s->half == HALF_HIGH ? 0 : 16;
    for (int i = 0; i < LANES; i++)
        buffer[i] = (uint32_t)((int32_t)(p[i] << shift) >> 16);
    return (const int32_t *)buffer;
}

static inline const uint64_t *source_u64(struct wave *w, const struct operand *s, uint64_t *buffer)
{
    uint32_t low_buffer[LANES], high_buffer[LANES];
    const uint32_t *low = lanes32(w, s, 0, low_buffer), *high = lanes32(w, s, 1, high_buffer);
    for (int i = 0; i < LANES; i++)
        buffer[i] = low[i] | (uint64_t)high[i] << 32;
    return buffer;
}

static inline const double *source_f64(struct wave *w, const struct operand *s, uint64_t *buffer)
{
    source_u64(w, s, buffer);
    if (s->negate | s->absolute) {
        uint64_t sign = UINT64_C(1) << 63;
        for (int i = 0; i < LANES; i++)
            buffer[i] = (s->absolute ? buffer[i] & ~sign : buffer[i]) ^ (s->negate ? sign : 0);
    }
    return (const double *)buffer;
}

#define LANE_f32 float
#define LANE_u32 uint32_t
#define LANE_i32 int32_t
#define LANE_f16 float
#define LANE_bf16 float
#define LANE_u16 uint32_t
#define LANE_i16 int32_t
#define LANE_u64 uint64_t
#define LANE_i64 int64_t
#define LANE_f64 double
#define STORE_f32 uint32_t
#define STORE_u32 uint32_t
#define STORE_i32 uint32_t
#define STORE_f16 uint32_t
#define STORE_bf16 uint32_t
#define STORE_u16 uint32_t
#define STORE_i16 uint32_t
#define STORE_u64 uint64_t
#define STORE_i64 uint64_t
#define STORE_f64 uint64_t
#define source_i32 (const int32_t *)source_u32
#define source_i64 (const int64_t *)source_u64

#define SOURCE(type, name, index)                                                                  \
    _Alignas(64) STORE_##type name##buffer[LANES];                                                 \
    const LANE_##type *name##_ = source_##type(w, &o->src[index], name##buffer);

/* Where the lanes of a 32-bit result go first. */
static inline uint32_t *result32(struct wave *w, const struct op *o)
{
    return w->full ? w->v[o->dst[0].first] : w->temporary[0];
}

static inline void merge32(struct wave *w, unsigned reg, const uint32_t *lanes)
{
    uint32_t *d = w->v[reg];
    if (w->full) {
        if (d != lanes)
            memcpy(d, lanes, sizeof(uint32_t) * (size_t)w->lanes);
        return;
    }
    FOR_LANES(i) d[i] = (lanes[i] & w->lane_mask[i]) | (d[i] & ~w->lane_mask[i]);
}

static inline void merge64(struct wave *w, unsigned reg, const uint64_t *lanes)
{
    uint32_t low[LANES], high[LANES];
    for (int i = 0; i < LANES; i++) {
        low[i] = (uint32_t)lanes[i];
        high[i] = (uint32_t)(lanes[i] >> 32);
    }
    merge32(w, reg, low);
    merge32(w, reg + 1, high);
}

/* 16-bit results: on gfx9 the upper half becomes zero, later it is kept. */
void merge16(struct wave *w, const struct op *o, const uint32_t *lanes);
void modify_f32(const struct op *o, float *lanes);
void modify_f64(const struct op *o, double *lanes);
/* Bits of the nonzero lanes; inactive ones are 0. */
uint64_t mask_of(struct wave *w, const uint32_t *lanes);

#define FINISH_f32(lanes)                                                                          \
    if (__builtin_expect(o->clamp | o->omod, 0))                                                   \
        modify_f32(o, lanes);                                                                      \
    merge32(w, o->dst[0].first, (const uint32_t *)(lanes));
#define FINISH_u32(lanes) merge32(w, o->dst[0].first, (const uint32_t *)(lanes));
#define FINISH_i32 FINISH_u32
#define FINISH_u64(lanes) merge64(w, o->dst[0].first, (const uint64_t *)(lanes));
#define FINISH_i64 FINISH_u64
#define FINISH_f64(lanes)                                                                          \
    if (o->clamp | o->omod)                                                                        \
        modify_f64(o, lanes);                                                                      \
    merge64(w, o->dst[0].first, (const uint64_t *)(lanes));
#define FINISH_f16(lanes)                                                                          \
    if (o->clamp | o->omod)                                                                        \
        modify_f32(o, lanes);                                                                      \
    FOR_LANES(k) w->temporary[1][k] = float_to_half((lanes)[k]);                                   \
    merge16(w, o, w->temporary[1]);
#define FINISH_bf16(lanes)                                                                         \
    FOR_LANES(k) w->temporary[1][k] = float_to_bf16((lanes)[k]);                                   \
    merge16(w, o, w->temporary[1]);
#define FINISH_u16(lanes) merge16(w, o, (const uint32_t *)(lanes));
#define FINISH_i16 FINISH_u16

#define RESULT_f32 float *d_ = (float *)result32(w, o);
#define RESULT_u32 uint32_t *d_ = result32(w, o);
#define RESULT_i32 int32_t *d_ = (int32_t *)result32(w, o);
#define RESULT_f16 float *d_ = (float *)w->temporary[0];
#define RESULT_bf16 RESULT_f16
#define RESULT_u16 uint32_t *d_ = w->temporary[0];
#define RESULT_i16 int32_t *d_ = (int32_t *)w->temporary[0];
#define RESULT_u64 _Alignas(64) uint64_t d_[LANES];
#define RESULT_i64 _Alignas(64) int64_t d_[LANES];
#define RESULT_f64 _Alignas(64) double d_[LANES];

/* One instruction each: result type, source types, the result of a lane from a, b and c. */
#define VALU1(name, D, A, expression)                                                              \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        SOURCE(A, a, 0) RESULT_##D FOR_LANES(i)                                                    \
        {                                                                                          \
            LANE_##A a = a_[i];                                                                    \
            d_[i] = (expression);                                                                  \
        }                                                                                          \
        FINISH_##D(d_)                                                                             \
    }
#define VALU2(name, D, A, B, expression)                                                           \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        SOURCE(A, a, 0) SOURCE(B, b, 1) RESULT_##D FOR_LANES(i)                                    \
        {                                                                                          \
            LANE_##A a = a_[i];                                                                    \
            LANE_##B b = b_[i];                                                                    \
            d_[i] = (expression);                                                                  \
        }                                                                                          \
        FINISH_##D(d_)                                                                             \
    }
#define VALU3(name, D, A, B, C, expression)                                                        \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        SOURCE(A, a, 0) SOURCE(B, b, 1) SOURCE(C, c, 2) RESULT_##D FOR_LANES(i)                    \
        {                                                                                          \
            LANE_##A a = a_[i];                                                                    \
            LANE_##B b = b_[i];                                                                    \
            LANE_##C c = c_[i];                                                                    \
            d_[i] = (expression);                                                                  \
        }                                                                                          \
        FINISH_##D(d_)                                                                             \
    }

/* Every function of opcodes.def, and the wrappers. */
#define OP(name, signature, class, function, parameter)                                            \
    void function(struct wave *w, const struct op *o);
#include "opcodes.def"
#undef OP
void run_dpp(struct wave *w, const struct op *o);
void run_sdwa(struct wave *w, const struct op *o);
void run_dual(struct wave *w, const struct op *o);

#endif
