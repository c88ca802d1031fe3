/* The time of the AMD matrix kernels' tiles. Path of a call: see amd_tiles.h. Modelled by figures
 * that others published, not measured. */
#include "gpu/amd_tiles.h"

#include "gpu/describe.h"
#include "gpu/epilogue_form.h"
#include "gpu/kernels/common/gemm_args.h"
#include "gpu/parts.h"

#include <math.h>

/* Of a compute unit: bytes on their way from memory, bytes written to LDS a cycle; figures of CDNA,
 * taken for all. Waves of 4 SIMDs, each with sums of 64 columns, of 192 96. */
enum { FLIGHT_BYTES = 44 << 10, WRITE = 128, SIMDS = 4, COLUMNS = 64 };

/* What a tile takes besides its steps: cycles of the way of its first loads; instructions of each
 * wave, and more for each result of all lanes (bench/AMD_MODEL.md). */
enum { START = 2000, FIXED = 400, IN_REGISTERS = 6, GENERAL = 60 };

static double beside_steps(const mmf_gpu_part *gpu, const mmf_kernel *kernel, const mmf_problem *p)
{
    const bool general = mmf_gpu_epilogue_form(p, false) == MMF_EPILOGUE_GENERAL;
    const double waves = mmf_gpu_instances[kernel->instance].threads / (double)gpu->wave / SIMDS;
    const double rows = (double)(p->m < kernel->tile_m ? p->m : kernel->tile_m);
    const int64_t n = p->n * (mmf_problem_gated(p) ? 2 : 1);
    const double results = rows * (double)(n < kernel->tile_n ? n : kernel->tile_n);
    const double groups = results / gpu->wave / SIMDS;
    return START + gpu->issue * (FIXED * waves + (general ? GENERAL : IN_REGISTERS) * groups);
}

/* The row of a device, if it has figures of tiles. */
static const mmf_gpu_part *part_of(mmf_device device)
{
    const mmf_gpu_part *part = mmf_gpu_part_of(device);
    return part && part->issue ? part : NULL;
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

static void set_cycles(const mmf_gpu_part *gpu, double cycles, mmf_work *work)
{
    work->tiles = 1;
    work->tile_flops = cycles / gpu->hertz * MMF_AMD_GFLOPS * 1e9;
}

/* Lines of A and of B that all waves read in a step: those of their sums. In tiles of 64 x 128 of
 * pingpong_staged.h a wave has half of its lines of A in registers, as it loaded them. */
static double lines_read(const mmf_kernel *kernel, double waves)
{
    const bool staged = kernel->family == &mmf_gpu_pingpong_staged ||
                        kernel->family == &mmf_gpu_pingpong_staged_splitk;
    const bool own = staged && kernel->tile_m == 64 && kernel->tile_n == 128;
    const double columns = kernel->tile_n % 192 ? COLUMNS : COLUMNS / 2 * 3;
    const double rows = (double)kernel->tile_m * kernel->tile_n / columns;
    return waves * columns + (own ? rows / 2 : rows);
}

void mmf_amd_tiles_work(double idle, const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    mmf_amd_faster_tiles_work(1, idle, kernel, p, work);
}

void mmf_amd_faster_tiles_work(double faster, double idle, const mmf_kernel *kernel,
                               const mmf_problem *p, mmf_work *work)
{
    const mmf_gpu_part *gpu = part_of(p->device);
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
    const double products =
        2 * sums * kernel->tile_k / (faster * gpu->flops[p->dtype[MMF_A]]) + 2 * waves * idle;
    const double reads =
        lines_read(kernel, waves * SIMDS) * kernel->tile_k * size / gpu->read + bytes / WRITE;
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
    const mmf_gpu_part *gpu = part_of(p->device);
    if (!gpu)
        return;
    const double steps = (double)mmf_gpu_tiles(p->k, kernel->tile_k);
    const double lines = kernel->tile_m + kernel->tile_n;
    const int size = mmf_dtypes[p->dtype[MMF_A]].size;
    const double loads = lines * kernel->tile_k * size * gpu->flight / FLIGHT_BYTES;
    const double busy = 0.89; /* the matrix cores, as in the loop of gemm_mfma on gfx942 */
    const double products = 2 * (double)kernel->tile_m * kernel->tile_n * kernel->tile_k /
                            (busy * gpu->flops[p->dtype[MMF_A]]);
    /* Tiles of a group, below each other, run at one time on units that share a cache. Of what
     * further groups read once more, half of the bytes are counted, for the cache behind it. */
    const double streams = mmf_problem_gated(p) ? 2 : 1;
    const int64_t rows = (int64_t)MMF_DEAL_ROWS * kernel->tile_m;
    const double again = (double)(mmf_gpu_tiles(p->m, rows) - 1) / 2;
    work->bytes = again * (double)mmf_gpu_batches(p) * (double)p->n * streams * (double)p->k * size;
    /* Several share a unit: the first loads of one come while another one works. */
    const double most = most_tiles(p, work), beside = beside_steps(gpu, kernel, p);
    const double step = together(products, loads);
    set_cycles(gpu, most * steps * step + (most + 1) / 2 * beside, work);
}

void mmf_amd_gemv_work(const mmf_kernel *kernel, const mmf_problem *p, mmf_work *work)
{
    const mmf_gpu_part *gpu = part_of(p->device);
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
    const mmf_gpu_part *gpu = part_of(p->device);
    const mmf_family *family = kernel->family;
    const bool wide = mmf_problem_accumulator(p) == MMF_FLOAT64;
    const double gflops = wide ? family->gflops_double : family->gflops_float;
    if (gpu)
        work->tile_flops += beside_steps(gpu, kernel, p) / gpu->hertz * gflops * 1e9;
}
