/* The launch of repack.hip before a kernel. Path of a call: see repack.h. */
#include "gpu/repack.h"

#include "gpu/describe.h"
#include "gpu/gemm.h"
#include "gpu/kernels/nvidia/repack_args.h"
#include "gpu/reorder.h"

#include <stdlib.h>

/* The operands that may be copied, in the order of the argument's parts. */
static const int parts[] = {MMF_A, MMF_B, MMF_B_UP};
_Static_assert(sizeof parts / sizeof *parts == MMF_REPACK_PARTS, "a part for each");

/* An operand as matrices of lines along k. */
typedef struct lines {
    int64_t lines, line, k, batch, matrices;
} lines;

static lines lines_of(const mmf_problem *p, int operand)
{
    const mmf_strides *s = &p->strides[operand];
    const int64_t batch = p->batch_ndim ? s->batch[0] : 0;
    const int64_t matrices = batch ? p->batch_shape[0] : 1;
    return operand == MMF_A ? (lines){p->m, s->row, s->col, batch, matrices}
                            : (lines){p->n, s->col, s->row, batch, matrices};
}

bool mmf_gpu_repack(const mmf_problem *p, unsigned operands, mmf_repacked *to)
{
    const int64_t size = mmf_dtypes[p->dtype[MMF_A]].size;
    const int64_t pitch = mmf_gpu_columns_pitch(p->dtype[MMF_A], p->k);
    to->problem = *p;
    to->operands = operands;
    to->workspace_bytes = to->elements = 0;
    for (int i = 0; i < MMF_REPACK_PARTS; i++) {
        const int operand = parts[i];
        const lines l = lines_of(p, operand);
        int64_t matrix, bytes;
        if (!(operands >> operand & 1))
            continue;
        if (__builtin_mul_overflow(l.lines, pitch, &matrix) ||
            __builtin_mul_overflow(matrix, l.matrices * size, &bytes) ||
            __builtin_add_overflow(bytes, to->workspace_bytes, &bytes) ||
            bytes > INT64_MAX - MMF_WORKSPACE_ALIGN)
            return false;
        mmf_strides *s = &to->problem.strides[operand];
        s->row = operand == MMF_A ? pitch : 1;
        s->col = operand == MMF_A ? 1 : pitch;
        s->batch[0] = l.batch ? matrix : 0;
        to->problem.offset[operand] = 0;
        to->at[operand] = to->workspace_bytes;
        to->elements += l.lines * l.matrices * p->k;
        to->workspace_bytes =
            (bytes + MMF_WORKSPACE_ALIGN - 1) / MMF_WORKSPACE_ALIGN * MMF_WORKSPACE_ALIGN;
    }
    return true;
}

int mmf_gpu_repack_instance(const mmf_problem *p)
{
    return mmf_dtypes[p->dtype[MMF_A]].size == 4 ? MMF_GPU_repack_64x64x1_f32_any
                                                 : MMF_GPU_repack_64x64x1_f16_any;
}

/* Assumed: 3.5e12 bytes a second of the 132 units of an H200, and 5 us for the launch and its
 * workspace. */
double mmf_gpu_repack_seconds(const mmf_problem *p, const mmf_repacked *repacked)
{
    const double bytes = 2.0 * (double)repacked->elements * mmf_dtypes[p->dtype[MMF_A]].size;
    const int units = mmf_gpu_units(p->device);
    return 5e-6 + bytes / (26.5e9 * (units > 0 ? units : 1));
}

void mmf_gpu_repack_add(mmf_launch_plan *plan, const mmf_problem *p, const mmf_repacked *repacked)
{
    mmf_launch *launch =
        mmf_launch_plan_add(plan, mmf_gpu_repack_instance(p), sizeof(mmf_repack_args));
    mmf_repack_args *args = mmf_launch_argument(plan, launch);
    launch->grid_x = 0;
    for (int i = 0; i < MMF_REPACK_PARTS; i++) {
        const lines l = lines_of(p, parts[i]);
        mmf_repack_part *part = &args->part[i];
        if (!(repacked->operands >> parts[i] & 1))
            continue;
        part->line = l.line;
        part->k = l.k;
        part->batch = l.batch;
        part->pitch = mmf_gpu_columns_pitch(p->dtype[MMF_A], p->k);
        part->matrix = part->pitch * l.lines;
        part->lines = l.lines;
        part->length = p->k;
        part->turned = llabs(l.line) < llabs(l.k) && l.lines > 1;
        const int tile_k = part->turned ? MMF_REPACK_TURNED : MMF_REPACK_THREADS;
        const int tile_m = part->turned ? MMF_REPACK_TURNED : MMF_REPACK_LINES;
        part->tiles_k = (unsigned)mmf_gpu_tiles(p->k, tile_k);
        part->tiles_m = (unsigned)mmf_gpu_tiles(l.lines, tile_m);
        part->tiles = (unsigned)(part->tiles_k * (int64_t)part->tiles_m * l.matrices);
        launch->grid_x += part->tiles;
    }
    launch->cluster = 1;
    launch->overlaps = true;
}

void mmf_gpu_repack_bind(const mmf_launch_plan *plan, int launch, const mmf_repacked *repacked,
                         const mmf_buffers *buffers, unsigned char *arguments, mmf_buffers *moved)
{
    mmf_repack_args *args = (mmf_repack_args *)(arguments + plan->launch[launch].argument);
    *moved = *buffers;
    for (int i = 0; i < MMF_REPACK_PARTS; i++) {
        const int operand = parts[i];
        if (!(repacked->operands >> operand & 1))
            continue;
        moved->data[operand] = (char *)buffers->workspace + repacked->at[operand];
        args->part[i].from = buffers->data[operand];
        args->part[i].to = moved->data[operand];
    }
}
