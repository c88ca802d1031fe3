/* Scalar arithmetic, logic and comparison.
 * Path of a launch: the loop of run.c, class SALU. */
#include "lanes.h"

static inline void put_u32(struct wave *w, const struct op *o, uint32_t value)
{
    put_s32(w, o->dst[0].first, value);
}

static inline void put_u64(struct wave *w, const struct op *o, uint64_t value)
{
    put_s64(w, o->dst[0].first, value);
}

#define TYPE_32 uint32_t
#define TYPE_64 uint64_t
#define GET_32 scalar32
#define GET_64 scalar64
#define PUT_32 put_u32
#define PUT_64 put_u64
#define SIGNED(x) ((int32_t)(x))

/* `then` sees a, b and the result d, and may set SCC. */
#define SALU2(name, bits, expression, then)                                                        \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        TYPE_##bits a = GET_##bits(w, &o->src[0]), b = GET_##bits(w, &o->src[1]);                  \
        TYPE_##bits d = (TYPE_##bits)(expression);                                                 \
        (void)a, (void)b;                                                                          \
        PUT_##bits(w, o, d);                                                                       \
        then;                                                                                      \
    }
#define SALU1(name, bits, expression, then)                                                        \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        TYPE_##bits a = GET_##bits(w, &o->src[0]);                                                 \
        TYPE_##bits d = (TYPE_##bits)(expression);                                                 \
        PUT_##bits(w, o, d);                                                                       \
        then;                                                                                      \
    }
#define NOTHING ((void)0)
#define NONZERO (w->scc = d != 0)

SALU2(s_add_u32, 32, a + b, w->scc = d < a)
SALU2(s_sub_u32, 32, a - b, w->scc = a < b)
SALU2(s_add_i32, 32, a + b, w->scc = SIGNED(~(a ^ b) & (a ^ d)) < 0)
SALU2(s_sub_i32, 32, a - b, w->scc = SIGNED((a ^ b) & (a ^ d)) < 0)
SALU2(s_addc_u32, 32, a + b + w->scc, w->scc = (uint64_t)a + b + w->scc > UINT32_MAX)
SALU2(s_subb_u32, 32, a - b - w->scc, w->scc = (uint64_t)b + w->scc > a)
SALU2(s_add_u64, 64, a + b, NOTHING)
SALU2(s_sub_u64, 64, a - b, NOTHING)
SALU2(s_mul_u64, 64, a *b, NOTHING)
SALU2(s_min_i32, 32, SIGNED(a) < SIGNED(b) ? a : b, w->scc = SIGNED(a) < SIGNED(b))
SALU2(s_max_i32, 32, SIGNED(a) > SIGNED(b) ? a : b, w->scc = SIGNED(a) > SIGNED(b))
SALU2(s_min_u32, 32, a < b ? a : b, w->scc = a < b)
SALU2(s_max_u32, 32, a > b ? a : b, w->scc = a > b)
SALU2(s_cselect_b32, 32, w->scc ? a : b, NOTHING)
SALU2(s_cselect_b64, 64, w->scc ? a : b, NOTHING)
SALU2(s_and_b32, 32, a &b, NONZERO)
SALU2(s_and_b64, 64, a &b, NONZERO)
SALU2(s_or_b32, 32, a | b, NONZERO)
SALU2(s_or_b64, 64, a | b, NONZERO)
SALU2(s_xor_b32, 32, a ^ b, NONZERO)
SALU2(s_xor_b64, 64, a ^ b, NONZERO)
SALU2(s_andn2_b32, 32, a & ~b, NONZERO)
SALU2(s_andn2_b64, 64, a & ~b, NONZERO)
SALU2(s_orn2_b32, 32, a | ~b, NONZERO)
SALU2(s_orn2_b64, 64, a | ~b, NONZERO)
SALU2(s_nand_b32, 32, ~(a &b), NONZERO)
SALU2(s_nand_b64, 64, ~(a &b), NONZERO)
SALU2(s_nor_b32, 32, ~(a | b), NONZERO)
SALU2(s_nor_b64, 64, ~(a | b), NONZERO)
SALU2(s_xnor_b32, 32, ~(a ^ b), NONZERO)
SALU2(s_xnor_b64, 64, ~(a ^ b), NONZERO)
SALU2(s_lshl_b32, 32, a << (b & 31), NONZERO)
SALU2(s_lshr_b32, 32, a >> (b & 31), NONZERO)
SALU2(s_ashr_i32, 32, SIGNED(a) >> (b & 31), NONZERO)
SALU2(s_bfm_b32, 32, ((1u << (a & 31)) - 1) << (b & 31), NOTHING)
SALU2(s_mul_i32, 32, a *b, NOTHING)
SALU2(s_mul_hi_u32, 32, (uint64_t)a *b >> 32, NOTHING)
SALU2(s_mul_hi_i32, 32, (int64_t)SIGNED(a) * SIGNED(b) >> 32, NOTHING)
SALU2(s_absdiff_i32, 32, SIGNED(a) > SIGNED(b) ? a - b : b - a, NONZERO)
SALU2(s_lshl1_add_u32, 32, (a << 1) + b, w->scc = ((uint64_t)a << 1) + b > UINT32_MAX)
SALU2(s_lshl2_add_u32, 32, (a << 2) + b, w->scc = ((uint64_t)a << 2) + b > UINT32_MAX)
SALU2(s_lshl3_add_u32, 32, (a << 3) + b, w->scc = ((uint64_t)a << 3) + b > UINT32_MAX)
SALU2(s_lshl4_add_u32, 32, (a << 4) + b, w->scc = ((uint64_t)a << 4) + b > UINT32_MAX)
SALU2(s_pack_ll_b32_b16, 32, (a & 0xffff) | b << 16, NOTHING)
SALU2(s_pack_lh_b32_b16, 32, (a & 0xffff) | (b & 0xffff0000), NOTHING)
SALU2(s_pack_hh_b32_b16, 32, a >> 16 | (b & 0xffff0000), NOTHING)
SALU2(s_pack_hl_b32_b16, 32, a >> 16 | b << 16, NOTHING)

