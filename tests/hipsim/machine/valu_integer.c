/* Vector integers, bits and moves.
 * Path of a launch: the loop of run.c, class VALU. */
#include "lanes.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define U24(x) ((x) & 0xffffff)
#define I24(x) ((int32_t)((uint32_t)(x) << 8) >> 8)

VALU1(v_mov_b32, u32, u32, a)
VALU1(v_mov_b16, u16, u16, a)
VALU1(v_not_b32, u32, u32, ~a)
VALU1(v_not_b16, u16, u16, ~a)
VALU2(v_and_b32, u32, u32, u32, a &b)
VALU2(v_or_b32, u32, u32, u32, a | b)
VALU2(v_xor_b32, u32, u32, u32, a ^ b)
VALU2(v_xnor_b32, u32, u32, u32, ~(a ^ b))
VALU2(v_and_b16, u16, u16, u16, a &b)
VALU2(v_or_b16, u16, u16, u16, a | b)
VALU2(v_xor_b16, u16, u16, u16, a ^ b)
VALU2(v_add_u32, u32, u32, u32, a + b)
VALU2(v_sub_u32, u32, u32, u32, a - b)
VALU2(v_subrev_u32, u32, u32, u32, b - a)
VALU2(v_add_u16, u16, u16, u16, a + b)
VALU2(v_sub_u16, u16, u16, u16, a - b)
VALU2(v_subrev_u16, u16, u16, u16, b - a)
VALU2(v_mul_lo_u16, u16, u16, u16, a *b)
VALU2(v_lshlrev_b32, u32, u32, u32, b << (a & 31))
VALU2(v_lshrrev_b32, u32, u32, u32, b >> (a & 31))
VALU2(v_ashrrev_i32, i32, u32, i32, b >> (a & 31))
VALU2(v_lshlrev_b16, u16, u16, u16, b << (a & 15))
VALU2(v_lshrrev_b16, u16, u16, u16, b >> (a & 15))
VALU2(v_ashrrev_i16, i16, u16, i16, b >> (a & 15))
VALU2(v_lshlrev_b64, u64, u32, u64, b << (a & 63))
VALU2(v_lshrrev_b64, u64, u32, u64, b >> (a & 63))
VALU2(v_ashrrev_i64, i64, u32, i64, b >> (a & 63))
VALU2(v_min_u32, u32, u32, u32, MIN(a, b))
VALU2(v_max_u32, u32, u32, u32, MAX(a, b))
VALU2(v_min_i32, i32, i32, i32, MIN(a, b))
VALU2(v_max_i32, i32, i32, i32, MAX(a, b))
VALU2(v_min_u16, u16, u16, u16, MIN(a, b))
VALU2(v_max_u16, u16, u16, u16, MAX(a, b))
VALU2(v_min_i16, i16, i16, i16, MIN(a, b))
VALU2(v_max_i16, i16, i16, i16, MAX(a, b))
VALU2(v_mul_lo_u32, u32, u32, u32, a *b)
VALU2(v_mul_hi_u32, u32, u32, u32, (uint32_t)((uint64_t)a * b >> 32))
VALU2(v_mul_hi_i32, i32, i32, i32, (int32_t)((int64_t)a * b >> 32))
VALU2(v_mul_u32_u24, u32, u32, u32, U24(a) * U24(b))
VALU2(v_mul_i32_i24, u32, u32, u32, (uint32_t)I24(a) * (uint32_t)I24(b))
VALU2(v_mul_hi_u32_u24, u32, u32, u32, (uint32_t)((uint64_t)U24(a) * U24(b) >> 32))
VALU2(v_bfm_b32, u32, u32, u32, ((1u << (a & 31)) - 1) << (b & 31))
VALU2(v_bcnt_u32_b32, u32, u32, u32, (uint32_t)__builtin_popcount(a) + b)
VALU3(v_add3_u32, u32, u32, u32, u32, a + b + c)
VALU3(v_or3_b32, u32, u32, u32, u32, a | b | c)
VALU3(v_xor3_b32, u32, u32, u32, u32, a ^ b ^ c)
VALU3(v_xad_u32, u32, u32, u32, u32, (a ^ b) + c)
VALU3(v_and_or_b32, u32, u32, u32, u32, (a & b) | c)
VALU3(v_lshl_add_u32, u32, u32, u32, u32, (a << (b & 31)) + c)
VALU3(v_add_lshl_u32, u32, u32, u32, u32, (a + b) << (c & 31))
VALU3(v_lshl_or_b32, u32, u32, u32, u32, a << (b & 31) | c)
VALU3(v_lshl_add_u64, u64, u64, u32, u64, (a << (b & 7)) + c)
VALU3(v_bfe_u32, u32, u32, u32, u32, a >> (b & 31) & ((1u << (c & 31)) - 1))
VALU3(v_bfi_b32, u32, u32, u32, u32, (a & b) | (~a & c))
VALU3(v_alignbit_b32, u32, u32, u32, u32, (uint32_t)((b | (uint64_t)a << 32) >> (c & 31)))
VALU3(v_alignbyte_b32, u32, u32, u32, u32, (uint32_t)((b | (uint64_t)a << 32) >> 8 * (c & 3)))
VALU3(v_mad_u32_u24, u32, u32, u32, u32, U24(a) * U24(b) + c)
VALU3(v_mad_i32_i24, u32, u32, u32, u32, (uint32_t)I24(a) * (uint32_t)I24(b) + c)
VALU3(v_mad_u32_u16, u32, u16, u16, u32, a *b + c)
VALU3(v_mad_i32_i16, i32, i16, i16, i32, (int32_t)((uint32_t)(a * b) + (uint32_t)c))
VALU3(v_mad_u16, u16, u16, u16, u16, a *b + c)
VALU3(v_min3_u32, u32, u32, u32, u32, MIN(MIN(a, b), c))
VALU3(v_max3_u32, u32, u32, u32, u32, MAX(MAX(a, b), c))
VALU3(v_min3_i32, i32, i32, i32, i32, MIN(MIN(a, b), c))
VALU3(v_max3_i32, i32, i32, i32, i32, MAX(MAX(a, b), c))
VALU3(v_med3_i32, i32, i32, i32, i32, MAX(MIN(a, b), MIN(MAX(a, b), c)))
VALU3(v_med3_u32, u32, u32, u32, u32, MAX(MIN(a, b), MIN(MAX(a, b), c)))

