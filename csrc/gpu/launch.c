/* mmf_problem to mmf_gemm_args, the size of the grid, the launch. Path of a call: last stop, from
 * the run() of the GPU rows. */
#include "gpu/launch.h"

#include "gpu/devices.h"
#include "gpu/kernels/gemm_args.h"

#include <string.h>

/* The kernel's argument is a field by field copy. */
_Static_assert((int)MMF_GEMM_OPERANDS == (int)MMF_OPERANDS && (int)MMF_GEMM_A == (int)MMF_A &&
                   (int)MMF_GEMM_B_UP == (int)MMF_B_UP &&
                   (int)MMF_GEMM_BIAS_UP == (int)MMF_BIAS_UP &&
                   (int)MMF_GEMM_C_UP == (int)MMF_C_UP &&
                   (int)MMF_GEMM_MULTIPLY == (int)MMF_MULTIPLY &&
                   (int)MMF_GEMM_PREACTIVATION_UP == (int)MMF_PREACTIVATION_UP &&
                   (int)MMF_GEMM_OUT == (int)MMF_OUT,
               "operands");
_Static_assert((int)MMF_GEMM_FLOAT32 == (int)MMF_FLOAT32 &&
                   (int)MMF_GEMM_FLOAT64 == (int)MMF_FLOAT64 &&
                   (int)MMF_GEMM_FLOAT16 == (int)MMF_FLOAT16 &&
                   (int)MMF_GEMM_BFLOAT16 == (int)MMF_BFLOAT16 &&
                   (int)MMF_GEMM_ABSENT == (int)MMF_ABSENT,
               "dtypes");
_Static_assert((int)MMF_GEMM_BATCH == (int)MMF_MAX_BATCH &&
                   sizeof(mmf_gemm_strides) == sizeof(mmf_strides),
               "strides");
_Static_assert(sizeof(mmf_gemm_args) < 4096, "arguments of a kernel");

/* Tiles of one launch: times 1024 threads they stay below the 2^32 that HIP counts. */
enum { MAX_GRID = 1 << 21 };

/* All but first_tile. Returns the number of tiles. */
static int64_t fill(const mmf_problem *p, const mmf_gpu_instance *instance, mmf_gemm_args *args)
{
    int64_t batches = 1, columns = mmf_problem_gated(p) ? instance->tile_n / 2 : instance->tile_n;
    args->m = p->m;
    args->n = p->n;
    args->k = p->k;
    for (int b = 0; b < p->batch_ndim; b++) {
        args->batch_shape[b] = p->batch_shape[b];
        batches *= p->batch_shape[b];
    }
    memcpy(args->strides, p->strides, sizeof args->strides);
    memcpy(args->data, p->data, sizeof args->data);
    memcpy(args->dtype, p->dtype, sizeof args->dtype);
    args->alpha = p->alpha;
    args->beta = p->beta;
    args->parameters[0] = p->parameters[0];
    args->parameters[1] = p->parameters[1];
    args->tiles_m = (p->m + instance->tile_m - 1) / instance->tile_m;
    args->tiles_n = (p->n + columns - 1) / columns;
    args->batch_ndim = p->batch_ndim;
    args->activation = p->activation;
    args->gated = mmf_problem_gated(p);
    return args->tiles_m * args->tiles_n * batches;
}

mmf_status mmf_gpu_launch(const mmf_problem *problem, int instance)
{
    mmf_gpu *gpu;
    mmf_gemm_args args;
    mmf_device_scope scope;
    void *function, *arguments[] = {&args};
    const mmf_gpu_instance *row = &mmf_gpu_instances[instance];
    memset(&args, 0, sizeof args);
    int64_t tiles = fill(problem, row, &args);
    if (tiles == 0)
        return MMF_OK;
    mmf_status status = mmf_gpu_get(problem->device, &gpu);
    if (!status)
        status = mmf_gpu_function(gpu, instance, problem->stream, &function);
    if (status)
        return status;
    const mmf_driver *driver = gpu->driver;
    int code = 0;
    status = mmf_driver_enter(driver, gpu->ordinal, &scope);
    if (status)
        return status;
    for (; !code && args.first_tile < tiles; args.first_tile += MAX_GRID) {
        int64_t left = tiles - args.first_tile;
        code = driver->launch(function, (unsigned)(left < MAX_GRID ? left : MAX_GRID), 1, 1,
                              (unsigned)row->threads, 1, 1, 0, problem->stream, arguments, NULL);
    }
    driver->leave(&scope);
    return code ? mmf_driver_fail(driver, code, MMF_CALL_LAUNCH, gpu->ordinal) : MMF_OK;
}
