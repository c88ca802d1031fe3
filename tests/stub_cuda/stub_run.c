/* The stand-in driver's kernels: tiles of a launch by the CPU's reference row; and the error table.
 */
#include "cpu/rows.h"
#include "stub_cuda.h"

#include <stdbool.h>
#include <string.h>

static const struct {
    const char *name, *step; /* of a launch that is no GEMM: its source */
    int operands, tile_m, tile_n, threads;
} kernels[] = {
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    {#name, "", MMF_GEMM_##operands, tile_m, tile_n, threads},
#define MMF_GPU_STEP(name, source, operands, tile_m, tile_n, tile_k, threads, lds, layout,         \
                     targets)                                                                      \
    {#name, #source, MMF_GEMM_##operands, tile_m, tile_n, threads},
#include "gpu/kernels/common/kernels.def"
#undef MMF_GPU_KERNEL
#undef MMF_GPU_STEP
};

_Atomic int stub_kept_events;

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {STUB_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {STUB_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {STUB_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {STUB_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {STUB_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {STUB_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {STUB_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {STUB_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {STUB_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {STUB_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {STUB_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {STUB_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
};

int stub_error(int code, const char **out, int text)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *out = text ? errors[i].text : errors[i].name;
            return 0;
        }
    return STUB_INVALID_VALUE;
}

/* The part of the problem that tile number `tile` is. */
static void cut_tile(const mmf_gemm_args *args, int index, int64_t tile, mmf_problem *p,
                     mmf_buffers *buffers)
{
    int64_t of_matrix = args->tiles_m * args->tiles_n, batch = tile / of_matrix;
    int64_t columns = args->gated ? kernels[index].tile_n / 2 : kernels[index].tile_n;
    int64_t row = tile % of_matrix / args->tiles_n * kernels[index].tile_m,
            col = tile % args->tiles_n * columns;
    *p = (mmf_problem){
        .n = args->n - col < columns ? args->n - col : columns,
        .m = args->m - row < kernels[index].tile_m ? args->m - row : kernels[index].tile_m,
        .k = args->k,
        .activation = args->activation,
        .gate_layout = args->gated ? MMF_GATE_HALVES : MMF_GATE_NONE,
        .alpha = args->alpha,
        .beta = args->beta,
    };
    memcpy(p->parameters, args->parameters, sizeof p->parameters);
    memcpy(p->dtype, args->dtype, sizeof p->dtype);
    for (int i = 0; i < MMF_OPERANDS; i++) {
        const mmf_gemm_strides *s = &args->strides[i];
        bool is_b = i == MMF_B || i == MMF_B_UP;
        if (p->dtype[i] == MMF_GEMM_IMMEDIATE) {
            p->dtype[i] = MMF_FLOAT64;
            buffers->data[i] = (void *)(uintptr_t)&args->immediates[i - MMF_BIAS];
            continue;
        }
        if (p->dtype[i] == MMF_ABSENT || !args->data[i])
            continue;
        int64_t offset = (is_b ? 0 : row * s->row) + (i == MMF_A ? 0 : col * s->col), rest = batch;
        for (int b = args->batch_ndim - 1; b >= 0; b--) {
            offset += rest % args->batch_shape[b] * s->batch[b];
            rest /= args->batch_shape[b];
        }
        buffers->data[i] = (char *)args->data[i] + offset * mmf_dtypes[p->dtype[i]].size;
        p->strides[i].row = s->row;
        p->strides[i].col = s->col;
    }
}

static int compute(const mmf_problem *p, const mmf_buffers *buffers)
{
    mmf_config config;
    mmf_cpu_reference.family->configure(&mmf_cpu_reference, p, &config);
    return mmf_cpu_reference.family->run(p, &config, buffers, NULL) ? STUB_LAUNCH_FAILED : 0;
}

static void *behind(void *data, int dtype, int64_t elements)
{
    return (char *)data + elements * mmf_dtypes[dtype].size;
}

/* Split-K, first launch: the sums of a tile over a piece of K, a plain GEMM for each stream. */
static int compute_piece(const mmf_gemm_args *args, int64_t piece, const mmf_problem *tile,
                         const mmf_buffers *of_tile)
{
    int code = 0;
    for (int s = 0; !code && s <= args->gated; s++) {
        mmf_problem p = *tile;
        mmf_buffers buffers = *of_tile;
        const int b = MMF_B + s, sums = MMF_PREACTIVATION + s;
        const int64_t k = piece * args->piece;
        p.k = args->k - k < args->piece ? args->k - k : args->piece;
        p.gate_layout = MMF_GATE_NONE;
        buffers.data[MMF_A] = behind(buffers.data[MMF_A], p.dtype[MMF_A], k * p.strides[MMF_A].col);
        buffers.data[MMF_B] = behind(buffers.data[b], p.dtype[b], k * p.strides[b].row);
        buffers.data[MMF_OUT] = behind(buffers.data[sums], p.dtype[sums], piece * args->plane);
        p.strides[MMF_B] = p.strides[b];
        p.strides[MMF_OUT] = p.strides[sums];
        p.dtype[MMF_OUT] = p.dtype[sums];
        p.dtype[MMF_PREACTIVATION] = p.dtype[MMF_PREACTIVATION_UP] = MMF_ABSENT;
        code = compute(&p, &buffers);
    }
    return code;
}

/* Split-K, last launch: each row of a tile is a row of ones times the sums of the pieces. */
static int add_pieces(const mmf_gemm_args *args, int64_t column, const mmf_problem *tile,
                      const mmf_buffers *of_tile)
{
    static const float one = 1;
    static const double one_double = 1;
    const mmf_strides sums = tile->strides[MMF_A];
    const int dtype = tile->dtype[MMF_A];
    int code = 0;
    for (int64_t m = 0; !code && m < tile->m; m++) {
        mmf_problem p = *tile;
        mmf_buffers buffers = *of_tile;
        p.m = 1;
        for (int i = 0; i < MMF_OPERANDS; i++)
            if (buffers.data[i])
                buffers.data[i] = behind(buffers.data[i], p.dtype[i], m * p.strides[i].row);
        for (int s = 0; s <= args->gated; s++) {
            p.dtype[MMF_B + s] = (uint8_t)dtype;
            p.strides[MMF_B + s] = (mmf_strides){.row = sums.col, .col = 1};
            buffers.data[MMF_B + s] =
                behind(buffers.data[MMF_A], dtype, column + s * (sums.row / 2));
        }
        p.strides[MMF_A] = (mmf_strides){0};
        buffers.data[MMF_A] =
            dtype == MMF_FLOAT64 ? (void *)(uintptr_t)&one_double : (void *)(uintptr_t)&one;
        code = compute(&p, &buffers);
    }
    return code;
}

/* prepack: a tile of A to out, as bits. */
static int copy_tile(const mmf_gemm_args *args, int index, int64_t tile)
{
    const mmf_gemm_strides *from = &args->strides[MMF_A], *to = &args->strides[MMF_OUT];
    const int64_t size = mmf_dtypes[args->dtype[MMF_A]].size, edge = kernels[index].tile_m;
    const int64_t m0 = tile / args->tiles_n * edge, n0 = tile % args->tiles_n * edge;
    for (int64_t m = m0; m < args->m && m < m0 + edge; m++)
        for (int64_t n = n0; n < args->n && n < n0 + edge; n++)
            memcpy((char *)args->data[MMF_OUT] + (m * to->row + n * to->col) * size,
                   (const char *)args->data[MMF_A] + (m * from->row + n * from->col) * size,
                   (size_t)size);
    return 0;
}

int stub_run(const char *kernel, const mmf_gemm_args *args, unsigned workgroups, unsigned rows,
             unsigned threads)
{
    int index = -1, code = 0;
    int64_t tiles = args->tiles_m * args->tiles_n;
    const int64_t of_matrix = tiles,
                  pieces = args->piece ? args->k / args->piece + (args->k % args->piece != 0) : 1;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, kernel) == 0)
            index = (int)i;
    for (int b = 0; b < args->batch_ndim; b++)
        tiles *= args->batch_shape[b];
    if (index < 0 || (unsigned)kernels[index].threads != threads || rows != pieces ||
        args->first_tile + workgroups > tiles)
        return STUB_LAUNCH_FAILED;
    const int operands = kernels[index].operands;
    const bool adds = strcmp(kernels[index].step, "reduce_splitk") == 0;
    const bool copies = strcmp(kernels[index].step, "reorder") == 0;
    if (copies ? mmf_dtypes[args->dtype[MMF_GEMM_A]].size != mmf_dtypes[operands].size
               : args->dtype[MMF_GEMM_A] != (adds ? mmf_dtypes[operands].sum : operands))
        return STUB_LAUNCH_FAILED;
    for (unsigned w = 0; !code && w < workgroups * rows; w++) {
        mmf_problem p;
        mmf_buffers buffers = {0};
        const int64_t tile = args->first_tile + w % workgroups;
        const int64_t columns = args->gated ? kernels[index].tile_n / 2 : kernels[index].tile_n;
        if (copies) {
            code = copy_tile(args, index, tile);
            continue;
        }
        cut_tile(args, index, tile, &p, &buffers);
        code = adds ? add_pieces(args, tile % of_matrix % args->tiles_n * columns, &p, &buffers)
               : args->piece ? compute_piece(args, w / workgroups, &p, &buffers)
                             : compute(&p, &buffers);
    }
    return code;
}

int stub_run_clusters(const char *kernel, const mmf_gemm_args *args, unsigned threads)
{
    mmf_gemm_args all = *args;
    if (args->first_tile)
        return 0;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, kernel) == 0)
            all.tiles_m = (args->m + kernels[i].tile_m - 1) / kernels[i].tile_m;
    int64_t tiles = all.tiles_m * all.tiles_n;
    for (int b = 0; b < args->batch_ndim; b++)
        tiles *= args->batch_shape[b];
    return stub_run(kernel, &all, (unsigned)tiles, 1, threads);
}
