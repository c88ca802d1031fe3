/* prepack() and unpack() on a GPU: one launch of reorder.hip. Not on the path of a call. */
#include "gpu/reorder.h"

#include "gpu/gemm.h"

#include <string.h>

enum { ALIGN = 64 }; /* bytes: a column begins with a line of the caches */

int64_t mmf_gpu_columns_pitch(mmf_dtype dtype, int64_t k)
{
    const int64_t size = mmf_dtypes[dtype].size;
    return (k * size + ALIGN - 1) / ALIGN * ALIGN / size;
}

int64_t mmf_gpu_columns_bytes(mmf_dtype dtype, int64_t k, int64_t n)
{
    return n * mmf_gpu_columns_pitch(dtype, k) * mmf_dtypes[dtype].size;
}

static int instance_of(mmf_dtype dtype)
{
    return mmf_dtypes[dtype].size == 8   ? MMF_GPU_reorder_64x64x1_f64_any
           : mmf_dtypes[dtype].size == 4 ? MMF_GPU_reorder_64x64x1_f32_any
                                         : MMF_GPU_reorder_64x64x1_f16_any;
}

mmf_status mmf_gpu_check_columns(mmf_device device, mmf_dtype dtype)
{
    const mmf_problem problem = {.device = device};
    char reason[MMF_REASON_TEXT];
    if (mmf_gpu_gemm_has(&problem, instance_of(dtype), reason))
        return MMF_OK;
    return mmf_fail(MMF_NOT_IMPLEMENTED, "B cannot be prepacked: %s", reason);
}

static mmf_status copy(const mmf_weight *w, const void *from, mmf_strides from_strides, void *to,
                       mmf_strides to_strides)
{
    mmf_problem problem = {.m = w->k, .n = w->n, .k = 1, .device = w->device};
    mmf_buffers buffers = {.stream = w->stream};
    mmf_config config = {0};
    memset(problem.dtype, MMF_ABSENT, sizeof problem.dtype);
    problem.dtype[MMF_A] = problem.dtype[MMF_OUT] = (uint8_t)w->dtype;
    problem.strides[MMF_A] = from_strides;
    problem.strides[MMF_OUT] = to_strides;
    buffers.data[MMF_A] = (void *)(uintptr_t)from;
    buffers.data[MMF_OUT] = to;
    mmf_launch_plan *plan = mmf_launch_plan_begin(&config);
    mmf_gpu_gemm_add(plan, instance_of(w->dtype), &problem, true);
    plan->bind = mmf_gpu_gemm_bind_one;
    return mmf_launch_plan_run(&problem, &config, &buffers);
}

mmf_status mmf_gpu_pack_columns(const mmf_weight *w, void *columns)
{
    const mmf_strides packed = {.row = 1, .col = mmf_gpu_columns_pitch(w->dtype, w->k)};
    return copy(w, w->data, (mmf_strides){.row = w->row, .col = w->col}, columns, packed);
}

mmf_status mmf_gpu_unpack_columns(const mmf_weight *w, const void *columns)
{
    const mmf_strides packed = {.row = 1, .col = mmf_gpu_columns_pitch(w->dtype, w->k)};
    return copy(w, columns, packed, w->data, (mmf_strides){.row = w->row, .col = w->col});
}