static inline int32_t field(int32_t a, uint32_t offset, uint32_t width)
{
    offset &= 31;
    width &= 31;
    if (width == 0)
        return 0;
    if (offset + width >= 32)
        return a >> offset;
    return (int32_t)((uint32_t)a << (32 - offset - width)) >> (32 - width);
}
VALU3(v_bfe_i32, i32, i32, u32, u32, field(a, b, c))

static inline uint32_t reverse(uint32_t x)
{
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}
VALU1(v_bfrev_b32, u32, u32, reverse(a))
VALU1(v_ffbh_u32, u32, u32, a ? (uint32_t)__builtin_clz(a) : UINT32_MAX)
VALU1(v_ffbl_b32, u32, u32, a ? (uint32_t)__builtin_ctz(a) : UINT32_MAX)

static inline uint32_t sign_run(uint32_t a)
{
    uint32_t x = (int32_t)a < 0 ? ~a : a;
    return x ? (uint32_t)__builtin_clz(x) : UINT32_MAX;
}
VALU1(v_ffbh_i32, u32, u32, sign_run(a))

/* v_perm: selectors 0-3 name bytes of b, 4-7 of a. */
static inline uint32_t byte_of(uint32_t a, uint32_t b, uint32_t selector)
{
    return (selector & 4 ? a : b) >> 8 * (selector & 3) & 255;
}

/* 8-11 spread the sign of a half of b or a, 12 is 0, above 0xff. */
static inline uint32_t pick(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t sign = (selector & 2 ? a : b) >> (selector & 1 ? 31 : 15) & 1;
    uint32_t other = selector < 12 ? 255 * sign : selector == 12 ? 0 : 255;
    return selector < 8 ? byte_of(a, b, selector) : other;
}

#define PERMUTE(byte, a, b, c)                                                                     \
    (byte(a, b, (c) & 255) | byte(a, b, (c) >> 8 & 255) << 8 | byte(a, b, (c) >> 16 & 255) << 16 | \
     byte(a, b, (c) >> 24) << 24)

void v_perm_b32(struct wave *w, const struct op *o)
{
    SOURCE(u32, a, 0) SOURCE(u32, b, 1) SOURCE(u32, c, 2) RESULT_u32 uint32_t selectors = 0;
    FOR_LANES(i) selectors |= c_[i];
    if (selectors & 0xf8f8f8f8)
        FOR_LANES(i) d_[i] = PERMUTE(pick, a_[i], b_[i], c_[i]);
    else
        FOR_LANES(i) d_[i] = PERMUTE(byte_of, a_[i], b_[i], c_[i]);
    FINISH_u32(d_)
}

/* A truth table of three inputs: bit 4a + 2b + c of the parameter. */
static inline uint32_t truth(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t d = 0;
    for (uint32_t k = 0; k < 8; k++)
        d |= (table >> k & 1 ? UINT32_MAX : 0) & (k & 4 ? a : ~a) & (k & 2 ? b : ~b) &
             (k & 1 ? c : ~c);
    return d;
}
VALU3(v_bitop3_b32, u32, u32, u32, u32, truth(a, b, c, (uint32_t)o->parameter))
VALU3(v_bitop3_b16, u16, u16, u16, u16, truth(a, b, c, (uint32_t)o->parameter))

