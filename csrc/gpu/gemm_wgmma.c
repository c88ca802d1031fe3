/* The families gemm_wgmma, gemm_wgmma_pingpong and gemm_wgmma_pingpong_aux: matrix instructions and
 * tensor copies of Hopper. Path of a call: asked by the plan; run() ends in launch_plan.c. */
#include "gpu/wgmma_time.h"

#include "gpu/describe.h"
#include "gpu/epilogue_form.h"
#include "gpu/kernels/nvidia/repack_args.h"
#include "gpu/kernels/nvidia/wgmma_args.h"
#include "gpu/nvidia_tiles.h"
#include "gpu/repack.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(mmf_wgmma_args) + sizeof(mmf_repack_args) + 2 * MMF_ARGUMENT_ALIGN <=
                   MMF_ARGUMENT_BYTES,
               "arguments of two launches");

enum { BOX_LINES = 64 }; /* of A or B not along k; see gemm_wgmma.hip */
enum { GFLOPS = 5700 };  /* of a compute unit: 8192^3 on an H200 */

/* Tensor copies: coordinates are 32 bits, an outer stride is below 2^40 bytes and, like the
 * address, a multiple of 16. */
enum { RUN = 16, MAX_SIZE = INT32_MAX - 1024 };
#define MAX_STRIDE (INT64_C(1) << 39)

/* A matrix as a tensor of batches of lines: line i of a batch begins `pitch` elements after line
 * i - 1. */
typedef struct matrix {
    int64_t length, lines, pitch, batches, batch_pitch;
} matrix;

static bool strided(int64_t pitch, int64_t size)
{
    return pitch > 0 && pitch <= MAX_STRIDE / size && pitch * size % RUN == 0;
}

/* A matrix of `lines` lines, whose `length` elements are `unit` apart; false: no tensor describes
 * it. Where there is one line or one matrix, the distance to the next is free. Each stride is a
 * multiple of the one before it, as the driver's documentation asks. */
static bool describe(const mmf_problem *p, int operand, int64_t length, int64_t unit, int64_t lines,
                     int64_t pitch, matrix *to)
{
    const int64_t batches = p->batch_ndim ? p->batch_shape[0] : 1;
    const int64_t stride = p->batch_ndim ? p->strides[operand].batch[0] : 0;
    const int64_t size = mmf_dtypes[p->dtype[operand]].size, run = RUN / size;
    const bool one = lines == 1, same = batches == 1 || stride == 0;
    const int64_t free = same ? (length + run - 1) / run * run : stride;
    to->length = length;
    to->lines = lines;
    to->pitch = one ? free : pitch;
    to->batches = same ? 1 : batches;
    to->batch_pitch = same ? to->pitch : stride;
    return (unit == 1 || length == 1) && (one || pitch >= length) && strided(to->pitch, size) &&
           strided(to->batch_pitch, size) && to->batch_pitch % to->pitch == 0 &&
           p->offset[operand] % 16 == 0;
}

/* A or B with the k, or the other index, of a line next to each other. */
static bool describe_a(const mmf_problem *p, bool along_k, matrix *to)
{
    const mmf_strides *s = &p->strides[MMF_A];
    return along_k ? describe(p, MMF_A, p->k, s->col, p->m, s->row, to)
                   : describe(p, MMF_A, p->m, s->row, p->k, s->col, to);
}

static bool describe_b(const mmf_problem *p, int operand, bool along_k, matrix *to)
{
    const mmf_strides *s = &p->strides[operand];
    return along_k ? describe(p, operand, p->k, s->row, p->n, s->col, to)
                   : describe(p, operand, p->n, s->col, p->k, s->row, to);
}

static bool describe_out(const mmf_problem *p, matrix *to)
{
    const mmf_strides *s = &p->strides[MMF_OUT];
    return describe(p, MMF_OUT, p->n, s->col, p->m, s->row, to);
}

