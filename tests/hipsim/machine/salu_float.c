/* Scalar float32 of gfx12, and its approximations (v_s_rcp_f32 and the like).
 * Path of a launch: the loop of run.c, classes SALU and VALU. */
#include "lanes.h"

#include <math.h>

static float source(const struct wave *w, const struct op *o, int index)
{
    const struct operand *s = &o->src[index];
    uint32_t x = scalar32(w, s);
    return as_f32((x & (s->absolute ? 0x7fffffff : UINT32_MAX)) ^ (s->negate ? 0x80000000 : 0));
}

static float flush(float x)
{
    uint32_t bits = as_u32(x);
    return (bits & 0x7f800000) ? x : as_f32(bits & 0x80000000);
}

static uint32_t to_u32(float x)
{
    return !(x > 0) ? 0 : x >= 4294967296.0f ? UINT32_MAX : (uint32_t)x;
}

static uint32_t to_i32(float x)
{
    int32_t y = x != x ? 0 : x <= -0x1p31f ? INT32_MIN : x >= 0x1p31f ? INT32_MAX : (int32_t)x;
    return (uint32_t)y;
}

/* a, b and c are the sources as floats; the result is 32 bits. */
#define SCALAR(name, sources, expression)                                                          \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        float a = source(w, o, 0), b = sources > 1 ? source(w, o, 1) : 0;                          \
        float c = sources > 2 ? source(w, o, 2) : 0;                                               \
        (void)b, (void)c;                                                                          \
        put_s32(w, o->dst[0].first, expression);                                                   \
    }
SCALAR(s_cvt_f32_u32, 1, as_u32((float)as_u32(a)))
SCALAR(s_cvt_f32_i32, 1, as_u32((float)(int32_t)as_u32(a)))
SCALAR(s_cvt_u32_f32, 1, to_u32(a))
SCALAR(s_cvt_i32_f32, 1, to_i32(a))
SCALAR(s_trunc_f32, 1, as_u32(truncf(a)))
SCALAR(s_floor_f32, 1, as_u32(floorf(a)))
SCALAR(s_ceil_f32, 1, as_u32(ceilf(a)))
SCALAR(s_rndne_f32, 1, as_u32(rintf(a)))
SCALAR(s_add_f32, 2, as_u32(a + b))
SCALAR(s_sub_f32, 2, as_u32(a - b))
SCALAR(s_mul_f32, 2, as_u32(a *b))
SCALAR(s_fma_f32, 3, as_u32(__builtin_fmaf(a, b, c)))
SCALAR(v_s_rcp_f32, 1, as_u32(flush(1.0f / flush(a))))
SCALAR(v_s_rsq_f32, 1, as_u32((float)(1.0 / sqrt((double)flush(a)))))
SCALAR(v_s_sqrt_f32, 1, as_u32(sqrtf(flush(a))))
SCALAR(v_s_exp_f32, 1, as_u32(flush(exp2f(flush(a)))))
SCALAR(v_s_log_f32, 1, as_u32(log2f(flush(a))))