static uint32_t field_u32(uint32_t a, uint32_t b)
{
    unsigned offset = b & 31, width = b >> 16 & 127;
    return width >= 32 ? a >> offset : a >> offset & ((1u << width) - 1);
}

static uint32_t field_i32(uint32_t a, uint32_t b)
{
    unsigned offset = b & 31, width = b >> 16 & 127;
    if (width == 0)
        return 0;
    if (width + offset >= 32)
        return (uint32_t)(SIGNED(a) >> offset);
    return (uint32_t)(SIGNED(a << (32 - width - offset)) >> (32 - width));
}

static uint64_t field_u64(uint64_t a, uint32_t b)
{
    unsigned offset = b & 63, width = b >> 16 & 127;
    return width >= 64 ? a >> offset : a >> offset & ((UINT64_C(1) << width) - 1);
}

static uint64_t field_i64(uint64_t a, uint32_t b)
{
    unsigned offset = b & 63, width = b >> 16 & 127;
    if (width == 0)
        return 0;
    if (width + offset >= 64)
        return (uint64_t)((int64_t)a >> offset);
    return (uint64_t)((int64_t)(a << (64 - width - offset)) >> (64 - width));
}

SALU2(s_bfe_u32, 32, field_u32(a, b), NONZERO)
SALU2(s_bfe_i32, 32, field_i32(a, b), NONZERO)

/* A 64-bit value and a 32-bit second source. */
#define SHIFT64(name, expression, then)                                                            \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        uint64_t a = scalar64(w, &o->src[0]), d;                                                   \
        uint32_t b = scalar32(w, &o->src[1]);                                                      \
        d = (uint64_t)(expression);                                                                \
        put_u64(w, o, d);                                                                          \
        then;                                                                                      \
    }
SHIFT64(s_lshl_b64, a << (b & 63), NONZERO)
SHIFT64(s_lshr_b64, a >> (b & 63), NONZERO)
SHIFT64(s_ashr_i64, (int64_t)a >> (b & 63), NONZERO)
SHIFT64(s_bfe_u64, field_u64(a, b), NONZERO)
SHIFT64(s_bfe_i64, field_i64(a, b), NONZERO)

void s_bfm_b64(struct wave *w, const struct op *o)
{
    uint32_t a = scalar32(w, &o->src[0]), b = scalar32(w, &o->src[1]);
    put_u64(w, o, ((UINT64_C(1) << (a & 63)) - 1) << (b & 63));
}

static uint32_t reverse32(uint32_t x)
{
    uint32_t d = 0;
    for (int i = 0; i < 32; i++)
        d |= (x >> i & 1) << (31 - i);
    return d;
}

/* Leading bits equal to the sign bit, after it; -1 if all are. */
static uint32_t sign_run(uint32_t a)
{
    uint32_t x = SIGNED(a) < 0 ? ~a : a;
    return x ? (uint32_t)__builtin_clz(x) : UINT32_MAX;
}

SALU1(s_mov_b32, 32, a, NOTHING)
SALU1(s_mov_b64, 64, a, NOTHING)
SALU1(s_not_b32, 32, ~a, NONZERO)
SALU1(s_not_b64, 64, ~a, NONZERO)
SALU1(s_brev_b32, 32, reverse32(a), NOTHING)
SALU1(s_brev_b64, 64, (uint64_t)reverse32((uint32_t)a) << 32 | reverse32((uint32_t)(a >> 32)),
      NOTHING)
