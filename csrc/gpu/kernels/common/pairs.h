/* The functions of elementary.h for two floats at once, which some GPUs multiply and add in one
 * instruction, and for eight, which fill the gaps between dependent instructions where few warps
 * run. Path of a call: under activations.h. */
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

MMF_DEVICE mmf_float2 cdf_float2(mmf_float2 x)
{
    mmf_float2 logit;
    MMF_POLYNOMIAL(float, logit, x *x, MMF_LOGIT_OF_CDF);
    logit *= x;
    return (mmf_float2){fast_rcp(1 + fast_exp2(logit.x)), fast_rcp(1 + fast_exp2(logit.y))};
}

MMF_DEVICE mmf_float2 z_cdf_float2(mmf_float2 z)
{
    return z * cdf_float2(z);
}

MMF_DEVICE mmf_float2 ramp_float2(mmf_float2 x)
{
#if defined(__gfx950__)
    return __builtin_elementwise_maximum(x, (mmf_float2)0); /* keeps NaN, in one instruction */
#else
    return x < 0 ? (mmf_float2)0 : x;
#endif
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

#if defined(__NVPTX__)
#define MMF_EACH(name, function)                                                                   \
    MMF_DEVICE mmf_float8 name##_float8(mmf_float8 x)                                              \
    {                                                                                              \
        mmf_float8 y;                                                                              \
        MMF_UNROLL                                                                                 \
        for (int i = 0; i < 8; i++)                                                                \
            y[i] = function(x[i]);                                                                 \
        return y;                                                                                  \
    }
MMF_EACH(exp2, fast_exp2)
MMF_EACH(rcp, fast_rcp)
MMF_EACH(expm1, expm1_float)
MMF_EACH(log1p, log1p_float)
MMF_EACH(tanh, tanh_float)
MMF_EACH(cdf, cdf_float)
MMF_EACH(z_cdf, short_z_cdf_float)
#undef MMF_EACH

MMF_DEVICE mmf_float8 exp_float8(mmf_float8 x)
{
    return exp2_float8(x * 1.44269504f);
}

MMF_DEVICE mmf_float8 divided_float8(mmf_float8 a, mmf_float8 b)
{
    return a * rcp_float8(b);
}

MMF_DEVICE mmf_float8 ramp_float8(mmf_float8 x)
{
    return __builtin_elementwise_maximum(x, (mmf_float8)0); /* keeps NaN, in one instruction */
}
#endif

#endif
