/* prepack() and unpack() on a GPU: one launch of reorder.hip. Not on the path of a call. */
#include "gpu/reorder.h"

#include "gpu/gemm.h"

#include <stdio.h>
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

int64_t mmf_gpu_preshuffled_bytes(mmf_dtype dtype, int64_t k, int64_t n)
{
    return k * n * mmf_dtypes[dtype].size;
}

static int instance_of(mmf_dtype dtype)
{
    return mmf_dtypes[dtype].size == 8   ? MMF_GPU_reorder_64x64x1_f64_any
           : mmf_dtypes[dtype].size == 4 ? MMF_GPU_reorder_64x64x1_f32_any
                                         : MMF_GPU_reorder_64x64x1_f16_any;
}

mmf_status mmf_gpu_check_columns(mmf_device device, mmf_dtype dtype, const char *name)
{
    const mmf_problem problem = {.device = device};
    char reason[MMF_REASON_TEXT];
    if (mmf_gpu_gemm_has(&problem, instance_of(dtype), reason))
        return MMF_OK;
    return mmf_fail(MMF_NOT_IMPLEMENTED, "%s cannot be prepacked: %s", name, reason);
}

/* Does a kernel that has code for the GPU read preshuffled weights? */
static bool reads_preshuffled(mmf_device device, mmf_dtype dtype)
{
    const mmf_problem problem = {.device = device};
    char reason[MMF_REASON_TEXT];
    bool found = false;
    for (int i = 0; device.type == MMF_ROCM && !found && i < MMF_GPU_INSTANCES; i++) {
        const mmf_gpu_instance *row = &mmf_gpu_instances[i];
        found = row->kernel && row->layout == MMF_GPU_LAYOUT_NP && row->operands == dtype &&
                mmf_gpu_gemm_has(&problem, i, reason);
    }
    return found;
}

mmf_status mmf_gpu_check_preshuffled(mmf_device device, mmf_dtype dtype, const char *name)
{
    char text[24], arch[40] = "";
    mmf_gpu *gpu;
    if (reads_preshuffled(device, dtype))
        return MMF_OK;
    if (device.type == MMF_ROCM && mmf_gpu_get(device, &gpu) == MMF_OK)
        snprintf(arch, sizeof arch, " (%s)", gpu->facts.arch);
    return mmf_fail(MMF_NOT_IMPLEMENTED,
                    "%s: this build has no kernel for %s%s that reads %s in layout "
                    "\"preshuffle_16x16\", which is of AMD's gfx90a (bfloat16), gfx942 and gfx950; "
                    "use prepack(B), or the plain weight",
                    name, mmf_device_name(device, text), arch, mmf_dtypes[dtype].name);
}

/* Sides have strides; of the instance of layout NP one does not: the source, or the copy. */
static mmf_status copy(const mmf_weight *w, int instance, bool shuffled_source, const void *from,
                       mmf_strides from_strides, void *to, mmf_strides to_strides)
{
    mmf_problem problem = {.m = w->k, .n = w->n, .k = !shuffled_source, .device = w->device};
    mmf_buffers buffers = {.stream = w->stream};
    mmf_config config = {0};
    memset(problem.dtype, MMF_ABSENT, sizeof problem.dtype);
    problem.dtype[MMF_A] = problem.dtype[MMF_OUT] = (uint8_t)w->dtype;
    problem.strides[MMF_A] = from_strides;
    problem.strides[MMF_OUT] = to_strides;
    buffers.data[MMF_A] = (void *)(uintptr_t)from;
    buffers.data[MMF_OUT] = to;
    mmf_launch_plan *plan = mmf_launch_plan_begin(&config);
    mmf_gpu_gemm_add(plan, instance, &problem, true);
    plan->bind = mmf_gpu_gemm_bind_one;
    return mmf_launch_plan_run(&problem, &config, &buffers);
}

static mmf_strides plain_strides(const mmf_weight *w)
{
    return (mmf_strides){.row = w->row, .col = w->col};
}

mmf_status mmf_gpu_pack_columns(const mmf_weight *w, void *columns)
{
    const mmf_strides packed = {.row = 1, .col = mmf_gpu_columns_pitch(w->dtype, w->k)};
    return copy(w, instance_of(w->dtype), false, w->data, plain_strides(w), columns, packed);
}

mmf_status mmf_gpu_unpack_columns(const mmf_weight *w, const void *columns)
{
    const mmf_strides packed = {.row = 1, .col = mmf_gpu_columns_pitch(w->dtype, w->k)};
    return copy(w, instance_of(w->dtype), false, columns, packed, w->data, plain_strides(w));
}

mmf_status mmf_gpu_preshuffle(const mmf_weight *w, void *shuffled)
{
    return copy(w, MMF_GPU_reorder_64x64x1_bf16_np, false, w->data, plain_strides(w), shuffled,
                (mmf_strides){0});
}

mmf_status mmf_gpu_unshuffle(const mmf_weight *w, const void *shuffled)
{
    return copy(w, MMF_GPU_reorder_64x64x1_bf16_np, true, shuffled, (mmf_strides){0}, w->data,
                plain_strides(w));
}
