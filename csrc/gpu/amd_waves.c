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

int64_t mmf_amd_tiles(const mmf_kernel *kernel, const mmf_problem *p)
{
    return mmf_gpu_tiles(p->m, kernel->tile_m) * mmf_gpu_tiles(p->n, columns_of(kernel, p)) *
           mmf_gpu_batches(p);
}

double mmf_amd_launch_time(mmf_amd_time *tiles, const mmf_kernel *kernel, const mmf_problem *p)
{
    mmf_work work = {.tiles = (double)mmf_amd_tiles(kernel, p), .launches = 1};
    tiles(kernel, p, &work);
    return work.tile_flops;
}

int64_t mmf_amd_whole_waves(const mmf_kernel *kernel, const mmf_problem *p)
{
    const int64_t units = mmf_gpu_units(p->device), tiles = mmf_amd_tiles(kernel, p);
    const int64_t rows = mmf_gpu_tiles(p->m, kernel->tile_m);
    /* Tiles of 8 waves have a unit to themselves. */
    const bool alone = mmf_gpu_instances[kernel->instance].threads >= 512;
    if (!alone || units < 1 || tiles <= units || mmf_gpu_batches(p) != 1)
        return 0;
    const int64_t columns = (tiles - 1) / units * units / rows * columns_of(kernel, p);
    return columns < p->n ? columns : 0;
}

const mmf_kernel *mmf_amd_next_row(const mmf_family *family, const mmf_kernel *like,
                                   const mmf_problem *p, int *next)
{
    const mmf_gpu_layout layout = mmf_gpu_instances[like->instance].layout;
    while (*next < MMF_GPU_INSTANCES) {
        const mmf_gpu_instance *row = &mmf_gpu_instances[(*next)++];
        char reason[MMF_REASON_TEXT];
        if (row->kernel && row->kernel->family == family && row->layout == layout &&
            row->kernel->operands == like->operands && family->supports(row->kernel, p, reason))
            return row->kernel;
    }
    return NULL;
}

static cut cut_of(mmf_amd_time *tiles, const mmf_kernel *kernel, const mmf_problem *p)
{
    cut found = {.columns = mmf_amd_whole_waves(kernel, p)};
    mmf_problem part = *p;
    const mmf_kernel *other;
    if (!found.columns)
        return found;
    part.n = found.columns;
    found.first = mmf_amd_launch_time(tiles, kernel, &part);
    part.n = p->n - found.columns;
    for (int next = 0; (other = mmf_amd_next_row(kernel->family, kernel, &part, &next));) {
        const double time = mmf_amd_launch_time(tiles, other, &part);
        if (!found.rest || time < found.second) {
            found.rest = other;
            found.second = time;
        }
    }
    return found;
}

static double both(const cut *c)
{
    return (c->first + c->second) * MMF_AMD_DOUBT;
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

void mmf_amd_columns_from(int64_t column, const mmf_problem *p, const mmf_buffers *buffers,
                          mmf_buffers *part)
{
    *part = *buffers;
    for (int i = MMF_A; i < MMF_OPERANDS; i++) {
        const bool of_b = mmf_operands[i].axes == MMF_AXES_KN;
        /* Blocks of columns of a preshuffled B, which has no strides, lie behind each other. */
        const int64_t pitch = of_b && p->packed ? p->k : p->strides[i].col;
        if (mmf_operands[i].axes != MMF_AXES_MK && part->data[i])
            part->data[i] = (char *)part->data[i] + column * pitch * mmf_dtypes[p->dtype[i]].size;
    }
}

static mmf_status bind(const mmf_launch_plan *plan, const mmf_problem *problem,
                       const mmf_buffers *buffers, unsigned char *arguments)
{
    mmf_gemm_args *first = (mmf_gemm_args *)(arguments + plan->launch[0].argument),
                  *second = (mmf_gemm_args *)(arguments + plan->launch[1].argument);
    mmf_buffers rest;
    mmf_amd_columns_from(first->n, problem, buffers, &rest);
    mmf_gpu_gemm_bind(problem, buffers, first);
    mmf_gpu_gemm_bind(problem, &rest, second);
    return MMF_OK;
}

void mmf_amd_waves_configure(mmf_amd_time *tiles, const mmf_kernel *kernel, const mmf_problem *p,
                             mmf_config *config)
{
    const cut c = cut_of(tiles, kernel, p);
    if (!pays(&c, kernel, mmf_amd_launch_time(tiles, kernel, p))) {
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
