/* From a kernel descriptor and a launch to the registers that a wave starts with, and the refusals
 * of sizes that the part does not have.
 * Path of a launch: hipsim_run -> here once, then once per wave. */
#include "run.h"

#include <stdio.h>

/* Offsets in the 64-byte descriptor and bits of its words: LLVM's AMDGPUUsage, code object v5. */
enum {
    DESCRIPTOR_LDS = 0,
    DESCRIPTOR_SCRATCH = 4,
    DESCRIPTOR_RSRC3 = 0x2c,
    DESCRIPTOR_RSRC1 = 0x30,
    DESCRIPTOR_RSRC2 = 0x34,
    DESCRIPTOR_PROPERTIES = 0x38,
    DESCRIPTOR_PRELOAD = 0x3a,
};
enum {
    USE_PRIVATE_BUFFER = 1 << 0,
    USE_DISPATCH_POINTER = 1 << 1,
    USE_QUEUE_POINTER = 1 << 2,
    USE_KERNARG = 1 << 3,
    USE_DISPATCH_ID = 1 << 4,
    USE_FLAT_SCRATCH = 1 << 5,
    USE_PRIVATE_SIZE = 1 << 6,
    USE_WAVE32 = 1 << 10,
};

static uint32_t word(const struct launch *launch, unsigned offset)
{
    uint32_t value;
    memcpy(&value, (const void *)(uintptr_t)(launch->kernel->descriptor + offset), sizeof value);
    return value;
}

static bool refuse(struct launch *launch, const char *what, unsigned long long given,
                   unsigned long long limit)
{
    snprintf(launch->sentence, sizeof launch->sentence,
             "kernel %s on %s: %s is %llu, the limit %llu", launch->kernel->name,
             launch->arch->name, what, given, limit);
    return false;
}

/* The waves of a workgroup live at once, on four SIMDs. Registers are allocated 8 at a time on
 * CDNA, 16 on RDNA, 24 where a SIMD has 1536 of them (LLVM's getVGPRAllocGranule). */
static bool fits_registers(struct launch *launch)
{
    const struct hipsim_arch *arch = launch->arch;
    const unsigned simds = 4, lanes = (unsigned)launch->lanes;
    const unsigned most = (unsigned)arch->registers_per_block / simds / lanes;
    const unsigned granule = arch->family <= HIPSIM_CDNA4 ? 8 : most == 1536 ? 24 : 16;
    const unsigned wave = (unsigned)(launch->vgprs + launch->accumulators) + granule - 1;
    const unsigned waves = ((unsigned)launch->waves_per_group + simds - 1) / simds;
    const unsigned needed = waves * (wave - wave % granule);
    return needed <= most || refuse(launch, "registers of a SIMD", needed, most);
}

bool launch_prepare(struct launch *launch)
{
    const struct hipsim_launch *request = launch->request;
    const struct hipsim_arch *arch = launch->arch;
    uint64_t threads = 1;
    launch->groups = 1;
    for (int i = 0; i < 3; i++) {
        if (request->block[i] == 0 || request->grid[i] == 0)
            return refuse(launch, "a grid or block dimension", 0, 1);
        if (request->block[i] > 1024)
            return refuse(launch, "a block dimension", request->block[i], 1024);
        threads *= request->block[i];
        if (launch->groups > UINT64_MAX / request->grid[i])
            return refuse(launch, "the grid", UINT64_MAX, UINT64_MAX);
        launch->groups *= request->grid[i];
    }
    unsigned limit = launch->kernel->max_flat_workgroup_size;
    limit = limit ? limit : 1024;
    if (threads > limit)
        return refuse(launch, "the block's work items", threads, limit);
    launch->lds_bytes = word(launch, DESCRIPTOR_LDS) + request->dynamic_lds;
    if (launch->lds_bytes < request->dynamic_lds || launch->lds_bytes > arch->lds_bytes)
        return refuse(launch, "LDS of a workgroup", launch->lds_bytes, arch->lds_bytes);
    uint32_t scratch = word(launch, DESCRIPTOR_SCRATCH);
    if (scratch)
        return refuse(launch, "scratch (not modelled: spills are refused)", scratch, 0);
    launch->rsrc1 = word(launch, DESCRIPTOR_RSRC1);
    launch->rsrc2 = word(launch, DESCRIPTOR_RSRC2);
    launch->rsrc3 = word(launch, DESCRIPTOR_RSRC3);
    launch->properties = (uint16_t)word(launch, DESCRIPTOR_PROPERTIES);
    launch->preload = (uint16_t)(word(launch, DESCRIPTOR_PROPERTIES) >> 16);
    bool wave32 = launch->properties & USE_WAVE32;
    launch->lanes = wave32 ? 32 : 64;
    if (wave32 != (arch->wavefront_size == 32))
        return refuse(launch, "the wavefront of the code", wave32 ? 32 : 64,
                      (unsigned)arch->wavefront_size);
    launch->vgprs = (int)((launch->rsrc1 & 63) + 1) * 8;
    launch->accumulators = 0;
    if (arch->family <= HIPSIM_CDNA4) { /* one file for both kinds: the offset of the second */
        int vector = (int)((launch->rsrc3 & 63) + 1) * 4;
        launch->accumulators = launch->vgprs > vector ? launch->vgprs - vector : 0;
        launch->vgprs = vector;
    }
    launch->threads = (uint32_t)threads;
    launch->waves_per_group =
        (int)((threads + (unsigned)launch->lanes - 1) / (unsigned)launch->lanes);
    return fits_registers(launch);
}