static bool b_along(const mmf_problem *p, bool k)
{
    matrix b;
    return describe_b(p, MMF_B, k, &b) && (!mmf_problem_gated(p) || describe_b(p, MMF_B_UP, k, &b));
}

/* The layout of the product, or ANY if no instance has it. */
static mmf_gpu_layout layout_of(const mmf_problem *p)
{
    matrix a;
    const bool b_k = b_along(p, true);
    if (!b_k && !b_along(p, false))
        return MMF_GPU_LAYOUT_ANY;
    if (describe_a(p, true, &a))
        return b_k ? MMF_GPU_LAYOUT_NT : MMF_GPU_LAYOUT_NN;
    if (describe_a(p, false, &a))
        return b_k ? MMF_GPU_LAYOUT_TT : MMF_GPU_LAYOUT_TN;
    return MMF_GPU_LAYOUT_ANY;
}

/* The operands that no tensor describes along k. */
static unsigned not_along_k(const mmf_problem *p)
{
    matrix m;
    return (describe_a(p, true, &m) ? 0 : 1u << MMF_A) |
           (describe_b(p, MMF_B, true, &m) ? 0 : 1u << MMF_B) |
           (!mmf_problem_gated(p) || describe_b(p, MMF_B_UP, true, &m) ? 0 : 1u << MMF_B_UP);
}

/* The operands that are copied first, as the rows of the layout NT have it where no row reads them
 * as they are. */
static unsigned copied(const mmf_kernel *kernel, const mmf_problem *p)
{
    const bool only = p->dtype[MMF_A] == MMF_FLOAT32; /* its rows are of NT */
    return mmf_gpu_instances[kernel->instance].layout == MMF_GPU_LAYOUT_NT &&
                   (only || layout_of(p) == MMF_GPU_LAYOUT_ANY)
               ? not_along_k(p)
               : 0;
}

static bool supports_copies(const mmf_problem *p, unsigned operands, char *reason)
{
    mmf_repacked repacked;
    return mmf_gpu_gemm_has(p, mmf_gpu_repack_instance(p), reason) &&
           mmf_launch_plan_workspace(
               p, mmf_gpu_repack(p, operands, &repacked) ? repacked.workspace_bytes : INT64_MAX,
               reason);
}

static bool supports(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    mmf_gpu *gpu;
    if (!mmf_gpu_gemm_supports(kernel, p, reason))
        return false;
    if (mmf_gpu_get(p->device, &gpu) || !gpu->driver->encode_tensor_map) {
        snprintf(reason, MMF_REASON_TEXT, "needs tensor maps: a driver of CUDA 12.0 or later");
        return false;
    }
    if (p->k == 0 || p->batch_ndim > 1) {
        snprintf(reason, MMF_REASON_TEXT, "%s",
                 p->k == 0 ? "needs products: K from 1 on, and alpha that is not 0"
                           : "takes one batch axis, or several that lie as one");
        return false;
    }
    if (p->dtype[MMF_A] == MMF_FLOAT32 && !p->allow_tf32) {
        snprintf(reason, MMF_REASON_TEXT, "rounds float32 to 11 bits, which allow_tf32 allows");
        return false;
    }
    if (p->dtype[MMF_A] != MMF_FLOAT32 && !mmf_gpu_gemm_may_truncate(p, reason))
        return false;
    if (p->m > MAX_SIZE || p->n > MAX_SIZE || p->k > MAX_SIZE || mmf_gpu_batches(p) > MAX_SIZE) {
        snprintf(reason, MMF_REASON_TEXT, "takes M, N, K and a batch up to %d", MAX_SIZE);
        return false;
    }
    const int64_t columns = mmf_problem_gated(p) ? kernel->tile_n / 2 : kernel->tile_n;
    if (mmf_gpu_tiles(p->m, kernel->tile_m) * mmf_gpu_tiles(p->n, columns) * mmf_gpu_batches(p) >
        MAX_SIZE) {
        snprintf(reason, MMF_REASON_TEXT, "takes up to %d tiles", MAX_SIZE);
        return false;
    }
    const mmf_gpu_layout layout = layout_of(p), own = mmf_gpu_instances[kernel->instance].layout;
    const unsigned operands = copied(kernel, p);
    if (operands)
        return supports_copies(p, operands, reason);
    if (layout == MMF_GPU_LAYOUT_ANY)
        snprintf(reason, MMF_REASON_TEXT,
                 "needs A and B at multiples of 16 bytes, each with stride 1 along one matrix axis "
                 "and multiples of 16 bytes along the other and the batch");
    else if (layout != own)
        snprintf(reason, MMF_REASON_TEXT, "is for the layout %s, A and B are %s",
                 mmf_gpu_layout_names[own], mmf_gpu_layout_names[layout]);
    return layout == own;
}

