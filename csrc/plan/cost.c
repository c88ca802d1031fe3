/* The cost model, by the figures of the kernel's family: on a GPU a roofline of whole tiles, at
 * least one wave of them; on a CPU a sum. Path of a call: the choice among kernels compares them by
 * it; explain shows it. */
#include "plan/plan.h"

#include "plan/backends.h"

/* What GPUs bring besides their kernels' figures: assumed, not measured; what all units of a known
 * one reach, gpu/parts.def says. */
#define GPU_CALL_SECONDS 5e-6
#define GPU_BYTES_PER_SECOND 30e9 /* a unit's share, and */
#define GPU_BYTES_LIMIT 4000e9    /* of all units */
/* Of the shorter of computing and memory; the longer hides the rest. */
#define GPU_EXPOSED (1. / 16)

/* The same of CPUs, fitted to bench_explain.py on a Xeon with AMX; a unit is a thread, which reads
 * at mmf_host_bandwidth(). */
#define CPU_CALL_SECONDS 1.6e-6
#define CPU_WAKE_SECONDS 3e-6 /* of threads */
#define CPU_BYTES_LIMIT 100e9
#define CPU_CACHED_BYTES (1 << 20) /* operands that stay in caches, and */
#define CPU_CACHED_BYTES_PER_SECOND 60e9
#define CPU_ACTIVATION_SECONDS 0.5e-9 /* of one output, but for relu */

static double batches_of(const mmf_problem *p)
{
    double batches = 1;
    for (int b = 0; b < p->batch_ndim; b++)
        batches *= (double)p->batch_shape[b];
    return batches;
}

double mmf_plan_outputs(const mmf_problem *p)
{
    return (double)p->m * (double)p->n * batches_of(p);
}

double mmf_plan_flops(const mmf_problem *p)
{
    return mmf_plan_outputs(p) * 2 * (double)p->k * (mmf_problem_gated(p) ? 2 : 1);
}

/* Bytes of the operand's distinct elements. */
static double operand_bytes(const mmf_problem *p, int operand)
{
    const mmf_axes axes = (mmf_axes)mmf_operands[operand].axes;
    const int64_t rows = axes == MMF_AXES_KN ? p->k : p->m;
    const int64_t columns = axes == MMF_AXES_MK ? p->k : p->n;
    if (p->dtype[operand] == MMF_ABSENT)
        return 0;
    double bytes = mmf_dtypes[p->dtype[operand]].size;
    const mmf_strides *s = &p->strides[operand];
    bool dense = p->packed && axes == MMF_AXES_KN;
    bytes *= dense || s->row ? (double)rows : 1;
    bytes *= dense || s->col ? (double)columns : 1;
    for (int b = 0; b < p->batch_ndim; b++)
        bytes *= s->batch[b] ? (double)p->batch_shape[b] : 1;
    return bytes;
}

double mmf_plan_bytes(const mmf_problem *p)
{
    double bytes = 0;
    for (int i = 0; i < MMF_OPERANDS; i++)
        bytes += operand_bytes(p, i);
    return bytes;
}

double mmf_plan_units(mmf_device device)
{
    return device.type == MMF_CPU ? 1 : mmf_device_units(device);
}

static double count_blocks(int64_t length, double block)
{
    const double blocks = (double)length / block;
    return blocks <= 1 ? 1 : (double)(int64_t)blocks + ((double)(int64_t)blocks < blocks);
}

/* The whole tiles of a GPU's kernel, and what its family says besides. */
static mmf_work work_of(const mmf_problem *p, const mmf_kernel *kernel)
{
    const int streams = mmf_problem_gated(p) ? 2 : 1;
    mmf_work work = {.tiles = count_blocks(p->m, kernel->tile_m) *
                              count_blocks(p->n * streams, kernel->tile_n) * batches_of(p),
                     .tile_flops = 2.0 * kernel->tile_m * kernel->tile_n * (double)p->k,
                     .launches = 1};
    if (kernel->family->work)
        kernel->family->work(kernel, p, &work);
    return work;
}

double mmf_plan_gflops(const mmf_problem *p, const mmf_kernel *kernel)
{
    const mmf_family *family = kernel->family;
    if (mmf_problem_accumulator(p) == MMF_FLOAT64)
        return family->rate ? family->rate(p) / 2 : family->gflops_double;
    return family->rate ? family->rate(p) : family->gflops_float;
}

/* Packing, computing and storing take turns: nothing hides anything. */
static double cpu_seconds(const mmf_problem *p, double gflops, double threads, double bytes)
{
    double seconds = CPU_CALL_SECONDS + (threads > 1 ? CPU_WAKE_SECONDS : 0);
    double bandwidth = threads * mmf_host_bandwidth();
    if (bandwidth > CPU_BYTES_LIMIT)
        bandwidth = CPU_BYTES_LIMIT;
    if (bytes <= CPU_CACHED_BYTES)
        bandwidth = threads * CPU_CACHED_BYTES_PER_SECOND;
    if (p->activation != MMF_ACT_NONE && p->activation != MMF_ACT_RELU)
        seconds += mmf_plan_outputs(p) * CPU_ACTIVATION_SECONDS / threads;
    return seconds + mmf_plan_flops(p) / (threads * gflops * 1e9) + bytes / bandwidth;
}

double mmf_plan_seconds(const mmf_problem *p, const mmf_kernel *kernel, double units, double bytes)
{
    const double gflops = mmf_plan_gflops(p, kernel);
    if (p->device.type == MMF_CPU)
        return cpu_seconds(p, gflops, units, bytes);
    double bandwidth = GPU_BYTES_PER_SECOND * units, flops = mmf_plan_flops(p) / units;
    double fixed = GPU_CALL_SECONDS, limit = mmf_device_bandwidth(p->device);
    limit = limit > 0 ? limit : GPU_BYTES_LIMIT;
    if (bandwidth > limit)
        bandwidth = limit;
    if (units > 0) {
        const mmf_work work = work_of(p, kernel);
        const double waves = work.tiles <= units ? 1 : work.tiles / units;
        flops = waves * work.tile_flops; /* that a unit is busy with: one whole tile at least */
        bytes += work.bytes;
        fixed += (work.launches - 1) * MMF_LAUNCH_SECONDS;
    }
    const double compute = flops / (gflops * 1e9), memory = bytes / bandwidth;
    return fixed +
           (compute > memory ? compute + memory * GPU_EXPOSED : memory + compute * GPU_EXPOSED);
}
