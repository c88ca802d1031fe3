/* The time of the AMD matrix kernels' tiles. Path of a call: see amd_tiles.h. Modelled by figures
 * that others published, not measured. */
#include "gpu/amd_tiles.h"

#include "gpu/describe.h"
#include "gpu/devices.h"

#include <string.h>

/* Of a compute unit, a cycle: operations of 16 bits, bytes read from LDS; and the clock that
 * products of full tiles leave. */
typedef struct part {
    const char *arch;
    double flops, read, hertz;
} part;

static const part parts[] = {{"gfx950", 4096, 256, 1.44e9}, {"gfx942", 2048, 128, 1.2e9}};

/* Of a compute unit: bytes on their way from memory, the cycles of their way, bytes written to LDS
 * a cycle. Waves of 4 SIMDs, each with 64 x 64 sums or more. */
enum { FLIGHT_BYTES = 44 << 10, FLIGHT = 1000, WRITE = 128, SIMDS = 4, WAVE = 64 };

static const part *part_of(mmf_device device)
{
    mmf_gpu *gpu;
    if (mmf_gpu_get(device, &gpu))
        return NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strncmp(gpu->facts.arch, parts[i].arch, strlen(parts[i].arch)))
            return &parts[i];
    return NULL;
}

static double greater(double a, double b)
{
    return a > b ? a : b;
}

void mmf_amd_tiles_work(double idle, const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    const part *gpu = part_of(p->device);
    if (!gpu)
        return;
    const double units = mmf_gpu_units(p->device);
    const int threads = mmf_gpu_instances[kernel->instance].threads;
    const double waves = (double)threads / WAVE / SIMDS, lines = kernel->tile_m + kernel->tile_n;
    const double bytes = lines * kernel->tile_k * 2; /* of a step of k */
    const double loads = bytes * FLIGHT / FLIGHT_BYTES;
    /* Two phases of products of each wave, which fill the matrix cores but for what is idle. */
    const double products =
        2.0 * kernel->tile_m * kernel->tile_n * kernel->tile_k / gpu->flops + 2 * waves * idle;
    /* Every wave reads its lines of A and of B. */
    const double reads = waves * SIMDS * (64 + 64) * kernel->tile_k * 2 / gpu->read + bytes / WRITE;
    const double step = greater(products, loads);
    const double most = (double)(int64_t)((work->tiles + units - 1) / units);
    /* A tile of one wave on a SIMD shares the unit with another one, or reads and multiplies in
     * turns. */
    const bool odd = waves < 2 && (int64_t)most % 2;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const double cycles =
        steps * (odd ? (most - 1) * step + greater(products + reads, loads) : most * step);
    work->tiles = 1;
    work->tile_flops = cycles / gpu->hertz * MMF_AMD_GFLOPS * 1e9;
}
