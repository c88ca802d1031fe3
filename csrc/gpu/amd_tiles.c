/* The time of the AMD matrix kernels' tiles. Path of a call: see amd_tiles.h. Modelled by figures
 * that others published, not measured. */
#include "gpu/amd_tiles.h"

#include "gpu/describe.h"
#include "gpu/devices.h"
#include "gpu/epilogue_form.h"
#include "gpu/kernels/common/gemm_args.h"

#include <math.h>
#include <string.h>

/* Of a compute unit, a cycle: operations of 16 bits, float32, float64 (AMD's peaks), bytes read
 * from LDS; cycles that loads are on their way, more where more units share an L2
 * (docs/amd_gpus.md); the clock that products of 16 bits in full tiles leave, which is all that was
 * published; lanes of a wave, and cycles of a SIMD from one of its instructions to the next one.
 * What HIP counts as a compute unit of RDNA are two of AMD's, with 4 SIMDs like one of CDNA; their
 * clock is the nominal one. */
typedef struct part {
    const char *arch;
    double flops[3], read, flight, hertz;
    int wave, issue;
} part;

static const part parts[] = {{"gfx950", {4096, 256, 128}, 256, 1000, 1.44e9, 64, 4},
                             {"gfx942", {2048, 256, 256}, 128, 1000 * 38. / 32, 1.2e9, 64, 4},
                             {"gfx90a", {1024, 256, 256}, 128, 1000, 1.7e9, 64, 4},
                             {"gfx1100", {2 * 512}, 2 * 128, 1000, 2.5e9, 32, 1},
                             {"gfx1101", {2 * 512}, 2 * 128, 1000, 2.43e9, 32, 1},
                             {"gfx1102", {2 * 512}, 2 * 128, 1000, 2.655e9, 32, 1},
                             {"gfx1151", {2 * 512}, 2 * 128, 1000, 2.9e9, 32, 1},
                             {"gfx1200", {2 * 1024}, 2 * 128, 1000, 3.13e9, 32, 1},
                             {"gfx1201", {2 * 1024}, 2 * 128, 1000, 2.97e9, 32, 1}};

/* Of a compute unit: bytes on their way from memory, bytes written to LDS a cycle; figures of CDNA,
 * taken for all. Waves of 4 SIMDs, each with sums of 64 columns. */
enum { FLIGHT_BYTES = 44 << 10, WRITE = 128, SIMDS = 4, COLUMNS = 64 };

/* What a tile takes besides its steps: cycles of the way of its first loads; instructions of each
 * wave, and more for each result of all lanes (bench/AMD_MODEL.md). */
enum { START = 2000, FIXED = 400, IN_REGISTERS = 6, GENERAL = 60 };

static double beside_steps(const part *gpu, const mmf_kernel *kernel, const mmf_problem *p)
{
    const bool general = mmf_gpu_epilogue_form(p, false) == MMF_EPILOGUE_GENERAL;
    const double waves = mmf_gpu_instances[kernel->instance].threads / (double)gpu->wave / SIMDS;
    const double rows = (double)(p->m < kernel->tile_m ? p->m : kernel->tile_m);
    const int64_t n = p->n * (mmf_problem_gated(p) ? 2 : 1);
    const double results = rows * (double)(n < kernel->tile_n ? n : kernel->tile_n);
    const double groups = results / gpu->wave / SIMDS;
    return START + gpu->issue * (FIXED * waves + (general ? GENERAL : IN_REGISTERS) * groups);
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

/* Cycles of what goes on at once, unevenly: the longer one, and more if they are alike. */
static double together(double products, double loads)
{
    const double power = 4.5; /* docs/amd_gpus.md */
    return pow(pow(products, power) + pow(loads, power), 1 / power);
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
    const double waves = (double)threads / gpu->wave / SIMDS,
                 lines = kernel->tile_m + kernel->tile_n;
    const int size = mmf_dtypes[p->dtype[MMF_A]].size;
    const double bytes = lines * kernel->tile_k * size; /* of a step of k */
    const double loads = bytes * gpu->flight / FLIGHT_BYTES;
    /* Two phases of products of each wave, which fill the matrix cores but for what is idle. */
    const double sums = (double)kernel->tile_m * kernel->tile_n;
    const double products = 2 * sums * kernel->tile_k / gpu->flops[size / 4] + 2 * waves * idle;
    /* Every wave reads its lines of A and of B. */
    const double rows = sums / COLUMNS;
    const double reads =
        (waves * SIMDS * COLUMNS + rows) * kernel->tile_k * size / gpu->read + bytes / WRITE;
    const double step = together(fmax(products, reads), loads);
    const double most = most_tiles(p, work);
    /* Tiles of one wave on a SIMD, or of two on all four, share the unit with others, which
     * multiply while this one does something else. Of the last ones a SIMD has one wave, which
     * reads and multiplies in turns, or two. */
    const int held = waves < 1 ? 4 : waves < 2 ? 2 : 1;
    const double rest = (double)((int64_t)most % held);
    const double busy = rest <= held / 2 ? products / fmin(waves, 1) + rest * reads
                                         : fmax(held * products, rest * reads);
    const double last = together(busy, rest * loads);
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const double cycles = steps * ((most - rest) * step + (rest > 0 ? last : 0)) +
                          beside_steps(gpu, kernel, p) * (most + held - 1) / held;
    set_cycles(gpu, cycles, work);
}

void mmf_amd_thin_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    const part *gpu = part_of(p->device);
    if (!gpu)
        return;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const double lines = kernel->tile_m + kernel->tile_n;
    const double loads = lines * kernel->tile_k * 2 * gpu->flight / FLIGHT_BYTES;
    /* Tiles below each other run on units with other caches: of what they read once more, half of
     * the bytes are counted, for the cache that all share. */
    const double streams = mmf_problem_gated(p) ? 2 : 1;
    const double again = (double)(mmf_gpu_tiles(p->m, kernel->tile_m) - 1) / 2;
    work->bytes = again * (double)mmf_gpu_batches(p) * (double)p->n * streams * (double)p->k * 2;
    /* Several share a unit: the first loads of one come while another one works. */
    const double most = most_tiles(p, work), beside = beside_steps(gpu, kernel, p);
    set_cycles(gpu, most * steps * loads + (most + 1) / 2 * beside, work);
}

void mmf_amd_gemv_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    const part *gpu = part_of(p->device);
    if (!gpu)
        return;
    /* The waves of a workgroup read the same rows of A: once. */
    const int size = mmf_dtypes[p->dtype[MMF_A]].size;
    const double lines = kernel->tile_n + (double)p->m, k = (double)p->k;
    const double loads = lines * k * size * gpu->flight / FLIGHT_BYTES;
    /* Instructions for an element of B: to float, and products, of which CDNA has two at once. */
    const double each = (size == 2) + kernel->tile_m * (gpu->wave == 64 ? 0.5 : 1);
    const double products = kernel->tile_n * k * each / gpu->wave / SIMDS * gpu->issue;
    const double most = most_tiles(p, work), beside = beside_steps(gpu, kernel, p);
    set_cycles(gpu, most * together(products, loads) + (most + 1) / 2 * beside, work);
}

void mmf_amd_simt_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    const part *gpu = part_of(p->device);
    const mmf_family *family = kernel->family;
    const bool wide = mmf_problem_accumulator(p) == MMF_FLOAT64;
    const double gflops = wide ? family->gflops_double : family->gflops_float;
    if (gpu)
        work->tile_flops += beside_steps(gpu, kernel, p) / gpu->hertz * gflops * 1e9;
}