/* What leaves ping-pong the registers for its tile. */
static bool supports_pingpong(const mmf_kernel *kernel, const mmf_problem *p, char *reason)
{
    if (mmf_problem_gated(p)) {
        snprintf(reason, MMF_REASON_TEXT, "has no registers for gates");
        return false;
    }
    return supports(kernel, p, reason);
}

/* Boxes of `length` elements along x, swizzled where that is a line of 128 bytes, and `lines` along
 * y. */
static int encode(const mmf_driver *driver, const mmf_problem *p, const matrix *m, uint32_t length,
                  uint32_t lines, void *address, mmf_tensor_map *map)
{
    /* CUtensorMapDataType; the last is float32 in memory that a copy rounds to 11 bits. */
    enum { FLOAT16 = 6, BFLOAT16 = 9, TFLOAT32 = 11 };
    enum { NO_INTERLEAVE = 0, ZERO_FILL = 0, NO_SWIZZLE = 0, SWIZZLE_128 = 3, PROMOTE_256 = 3 };
    const uint64_t sizes[] = {(uint64_t)m->length, (uint64_t)m->lines, (uint64_t)m->batches};
    const mmf_dtype dtype = p->dtype[MMF_A];
    const uint32_t size = (uint32_t)mmf_dtypes[dtype].size;
    const uint64_t strides[] = {(uint64_t)m->pitch * size, (uint64_t)m->batch_pitch * size};
    const uint32_t box[] = {length, lines, 1}, steps[] = {1, 1, 1};
    const int swizzle = length * size == MMF_WGMMA_LINE ? SWIZZLE_128 : NO_SWIZZLE;
    const int type = dtype == MMF_FLOAT32 ? TFLOAT32 : dtype == MMF_FLOAT16 ? FLOAT16 : BFLOAT16;
    return driver->encode_tensor_map(map, type, 3, address, sizes, strides, box, steps,
                                     NO_INTERLEAVE, swizzle, PROMOTE_256, ZERO_FILL);
}

static bool takes_turns(int instance, const mmf_wgmma_args *args)
{
    const mmf_gpu_instance *row = &mmf_gpu_instances[instance];
    return MMF_WGMMA_TAKES_TURNS(row->tile_m, row->tile_k, *args);
}

