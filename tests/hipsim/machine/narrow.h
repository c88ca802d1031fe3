/* Floats of 8, 6 and 4 bits: what they stand for, for the conversions (narrow.c) and the matrix
 * instructions (matrix.c, matrix_narrow.c). */
#ifndef HIPSIM_NARROW_H
#define HIPSIM_NARROW_H

#include "lanes.h"

/* By the numbers of cbsz and blgp of the f8f6f4 matrix instructions. */
enum narrow_kind { NARROW_FP8, NARROW_BF8, NARROW_FP6, NARROW_BF6, NARROW_FP4, NARROW_KINDS };

struct narrow {
    uint8_t bits, mantissa;
    int8_t bias;
    bool fnuz;     /* no infinity, no -0; the code of -0 is NaN */
    bool infinity; /* the last exponent is infinity and NaN */
    bool nan;      /* else, not FNUZ: the last code is NaN, or there is none */
};

/* gfx942 has the FNUZ kinds of 8 bits, bias one higher; later parts those of OCP. */
struct narrow narrow_of(const struct wave *w, enum narrow_kind kind);
float narrow_to_float(struct narrow f, uint32_t code);
/* Round to nearest even. What is too large becomes infinity, else NaN, else the largest number. */
uint32_t narrow_from(struct narrow f, double x);
/* E8M0: 2^(code - 127), 255 is NaN. */
double scale_of(uint32_t code);

#endif
