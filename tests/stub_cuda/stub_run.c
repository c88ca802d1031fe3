/* The stand-in driver's kernel: tiles of a launch by the CPU's reference row; and the error table.
 */
#include "cpu/rows.h"
#include "stub_cuda.h"

#include <stdbool.h>
#include <string.h>

static const struct {
    const char *name;
    int operands, tile_m, tile_n, threads;
} kernels[] = {
#define MMF_GPU_KERNEL(name, family, operands, tile_m, tile_n, tile_k, threads, lds, layout,       \
                       targets)                                                                    \
    {#name, MMF_GEMM_##operands, tile_m, tile_n, threads},
#include "gpu/kernels/common/kernels.def"
#undef MMF_GPU_KERNEL
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
        .parameters = {args->parameters[0], args->parameters[1]},
    };
    memcpy(p->dtype, args->dtype, sizeof p->dtype);
    for (int i = 0; i < MMF_OPERANDS; i++) {
        const mmf_gemm_strides *s = &args->strides[i];
        bool is_b = i == MMF_B || i == MMF_B_UP;
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

int stub_run(const char *kernel, const mmf_gemm_args *args, unsigned workgroups, unsigned threads)
{
    int index = -1;
    int64_t tiles = args->tiles_m * args->tiles_n;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, kernel) == 0)
            index = (int)i;
    for (int b = 0; b < args->batch_ndim; b++)
        tiles *= args->batch_shape[b];
    if (index < 0 || kernels[index].operands != args->dtype[MMF_GEMM_A] ||
        (unsigned)kernels[index].threads != threads || args->first_tile + workgroups > tiles)
        return STUB_LAUNCH_FAILED;
    for (unsigned w = 0; w < workgroups; w++) {
        mmf_problem p;
        mmf_config config;
        mmf_buffers buffers = {0};
        cut_tile(args, index, args->first_tile + w, &p, &buffers);
        mmf_cpu_reference.family->configure(&mmf_cpu_reference, &p, &config);
        if (mmf_cpu_reference.family->run(&p, &config, &buffers, NULL))
            return STUB_LAUNCH_FAILED;
    }
    return 0;
}
