/* Shared by the C tests: counted checks, a random source, and dtypes decoded without the code
 * under test. */
#ifndef MMF_TEST_CHECK_H
#define MMF_TEST_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/rows.h"

#define ROW(row) &row,
/* Rows of this architecture but the reference, best first. */
#define VECTOR_ROWS MMF_CPU_VECTOR_KERNELS(ROW)

extern int tests_passed, tests_failed;

/* Set a problem's features by its dtypes and gate, as problem.c does. */
static inline void set_features(mmf_problem *p)
{
    p->features = (mmf_problem_gated(p) ? MMF_HAS(MMF_FEATURE_GATED) : 0) |
                  (p->packed ? MMF_HAS(MMF_FEATURE_PACKED) : 0);
    for (int o = 0; o < MMF_OPERANDS; o++)
        p->features |= p->dtype[o] != MMF_ABSENT ? MMF_HAS(o) : 0;
}

/* Does the row take a problem of these dtypes on this machine? */
static inline bool takes(const mmf_kernel *row, const mmf_problem *p)
{
    char reason[MMF_REASON_TEXT];
    return (row->operands & MMF_DTYPE_BIT(p->dtype[MMF_A])) &&
           !(p->features & ~row->family->features) && row->family->supports(row, p, reason);
}

/* Count a check; the first failures are printed. Returns ok. */
bool check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

uint64_t random_bits(void);
int random_below(int n);

/* One element to and from double, by ldexp: shares nothing with convert.h. */
double decode(int dtype, const void *element);
void store_random(int dtype, void *element);
void store_nan(int dtype, void *element);
bool same_bits(int dtype, const void *a, const void *b);
int element_size(int dtype);

/* Distance of neighbouring values of the dtype at |x|. */
double unit_in_last_place(int dtype, double x);

/* Exact activation in long double, from torch's documentation; u: the up column where gated. */
long double exact_activation(int id, long double z, long double u, const double *p);

/* Of a gated activation: its gate's function, of others the activation. */
long double exact_gate(int id, long double z, const double *p);

/* Of a gated activation, what the gate's function is multiplied by. */
long double exact_up(int id, long double u, const double *p);

/* Does the activation jump within e of z? Then *value is that of the branch which z is not on (of
 * a gated one: of its gate). */
bool other_branch(int id, long double z, long double e, const double *p, long double *value);

/* Bound of |activation'| near z (gated: of the gate's function). */
double lipschitz(int id, double z, const double *p);

/* A constant that z meets in the formula: its rounding counts as z's own does. */
double shift_of(int id);

/* Parameters to test with, which float holds exactly. */
void test_parameters(int id, double p[MMF_MAX_PARAMETERS]);

bool is_gated(int id);

void test_rows(int cases);
void test_accuracy(void);
void test_convert(void);
void test_panels(void);
void test_activations(void);
void test_device_activations(void);
void test_pool(void);
void time_rows(void);

#endif
