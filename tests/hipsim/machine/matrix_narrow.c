/* The matrix instructions of gfx950 whose operands are floats of 8, 6 or 4 bits each (cbsz of A,
 * blgp of B), plain and scaled by E8M0 exponents, one for 32 elements of K. Layouts:
 * docs/amd_gpus.md. A scaled product is summed over its 32 elements, then scaled, then added, as
 * AMD describes it. Path of a launch: the loop of run.c, class MATRIX. */
#include "matrix.h"
#include "narrow.h"

enum { BLOCK = 32, MOST_K = 128 };

/* Bits `at` to at + count of a lane's registers. */
static uint32_t field(struct wave *w, const struct operand *s, int lane, int at, int count)
{
    const int r = at / 32, shift = at % 32;
    uint64_t bits = register_lanes(w, s, r)[lane];
    if (shift + count > 32)
        bits |= (uint64_t)register_lanes(w, s, r + 1)[lane] << 32;
    return (uint32_t)(bits >> shift) & ((1u << count) - 1);
}

/* Rows out[k] of an operand. A lane has 32 elements of its row: all that follow each other of 6 and
 * 4 bits; of 8 bits 16, and 16 more half of K later. */
static bool unpack(struct wave *w, const struct op *o, int which, int size, float out[][32])
{
    const struct operand *s = &o->src[which];
    const int kind = o->offset >> 8 * which & 0xff, groups = LANES / size;
    if (kind >= NARROW_KINDS) {
        fault(w, "cbsz or blgp %d of this matrix instruction is no format", kind);
        return false;
    }
    const struct narrow f = narrow_of(w, (enum narrow_kind)kind);
    if (s->kind != OPERAND_VGPR || s->registers != f.bits) {
        fault(w, "%d registers for 32 elements of %d bits of a matrix operand", s->registers,
              f.bits);
        return false;
    }
    float table[256];
    for (uint32_t i = 0; i < 1u << f.bits; i++)
        table[i] = narrow_to_float(f, i);
    for (int lane = 0; lane < LANES; lane++)
        for (int e = 0; e < 32; e++) {
            const int g = lane / size;
            const int k = f.bits == 8 ? e / 16 * 16 * groups + 16 * g + e % 16 : 32 * g + e;
            out[k][lane % size] = table[field(w, s, lane, e * f.bits, f.bits)];
        }
    return true;
}

/* scales[block][row]: of the lane with that row and block, the byte that op_sel names. Hardware
 * takes other bits of a scalar or a constant than of a vector register, so LLVM has none. */
static bool read_scales(struct wave *w, const struct op *o, int which, int size, double out[][32])
{
    const struct operand *s = &o->src[3 + which];
    const int byte = (o->op_sel >> which & 1) + 2 * (o->op_sel_hi >> which & 1);
    if (s->kind != OPERAND_VGPR) {
        fault(w, "the scale of a matrix operand is not in a vector register");
        return false;
    }
    for (int lane = 0; lane < LANES; lane++)
        out[lane / size][lane % size] = scale_of(w->v[s->first][lane] >> 8 * byte & 255);
    return true;
}

static bool unsigned_operands(struct wave *w, const struct op *o)
{
    if (!o->neg_lo && !o->neg_hi && !(o->offset >> 16))
        return true;
    fault(w, "abid or neg of this matrix instruction is not modelled");
    return false;
}

static void narrow_matrix(struct wave *w, const struct op *o, int size)
{
    _Alignas(64) float a[MOST_K][32], b[MOST_K][32];
    if (unsigned_operands(w, o) && unpack(w, o, 0, size, a) && unpack(w, o, 1, size, b))
        accumulate(w, o, a, b, size, LANES / size * 32);
}

void mfma_16x16x128_f8f6f4(struct wave *w, const struct op *o)
{
    narrow_matrix(w, o, 16);
}

void mfma_32x32x64_f8f6f4(struct wave *w, const struct op *o)
{
    narrow_matrix(w, o, 32);
}

/* Four rows from `row`, 16 columns from `column`: of sums of a block's products, added to d. */
static void add_scaled(float (*sums)[16], int row, int column, const double *scale_a,
                       const double *scale_b, float *const d[4])
{
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < 16; n++)
            d[i][n] = (float)(d[i][n] + sums[i][n] * (scale_a[row + i] * scale_b[column + n]));
}

static void scaled_matrix(struct wave *w, const struct op *o, int size)
{
    static const float zeros[16];
    static const float *const zero[4] = {zeros, zeros, zeros, zeros};
    _Alignas(64) float a[MOST_K][32], b[MOST_K][32], sums[4][16];
    double scale_a[4][32], scale_b[4][32];
    float *const to_sums[4] = {sums[0], sums[1], sums[2], sums[3]};
    if (!unsigned_operands(w, o) || !unpack(w, o, 0, size, a) || !unpack(w, o, 1, size, b) ||
        !read_scales(w, o, 0, size, scale_a) || !read_scales(w, o, 1, size, scale_b))
        return;
    const int groups = LANES / size;
    for (int r = 0; r < size * size / LANES; r += 4)
        for (int g = 0; g < groups; g++) {
            const int row = size == 16 ? 4 * g : 8 * (r / 4) + 4 * g;
            for (int column = 0; column < size; column += 16) {
                float *d[4];
                for (int i = 0; i < 4; i++) {
                    const int at = g * size + column;
                    d[i] = (float *)w->v[o->dst[0].first + r + i] + at;
                    memmove(d[i], register_lanes(w, &o->src[2], r + i) + at, 16 * sizeof(float));
                }
                for (int k = 0; k < groups; k++) {
                    multiply_4x16(a + BLOCK * k, b + BLOCK * k, row, column, BLOCK, zero, to_sums);
                    add_scaled(sums, row, column, scale_a[k], scale_b[k], d);
                }
            }
        }
    w->thread->counters.matrix_flops += 2ull * (unsigned)(size * size * 32 * groups);
}

void mfma_scale_16x16x128_f8f6f4(struct wave *w, const struct op *o)
{
    scaled_matrix(w, o, 16);
}

void mfma_scale_32x32x64_f8f6f4(struct wave *w, const struct op *o)
{
    scaled_matrix(w, o, 32);
}
