/* Two values per lane: packed float16 and 16-bit integers, packed float32, mixed fma and the dot
 * products. op_sel says which half of a source feeds the low result, op_sel_hi the high one.
 * Path of a launch: the loop of run.c, class VALU. */
#include "lanes.h"

static uint32_t half_bits(const struct op *o, int source, const uint32_t *lanes, int i, bool high)
{
    uint8_t select = high ? o->op_sel_hi : o->op_sel, negate = high ? o->neg_hi : o->neg_lo;
    uint32_t x = select >> source & 1 ? lanes[i] >> 16 : lanes[i] & 0xffff;
    return negate >> source & 1 ? x ^ 0x8000 : x;
}

/* Declares x as the low or high value of each source in turn. */
#define HALF(source, type) HALF_##type(half_bits(o, source, s[source], i, high))
#define HALF_f16(bits) half_to_float(bits)
#define HALF_u16(bits) (bits)
#define HALF_i16(bits) ((int32_t)(int16_t)(bits))
#define PUT_f16(x) float_to_half(o->clamp ? clamped(x) : (x))
#define PUT_u16(x) ((uint32_t)(x) & 0xffff)
#define PUT_i16(x) ((uint32_t)(x) & 0xffff)

static inline float clamped(float x)
{
    return x > 1 ? 1 : x > 0 ? x : 0;
}

#define PACKED(name, type, sources, expression)                                                    \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        _Alignas(64) uint32_t buffers[sources][LANES];                                             \
        const uint32_t *s[sources];                                                                \
        for (int k = 0; k < sources; k++)                                                          \
            s[k] = lanes32(w, &o->src[k], 0, buffers[k]);                                          \
        uint32_t *d = w->temporary[0];                                                             \
        for (int i = 0; i < w->lanes; i++) {                                                       \
            uint32_t result[2];                                                                    \
            for (int high = 0; high < 2; high++) {                                                 \
                LANE_##type a = HALF(0, type), b = HALF(1, type), c = 0;                           \
                if (sources == 3)                                                                  \
                    c = HALF((sources - 1), type);                                                 \
                (void)c;                                                                           \
                result[high] = expression;                                                         \
            }                                                                                      \
            d[i] = result[0] | result[1] << 16;                                                    \
        }                                                                                          \
        merge32(w, o->dst[0].first, d);                                                            \
    }

static inline float least(float a, float b)
{
    return a != a ? b : b != b ? a : a < b ? a : b < a ? b : as_f32(as_u32(a) | as_u32(b));
}

static inline float greatest(float a, float b)
{
    return a != a ? b : b != b ? a : a > b ? a : b > a ? b : as_f32(as_u32(a) & as_u32(b));
}

PACKED(v_pk_add_f16, f16, 2, PUT_f16(a + b))
PACKED(v_pk_mul_f16, f16, 2, PUT_f16(a *b))
PACKED(v_pk_min_f16, f16, 2, PUT_f16(least(a, b)))
PACKED(v_pk_max_f16, f16, 2, PUT_f16(greatest(a, b)))
PACKED(v_pk_fma_f16, f16, 3, double_to_half((double)a *b + c))
PACKED(v_pk_add_u16, u16, 2, PUT_u16(a + b))
PACKED(v_pk_sub_u16, u16, 2, PUT_u16(a - b))
PACKED(v_pk_mul_lo_u16, u16, 2, PUT_u16(a *b))
PACKED(v_pk_mad_u16, u16, 3, PUT_u16(a *b + c))
PACKED(v_pk_min_u16, u16, 2, PUT_u16(a < b ? a : b))
PACKED(v_pk_max_u16, u16, 2, PUT_u16(a > b ? a : b))
PACKED(v_pk_min_i16, i16, 2, PUT_i16(a < b ? a : b))
PACKED(v_pk_max_i16, i16, 2, PUT_i16(a > b ? a : b))
PACKED(v_pk_lshlrev_b16, u16, 2, PUT_u16(b << (a & 15)))
PACKED(v_pk_lshrrev_b16, u16, 2, PUT_u16(b >> (a & 15)))
PACKED(v_pk_ashrrev_i16, i16, 2, PUT_i16(b >> (a & 15)))

/* One word of a packed float32 source, sign applied. */
static const float *word_of(struct wave *w, const struct op *o, int source, bool high,
                            uint32_t *buffer)
{
    uint8_t select = high ? o->op_sel_hi : o->op_sel, negate = high ? o->neg_hi : o->neg_lo;
    const struct operand *s = &o->src[source];
    const uint32_t *p = lanes32(w, s, select >> source & 1, buffer);
    if (!(negate >> source & 1))
        return (const float *)p;
    for (int i = 0; i < LANES; i++)
        buffer[i] = p[i] ^ 0x80000000;
    return (const float *)buffer;
}

