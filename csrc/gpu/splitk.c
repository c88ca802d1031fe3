/* Split-K across workgroups. The first launch puts the sums of every piece of K into the workspace;
 * the second adds them in the order of the pieces, so the same call gives the same bits, and has
 * the epilogue, of which the first has none. Path of a call: see splitk.h; run() ends in
 * launch_plan.c. */
#include "gpu/splitk.h"

#include "gpu/kernels/common/gemm_args.h"

#include <stdio.h>
#include <string.h>

/* The second launch: of sums in float32, which those of every family of split-K are. */
enum { REDUCTION = MMF_GPU_reduce_splitk_16x64x1_f32_any };

bool mmf_splitk_lay_out(const mmf_problem *p, int64_t piece, mmf_splitk *l)
{
    const int streams = mmf_problem_gated(p) ? 2 : 1;
    l->piece = piece;
    l->pieces = mmf_gpu_tiles(p->k, piece);
    l->dtype = mmf_problem_accumulator(p);
    return !__builtin_mul_overflow(mmf_gpu_tiles(p->n, 4), 4 * streams, &l->pitch) &&
           !__builtin_mul_overflow(l->pitch, p->m, &l->matrix) &&
           !__builtin_mul_overflow(l->matrix, mmf_gpu_batches(p), &l->plane) &&
           !__builtin_mul_overflow(l->plane, l->pieces * mmf_dtypes[l->dtype].size, &l->bytes);
}

bool mmf_splitk_supports(const mmf_problem *p, int64_t bytes, char *reason)
{
    if (!mmf_gpu_gemm_has(p, REDUCTION, reason))
        return false;
    if (p->k == 0) {
        snprintf(reason, MMF_REASON_TEXT, "there are no products, so no K to cut");
        return false;
    }
    return mmf_launch_plan_workspace(p, bytes, reason);
}

void mmf_splitk_work(const mmf_splitk *l, mmf_work *work)
{
    work->bytes += 2 * (double)l->bytes; /* written, then read */
    work->launches = 2;
}

_Static_assert(MMF_MAX_LAUNCHES * (sizeof(mmf_gemm_args) + MMF_ARGUMENT_ALIGN) <=
                   MMF_ARGUMENT_BYTES,
               "the arguments of all launches");

static mmf_gemm_args *arguments_of(const mmf_launch_plan *plan, int launch,
                                   unsigned char *arguments)
{
    return (mmf_gemm_args *)(arguments + plan->launch[launch].argument);
}

mmf_status mmf_splitk_bind(const mmf_launch_plan *plan, const mmf_problem *problem,
                           const mmf_buffers *buffers, unsigned char *arguments)
{
    mmf_gemm_args *sums = arguments_of(plan, plan->launches - 2, arguments),
                  *end = arguments_of(plan, plan->launches - 1, arguments);
    mmf_gpu_gemm_bind(problem, buffers, end);
    for (int i = MMF_A; i <= MMF_B_UP; i++) {
        sums->data[i] = buffers->data[i];
        end->data[i] = NULL;
    }
    end->data[MMF_A] = buffers->workspace;
    sums->data[MMF_PREACTIVATION] = buffers->workspace;
    if (mmf_problem_gated(problem)) {
        const int64_t columns = sums->strides[MMF_PREACTIVATION].row / 2;
        sums->data[MMF_PREACTIVATION_UP] =
            (char *)buffers->workspace +
            columns * mmf_dtypes[mmf_problem_accumulator(problem)].size;
    }
    return MMF_OK;
}

/* Take the operands from `first` to before `end` away. */
static void clear_operands(mmf_gemm_args *args, int first, int end)
{
    for (int i = first; i < end; i++) {
        args->dtype[i] = MMF_ABSENT;
        memset(&args->strides[i], 0, sizeof args->strides[i]);
    }
}

/* The partial sums as an operand [m, n], or [m, piece] of lines. */
static void set_sums(mmf_gemm_args *args, int operand, const mmf_splitk *l, int64_t col)
{
    mmf_gemm_strides *s = &args->strides[operand];
    int64_t matrix = l->matrix;
    args->dtype[operand] = (unsigned char)l->dtype;
    *s = (mmf_gemm_strides){.row = l->pitch, .col = col};
    for (int b = args->batch_ndim - 1; b >= 0; b--) {
        s->batch[b] = matrix;
        matrix *= args->batch_shape[b];
    }
}

void mmf_splitk_add(mmf_launch_plan *plan, const mmf_kernel *kernel, const mmf_problem *p,
                    const mmf_splitk *l, mmf_config *config)
{
    mmf_launch *launch = mmf_gpu_gemm_add(plan, kernel->instance, p, true);
    mmf_gemm_args *args = mmf_launch_argument(plan, launch);
    launch->grid_y = (uint32_t)l->pieces;
    args->piece = l->piece;
    args->plane = l->plane;
    args->alpha = 1;
    args->beta = 0;
    memset(args->parameters, 0, sizeof args->parameters);
    args->activation = MMF_ACT_NONE;
    clear_operands(args, MMF_B_UP + 1, MMF_OPERANDS);
    set_sums(args, MMF_PREACTIVATION, l, 1);
    if (mmf_problem_gated(p))
        set_sums(args, MMF_PREACTIVATION_UP, l, 1);

    launch = mmf_gpu_gemm_add(plan, REDUCTION, p, true);
    args = mmf_launch_argument(plan, launch);
    args->k = l->pieces;
    clear_operands(args, MMF_A, MMF_B_UP + 1);
    set_sums(args, MMF_A, l, l->plane);
    config->workspace_bytes = l->bytes;
}

void mmf_splitk_configure(const mmf_kernel *kernel, const mmf_problem *p, int64_t piece,
                          mmf_config *config)
{
    mmf_launch_plan *plan = mmf_gpu_gemm_begin(kernel, config);
    mmf_splitk l;
    if (p->m == 0 || p->n == 0 || mmf_gpu_batches(p) == 0 || !mmf_splitk_lay_out(p, piece, &l))
        return; /* what cannot be laid out, supports() refused */
    mmf_splitk_add(plan, kernel, p, &l, config);
    plan->bind = mmf_splitk_bind;
}
