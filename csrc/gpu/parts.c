/* The rows of parts.def. Path of a call: see parts.h. */
#include "gpu/parts.h"

#include "gpu/devices.h"
#include "gpu/kernels/common/deal.h"

#include <string.h>

static const mmf_gpu_part parts[] = {
#define MMF_GPU_PART(arch_, die_, other_die, memory_, reached_, cache_, flops_f16, flops_bf16,     \
                     flops_f32, flops_f64, read_, flight_, hertz_, wave_, issue_)                  \
    {.arch = arch_,                                                                                \
     .die = {die_, other_die},                                                                     \
     .memory = memory_,                                                                            \
     .reached = reached_,                                                                          \
     .cache = cache_,                                                                              \
     .flops = {[MMF_FLOAT16] = flops_f16,                                                          \
               [MMF_BFLOAT16] = flops_bf16,                                                        \
               [MMF_FLOAT32] = flops_f32,                                                          \
               [MMF_FLOAT64] = flops_f64},                                                         \
     .read = read_,                                                                                \
     .flight = flight_,                                                                            \
     .hertz = hertz_,                                                                              \
     .wave = wave_,                                                                                \
     .issue = issue_},
#include "gpu/parts.def"
#undef MMF_GPU_PART
};

const mmf_gpu_part *mmf_gpu_part_named(const char *arch)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strncmp(arch, parts[i].arch, strlen(parts[i].arch)))
            return &parts[i];
    return NULL;
}

static const mmf_gpu_part *find(mmf_device device, mmf_gpu **gpu)
{
    return mmf_gpu_get(device, gpu) ? NULL : mmf_gpu_part_named((*gpu)->facts.arch);
}

const mmf_gpu_part *mmf_gpu_part_of(mmf_device device)
{
    mmf_gpu *gpu;
    return find(device, &gpu);
}

double mmf_gpu_bandwidth(mmf_device device)
{
    mmf_gpu *gpu;
    const mmf_gpu_part *part = find(device, &gpu);
    if (!part)
        return 0;
    const double own = gpu->facts.memory;
    return own > 0 && own < part->memory ? part->reached * own / part->memory : part->reached;
}

int mmf_gpu_dies_of(const mmf_gpu_part *part, int units)
{
    for (int i = 0; part && i < 2; i++) {
        const int die = part->die[i];
        if (die && units % die == 0 && units / die <= MMF_DEAL_MOST_DIES)
            return units / die;
    }
    return 1;
}

int mmf_gpu_dies(mmf_device device)
{
    mmf_gpu *gpu;
    const mmf_gpu_part *part = find(device, &gpu);
    return part ? mmf_gpu_dies_of(part, gpu->facts.compute_units) : 1;
}
