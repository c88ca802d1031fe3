/* The yardstick: three plain loops in the next wider type, any layout, any dtype, one thread.
 * Path of a call: the last row of cpu/rows.h; shares only the conversions and the epilogue
 * with the others. */
#include <math.h>
#include <string.h>

#include "cpu/convert.h"
#include "cpu/interrupt.h"
#include "cpu/view.h"
#include "problem/float_mode.h"

/* Also for float32 problems: everything up to the one rounding is double. */
/* each needs what stands before it */
/* clang-format off */
#include "cpu/real_double.h"
#include "cpu/move.inc"
#include "cpu/activate.inc"
#include "cpu/epilogue.inc"
#include "cpu/real_end.h"
/* clang-format on */

static bool supports(const mmf_kernel *kernel, const mmf_problem *problem, char *reason)
{
    (void)kernel, (void)problem, (void)reason;
    return true;
}

static void configure(const mmf_kernel *kernel, const mmf_problem *problem, mmf_config *config)
{
    (void)kernel, (void)problem;
    config->tile_m = config->tile_n = config->tile_k = 1;
    config->threads = 1;
}

enum {
    PIECE = 4096, /* products between two questions whether the call is to end */
    COST = 16     /* multiply-adds of the other kernels that one here counts as */
};

static double value_at(const mmf_view *view, int operand, int64_t i, int64_t j)
{
    double value;
    load_line_double(view->problem->dtype[operand], mmf_element(view, operand, i, j), 1, 1, &value);
    return value;
}

/* sum over k of A[i, k] * B[k, j]. Products of float32 are exact in double; those of float64 need
 * the wider type. */
static double dot(const mmf_view *view, int b, int64_t i, int64_t j, mmf_interrupt *interrupt)
{
    const bool wide = view->problem->dtype[MMF_A] == MMF_FLOAT64;
    long double wide_sum = 0;
    double sum = 0;
    int64_t k = 0;
    do {
        const int64_t end = mmf_min(k + PIECE, view->problem->k);
        if (mmf_ends(interrupt, 0, COST * (end - k + 1)))
            break;
        for (; wide && k < end; k++)
            wide_sum += (long double)value_at(view, MMF_A, i, k) * value_at(view, b, k, j);
        for (; k < end; k++)
            sum += value_at(view, MMF_A, i, k) * value_at(view, b, k, j);
    } while (k < view->problem->k);
    return wide ? (double)wide_sum : sum;
}

__attribute__((noinline)) static void compute(const mmf_problem *problem,
                                              const mmf_buffers *buffers, mmf_interrupt *interrupt)
{
    const bool gated = mmf_problem_gated(problem);
    const int64_t batches = mmf_batches(problem);
    if (problem->n == 0 || problem->m == 0) /* the other axes may be astronomically long */
        return;
    for (int64_t batch = 0; batch < batches; batch++) {
        mmf_view view;
        mmf_view_at(&view, problem, buffers, batch);
        for (int64_t i = 0; i < problem->m; i++) {
            for (int64_t j = 0; j < problem->n; j++) {
                double z = dot(&view, MMF_B, i, j, interrupt),
                       up = gated ? dot(&view, MMF_B_UP, i, j, interrupt) : 0;
                if (mmf_cancelled(interrupt))
                    return;
                epilogue_double(&view, i, j, 1, 1, &z, gated ? &up : NULL, 1);
            }
        }
    }
}

static mmf_status run(const mmf_problem *problem, const mmf_config *config,
                      const mmf_buffers *buffers, mmf_interrupt *interrupt)
{
    (void)config;
    uint64_t mode = mmf_float_mode_enter();
    compute(problem, buffers, interrupt);
    mmf_float_mode_leave(mode);
    return MMF_OK;
}

static const mmf_family family = {
    .name = "cpu_reference",
    .features = MMF_EPILOGUE_FEATURES,
    .dtypes = MMF_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = configure,
    .run = run,
    .rows_independent_of_m = true,
    .gflops_float = 0.5,
    .gflops_double = 0.5,
};

const mmf_kernel mmf_cpu_reference = {
    .name = "cpu_reference",
    .family = &family,
    .devices = 1 << MMF_CPU,
    .operands = MMF_EPILOGUE_DTYPES,
};
