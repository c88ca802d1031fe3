/* The parts that can be simulated: one row each, sizes as the real part's HIP runtime reports them
 * (AMD's architecture pages and LLVM's AMDGPUUsage; docs/amd_gpus.md). */
#include "machine.h"

#include <string.h>

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

static const struct hipsim_arch parts[] = {
    {.name = "gfx942",
     .gcn_arch_name = "gfx942:sramecc+:xnack-",
     .marketing_name = "AMD Instinct MI300X",
     .family = HIPSIM_CDNA3,
     .elf_machine = 0x4c,
     .major = 9,
     .minor = 4,
     .wavefront_size = 64,
     .compute_units = 304,
     .max_threads_per_block = 1024,
     .max_threads_per_cu = 2048,
     .clock_khz = 2100000,
     .memory_clock_khz = 1300000,
     .memory_bus_bits = 8192,
     .lds_bytes = 65536,
     .l2_bytes = 4 * MIB,
     .memory_bytes = 192 * GIB,
     .registers_per_block = 131072,
     .vgpr_budget = 512},
    {.name = "gfx950",
     .gcn_arch_name = "gfx950:sramecc+:xnack-",
     .marketing_name = "AMD Instinct MI355X",
     .family = HIPSIM_CDNA4,
     .elf_machine = 0x4f,
     .major = 9,
     .minor = 5,
     .wavefront_size = 64,
     .compute_units = 256,
     .max_threads_per_block = 1024,
     .max_threads_per_cu = 2048,
     .clock_khz = 2400000,
     .memory_clock_khz = 2000000,
     .memory_bus_bits = 8192,
     .lds_bytes = 163840,
     .l2_bytes = 4 * MIB,
     .memory_bytes = 288 * GIB,
     .registers_per_block = 131072,
     .vgpr_budget = 512},
    {.name = "gfx90a",
     .gcn_arch_name = "gfx90a:sramecc+:xnack-",
     .marketing_name = "AMD Instinct MI210",
     .family = HIPSIM_CDNA2,
     .elf_machine = 0x3f,
     .major = 9,
     .minor = 0,
     .wavefront_size = 64,
     .compute_units = 104,
     .max_threads_per_block = 1024,
     .max_threads_per_cu = 2048,
     .clock_khz = 1700000,
     .memory_clock_khz = 1600000,
     .memory_bus_bits = 4096,
     .lds_bytes = 65536,
     .l2_bytes = 8 * MIB,
     .memory_bytes = 64 * GIB,
     .registers_per_block = 131072,
     .vgpr_budget = 512},
    /* No kernel of ours is built for this one, and none can run: what a GPU without code is told.
     */
    {.name = "gfx906",
     .gcn_arch_name = "gfx906:sramecc+:xnack-",
     .marketing_name = "AMD Instinct MI50",
     .family = HIPSIM_CDNA2,
     .elf_machine = 0x2f,
     .major = 9,
     .minor = 0,
     .wavefront_size = 64,
     .compute_units = 60,
     .max_threads_per_block = 1024,
     .max_threads_per_cu = 2048,
     .clock_khz = 1725000,
     .memory_clock_khz = 1000000,
     .memory_bus_bits = 4096,
     .lds_bytes = 65536,
     .l2_bytes = 4 * MIB,
     .memory_bytes = 16 * GIB,
     .registers_per_block = 65536,
     .vgpr_budget = 256},
    {.name = "gfx1100",
     .gcn_arch_name = "gfx1100",
     .marketing_name = "AMD Radeon RX 7900 XTX",
     .family = HIPSIM_RDNA3,
     .elf_machine = 0x41,
     .major = 11,
     .minor = 0,
     .wavefront_size = 32,
     .compute_units = 48,
     .max_threads_per_block = 1024,
     .max_threads_per_cu = 2048,
     .clock_khz = 2500000,
     .memory_clock_khz = 1249000,
     .memory_bus_bits = 384,
     .lds_bytes = 65536,
     .l2_bytes = 6 * MIB,
     .memory_bytes = 24 * GIB,
     .registers_per_block = 196608,
     .vgpr_budget = 256},
    {.name = "gfx1201",
     .gcn_arch_name = "gfx1201",
     .marketing_name = "AMD Radeon RX 9070 XT",
     .family = HIPSIM_RDNA4,
     .elf_machine = 0x4e,
     .major = 12,
     .minor = 0,
     .wavefront_size = 32,
     .compute_units = 32,
     .max_threads_per_block = 1024,
     .max_threads_per_cu = 2048,
     .clock_khz = 2970000,
     .memory_clock_khz = 1258000,
     .memory_bus_bits = 256,
     .lds_bytes = 65536,
     .l2_bytes = 8 * MIB,
     .memory_bytes = 16 * GIB,
     .registers_per_block = 196608,
     .vgpr_budget = 256},
};
#define PARTS (int)(sizeof parts / sizeof *parts)

const struct hipsim_arch *hipsim_arch_at(int index)
{
    return index >= 0 && index < PARTS ? &parts[index] : NULL;
}

const struct hipsim_arch *hipsim_arch_find(const char *name)
{
    size_t length = strcspn(name, ":");
    for (int i = 0; i < PARTS; i++)
        if (strlen(parts[i].name) == length && strncmp(parts[i].name, name, length) == 0)
            return &parts[i];
    return NULL;
}
