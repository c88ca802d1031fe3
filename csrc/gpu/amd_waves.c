/* The columns that whole waves of tiles do not fill, in a launch of their own. Path of a call: see
 * amd_waves.h; run() ends in launch_plan.c. */
#include "gpu/amd_waves.h"

#include "gpu/describe.h"

#include <stddef.h>

/* Which columns a second launch has, and of which row; columns 0: there is none. */
typedef struct cut {
    int64_t columns; /* of the first launch */
    const mmf_kernel *rest;
    double first, second; /* the time of each, as tile_flops */
} cut;

/* Columns of out that a tile has. */
static int64_t columns_of(const mmf_kernel *kernel, const mmf_problem *p)
{
    return mmf_problem_gated(p) ? kernel->tile_n / 2 : kernel->tile_n;
}

static double time_of(mmf_amd_time *tiles, const mmf_kernel *kernel, const mmf_problem *p)
{
    const int64_t count =
        mmf_gpu_tiles(p->m, kernel->tile_m) * mmf_gpu_tiles(p->n, columns_of(kernel, p));
    mmf_work work = {.tiles = (double)count, .launches = 1};
    tiles(kernel, p, &work);
    return work.tile_flops;
}

/* Columns of out in the waves before the last one; 0: there is no other, or the last one is full.
 * Tiles of 8 waves have a unit to themselves. */
static int64_t whole_waves(const mmf_kernel *kernel, const mmf_problem *p)
{
    const mmf_gpu_instance *row = &mmf_gpu_instances[kernel->instance];
    const int64_t units = mmf_gpu_units(p->device);
    const int64_t rows = mmf_gpu_tiles(p->m, kernel->tile_m);
    const int64_t tiles = rows * mmf_gpu_tiles(p->n, columns_of(kernel, p));
    if (row->threads < 512 || units < 1 || tiles <= units || mmf_gpu_batches(p) != 1)
        return 0;
    const int64_t columns = (tiles - 1) / units * units / rows * columns_of(kernel, p);
    return columns < p->n ? columns : 0;
}

static cut cut_of(mmf_amd_time *tiles, const mmf_kernel *kernel, const mmf_problem *p)
{
    const mmf_gpu_instance *row = &mmf_gpu_instances[kernel->instance];
    cut found = {.columns = whole_waves(kernel, p)};
    mmf_problem part = *p;
    if (!found.columns)
        return found;
    part.n = found.columns;
    found.first = time_of(tiles, kernel, &part);
    part.n = p->n - found.columns;
    for (int i = 0; i < MMF_GPU_INSTANCES; i++) {
        const mmf_gpu_instance *other = &mmf_gpu_instances[i];
        char reason[MMF_REASON_TEXT];
        if (!other->kernel || other->kernel->family != kernel->family ||
            other->kernel->operands != kernel->operands || other->layout != row->layout ||
            !kernel->family->supports(other->kernel, &part, reason))
            continue;
        const double time = time_of(tiles, other->kernel, &part);
        if (!found.rest || time < found.second) {
            found.rest = other->kernel;
            found.second = time;
        }
    }
    return found;
}

/* The time of both launches is given as a 32nd longer than modelled: one launch is preferred where
 * the model can hardly tell. */
static double both(const cut *c)
{
    return (c->first + c->second) * 33 / 32;
}

/* Do two launches take less time than one? */
static bool pays(const cut *c, const mmf_kernel *kernel, double whole)
{
    const double launch = MMF_LAUNCH_SECONDS * kernel->family->gflops_float * 1e9;
    return c->rest && c->first > 0 && both(c) + launch < whole;
}

void mmf_amd_waves_work(mmf_amd_time *tiles, const mmf_kernel *kernel, const mmf_problem *p,
                        mmf_work *work)
{
    tiles(kernel, p, work);
    const cut c = cut_of(tiles, kernel, p);
    if (!pays(&c, kernel, work->tile_flops))
        return;
    work->tile_flops = both(&c);
    work->launches = 2;
}

static mmf_status bind(const mmf_launch_plan *plan, const mmf_problem *problem,
                       const mmf_buffers *buffers, unsigned char *arguments)
{
    mmf_gemm_args *first = (mmf_gemm_args *)(arguments + plan->launch[0].argument),
                  *second = (mmf_gemm_args *)(arguments + plan->launch[1].argument);
    mmf_gpu_gemm_bind(problem, buffers, first);
    mmf_gpu_gemm_bind(problem, buffers, second);
    for (int i = MMF_A; i < MMF_OPERANDS; i++) {
        const bool of_b = mmf_operands[i].axes == MMF_AXES_KN;
        /* Blocks of columns of a preshuffled B, which has no strides, lie behind each other. */
        const int64_t column = of_b && problem->packed ? problem->k : second->strides[i].col;
        if (mmf_operands[i].axes != MMF_AXES_MK && second->data[i])
            second->data[i] =
                (char *)second->data[i] + first->n * column * mmf_dtypes[problem->dtype[i]].size;
    }
    return MMF_OK;
}

void mmf_amd_waves_configure(mmf_amd_time *tiles, const mmf_kernel *kernel, const mmf_problem *p,
                             mmf_config *config)
{
    const cut c = cut_of(tiles, kernel, p);
    if (!pays(&c, kernel, time_of(tiles, kernel, p))) {
        mmf_gpu_gemm_configure(kernel, p, config);
        return;
    }
    mmf_launch_plan *plan = mmf_gpu_gemm_begin(kernel, config);
    mmf_problem part = *p;
    part.n = c.columns;
    mmf_gpu_gemm_add(plan, kernel->instance, &part, config->general_epilogue);
    part.n = p->n - c.columns;
    mmf_gpu_gemm_add(plan, c.rest->instance, &part, config->general_epilogue);
    plan->bind = bind;
}
