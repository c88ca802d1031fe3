/* WMMA 16x16x16 of RDNA, wave32. gfx11: lanes 0-15 hold a row of A (a column of B), all 16 values,
 * and lanes 16-31 must hold the same again; D register r is row 2r + l / 16. gfx12: 8 values a
 * lane, k = 8 (e / 4) + 4 (l / 16) + e % 4; D register r is row 8 (l / 16) + r.
 * Path of a launch: the loop of run.c, class MATRIX. */
#include "matrix.h"

static bool unpack(struct wave *w, const struct op *o, int source, unpack_function unpack16,
                   float out[16][16])
{
    const struct operand *s = &o->src[source];
    bool replicated = w->thread->launch->arch->family == HIPSIM_RDNA3;
    for (int r = 0; r < (replicated ? 8 : 4); r++) {
        const uint32_t *lanes = w->v[s->first + r];
        float even[32], odd[32];
        unpack16(lanes, even, odd, 32);
        for (int i = 0; i < 16 && replicated; i++)
            if (lanes[i] != lanes[i + 16]) {
                report(w, HIPSIM_VIOLATION_ASSERTION, i + 16,
                       "matrix operand %d differs between lanes %d and %d: gfx11 wants them equal",
                       source, i, i + 16);
                return false;
            }
        for (int i = 0; i < 32; i++) {
            int e = 2 * r, k = replicated ? e : 8 * (e / 4) + 4 * (i / 16) + e % 4;
            out[k][i % 16] = even[i];
            out[k + 1][i % 16] = odd[i];
        }
    }
    return true;
}

static void wmma(struct wave *w, const struct op *o, unpack_function unpack16)
{
    float a[16][16], b[16][16];
    if (o->neg_lo || o->neg_hi) {
        fault(w, "neg of a matrix instruction is not modelled");
        return;
    }
    if (!unpack(w, o, 0, unpack16, a) || !unpack(w, o, 1, unpack16, b))
        return;
    bool wide = w->thread->launch->arch->family == HIPSIM_RDNA3;
    for (int r = 0; r < 8; r++) {
        const float *c = o->src[2].kind == OPERAND_VGPR ? (const float *)w->v[o->src[2].first + r]
                                                        : (const float *)o->src[2].splat;
        float d[32];
        for (int half = 0; half < 2; half++) {
            int row = wide ? 2 * r + half : 8 * half + r;
            float sum[16];
            memcpy(sum, c + 16 * half, sizeof sum);
            for (int k = 0; k < 16; k++)
                for (int n = 0; n < 16; n++)
                    sum[n] = __builtin_fmaf(a[k][row], b[k][n], sum[n]);
            memcpy(d + 16 * half, sum, sizeof sum);
        }
        memcpy(w->v[o->dst[0].first + r], d, sizeof d);
    }
    w->thread->counters.matrix_flops += 8192;
}

void v_wmma_f32_16x16x16_bf16(struct wave *w, const struct op *o)
{
    wmma(w, o, unpack_bf16);
}

void v_wmma_f32_16x16x16_f16(struct wave *w, const struct op *o)
{
    wmma(w, o, unpack_f16);
}