static mmf_status bind_launch(const mmf_launch_plan *plan, const mmf_problem *p,
                              const mmf_buffers *buffers, unsigned char *arguments)
{
    const mmf_launch *launch = &plan->launch[plan->launches - 1];
    const mmf_gpu_instance *row = &mmf_gpu_instances[launch->instance];
    const mmf_gpu_layout layout = row->layout;
    const bool a_k = layout == MMF_GPU_LAYOUT_NN || layout == MMF_GPU_LAYOUT_NT;
    const bool b_k = layout == MMF_GPU_LAYOUT_NT || layout == MMF_GPU_LAYOUT_TT;
    const uint32_t line = (uint32_t)row->tile_k; /* elements */
    const uint32_t a_lines = a_k ? (uint32_t)row->tile_m : BOX_LINES;
    mmf_wgmma_args *args = (mmf_wgmma_args *)(arguments + launch->argument);
    const uint32_t b_lines = b_k ? args->width : BOX_LINES;
    matrix m;
    mmf_gpu *gpu;
    mmf_status status = mmf_gpu_get(p->device, &gpu);
    if (status)
        return status;
    mmf_gpu_gemm_bind(p, buffers, &args->gemm);
    describe_a(p, a_k, &m);
    int code = encode(gpu->driver, p, &m, line, a_lines, buffers->data[MMF_A], &args->a);
    describe_b(p, MMF_B, b_k, &m);
    if (!code)
        code = encode(gpu->driver, p, &m, line, b_lines, buffers->data[MMF_B], &args->b);
    if (!code && mmf_problem_gated(p)) {
        describe_b(p, MMF_B_UP, b_k, &m);
        code = encode(gpu->driver, p, &m, line, b_lines, buffers->data[MMF_B_UP], &args->b_up);
    }
    if (!code && (args->out_by_copies || takes_turns(launch->instance, args))) {
        describe_out(p, &m);
        code = encode(gpu->driver, p, &m,
                      args->out_by_copies ? args->width
                                          : (uint32_t)MMF_WGMMA_STORED_COLUMNS(row->tile_n),
                      args->out_by_copies ? MMF_WGMMA_STORED_ROWS : MMF_WGMMA_WARP_ROWS,
                      buffers->data[MMF_OUT], &args->out);
    }
    return code ? mmf_driver_fail(gpu->driver, code, MMF_CALL_TENSOR_MAP, gpu->ordinal) : MMF_OK;
}

static mmf_status bind(const mmf_launch_plan *plan, const mmf_problem *p,
                       const mmf_buffers *buffers, unsigned char *arguments)
{
    mmf_repacked repacked;
    mmf_buffers moved;
    if (plan->launches == 1)
        return bind_launch(plan, p, buffers, arguments);
    mmf_gpu_repack(p, not_along_k(p), &repacked);
    mmf_gpu_repack_bind(plan, 0, &repacked, buffers, arguments, &moved);
    return bind_launch(plan, &repacked.problem, &moved, arguments);
}

static void work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *w)
{
    double seconds = mmf_wgmma_seconds(kernel, p, w->tiles);
    const unsigned operands = copied(kernel, p);
    mmf_repacked repacked;
    if (seconds <= 0)
        return;
    if (operands && mmf_gpu_repack(p, operands, &repacked))
        seconds += mmf_gpu_repack_seconds(p, &repacked);
    if (mmf_wgmma_is_general(kernel, p))
        seconds += mmf_nvidia_general_seconds(p);
    mmf_nvidia_set_microseconds(w, seconds * 1e6, GFLOPS);
}