SALU1(s_bcnt0_i32_b32, 32, 32 - __builtin_popcount(a), NONZERO)
SALU1(s_bcnt1_i32_b32, 32, __builtin_popcount(a), NONZERO)
SALU1(s_ff0_i32_b32, 32, ~a ? __builtin_ctz(~a) : -1, NOTHING)
SALU1(s_ff1_i32_b32, 32, a ? __builtin_ctz(a) : -1, NOTHING)
SALU1(s_flbit_i32_b32, 32, a ? __builtin_clz(a) : -1, NOTHING)
SALU1(s_flbit_i32, 32, sign_run(a), NOTHING)
SALU1(s_sext_i32_i8, 32, (int8_t)a, NOTHING)
SALU1(s_sext_i32_i16, 32, (int16_t)a, NOTHING)
SALU1(s_abs_i32, 32, SIGNED(a) < 0 ? -a : a, NONZERO)

/* From a 64-bit source to a 32-bit result. */
#define COUNT64(name, expression, then)                                                            \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        uint64_t a = scalar64(w, &o->src[0]);                                                      \
        uint32_t d = (uint32_t)(expression);                                                       \
        put_u32(w, o, d);                                                                          \
        then;                                                                                      \
    }
COUNT64(s_bcnt0_i32_b64, 64 - __builtin_popcountll(a), NONZERO)
COUNT64(s_bcnt1_i32_b64, __builtin_popcountll(a), NONZERO)
COUNT64(s_ff1_i32_b64, a ? __builtin_ctzll(a) : -1, NOTHING)
COUNT64(s_ff0_i32_b64, ~a ? __builtin_ctzll(~a) : -1, NOTHING)
COUNT64(s_flbit_i32_b64, a ? __builtin_clzll(a) : -1, NOTHING)

void s_cmov_b32(struct wave *w, const struct op *o)
{
    if (w->scc)
        put_u32(w, o, scalar32(w, &o->src[0]));
}

void s_cmov_b64(struct wave *w, const struct op *o)
{
    if (w->scc)
        put_u64(w, o, scalar64(w, &o->src[0]));
}

/* Sources: the bit number, then the old value. */
void s_bitset0_b32(struct wave *w, const struct op *o)
{
    put_u32(w, o, scalar32(w, &o->src[1]) & ~(1u << (scalar32(w, &o->src[0]) & 31)));
}

void s_bitset1_b32(struct wave *w, const struct op *o)
{
    put_u32(w, o, scalar32(w, &o->src[1]) | 1u << (scalar32(w, &o->src[0]) & 31));
}

void s_bitset0_b64(struct wave *w, const struct op *o)
{
    uint64_t bit = UINT64_C(1) << (scalar32(w, &o->src[0]) & 63);
    put_u64(w, o, scalar64(w, &o->src[1]) & ~bit);
}

void s_bitset1_b64(struct wave *w, const struct op *o)
{
    uint64_t bit = UINT64_C(1) << (scalar32(w, &o->src[0]) & 63);
    put_u64(w, o, scalar64(w, &o->src[1]) | bit);
}

/* Save EXEC, then combine it with the source a; 32 bits of it in wave32. */
#define SAVE_EXEC(name, bits, expression)                                                          \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        TYPE_##bits a = GET_##bits(w, &o->src[0]), e = (TYPE_##bits)w->exec;                       \
        PUT_##bits(w, o, e);                                                                       \
        TYPE_##bits d = (TYPE_##bits)(expression);                                                 \
        set_exec(w, d);                                                                            \
        w->scc = d != 0;                                                                           \
    }
#define SAVE_EXEC_BOTH(stem, expression)                                                           \
    SAVE_EXEC(stem##_saveexec_b64, 64, expression) SAVE_EXEC(stem##_saveexec_b32, 32, expression)
SAVE_EXEC_BOTH(s_and, a &e)
SAVE_EXEC_BOTH(s_or, a | e)
SAVE_EXEC_BOTH(s_xor, a ^ e)
SAVE_EXEC_BOTH(s_andn2, a & ~e)
SAVE_EXEC_BOTH(s_orn2, a | ~e)
SAVE_EXEC_BOTH(s_andn1, ~a &e)
SAVE_EXEC_BOTH(s_orn1, ~a | e)
SAVE_EXEC_BOTH(s_nand, ~(a &e))
SAVE_EXEC_BOTH(s_nor, ~(a | e))
SAVE_EXEC_BOTH(s_xnor, ~(a ^ e))

#define WRITE_EXEC(name, bits, expression)                                                         \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        TYPE_##bits a = GET_##bits(w, &o->src[0]), e = (TYPE_##bits)w->exec;                       \
        TYPE_##bits d = (TYPE_##bits)(expression);                                                 \
        set_exec(w, d);                                                                            \
        PUT_##bits(w, o, d);                                                                       \
        w->scc = d != 0;                                                                           \
    }
