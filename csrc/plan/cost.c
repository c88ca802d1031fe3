/* The cost model: a roofline with the figures of the kernel's row. What explain() calls "modelled".
 * Path of a call: off it; explain. */
#include "plan/plan.h"

#include "plan/backends.h"

/* What a kind of device brings besides its kernels' figures. A GPU's are those of a data centre
 * part, assumed, not measured. */
typedef struct device_cost {
    double call_seconds;                             /* fixed cost of a call */
    double bytes_per_second, bytes_per_second_limit; /* of a unit's share, of all units */
} device_cost;

static const device_cost host = {0.2e-6, 15e9, 100e9}, gpu = {5e-6, 20e9, 4000e9};

double mmf_plan_outputs(const mmf_problem *p)
{
    double outputs = (double)p->m * (double)p->n;
    for (int b = 0; b < p->batch_ndim; b++)
        outputs *= (double)p->batch_shape[b];
    return outputs;
}

double mmf_plan_flops(const mmf_problem *p)
{
    return mmf_plan_outputs(p) * 2 * (double)p->k * (mmf_problem_gated(p) ? 2 : 1);
}

/* Bytes of the operand's distinct elements. */
static double operand_bytes(const mmf_problem *p, mmf_operand operand, int64_t rows,
                            int64_t columns)
{
    if (p->dtype[operand] == MMF_ABSENT)
        return 0;
    double bytes = mmf_dtypes[p->dtype[operand]].size;
    const mmf_strides *s = &p->strides[operand];
    bool dense = p->packed && (operand == MMF_B || operand == MMF_B_UP);
    bytes *= dense || s->row ? (double)rows : 1;
    bytes *= dense || s->col ? (double)columns : 1;
    for (int b = 0; b < p->batch_ndim; b++)
        bytes *= s->batch[b] ? (double)p->batch_shape[b] : 1;
    return bytes;
}

double mmf_plan_seconds(const mmf_problem *p, const mmf_plan *plan)
{
    const mmf_kernel_row *row = plan->row;
    double bytes = 0;
    for (int i = 0; i < MMF_OPERANDS; i++) {
        bool is_b = i == MMF_B || i == MMF_B_UP;
        bytes += operand_bytes(p, (mmf_operand)i, is_b ? p->k : p->m, i == MMF_A ? p->k : p->n);
    }
    bool on_host = p->device.type == MMF_CPU;
    const device_cost *device = on_host ? &host : &gpu;
    double units = on_host ? plan->config.threads : mmf_device_units(p->device);
    double gflops =
        mmf_problem_accumulator(p) == MMF_FLOAT64 ? row->gflops_double : row->gflops_float;
    double bandwidth = device->bytes_per_second * units;
    double compute = mmf_plan_flops(p) / (gflops * 1e9 * units);
    double memory =
        bytes /
        (bandwidth < device->bytes_per_second_limit ? bandwidth : device->bytes_per_second_limit);
    return device->call_seconds + (compute > memory ? compute : memory);
}
