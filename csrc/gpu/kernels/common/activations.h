/* Every activation of activations.def as a type: of pairs of floats, and of doubles; on NVIDIA of
 * eight floats, too. Path of a
 * call: both epilogues switch over them. */
#ifndef MMF_ACTIVATIONS_H
#define MMF_ACTIVATIONS_H

#include "gpu/kernels/common/pairs.h"

/* mmf_activation of problem/activation.h */
enum {
#define MMF_ACTIVATION(id, name, formula, source, f) ACT_##id,
#define MMF_GATED(id, name, formula, source, f) ACT_##id,
#include "problem/activations.def"
};

#define MMF_REAL mmf_float2
#define T(name) name##_float2
#include "gpu/kernels/common/activate.inc"
#undef MMF_REAL
#undef T
#define MMF_REAL double
#define T(name) name##_double
#include "gpu/kernels/common/activate.inc"
#undef MMF_REAL
#undef T

#if defined(__NVPTX__)
#define MMF_REAL mmf_float8
#define T(name) name##_float8
#include "gpu/kernels/common/activate.inc"
#undef MMF_REAL
#undef T
#define MMF_FORM_OF_EIGHT(id, ...) MMF_FORM(id##_float8, mmf_float8, __VA_ARGS__)
#else
#define MMF_FORM_OF_EIGHT(id, ...)
#endif

/* What an activation is computed on at once: two floats, one double. */
template <class Real> struct act_unit {
    typedef mmf_float2 type;
};
template <> struct act_unit<double> {
    typedef double type;
};

/* of(gate or z, up, parameters); those marked HOT have no parameters */
template <int Id> struct activation;
#define MMF_FORM(id, real, ...)                                                                    \
    static __attribute__((device, always_inline)) real of(                                         \
        real z, real up, real p0 = {}, real p1 = {}, real p2 = {}, real p3 = {})                   \
    {                                                                                              \
        (void)up;                                                                                  \
        return act_##id(__VA_ARGS__, p0, p1, p2, p3);                                              \
    }
#define MMF_ACTIVATION(id, name, formula, source, f)                                               \
    template <> struct activation<ACT_##id> {                                                      \
        enum { gated = 0 };                                                                        \
        MMF_FORM(id##_float2, mmf_float2, z)                                                       \
        MMF_FORM(id##_double, double, z)                                                           \
        MMF_FORM_OF_EIGHT(id, z)                                                                   \
    };
#define MMF_GATED(id, name, formula, source, f)                                                    \
    template <> struct activation<ACT_##id> {                                                      \
        enum { gated = 1 };                                                                        \
        MMF_FORM(id##_float2, mmf_float2, z, up)                                                   \
        MMF_FORM(id##_double, double, z, up)                                                       \
        MMF_FORM_OF_EIGHT(id, z, up)                                                               \
    };
#include "problem/activations.def"
#undef MMF_FORM

/* value = the activation of so many pairs, where up counts or not. */
template <int Id, int Pairs> struct activated {
    static __attribute__((device, always_inline)) void run(mmf_float2 *value, const mmf_float2 *up)
    {
        MMF_UNROLL
        for (int p = 0; p < Pairs; p++)
            value[p] = activation<Id>::of(value[p], up[p]);
    }
};

#if defined(__NVPTX__)
template <int Id> struct activated<Id, 4> {
    static __attribute__((device, always_inline)) void run(mmf_float2 *value, const mmf_float2 *up)
    {
        mmf_float8 z, of_up;
        MMF_UNROLL
        for (int i = 0; i < 8; i++) {
            z[i] = value[i / 2][i % 2];
            of_up[i] = up[i / 2][i % 2];
        }
        z = activation<Id>::of(z, of_up);
        MMF_UNROLL
        for (int i = 0; i < 8; i++)
            value[i / 2][i % 2] = z[i];
    }
};
#endif
#undef MMF_FORM_OF_EIGHT

#endif
