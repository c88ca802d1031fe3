/* Matrix instructions: MFMA of CDNA and WMMA of RDNA. The operands are unpacked into float rows,
 * multiplied by rank-1 updates along K, and accumulated in the registers of the result, whose lanes
 * of one register are a row of it. Layouts: docs/amd_gpus.md. The order of the sum inside
 * one instruction is not promised by hardware; here it is k = 0, 1, 2, ... with fused steps.
 * Path of a launch: the loop of run.c, class MATRIX. EXEC is ignored, as by the hardware. */
#include "matrix.h"
#include "narrow.h"

#include <math.h>

typedef float vector8 __attribute__((vector_size(32)));
typedef float unaligned8 __attribute__((vector_size(32), aligned(4), may_alias));

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
static inline vector8 fused(vector8 a, vector8 b, vector8 c)
{
    return (vector8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#else
static inline vector8 fused(vector8 a, vector8 b, vector8 c)
{
    vector8 d;
    for (int i = 0; i < 8; i++)
        d[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return d;
}
#endif

static inline vector8 splat8(float x)
{
    return (vector8){x, x, x, x, x, x, x, x};
}

const uint32_t *register_lanes(struct wave *w, const struct operand *s, int r)
{
    return s->kind == OPERAND_VGPR ? w->v[s->first + r] : s->splat;
}

static const float bf16_normal = 0x1p-126f, f16_normal = 0x1p-14f; /* the least normal number */

static inline void bf16_pairs(const uint32_t *lanes, float *even, float *odd, int count)
{
    for (int i = 0; i < count; i++) {
        even[i] = as_f32(lanes[i] << 16);
        odd[i] = as_f32(lanes[i] & 0xffff0000);
    }
}

static inline void f16_pairs(const uint32_t *lanes, float *even, float *odd, int count)
{
    for (int i = 0; i < count; i++) {
        even[i] = half_to_float(lanes[i] & 0xffff);
        odd[i] = half_to_float(lanes[i] >> 16);
    }
}

void unpack_bf16(const uint32_t *lanes, float *even, float *odd, int count)
{
    bf16_pairs(lanes, even, odd, count);
}

void unpack_f16(const uint32_t *lanes, float *even, float *odd, int count)
{
    f16_pairs(lanes, even, odd, count);
}

/* 64 lanes are blocks of `rows`; block g holds k = g * per_lane + element. */
static inline __attribute__((always_inline)) void unpack16(struct wave *w, const struct operand *s,
                                                           int rows, int registers,
                                                           unpack_function unpack, float out[][32])
{
    int blocks = LANES / rows, per_lane = 2 * registers;
    for (int r = 0; r < registers; r++) {
        const uint32_t *lanes = register_lanes(w, s, r);
        for (int g = 0; g < blocks; g++) {
            int k = g * per_lane + 2 * r;
            unpack(lanes + g * rows, out[k], out[k + 1], rows);
        }
    }
}

static void unpack32(struct wave *w, const struct operand *s, int rows, int registers,
                     float out[][32])
{
    for (int r = 0; r < registers; r++) {
        const uint32_t *lanes = register_lanes(w, s, r);
        for (int g = 0; g < LANES / rows; g++)
            memcpy(out[g * registers + r], lanes + g * rows, (size_t)rows * sizeof(float));
    }
}

static void unpack8(struct wave *w, const struct operand *s, int rows, int registers,
                    const float *table, float out[][32])
{
    for (int r = 0; r < registers; r++) {
        const uint32_t *lanes = register_lanes(w, s, r);
        for (int g = 0; g < LANES / rows; g++)
            for (int e = 0; e < 4; e++)
                for (int i = 0; i < rows; i++)
                    out[(g * registers + r) * 4 + e][i] = table[lanes[g * rows + i] >> 8 * e & 255];
    }
}

/* Through a pointer: gcc copies a vector by memcpy in halves, over the stack. */
static inline vector8 load8(const float *from)
{
    return *(const unaligned8 *)from;
}

static inline void store8(float *to, vector8 x)
{
    *(unaligned8 *)to = x;
}

/* Four rows of the result from `row`, 16 columns: 8 vectors that stay in registers over K. */
void multiply_4x16(float (*a)[32], float (*b)[32], int row, int column, int k_count,
                   const float *const c[4], float *const d[4])
{
    vector8 s00 = load8(c[0]), s01 = load8(c[0] + 8), s10 = load8(c[1]), s11 = load8(c[1] + 8);
    vector8 s20 = load8(c[2]), s21 = load8(c[2] + 8), s30 = load8(c[3]), s31 = load8(c[3] + 8);
    for (int k = 0; k < k_count; k++) {
        vector8 b0 = load8(&b[k][column]), b1 = load8(&b[k][column + 8]);
        vector8 x0 = splat8(a[k][row]), x1 = splat8(a[k][row + 1]);
        s00 = fused(x0, b0, s00);
        s01 = fused(x0, b1, s01);
        s10 = fused(x1, b0, s10);
        s11 = fused(x1, b1, s11);
        vector8 x2 = splat8(a[k][row + 2]), x3 = splat8(a[k][row + 3]);
        s20 = fused(x2, b0, s20);
        s21 = fused(x2, b1, s21);
        s30 = fused(x3, b0, s30);
        s31 = fused(x3, b1, s31);
    }
    store8(d[0], s00);
    store8(d[0] + 8, s01);
    store8(d[1], s10);
    store8(d[1] + 8, s11);
    store8(d[2], s20);
    store8(d[2] + 8, s21);
    store8(d[3], s30);
    store8(d[3] + 8, s31);
}

/* D of CDNA: register r, lane l is row 4 * (l / 16) + r of 16 columns, or row
 * 8 * (r / 4) + 4 * (l / 32) + r % 4 of 32. */
void accumulate(struct wave *w, const struct op *o, float (*a)[32], float (*b)[32], int size,
                int k_count)
{
    const struct operand *c = &o->src[2];
    int registers = size * size / LANES;
    for (int r = 0; r < registers; r += 4) {
        for (int g = 0; g < LANES / size; g++) {
            int row = size == 16 ? 4 * g : 8 * (r / 4) + 4 * g;
            for (int column = 0; column < size; column += 16) {
                const float *from[4];
                float *to[4];
                for (int i = 0; i < 4; i++) {
                    from[i] = (const float *)register_lanes(w, c, r + i) + g * size + column;
                    to[i] = (float *)w->v[o->dst[0].first + r + i] + g * size + column;
                }
                multiply_4x16(a, b, row, column, k_count, from, to);
            }
        }
    }
    w->thread->counters.matrix_flops += 2ull * (unsigned)(size * size * k_count);
}

/* neg_lo and neg_hi, cbsz, abid and blgp change operands; only plain ones are modelled. */
static bool plain(struct wave *w, const struct op *o)
{
    if (o->offset == 0 && o->neg_lo == 0 && o->neg_hi == 0)
        return true;
    fault(w, "cbsz, abid, blgp or neg of this matrix instruction is not modelled");
    return false;
}

/* Numbers below the least normal one become 0. */
static void flush(float *numbers, int count, float normal)
{
    for (int i = 0; i < count; i++)
        if (fabsf(numbers[i]) < normal)
            numbers[i] = copysignf(0, numbers[i]);
}

/* MI200 flushes what its instructions of 16 bits read, and the sums that they write. */
static bool flushes(const struct wave *w)
{
    return w->thread->launch->arch->family == HIPSIM_CDNA2;
}

static void flush_rows(float rows[][32], int k_count, int size, float normal)
{
    for (int k = 0; k < k_count; k++)
        flush(rows[k], size, normal);
}

static void flush_sums(struct wave *w, const struct op *o, int size)
{
    for (int r = 0; r < size * size / LANES; r++)
        flush((float *)w->v[o->dst[0].first + r], LANES, 0x1p-126f);
}

#define MFMA_16BIT(name, size, registers, type)                                                    \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        enum { K = (LANES / (size)) * 2 * (registers) };                                           \
        _Alignas(64) float a[64][32], b[64][32];                                                   \
        if (!plain(w, o))                                                                          \
            return;                                                                                \
        unpack16(w, &o->src[0], size, registers, type##_pairs, a);                                 \
        unpack16(w, &o->src[1], size, registers, type##_pairs, b);                                 \
        if (flushes(w)) {                                                                          \
            flush_rows(a, K, size, type##_normal);                                                 \
            flush_rows(b, K, size, type##_normal);                                                 \
        }                                                                                          \
        accumulate(w, o, a, b, size, K);                                                           \
        if (flushes(w))                                                                            \
            flush_sums(w, o, size);                                                                \
    }
MFMA_16BIT(mfma_16x16x16_bf16, 16, 2, bf16)
MFMA_16BIT(mfma_32x32x8_bf16, 32, 2, bf16)
MFMA_16BIT(mfma_16x16x16_f16, 16, 2, f16)
MFMA_16BIT(mfma_32x32x8_f16, 32, 2, f16)
MFMA_16BIT(mfma_16x16x32_bf16, 16, 4, bf16)
MFMA_16BIT(mfma_32x32x16_bf16, 32, 4, bf16)
MFMA_16BIT(mfma_16x16x32_f16, 16, 4, f16)
MFMA_16BIT(mfma_32x32x16_f16, 32, 4, f16)
MFMA_16BIT(mfma_16x16x8_bf16, 16, 1, bf16)
MFMA_16BIT(mfma_32x32x4_bf16, 32, 1, bf16)

#define MFMA_F32(name, size, registers)                                                            \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        _Alignas(64) float a[8][32], b[8][32];                                                     \
        if (!plain(w, o))                                                                          \
            return;                                                                                \
        unpack32(w, &o->src[0], size, registers, a);                                               \
        unpack32(w, &o->src[1], size, registers, b);                                               \
        accumulate(w, o, a, b, size, (LANES / (size)) * (registers));                              \
    }
MFMA_F32(mfma_16x16x4_f32, 16, 1)
MFMA_F32(mfma_32x32x2_f32, 32, 1)

/* xf32: float32 cut to 10 explicit bits of mantissa, rounded to nearest even or truncated:
 * hardware's way is not published. */
static void cut_to_xf32(const struct wave *w, float rows[][32], int count)
{
    const bool truncates = w->thread->launch->truncate_xf32;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < 32; i++) {
            uint32_t bits = as_u32(rows[k][i]);
            uint32_t more = truncates ? 0 : 0xfff + (bits >> 13 & 1);
            bool finite = (bits & 0x7f800000) != 0x7f800000;
            rows[k][i] = as_f32(finite ? (bits + more) & ~0x1fffu : bits);
        }
}

#define MFMA_XF32(name, size)                                                                      \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        _Alignas(64) float a[8][32] = {{0}}, b[8][32] = {{0}};                                     \
        if (!plain(w, o))                                                                          \
            return;                                                                                \
        unpack32(w, &o->src[0], size, 2, a);                                                       \
        unpack32(w, &o->src[1], size, 2, b);                                                       \
        cut_to_xf32(w, a, (LANES / (size)) * 2);                                                   \
        cut_to_xf32(w, b, (LANES / (size)) * 2);                                                   \
        accumulate(w, o, a, b, size, (LANES / (size)) * 2);                                        \
    }
MFMA_XF32(mfma_16x16x8_xf32, 16)
MFMA_XF32(mfma_32x32x4_xf32, 32)

static void byte_table(struct wave *w, enum narrow_kind kind, float *table)
{
    struct narrow f = narrow_of(w, kind);
    for (uint32_t i = 0; i < 256; i++)
        table[i] = narrow_to_float(f, i);
}

static void mfma_bytes(struct wave *w, const struct op *o, int size, enum narrow_kind kind_a,
                       enum narrow_kind kind_b)
{
    _Alignas(64) float a[32][32], b[32][32], table_a[256], table_b[256];
    if (!plain(w, o))
        return;
    byte_table(w, kind_a, table_a);
    byte_table(w, kind_b, table_b);
    unpack8(w, &o->src[0], size, 2, table_a, a);
    unpack8(w, &o->src[1], size, 2, table_b, b);
    accumulate(w, o, a, b, size, LANES / size * 8);
}

#define MFMA_BYTES(kind, a, b)                                                                     \
    void mfma_16x16x32_##kind(struct wave *w, const struct op *o)                                  \
    {                                                                                              \
        mfma_bytes(w, o, 16, a, b);                                                                \
    }                                                                                              \
    void mfma_32x32x16_##kind(struct wave *w, const struct op *o)                                  \
    {                                                                                              \
        mfma_bytes(w, o, 32, a, b);                                                                \
    }
MFMA_BYTES(fp8_fp8, NARROW_FP8, NARROW_FP8)
MFMA_BYTES(fp8_bf8, NARROW_FP8, NARROW_BF8)
MFMA_BYTES(bf8_fp8, NARROW_BF8, NARROW_FP8)
MFMA_BYTES(bf8_bf8, NARROW_BF8, NARROW_BF8)

/* Integers accumulate modulo 2^32. */
static void mfma_integer(struct wave *w, const struct op *o, int size, int registers)
{
    static const int largest = 64;
    int8_t a[64][32], b[64][32];
    int k_count = LANES / size * registers * 4;
    if (!plain(w, o) || k_count > largest)
        return;
    for (int r = 0; r < registers; r++)
        for (int l = 0; l < LANES; l++)
            for (int e = 0; e < 4; e++) {
                int k = (l / size * registers + r) * 4 + e;
                a[k][l % size] = (int8_t)(register_lanes(w, &o->src[0], r)[l] >> 8 * e);
                b[k][l % size] = (int8_t)(register_lanes(w, &o->src[1], r)[l] >> 8 * e);
            }
    for (int r = 0; r < size * size / LANES; r++) {
        const uint32_t *c = register_lanes(w, &o->src[2], r);
        uint32_t d[LANES];
        for (int l = 0; l < LANES; l++) {
            int row = size == 16 ? 4 * (l / 16) + r : 8 * (r / 4) + 4 * (l / 32) + r % 4;
            int32_t sum = 0;
            for (int k = 0; k < k_count; k++)
                sum += a[k][row] * b[k][l % size];
            d[l] = c[l] + (uint32_t)sum;
        }
        memcpy(w->v[o->dst[0].first + r], d, sizeof d);
    }
    w->thread->counters.matrix_flops += 2ull * (unsigned)(size * size * k_count);
}

#define MFMA_I8(name, size, registers)                                                             \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        mfma_integer(w, o, size, registers);                                                       \
    }
MFMA_I8(mfma_16x16x16_i8, 16, 1)
MFMA_I8(mfma_32x32x8_i8, 32, 1)
MFMA_I8(mfma_16x16x32_i8, 16, 2)
MFMA_I8(mfma_32x32x16_i8, 32, 2)
MFMA_I8(mfma_16x16x64_i8, 16, 4)
MFMA_I8(mfma_32x32x32_i8, 32, 4)

/* float64, 16x16x4: A row l % 16, k = l / 16; D register pair r, row 4 * r + l / 16. */
void mfma_16x16x4_f64(struct wave *w, const struct op *o)
{
    uint64_t a[LANES], b[LANES], d[4][LANES];
    if (!plain(w, o))
        return;
    source_u64(w, &o->src[0], a);
    source_u64(w, &o->src[1], b);
    for (int r = 0; r < 4; r++)
        for (int l = 0; l < LANES; l++) {
            const uint32_t *low = register_lanes(w, &o->src[2], 2 * r);
            uint64_t c = o->src[2].kind == OPERAND_VGPR
                             ? low[l] | (uint64_t)w->v[o->src[2].first + 2 * r + 1][l] << 32
                             : o->src[2].value;
            double sum = as_f64(c);
            for (int k = 0; k < 4; k++)
                sum = __builtin_fma(as_f64(a[16 * k + 4 * r + l / 16]), as_f64(b[16 * k + l % 16]),
                                    sum);
            d[r][l] = as_u64(sum);
        }
    for (int r = 0; r < 4; r++)
        for (int l = 0; l < LANES; l++) {
            w->v[o->dst[0].first + 2 * r][l] = (uint32_t)d[r][l];
            w->v[o->dst[0].first + 2 * r + 1][l] = (uint32_t)(d[r][l] >> 32);
        }
    w->thread->counters.matrix_flops += 2048;
}