/* The launch of the matrix product. */
static void add_launch(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    matrix m;
    mmf_launch_plan *plan = (mmf_launch_plan *)config->own;
    mmf_launch *launch = mmf_launch_plan_add(plan, kernel->instance, sizeof(mmf_wgmma_args));
    mmf_wgmma_args *args = mmf_launch_argument(plan, launch);
    const bool swapped = kernel->tile_m < MMF_WGMMA_TALL_ROWS;
    const bool in_registers = swapped || p->dtype[MMF_A] == MMF_FLOAT32 || describe_out(p, &m);
    const bool general = !in_registers || config->general_epilogue;
    mmf_gpu_gemm_arguments(kernel->instance, p, general, &args->gemm);
    if (kernel->family == &mmf_gpu_wgmma_pingpong_aux)
        args->gemm.epilogue = (unsigned char)mmf_gpu_auxiliary_form(p, general);
    const int parts = mmf_wgmma_parts_log(kernel, p);
    const int log = parts ? parts : mmf_wgmma_shares_b(kernel, p);
    const int64_t cluster = 1 << log;
    if (!parts)
        args->gemm.tiles_m = (args->gemm.tiles_m + cluster - 1) / cluster;
    args->cluster_log = (uint32_t)log;
    args->parts_log = (uint32_t)parts;
    args->group_rows = mmf_wgmma_group_rows(p);
    args->out_by_copies = swapped && args->gemm.epilogue == MMF_EPILOGUE_REGISTERS &&
                          p->dtype[MMF_C] == MMF_ABSENT &&
                          kernel->tile_m >> parts >= MMF_WGMMA_STORED_ROWS && describe_out(p, &m);
    args->width = (uint32_t)kernel->tile_n / 2;
    if (args->out_by_copies) {
        args->width = mmf_wgmma_width(kernel, p, parts);
        args->gemm.tiles_n = mmf_gpu_tiles(p->n, args->gemm.gated ? args->width : 2 * args->width);
    }
    args->a_batched = p->batch_ndim && p->strides[MMF_A].batch[0] != 0;
    args->b_batched = p->batch_ndim && p->strides[MMF_B].batch[0] != 0;
    args->b_up_batched = p->batch_ndim && p->strides[MMF_B_UP].batch[0] != 0;
    plan->bind = bind;
    launch->cluster = (uint32_t)cluster;
    launch->overlaps = true;
    launch->grid_x = mmf_gpu_gemm_tiles(p, &args->gemm) * cluster;
    launch->dynamic_bytes = (uint32_t)MMF_WGMMA_BYTES(kernel->tile_m, kernel->tile_n);
    if (!takes_turns(kernel->instance, args)) {
        launch->first = offsetof(mmf_wgmma_args, gemm.first_tile);
        return;
    }
    /* As many as run at once; each takes one tile after the other. */
    const int64_t at_once = mmf_gpu_units(p->device) / cluster * cluster;
    if (launch->grid_x > at_once && at_once > 0)
        launch->grid_x = at_once;
}

static void configure(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    mmf_launch_plan *plan = mmf_gpu_gemm_begin(kernel, config);
    const unsigned operands = copied(kernel, p);
    mmf_repacked repacked;
    if (p->m == 0 || p->n == 0 || mmf_gpu_batches(p) == 0)
        return;
    if (operands && mmf_gpu_repack(p, operands, &repacked)) {
        mmf_gpu_repack_add(plan, p, &repacked);
        config->workspace_bytes = repacked.workspace_bytes;
        p = &repacked.problem;
    }
    add_launch(kernel, p, config);
}

/* In registers it has a bias per column and an activation. */
static void configure_pingpong(const mmf_kernel *kernel, const mmf_problem *p, mmf_config *config)
{
    if (mmf_wgmma_is_general(kernel, p))
        config->general_epilogue = true;
    configure(kernel, p, config);
}

const mmf_family mmf_gpu_wgmma = {
    .name = "gemm_wgmma",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = false, /* k is split where rows are few */
    .work = work,
    .gflops_float = GFLOPS,
};

const mmf_family mmf_gpu_wgmma_pingpong = {
    .name = "gemm_wgmma_pingpong",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports_pingpong,
    .configure = configure_pingpong,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = false, /* as gemm_wgmma, of which it is a schedule */
    .work = work,
    .gflops_float = GFLOPS,
};

const mmf_family mmf_gpu_wgmma_pingpong_aux = {
    .name = "gemm_wgmma_pingpong_aux",
    .features = MMF_GPU_EPILOGUE_FEATURES,
    .dtypes = MMF_GPU_EPILOGUE_DTYPES,
    .supports = supports_pingpong,
    .configure = configure,
    .run = mmf_gpu_gemm_run,
    .rows_independent_of_m = false, /* as gemm_wgmma */
    .work = work,
    .gflops_float = GFLOPS,
};
