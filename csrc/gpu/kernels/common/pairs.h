/* The functions of elementary.h for two floats at once, which some GPUs multiply and add in one
 * instruction. Path of a call: under activations.h. */
#ifndef MMF_PAIRS_H
#define MMF_PAIRS_H

#include "gpu/kernels/common/device.h"

#include "gpu/kernels/common/elementary.h"

MMF_DEVICE mmf_float2 exp_float2(mmf_float2 x)
{
    const mmf_float2 scaled = x * 1.44269504f;
    return (mmf_float2){fast_exp2(scaled.x), fast_exp2(scaled.y)};
}

MMF_DEVICE mmf_float2 divided_float2(mmf_float2 a, mmf_float2 b)
{
    return a * (mmf_float2){fast_rcp(b.x), fast_rcp(b.y)};
}

/* As erf_float, but for NaN, of which it may make 1: gelu multiplies by z again. */
MMF_DEVICE mmf_float2 erf_float2(mmf_float2 x)
{
    const mmf_float2 magnitude = {__builtin_fabsf(x.x), __builtin_fabsf(x.y)};
    const mmf_float2 top = {__builtin_fminf(magnitude.x, 4), __builtin_fminf(magnitude.y, 4)};
    mmf_float2 near, far;
    MMF_POLYNOMIAL(float, near, x *x, MMF_ERF_NEAR);
    MMF_POLYNOMIAL(float, far, top, MMF_ERF_FAR);
    near *= magnitude;
    far = 1 - (mmf_float2){fast_exp2(far.x), fast_exp2(far.y)};
    return (mmf_float2){__builtin_copysignf(__builtin_fminf(near.x, far.x), x.x),
                        __builtin_copysignf(__builtin_fminf(near.y, far.y), x.y)};
}

/* Not worth more: no activation in registers needs them. */
#define MMF_EACH(name)                                                                             \
    MMF_DEVICE mmf_float2 name##_float2(mmf_float2 x)                                              \
    {                                                                                              \
        return (mmf_float2){name##_float(x.x), name##_float(x.y)};                                 \
    }
MMF_EACH(expm1)
MMF_EACH(log1p)
MMF_EACH(tanh)
#undef MMF_EACH

#endif
