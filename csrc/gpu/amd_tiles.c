/* The time of the AMD matrix kernels' tiles. Path of a call: see amd_tiles.h. Modelled by figures
 * that others published, not measured. */
#include "gpu/amd_tiles.h"

#include "gpu/describe.h"
#include "gpu/devices.h"
#include "gpu/epilogue_form.h"
#include "gpu/kernels/common/gemm_args.h"

#include <string.h>

/* Of a compute unit, a cycle: operations of 16 bits, float32, float64 (AMD's peaks), bytes read
 * from LDS; and the clock that products of 16 bits in full tiles leave, which is all that was
 * published. */
typedef struct part {
    const char *arch;
    double flops[3], read, hertz;
} part;

static const part parts[] = {{"gfx950", {4096, 256, 128}, 256, 1.44e9},
                             {"gfx942", {2048, 256, 256}, 128, 1.2e9},
                             {"gfx90a", {1024, 256, 256}, 128, 1.7e9}};

/* Of a compute unit: bytes on their way from memory, the cycles of their way, bytes written to LDS
 * a cycle. Waves of 4 SIMDs, each with 64 x 64 sums or more. */
enum { FLIGHT_BYTES = 44 << 10, FLIGHT = 1000, WRITE = 128, SIMDS = 4, WAVE = 64 };

/* What a tile takes besides its steps: cycles of the way of its first loads; instructions of each
 * wave, and more for each 64 results (bench/AMD_MODEL.md), of which a SIMD issues one in four
 * cycles. */
enum { START = 2000, FIXED = 400, IN_REGISTERS = 6, GENERAL = 60, ISSUE = 4 };

static double beside_steps(const mmf_kernel *kernel, const mmf_problem *p)
{
    const bool general = mmf_gpu_epilogue_form(p, false) == MMF_EPILOGUE_GENERAL;
    const double waves = mmf_gpu_instances[kernel->instance].threads / (double)WAVE / SIMDS;
    const double rows = (double)(p->m < kernel->tile_m ? p->m : kernel->tile_m);
    const int64_t n = p->n * (mmf_problem_gated(p) ? 2 : 1);
    const double groups = rows * (double)(n < kernel->tile_n ? n : kernel->tile_n) / WAVE / SIMDS;
    return START + ISSUE * (FIXED * waves + (general ? GENERAL : IN_REGISTERS) * groups);
}

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

/* Of a compute unit. */
static double most_tiles(const mmf_problem *p, const mmf_work *work)
{
    const double units = mmf_gpu_units(p->device);
    return (double)(int64_t)((work->tiles + units - 1) / units);
}

static void set_cycles(const part *gpu, double cycles, mmf_work *work)
{
    work->tiles = 1;
    work->tile_flops = cycles / gpu->hertz * MMF_AMD_GFLOPS * 1e9;
}

void mmf_amd_tiles_work(double idle, const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    const part *gpu = part_of(p->device);
    if (!gpu)
        return;
    const int threads = mmf_gpu_instances[kernel->instance].threads;
    const double waves = (double)threads / WAVE / SIMDS, lines = kernel->tile_m + kernel->tile_n;
    const int size = mmf_dtypes[p->dtype[MMF_A]].size;
    const double bytes = lines * kernel->tile_k * size; /* of a step of k */
    const double loads = bytes * FLIGHT / FLIGHT_BYTES;
    /* Two phases of products of each wave, which fill the matrix cores but for what is idle. */
    const double products =
        2.0 * kernel->tile_m * kernel->tile_n * kernel->tile_k / gpu->flops[size / 4] +
        2 * waves * idle;
    /* Every wave reads its lines of A and of B. */
    const double reads =
        waves * SIMDS * (64 + 64) * kernel->tile_k * size / gpu->read + bytes / WRITE;
    const double step = greater(products, loads);
    const double most = most_tiles(p, work);
    /* A tile of one wave on a SIMD shares the unit with another one, which multiplies half as fast
     * while this one does something else; or it reads and multiplies in turns. */
    const bool pairs = waves < 2, odd = pairs && (int64_t)most % 2;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const double cycles =
        steps * (odd ? (most - 1) * step + greater(products + reads, loads) : most * step) +
        beside_steps(kernel, p) * (pairs ? (most + 1) / 2 : most);
    set_cycles(gpu, cycles, work);
}

void mmf_amd_thin_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    const part *gpu = part_of(p->device);
    if (!gpu)
        return;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const double lines = kernel->tile_m + kernel->tile_n;
    const double loads = lines * kernel->tile_k * 2 * FLIGHT / FLIGHT_BYTES;
    /* Tiles below each other run on units with other caches: of what they read once more, half of
     * the bytes are counted, for the cache that all share. */
    const double streams = mmf_problem_gated(p) ? 2 : 1;
    const double again = (double)(mmf_gpu_tiles(p->m, kernel->tile_m) - 1) / 2;
    work->bytes = again * (double)mmf_gpu_batches(p) * (double)p->n * streams * (double)p->k * 2;
    /* Several share a unit: the first loads of one come while another one works. */
    const double most = most_tiles(p, work), beside = beside_steps(kernel, p);
    set_cycles(gpu, most * steps * loads + (most + 1) / 2 * beside, work);
}

void mmf_amd_simt_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    const part *gpu = part_of(p->device);
    const mmf_family *family = kernel->family;
    const bool wide = mmf_problem_accumulator(p) == MMF_FLOAT64;
    const double gflops = wide ? family->gflops_double : family->gflops_float;
    if (gpu)
        work->tile_flops += beside_steps(kernel, p) / gpu->hertz * gflops * 1e9;
}
