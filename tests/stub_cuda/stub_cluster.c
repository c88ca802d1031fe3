/* The stand-in driver's tensor maps, dynamic shared memory and launches in clusters. A map holds
 * the address that it was made of, so that a launch can be checked against its operands.
 */
#include "gpu/kernels/nvidia/repack_args.h"
#include "gpu/kernels/nvidia/wgmma_args.h"
#include "stub_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_SHARED = 232448,
    FUNCTION_MAX_DYNAMIC_SHARED = 8,
    LAUNCH_CLUSTER = 4,
    LAUNCH_OVERLAP = 6
};

/* What a map of the stand-in holds. */
typedef struct stub_map {
    void *address;
    uint64_t sizes[3];
} stub_map;

int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill)
{
    int code =
        stub_enter("cuTensorMapEncodeTiled", "(%d, %p, %u x %u)", type, address, box[0], box[1]);
    const uint32_t size = type == 11 ? 4 : 2; /* float32 rounded to 11 bits; float16, bfloat16 */
    bool good = (type == 6 || type == 9 || type == 11) && rank == 3 && (uintptr_t)map % 64 == 0 &&
                address && (uintptr_t)address % 16 == 0 && !interleave && promotion == 3 && !fill &&
                (swizzle == 3 ? box[0] * size <= 128 : !swizzle && box[0] * size % 16 == 0);
    for (int i = 0; i < 3; i++) {
        good = good && sizes[i] && sizes[i] <= UINT64_C(1) << 32 && box[i] && box[i] <= 256 &&
               steps[i] == 1;
        good = good &&
               (i == 2 || (strides[i] && strides[i] % 16 == 0 && strides[i] < UINT64_C(1) << 40));
    }
    if (code || !good)
        return code ? code : STUB_INVALID_VALUE;
    *(stub_map *)map = (stub_map){address, {sizes[0], sizes[1], sizes[2]}};
    return 0;
}

int cuFuncSetAttribute(void *f, int attribute, int value)
{
    function *kernel = f;
    int code = stub_enter("cuFuncSetAttribute", "(%s, %d, %d)", kernel->name, attribute, value);
    if (!code && (attribute != FUNCTION_MAX_DYNAMIC_SHARED || value < 0 || value > MOST_SHARED))
        code = STUB_INVALID_VALUE;
    if (getenv("STUB_CUDA_SLOW_ATTRIBUTE")) /* so that threads meet here */
        usleep(20000);
    if (!code)
        kernel->shared = (unsigned)value;
    return code;
}

/* CUlaunchConfig, and CUlaunchAttribute with the values of the two that are known here. */
typedef struct launch_attribute {
    int id, padding;
    union {
        unsigned cluster[3];
        int overlap;
        char bytes[64];
    };
} launch_attribute;

typedef struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const launch_attribute *attributes;
    unsigned count;
} launch_config;

/* Do the maps of A, B and out, where there are any, name the operands? */
static bool names_operands(const mmf_wgmma_args *args)
{
    const mmf_tensor_map *maps[] = {&args->a, &args->b, &args->b_up, &args->out};
    static const int operands[] = {MMF_GEMM_A, MMF_GEMM_B, MMF_GEMM_B_UP, MMF_GEMM_OUT};
    for (int i = 0; i < 4; i++) {
        const stub_map *map = (const stub_map *)maps[i];
        const bool needed = i < 2 || (i == 2 && args->gemm.gated);
        if ((needed || map->address) && map->address != args->gemm.data[operands[i]])
            return false;
    }
    return true;
}

/* The step repack; its workgroups must be the tiles of its parts. */
static int repack(const mmf_repack_args *args, size_t size, unsigned workgroups)
{
    for (int i = 0; i < MMF_REPACK_PARTS; i++) {
        const mmf_repack_part *p = &args->part[i];
        const unsigned tile_k = p->turned ? MMF_REPACK_TURNED : MMF_REPACK_THREADS;
        const unsigned tile_m = p->turned ? MMF_REPACK_TURNED : MMF_REPACK_LINES;
        if (!p->tiles)
            continue;
        const unsigned of_matrix = p->tiles_k * p->tiles_m, matrices = p->tiles / of_matrix;
        if (p->tiles_k != (p->length + tile_k - 1) / tile_k || p->tiles % of_matrix ||
            p->tiles_m != (p->lines + tile_m - 1) / tile_m || workgroups < p->tiles)
            return STUB_LAUNCH_FAILED;
        workgroups -= p->tiles;
        for (unsigned b = 0; b < matrices; b++)
            for (int64_t m = 0; m < p->lines; m++)
                for (int64_t k = 0; k < p->length; k++)
                    memcpy((char *)p->to + (b * p->matrix + m * p->pitch + k) * (int64_t)size,
                           (const char *)p->from +
                               (b * p->batch + m * p->line + k * p->k) * (int64_t)size,
                           size);
    }
    return workgroups ? STUB_LAUNCH_FAILED : 0;
}

int cuLaunchKernelEx(const launch_config *config, void *f, void **arguments, void **extra)
{
    const function *kernel = f;
    unsigned cluster = 0;
    int code = stub_enter("cuLaunchKernelEx", "(%s, %u, %u, %p)", kernel->name, config->grid[0],
                          config->block[0], config->stream);
    for (unsigned i = 0; i < config->count; i++) {
        if (config->attributes[i].id == LAUNCH_CLUSTER)
            cluster = config->attributes[i].cluster[0];
        else if (config->attributes[i].id != LAUNCH_OVERLAP || config->attributes[i].overlap != 1)
            code = code ? code : STUB_INVALID_VALUE;
    }
    if (!code)
        code = stub_check_stream(config->stream);
    if (!code && kernel->module->context != stub_current())
        code = STUB_INVALID_HANDLE;
    if (!code && (!cluster || cluster > 8 || !config->grid[0] || config->grid[0] % cluster ||
                  config->grid[1] != 1 || config->shared > kernel->shared || extra || !arguments))
        code = STUB_INVALID_VALUE;
    if (code || stub_is_capturing(config->stream))
        return code;
    if (strncmp(kernel->name, "repack_", 7) == 0)
        return repack(arguments[0], strstr(kernel->name, "_f32_") ? 4 : 2, config->grid[0]);
    const mmf_wgmma_args *args = arguments[0];
    code = stub_check_arguments(&args->gemm);
    if (!code && !strncmp(kernel->name, "gemm_gemv_stream_", 17)) /* workgroups stay */
        return stub_run_clusters(kernel->name, &args->gemm, config->block[0]);
    /* Others have the first field alone, and a cluster for each tile. */
    if (!code && strncmp(kernel->name, "gemm_wgmma_", 11))
        return stub_run(kernel->name, &args->gemm, config->grid[0] / cluster, config->grid[1],
                        config->block[0]);
    if (!code && (!names_operands(args) || 1u << args->cluster_log != cluster || !args->group_rows))
        code = STUB_LAUNCH_FAILED;
    return code ? code : stub_run_clusters(kernel->name, &args->gemm, config->block[0]);
}