static unsigned put_pointer(struct wave *w, unsigned at, uint64_t value)
{
    w->s[at] = (uint32_t)value;
    w->s[at + 1] = (uint32_t)(value >> 32);
    return at + 2;
}

static void scalar_start(struct wave *w)
{
    const struct launch *launch = w->group->launch;
    const struct hipsim_launch *request = launch->request;
    uint16_t use = launch->properties;
    unsigned at = use & USE_PRIVATE_BUFFER ? 4 : 0;
    if (use & USE_DISPATCH_POINTER)
        at = put_pointer(w, at, request->dispatch_packet);
    if (use & USE_QUEUE_POINTER)
        at = put_pointer(w, at, 0);
    if (use & USE_KERNARG)
        at = put_pointer(w, at, request->kernarg);
    if (use & USE_DISPATCH_ID)
        at = put_pointer(w, at, 0);
    if (use & USE_FLAT_SCRATCH)
        at = put_pointer(w, at, 0);
    if (use & USE_PRIVATE_SIZE)
        w->s[at++] = 0;
    unsigned count = launch->preload & 127, offset = 4u * (launch->preload >> 7);
    memcpy(&w->s[at], (const uint8_t *)(uintptr_t)request->kernarg + offset, 4 * count);
    at = launch->rsrc2 >> 1 & 31;
    w->scalars_set = at;
    if (launch->arch->family == HIPSIM_RDNA4) {
        w->s[SREG_TTMP0 + 9] = w->group->id[0];
        w->s[SREG_TTMP0 + 7] = w->group->id[1] | w->group->id[2] << 16;
        return;
    }
    for (int i = 0; i < 3; i++)
        if (launch->rsrc2 >> (7 + i) & 1)
            w->s[at++] = w->group->id[i];
    w->scalars_set = at;
}

void wave_start(struct wave *w, struct group *group, int index)
{
    const struct launch *launch = group->launch;
    const uint32_t *block = launch->request->block;
    w->group = group;
    w->thread = group->thread;
    w->index = index;
    w->lanes = launch->lanes;
    w->all = w->lanes == 64 ? UINT64_MAX : UINT32_MAX;
    w->scc = w->done = w->at_barrier = false;
    w->executed = 0;
    w->next = launch->program->ops + launch->program->entry;
    /* Garbage that is a NaN of every float type, so that reading it shows. */
    memset(w->v, 0x7f, (size_t)launch->vgprs * sizeof w->v[0]);
    memset(w->v[AGPR0], 0x7f, (size_t)launch->accumulators * sizeof w->v[0]);
    memset(w->s, 0x7f, sizeof w->s);
    w->s[SREG_NULL] = 0;
    uint32_t left = launch->threads - (uint32_t)(index * w->lanes);
    w->initial_exec = left >= (uint32_t)w->lanes ? w->all : (UINT64_C(1) << left) - 1;
    set_exec(w, w->initial_exec);
    for (int i = 0; i < w->lanes; i++) {
        uint32_t flat = (uint32_t)(index * w->lanes + i);
        uint32_t x = flat % block[0], y = flat / block[0] % block[1],
                 z = flat / block[0] / block[1];
        w->v[0][i] = x | y << 10 | z << 20;
    }
    scalar_start(w);
}