/* With carry out (dst[1]) and, for the second kind, carry in (src[2]). */
#define CARRY(name, expression, carry)                                                             \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        SOURCE(u32, a, 0) SOURCE(u32, b, 1) RESULT_u32 uint32_t *out = w->temporary[2];            \
        FOR_LANES(i)                                                                               \
        {                                                                                          \
            uint32_t a = a_[i], b = b_[i];                                                         \
            out[i] = (carry) ? 1 : 0;                                                              \
            d_[i] = (expression);                                                                  \
        }                                                                                          \
        FINISH_u32(d_) put_mask(w, o->dst[1].first, mask_of(w, out));                              \
    }
CARRY(v_add_co_u32, a + b, a + b < a)
CARRY(v_sub_co_u32, a - b, a < b)
CARRY(v_subrev_co_u32, b - a, b < a)

static inline uint64_t mask_source(struct wave *w, const struct operand *s)
{
    return s->kind == OPERAND_CONSTANT ? s->value : get_mask(w, s->first);
}

#define CARRY_IN(name, expression, carry)                                                          \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        SOURCE(u32, a, 0) SOURCE(u32, b, 1) RESULT_u32 uint32_t *out = w->temporary[2];            \
        _Alignas(64) uint32_t in[LANES];                                                           \
        spread_mask(mask_source(w, &o->src[2]), in);                                               \
        FOR_LANES(i)                                                                               \
        {                                                                                          \
            uint32_t a = a_[i], b = b_[i], c = in[i] & 1;                                          \
            out[i] = (carry) ? 1 : 0;                                                              \
            d_[i] = (expression);                                                                  \
        }                                                                                          \
        FINISH_u32(d_) put_mask(w, o->dst[1].first, mask_of(w, out));                              \
    }
CARRY_IN(v_addc_co_u32, a + b + c, (uint64_t)a + b + c > UINT32_MAX)
CARRY_IN(v_subb_co_u32, a - b - c, (uint64_t)b + c > a)
CARRY_IN(v_subbrev_co_u32, b - a - c, (uint64_t)a + c > b)

void v_cndmask_b32(struct wave *w, const struct op *o)
{
    _Alignas(64) uint32_t ab[LANES], bb[LANES];
    const uint32_t *a = (const uint32_t *)source_f32(w, &o->src[0], ab);
    const uint32_t *b = (const uint32_t *)source_f32(w, &o->src[1], bb);
    _Alignas(64) uint32_t mask[LANES];
    spread_mask(mask_source(w, &o->src[2]), mask);
    uint32_t *d = result32(w, o);
    FOR_LANES(i) d[i] = (b[i] & mask[i]) | (a[i] & ~mask[i]);
    merge32(w, o->dst[0].first, d);
}

void v_cndmask_b16(struct wave *w, const struct op *o)
{
    SOURCE(u16, a, 0) SOURCE(u16, b, 1) _Alignas(64) uint32_t mask[LANES];
    spread_mask(mask_source(w, &o->src[2]), mask);
    uint32_t *d = w->temporary[0];
    FOR_LANES(i) d[i] = (b_[i] & mask[i]) | (a_[i] & ~mask[i]);
    merge16(w, o, d);
}

void v_mad_u64_u32(struct wave *w, const struct op *o)
{
    SOURCE(u32, a, 0) SOURCE(u32, b, 1) SOURCE(u64, c, 2) _Alignas(64) uint64_t d[LANES];
    uint32_t *out = w->temporary[2];
    FOR_LANES(i)
    {
        uint64_t product = (uint64_t)a_[i] * b_[i];
        d[i] = product + c_[i];
        out[i] = d[i] < product ? 1 : 0;
    }
    merge64(w, o->dst[0].first, d);
    put_mask(w, o->dst[1].first, mask_of(w, out));
}

void v_mad_i64_i32(struct wave *w, const struct op *o)
{
    SOURCE(i32, a, 0) SOURCE(i32, b, 1) SOURCE(u64, c, 2) _Alignas(64) uint64_t d[LANES];
    uint32_t *out = w->temporary[2];
    FOR_LANES(i)
    {
        int64_t product = (int64_t)a_[i] * b_[i], sum;
        out[i] = __builtin_add_overflow(product, (int64_t)c_[i], &sum) ? 1 : 0;
        d[i] = (uint64_t)sum;
    }
    merge64(w, o->dst[0].first, d);
    put_mask(w, o->dst[1].first, mask_of(w, out));
}

uint64_t mask_of(struct wave *w, const uint32_t *lanes)
{
    MASK_LANES(mask, i, lanes[i] != 0)
    return mask & w->exec;
}