WRITE_EXEC(s_andn1_wrexec_b64, 64, ~a &e)
WRITE_EXEC(s_andn2_wrexec_b64, 64, a & ~e)
WRITE_EXEC(s_andn1_wrexec_b32, 32, ~a &e)
WRITE_EXEC(s_andn2_wrexec_b32, 32, a & ~e)

#define COMPARE(name, bits, type, operator)                                                        \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        w->scc = (type)GET_##bits(w, &o->src[0]) operator(type) GET_##bits(w, &o->src[1]);         \
    }
COMPARE(s_cmp_eq_u32, 32, uint32_t, ==)
COMPARE(s_cmp_lg_u32, 32, uint32_t, !=)
COMPARE(s_cmp_gt_u32, 32, uint32_t, >)
COMPARE(s_cmp_ge_u32, 32, uint32_t, >=)
COMPARE(s_cmp_lt_u32, 32, uint32_t, <)
COMPARE(s_cmp_le_u32, 32, uint32_t, <=)
COMPARE(s_cmp_gt_i32, 32, int32_t, >)
COMPARE(s_cmp_ge_i32, 32, int32_t, >=)
COMPARE(s_cmp_lt_i32, 32, int32_t, <)
COMPARE(s_cmp_le_i32, 32, int32_t, <=)
COMPARE(s_cmp_eq_u64, 64, uint64_t, ==)
COMPARE(s_cmp_lg_u64, 64, uint64_t, !=)

/* The second source is a 16-bit constant, extended by its signedness. */
#define COMPARE_K(name, type, short_type, operator)                                                \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        w->scc = (type)scalar32(w, &o->src[0]) operator(type)(short_type) o->src[1].value;         \
    }
COMPARE_K(s_cmpk_eq_u32, uint32_t, uint16_t, ==)
COMPARE_K(s_cmpk_lg_u32, uint32_t, uint16_t, !=)
COMPARE_K(s_cmpk_gt_u32, uint32_t, uint16_t, >)
COMPARE_K(s_cmpk_ge_u32, uint32_t, uint16_t, >=)
COMPARE_K(s_cmpk_lt_u32, uint32_t, uint16_t, <)
COMPARE_K(s_cmpk_le_u32, uint32_t, uint16_t, <=)
COMPARE_K(s_cmpk_eq_i32, int32_t, int16_t, ==)
COMPARE_K(s_cmpk_lg_i32, int32_t, int16_t, !=)
COMPARE_K(s_cmpk_gt_i32, int32_t, int16_t, >)
COMPARE_K(s_cmpk_ge_i32, int32_t, int16_t, >=)
COMPARE_K(s_cmpk_lt_i32, int32_t, int16_t, <)
COMPARE_K(s_cmpk_le_i32, int32_t, int16_t, <=)

void s_bitcmp0_b32(struct wave *w, const struct op *o)
{
    w->scc = !(scalar32(w, &o->src[0]) >> (scalar32(w, &o->src[1]) & 31) & 1);
}

void s_bitcmp1_b32(struct wave *w, const struct op *o)
{
    w->scc = scalar32(w, &o->src[0]) >> (scalar32(w, &o->src[1]) & 31) & 1;
}

void s_bitcmp0_b64(struct wave *w, const struct op *o)
{
    w->scc = !(scalar64(w, &o->src[0]) >> (scalar32(w, &o->src[1]) & 63) & 1);
}

void s_bitcmp1_b64(struct wave *w, const struct op *o)
{
    w->scc = scalar64(w, &o->src[0]) >> (scalar32(w, &o->src[1]) & 63) & 1;
}

void s_movk_i32(struct wave *w, const struct op *o)
{
    put_u32(w, o, (uint32_t)(int16_t)o->src[0].value);
}

void s_cmovk_i32(struct wave *w, const struct op *o)
{
    if (w->scc)
        put_u32(w, o, (uint32_t)(int16_t)o->src[0].value);
}

/* Sources: the constant, then the old value. */
void s_addk_i32(struct wave *w, const struct op *o)
{
    uint32_t a = scalar32(w, &o->src[1]), b = (uint32_t)(int16_t)o->src[0].value, d = a + b;
    put_u32(w, o, d);
    w->scc = SIGNED(~(a ^ b) & (a ^ d)) < 0;
}

void s_mulk_i32(struct wave *w, const struct op *o)
{
    put_u32(w, o, scalar32(w, &o->src[1]) * (uint32_t)(int16_t)o->src[0].value);
}
