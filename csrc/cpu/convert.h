/* float16 and bfloat16 to and from float and double, by bit operations without branches, so that
 * loops vectorise. Path of a call: under move.inc, where elements are read, and where results are
 * rounded, once. Round to nearest, ties to even; NaN stays NaN; too large gives infinity;
 * subnormals are exact. */
#ifndef MMF_CPU_CONVERT_H
#define MMF_CPU_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t mmf_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float mmf_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* yes where the condition holds, else no. As masks: compilers move the arithmetic of one arm of ?:
 * behind a branch, and then refuse to vectorise it because it might raise a floating-point flag. */
static inline uint32_t mmf_select(int condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline float mmf_bf16_to_float(uint16_t bits)
{
    return mmf_bits_float((uint32_t)bits << 16);
}

static inline uint16_t mmf_float_to_bf16(float value)
{
    uint32_t x = mmf_float_bits(value);
    uint32_t rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16;
    uint32_t quiet_nan = x >> 16 | 0x40;
    return (uint16_t)mmf_select((x & 0x7fffffff) > 0x7f800000, quiet_nan, rounded);
}

static inline float mmf_f16_to_float(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = (uint32_t)(bits & 0x7fff) << 13;
    uint32_t bias =
        mmf_select(magnitude >= 0x7c00u << 13, 224u << 23, 112u << 23); /* infinity stays on top */
    /* Subnormal: set as the fraction below 2^-14, then take 2^-14 away. */
    float subnormal = mmf_bits_float(magnitude | 113u << 23) - 0x1p-14f;
    uint32_t result =
        mmf_select(magnitude < 0x400u << 13, mmf_float_bits(subnormal), magnitude + bias);
    return mmf_bits_float(result | sign);
}

static inline uint16_t mmf_float_to_f16(float value)
{
    uint32_t x = mmf_float_bits(value), magnitude = x & 0x7fffffff, sign = x >> 16 & 0x8000;
    uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    normal = mmf_select(normal < 0x7c00, normal, 0x7c00);
    /* Below 2^-14 the unit is 2^-24, the last place of a float in [0.5, 1): the addition rounds. */
    uint32_t subnormal = mmf_float_bits(mmf_bits_float(magnitude) + 0.5f) - 0x3f000000;
    uint32_t quiet_nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    uint32_t finite = mmf_select(magnitude < 113u << 23, subnormal, normal);
    return (uint16_t)(sign | mmf_select(magnitude > 0x7f800000, quiet_nan, finite));
}

/* Round to odd: cut the double to a float and keep "something was cut" in the last bit. A second
 * rounding to 22 or fewer bits then gives what one rounding from the double would have given. */
static inline float mmf_double_to_odd_float(double value)
{
    float nearest = (float)value;
    uint32_t bits = mmf_float_bits(nearest);
    double back = nearest, magnitude = value < 0 ? -value : value;
    uint32_t away = (back < 0 ? -back : back) > magnitude;
    uint32_t odd = (bits - away) | 1;
    return mmf_bits_float(back != value && value == value ? odd : bits);
}

static inline uint16_t mmf_double_to_f16(double value)
{
    return mmf_float_to_f16(mmf_double_to_odd_float(value));
}

static inline uint16_t mmf_double_to_bf16(double value)
{
    return mmf_float_to_bf16(mmf_double_to_odd_float(value));
}

#endif
