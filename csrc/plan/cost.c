/* The cost model: a roofline with figures per kernel row. What explain() calls "modelled". */
#include "plan/plan.h"

#include "plan/backends.h"

#include <string.h>

/* Figures of one unit: a thread on a 2.5-3.5 GHz core, a compute unit of a data centre GPU
 * (assumed, not measured). Scaled by units, bytes up to the memory's limit. */
typedef struct cost_row {
    const char *kernel;
    double gflops32, gflops64; /* sustained products per accumulator type, 1e9 flop/s */
    double call_seconds;       /* fixed cost of a call */
    double bytes, bytes_limit; /* per second */
} cost_row;

static const cost_row costs[] = {
    {"cpu_blocked_avx2", 60, 30, 0.2e-6, 15e9, 100e9}, {"cpu_blocked", 15, 7, 0.2e-6, 15e9, 100e9},
    {"cpu_reference", 0.5, 0.5, 0.2e-6, 15e9, 100e9},  {"gemm_mfma", 1500, 0, 5e-6, 20e9, 4000e9},
    {"gemm_simt", 100, 50, 5e-6, 20e9, 4000e9},
};

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
    const cost_row *cost = costs;
    while (strcmp(cost->kernel, plan->row->name))
        cost++;
    double bytes = 0;
    for (int i = 0; i < MMF_OPERANDS; i++) {
        bool is_b = i == MMF_B || i == MMF_B_UP;
        bytes += operand_bytes(p, (mmf_operand)i, is_b ? p->k : p->m, i == MMF_A ? p->k : p->n);
    }
    double units = p->device.type == MMF_CPU ? plan->config.threads : mmf_device_units(p->device);
    double gflops = mmf_problem_accumulator(p) == MMF_FLOAT64 ? cost->gflops64 : cost->gflops32;
    double bandwidth = cost->bytes * units;
    double compute = mmf_plan_flops(p) / (gflops * 1e9 * units);
    double memory = bytes / (bandwidth < cost->bytes_limit ? bandwidth : cost->bytes_limit);
    return cost->call_seconds + (compute > memory ? compute : memory);
}