#define PACKED_F32(name, sources, expression)                                                      \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        _Alignas(64) uint32_t buffers[2][3][LANES];                                                \
        const float *s[2][3];                                                                      \
        for (int high = 0; high < 2; high++)                                                       \
            for (int k = 0; k < 3; k++)                                                            \
                s[high][k] = k < sources ? word_of(w, o, k, high, buffers[high][k]) : NULL;        \
        for (int high = 0; high < 2; high++) {                                                     \
            const float *a_ = s[high][0], *b_ = s[high][1], *c_ = s[high][sources - 1];            \
            float *d = (float *)w->temporary[high];                                                \
            FOR_LANES(i)                                                                           \
            {                                                                                      \
                float a = a_[i], b = b_[i], c = c_[i];                                             \
                (void)c;                                                                           \
                d[i] = expression;                                                                 \
            }                                                                                      \
            if (o->clamp)                                                                          \
                modify_f32(o, d);                                                                  \
        }                                                                                          \
        merge32(w, o->dst[0].first, w->temporary[0]);                                              \
        merge32(w, o->dst[0].first + 1u, w->temporary[1]);                                         \
    }
PACKED_F32(v_pk_add_f32, 2, a + b)
PACKED_F32(v_pk_mul_f32, 2, a *b)
PACKED_F32(v_pk_fma_f32, 3, __builtin_fmaf(a, b, c))

/* Both words are read before either is written. */
static void move_pair(struct wave *w, const struct op *o, const uint32_t *low, const uint32_t *high)
{
    memcpy(w->temporary[0], high, sizeof w->temporary[0]);
    merge32(w, o->dst[0].first, low);
    merge32(w, o->dst[0].first + 1u, w->temporary[0]);
}

void v_pk_mov_b32(struct wave *w, const struct op *o)
{
    _Alignas(64) uint32_t a[LANES], b[LANES];
    move_pair(w, o, lanes32(w, &o->src[0], o->op_sel & 1, a),
              lanes32(w, &o->src[1], o->op_sel >> 1 & 1, b));
}

void v_mov_b64(struct wave *w, const struct op *o)
{
    _Alignas(64) uint32_t a[LANES], b[LANES];
    move_pair(w, o, lanes32(w, &o->src[0], 0, a), lanes32(w, &o->src[0], 1, b));
}

/* fma_mix: a source is a float16 half where op_sel_hi says so, else a float32. neg_lo negates,
 * neg_hi takes the absolute value. */
static const float *mixed(struct wave *w, const struct op *o, int source, uint32_t *buffer)
{
    struct operand s = o->src[source];
    s.negate = s.negate || (o->neg_lo >> source & 1);
    s.absolute = s.absolute || (o->neg_hi >> source & 1);
    if (!(o->op_sel_hi >> source & 1))
        return source_f32(w, &s, buffer);
    s.half = o->op_sel >> source & 1 ? HALF_HIGH : HALF_LOW;
    return source_f16(w, &s, buffer);
}

static float *mix(struct wave *w, const struct op *o)
{
    _Alignas(64) uint32_t buffers[3][LANES];
    const float *a = mixed(w, o, 0, buffers[0]), *b = mixed(w, o, 1, buffers[1]),
                *c = mixed(w, o, 2, buffers[2]);
    float *d = (float *)w->temporary[0];
    FOR_LANES(i) d[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return d;
}

void v_fma_mix_f32(struct wave *w, const struct op *o)
{
    float *d = mix(w, o);
    FINISH_f32(d)
}

static void mix_half(struct wave *w, const struct op *o, uint8_t half)
{
    struct op copy = *o;
    float *d = mix(w, o);
    copy.dst[0].half = half;
    o = &copy;
    FINISH_f16(d)
}

void v_fma_mixlo_f16(struct wave *w, const struct op *o)
{
    mix_half(w, o, HALF_LOW);
}

void v_fma_mixhi_f16(struct wave *w, const struct op *o)
{
    mix_half(w, o, HALF_HIGH);
}

#define DOT2(name, convert)                                                                        \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        _Alignas(64) uint32_t ab[LANES], bb[LANES];                                                \
        const uint32_t *a = lanes32(w, &o->src[0], 0, ab), *b = lanes32(w, &o->src[1], 0, bb);     \
        SOURCE(f32, c, 2) RESULT_f32 for (int i = 0; i < w->lanes; i++)                            \
        {                                                                                          \
            float sum = c_[i];                                                                     \
            for (int high = 0; high < 2; high++)                                                   \
                sum +=                                                                             \
                    convert(half_bits(o, 0, a, i, high)) * convert(half_bits(o, 1, b, i, high));   \
            d_[i] = sum;                                                                           \
        }                                                                                          \
        FINISH_f32(d_)                                                                             \
    }
static inline float bf16_to_float(uint32_t x)
{
    return as_f32(x << 16);
}
DOT2(v_dot2_f32_f16, half_to_float)
DOT2(v_dot2_f32_bf16, bf16_to_float)
