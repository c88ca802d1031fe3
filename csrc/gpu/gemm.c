/* A problem as mmf_gemm_args and a grid of tiles. Path of a call: see gemm.h. */
#include "gpu/gemm.h"

#include "gpu/epilogue_form.h"
#include "gpu/kernels/common/gemm_args.h"
#include "gpu/parts.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)MMF_GEMM_BATCH == (int)MMF_MAX_BATCH &&
                   (int)MMF_GEMM_PARAMETERS == (int)MMF_MAX_PARAMETERS &&
                   sizeof(mmf_gemm_strides) == sizeof(mmf_strides),
               "the kernel's argument is a field by field copy");
_Static_assert(sizeof(mmf_gemm_args) <= MMF_ARGUMENT_BYTES, "arguments of a kernel");

bool mmf_gpu_gemm_has(const mmf_problem *p, int instance, char *reason)
{
    mmf_gpu *gpu;
    if (mmf_gpu_get(p->device, &gpu)) {
        snprintf(reason, MMF_REASON_TEXT, "%.150s", mmf_error_text());
        return false;
    }
    return mmf_gpu_has_code(gpu, instance, reason);
}

bool mmf_gpu_gemm_supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    int64_t tiles, columns = mmf_problem_gated(p) ? kernel->tile_n / 2 : kernel->tile_n;
    if (!mmf_gpu_gemm_has(p, kernel->instance, reason))
        return false;
    if (__builtin_mul_overflow(mmf_gpu_tiles(p->m, kernel->tile_m), mmf_gpu_tiles(p->n, columns),
                               &tiles) ||
        tiles >= INT64_C(1) << 31) { /* kernels count the tiles of a matrix in 31 bits */
        snprintf(reason, MMF_REASON_TEXT, "the result has too many tiles");
        return false;
    }
    return true;
}

/* Is an operand absent or of 16 bits? */
static bool is_short(const mmf_problem *p, int operand)
{
    return p->dtype[operand] == MMF_ABSENT || mmf_dtypes[p->dtype[operand]].size == 2;
}

bool mmf_gpu_gemm_may_truncate(const mmf_problem *p, char *reason)
{
    if (is_short(p, MMF_OUT) && is_short(p, MMF_PREACTIVATION) && is_short(p, MMF_PREACTIVATION_UP))
        return true;
    snprintf(reason, MMF_REASON_TEXT,
             "truncates its sums, so out and preactivation must have 16 bits");
    return false;
}

void mmf_gpu_gemm_bind(const mmf_problem *p, const mmf_buffers *buffers, mmf_gemm_args *args)
{
    memcpy(args->data, buffers->data, sizeof args->data);
    for (int i = MMF_BIAS; p->immediates && i <= MMF_MULTIPLY; i++) {
        if (!(p->immediates & mmf_immediate((mmf_operand)i)))
            continue;
        args->data[i] = NULL; /* of the host */
        args->immediates[i - MMF_BIAS] = mmf_problem_accumulator(p) == MMF_FLOAT64
                                             ? *(const double *)buffers->data[i]
                                             : (double)*(const float *)buffers->data[i];
    }
}

mmf_status mmf_gpu_gemm_bind_one(const mmf_launch_plan *plan, const mmf_problem *problem,
                                 const mmf_buffers *buffers, unsigned char *arguments)
{
    mmf_gpu_gemm_bind(problem, buffers, (mmf_gemm_args *)(arguments + plan->launch[0].argument));
    return MMF_OK;
}

bool mmf_gpu_aligned(const mmf_problem *p, int operand)
{
    const int64_t size = mmf_dtypes[p->dtype[operand]].size;
    bool all = p->offset[operand] % 16 == 0;
    for (int b = 0; b < p->batch_ndim; b++)
        all = all && p->strides[operand].batch[b] * size % 16 == 0;
    return all;
}

int64_t mmf_gpu_batches(const mmf_problem *p)
{
    int64_t batches = 1;
    for (int b = 0; b < p->batch_ndim; b++)
        batches *= p->batch_shape[b];
    return batches;
}

mmf_launch_plan *mmf_gpu_gemm_begin(const mmf_kernel *kernel, mmf_config *config)
{
    config->tile_m = kernel->tile_m;
    config->tile_n = kernel->tile_n;
    config->tile_k = kernel->tile_k;
    config->threads = mmf_gpu_instances[kernel->instance].threads;
    return mmf_launch_plan_begin(config);
}

void mmf_gpu_gemm_arguments(int instance, const mmf_problem *p, bool general, mmf_gemm_args *args)
{
    const mmf_gpu_instance *row = &mmf_gpu_instances[instance];
    args->m = p->m;
    args->n = p->n;
    args->k = p->k;
    memcpy(args->batch_shape, p->batch_shape, sizeof args->batch_shape);
    memcpy(args->strides, p->strides, sizeof args->strides);
    memcpy(args->dtype, p->dtype, sizeof args->dtype);
    for (int i = MMF_BIAS; i <= MMF_MULTIPLY; i++)
        if (p->immediates & mmf_immediate((mmf_operand)i))
            args->dtype[i] = MMF_GEMM_IMMEDIATE;
    memcpy(args->parameters, p->parameters, sizeof args->parameters);
    args->alpha = p->alpha;
    args->beta = p->beta;
    args->tiles_m = mmf_gpu_tiles(p->m, row->tile_m);
    args->tiles_n = mmf_gpu_tiles(p->n, mmf_problem_gated(p) ? row->tile_n / 2 : row->tile_n);
    args->batch_ndim = p->batch_ndim;
    args->activation = p->activation;
    args->gated = mmf_problem_gated(p);
    args->epilogue = (unsigned char)mmf_gpu_epilogue_form(p, general);
}

int64_t mmf_gpu_gemm_tiles(const mmf_problem *p, const mmf_gemm_args *args)
{
    return args->tiles_m * args->tiles_n * mmf_gpu_batches(p);
}

/* Set in which order the dies of a GPU take so many tiles. */
static void deal(mmf_device device, int64_t tiles, mmf_deal *deal)
{
    const int dies = mmf_gpu_dies(device);
    if (dies > 1 && tiles < MMF_DEAL_MOST_TILES)
        mmf_deal_out((unsigned)dies, (unsigned)tiles, deal);
}

mmf_launch *mmf_gpu_gemm_add(mmf_launch_plan *plan, int instance, const mmf_problem *p,
                             bool general_epilogue)
{
    mmf_launch *launch = mmf_launch_plan_add(plan, instance, sizeof(mmf_gemm_args));
    mmf_gemm_args *args = mmf_launch_argument(plan, launch);
    mmf_gpu_gemm_arguments(instance, p, general_epilogue, args);
    launch->grid_x = mmf_gpu_gemm_tiles(p, args);
    launch->first = offsetof(mmf_gemm_args, first_tile);
    deal(p->device, launch->grid_x, &args->deal);
    return launch;
}

void mmf_gpu_gemm_configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_launch_plan *plan = mmf_gpu_gemm_begin(kernel, config);
    if (p->m == 0 || p->n == 0 || mmf_gpu_batches(p) == 0)
        return;
    mmf_gpu_gemm_add(plan, kernel->instance, p, config->general_epilogue);
    plan->bind = mmf_gpu_gemm_bind_one;
}

mmf_status mmf_gpu_gemm_run(const mmf_problem *problem, const mmf_config *config,
                            const mmf_buffers *buffers, mmf_interrupt *interrupt)
{
    (void)interrupt; /* what was launched runs to its end */
    return mmf_launch_plan_run(problem, config, buffers);
}
