/* Tiles and times of gemm_wgmma and its ping-pong kernels. Path of a call: see wgmma_time.h. */
#include "gpu/wgmma_time.h"

#include "gpu/describe.h"
#include "gpu/epilogue_form.h"
#include "gpu/kernels/common/deal.h"
#include "gpu/kernels/nvidia/wgmma_args.h"
#include "gpu/nvidia_tiles.h"
#include "gpu/parts.h"

enum { MAX_PARTS_LOG = 3 }; /* the largest portable cluster */

/* Of all batch indices, where each warpgroup has `width` columns of B. */
static int64_t count_tiles(const mmf_kernel *kernel, const mmf_problem *p, int64_t width)
{
    return mmf_gpu_tiles(p->n, mmf_problem_gated(p) ? width : 2 * width) *
           mmf_gpu_tiles(p->m, kernel->tile_m) * mmf_gpu_batches(p);
}

/* Where more than half of the units have a tile, each takes up to twice as long, as if two units
 * shared a way to memory; less by as much as tiles are narrower. On an H200, 80 tiles of
 * 16x10240x8192 took 57 us, 128 narrower ones 42 us. */
uint32_t mmf_wgmma_width(const mmf_kernel *kernel, const mmf_problem *p, int parts_log)
{
    enum { LEAST = 32, STEP = 8 };
    const mmf_gpu_layout layout = mmf_gpu_instances[kernel->instance].layout;
    const bool along_k = layout == MMF_GPU_LAYOUT_NT || layout == MMF_GPU_LAYOUT_TT;
    const int64_t most = kernel->tile_n / 2, at_once = mmf_gpu_units(p->device) >> parts_log;
    int64_t best = most, least = INT64_MAX;
    const bool by_copies =
        p->dtype[MMF_C] == MMF_ABSENT && mmf_gpu_epilogue_form(p, false) == MMF_EPILOGUE_REGISTERS;
    if (!along_k || !by_copies || at_once < 1 || 2 * count_tiles(kernel, p, most) <= at_once)
        return (uint32_t)most; /* along n, a swizzled line has 64 columns */
    for (int64_t width = most; width >= LEAST; width -= STEP) {
        const int64_t turns = mmf_gpu_tiles(count_tiles(kernel, p, width), at_once);
        if (turns * width < least) {
            least = turns * width;
            best = width;
        }
    }
    return (uint32_t)best;
}

/* On an H200, two parts pay up to a quarter as many tiles as units, more of them up to 3/8 of the
 * units. From there up to half of them, two parts pay where narrower tiles keep all units busy and
 * k is long: 5120x25600 took 65 us for 82 us, 6144x2048 took 3 % less, 7168x2048 1 % more. */
int mmf_wgmma_parts_log(const mmf_kernel *kernel, const mmf_problem *p)
{
    enum { MIN_STEPS = 4, SOME_STEPS = 24, MANY_STEPS = 64 }; /* of k */
    const int64_t units = mmf_gpu_units(p->device), steps = mmf_gpu_tiles(p->k, kernel->tile_k);
    const int64_t most = kernel->tile_n / 2, tiles = count_tiles(kernel, p, most);
    int log = 0;
    if (kernel->tile_m >= MMF_WGMMA_TALL_ROWS || 2 * tiles > units)
        return 0;
    while (log < MAX_PARTS_LOG && steps >> (log + 1) >= MIN_STEPS &&
           (log ? tiles << (log + 1) <= units * 3 / 8 : tiles <= units / 4))
        log++;
    if (log)
        return log;
    const int64_t width = mmf_wgmma_width(kernel, p, 1);
    return steps >= (4 * width <= 3 * most ? SOME_STEPS : MANY_STEPS) &&
           2 * count_tiles(kernel, p, width) >= units - units / 8;
}

bool mmf_wgmma_shares_b(const mmf_kernel *kernel, const mmf_problem *p)
{
    enum { MANY = 8 }; /* rows of tiles: one that is left without a neighbour matters less */
    const int64_t rows = mmf_gpu_tiles(p->m, kernel->tile_m);
    return kernel->tile_m < MMF_WGMMA_TALL_ROWS ? rows % 2 == 0 || rows > MANY : rows > 1;
}

/* Fewer rows where A and B of one batch index fit into the last cache beside out: on an H100,
 * 8192x4096x1024 took 1 to 2.5 % less, and 4096x7168x2048, where they do not, 1 to 2 % more. */
unsigned mmf_wgmma_group_rows(const mmf_problem *p)
{
    const double fits = 32 << 20,
                 lines = (double)p->m + (double)p->n * (mmf_problem_gated(p) ? 2 : 1);
    const double bytes = lines * (double)p->k * (double)mmf_dtypes[p->dtype[MMF_A]].size;
    return bytes <= fits ? MMF_DEAL_ROWS / 2 : MMF_DEAL_ROWS;
}

/* Microseconds at boost clocks. A step of k, measured on an H200: alone, while the other units are
 * idle; busy, while all are; starved, the same on an H100, whose memory is slower (as on an H200
 * where it was not measured; of 112, 160 and 224 columns modelled, in the ratio of other tiles).
 * What a tile takes besides, the first and those after it; what activations dearer than relu add to
 * it; of ping-pong, `hidden` is the epilogue, under the products of the other warpgroup: of
 * cooperative tiles and of 128 x 128 measured on an H100, of the others on an H200. Those of tf32
 * (a tile_k of 32) are of the same loop: fitted to a 1024^3 and a 333 x 777 x 555, by 128 x 64, and
 * a 4096^3, by 128 x 256. */
typedef struct tile_time {
    int tile_m, tile_n, tile_k;
    double alone, busy, starved, first, later, dear, hidden;
} tile_time;

static const tile_time times[] = {
    {128, 256, 64, 0.54, 0.65, 0.66, 4.4, 1.1, 1.3, 0},  /* cooperative */
    {128, 224, 64, 0.48, 0.58, 0.59, 4.2, 1.1, 1.3, 0},  /* cooperative */
    {128, 192, 64, 0.46, 0.49, 0.505, 5.2, 0, 1, 8.9},   /* ping-pong */
    {128, 160, 64, 0.39, 0.42, 0.44, 4, 0, 1, 6.5},      /* ping-pong */
    {128, 128, 64, 0.32, 0.35, 0.37, 2.9, 0, 0.9, 4.5},  /* ping-pong */
    {128, 112, 64, 0.31, 0.32, 0.34, 3.2, 0.2, 0.9, 5},  /* ping-pong */
    {128, 128, 64, 0.285, 0.355, 0.355, 3, 0.6, 0.7, 0}, /* cooperative */
    {64, 128, 64, 0.26, 0.29, 0.29, 2.8, 0.2, 0.7, 0},   /* few rows */
    {16, 128, 64, 0.20, 0.22, 0.22, 2.75, 0.2, 0.2, 0},  /* few rows */
    {128, 256, 32, 0.57, 0.63, 0.63, 4, 6, 0, 0},        /* tf32 */
    {128, 128, 32, 0.33, 0.39, 0.39, 3, 4, 0, 0},        /* tf32 */
    {128, 64, 32, 0.26, 0.29, 0.29, 1.5, 3, 0, 0},       /* tf32 */
    {0, 0, 0, 1, 1, 1, 6, 6, 0, 0},                      /* any other */
};

static bool has(const mmf_problem *p, int operand)
{
    return p->dtype[operand] != MMF_ABSENT;
}

bool mmf_wgmma_is_general(const mmf_kernel *kernel, const mmf_problem *p)
{
    if (kernel->family == &mmf_gpu_wgmma_pingpong_aux)
        return mmf_gpu_auxiliary_form(p, false) == MMF_EPILOGUE_GENERAL;
    const int form = mmf_gpu_epilogue_form(p, false);
    return kernel->family == &mmf_gpu_wgmma ? form == MMF_EPILOGUE_GENERAL
                                            : form != MMF_EPILOGUE_REGISTERS || has(p, MMF_C);
}

/* Microseconds of a tile for operands in registers, on an H200. slow: of a column of C in
 * gemm_wgmma; code, fast: of a tile, and of a column of each operand, in gemm_wgmma_pingpong_aux.
 */
static double operands_time(const mmf_kernel *kernel, const mmf_problem *p)
{
    const double slow = 0.034, fast = 0.02, code = 0.2;
    if (mmf_wgmma_is_general(kernel, p))
        return 0;
    if (kernel->family == &mmf_gpu_wgmma_pingpong_aux)
        return code + fast * kernel->tile_n *
                          (has(p, MMF_C) + has(p, MMF_MULTIPLY) + has(p, MMF_PREACTIVATION));
    if (kernel->tile_m < MMF_WGMMA_TALL_ROWS || p->dtype[MMF_A] == MMF_FLOAT32 || !has(p, MMF_C))
        return 0;
    return slow * kernel->tile_n;
}

double mmf_wgmma_seconds(const mmf_kernel *kernel, const mmf_problem *p, double tiles)
{
    /* Microseconds that halving k takes, for each row of a tile, and what shares that are too small
     * for registers take; B's way from memory beside what a GPU reaches at best. */
    const double halving = 0.02, by_lines = 1.5, memory = 1.08;
    const double slow = 3.4e12; /* between an H100 and an H200 */
    const tile_time *t = times;
    const double units = mmf_gpu_units(p->device);
    if (units <= 0)
        return 0;
    const bool pingpong = kernel->family != &mmf_gpu_wgmma;
    while (t->tile_m && (t->tile_m != kernel->tile_m || t->tile_n != kernel->tile_n ||
                         t->tile_k != kernel->tile_k || (t->hidden > 0) != pingpong))
        t++;
    const int log = mmf_wgmma_parts_log(kernel, p);
    const int64_t rows = mmf_gpu_tiles(p->m, kernel->tile_m);
    const bool alone = !log && mmf_wgmma_shares_b(kernel, p) && rows % 2; /* the last row */
    const double all = tiles * (1 << log) * (alone ? (double)(rows + 1) / (double)rows : 1);
    const double steps = (double)mmf_gpu_tiles(mmf_gpu_tiles(p->k, kernel->tile_k), 1 << log);
    const double share = all < units ? all / units : 1;
    const double turns = all <= units ? 1 : (double)mmf_gpu_tiles((int64_t)all, (int64_t)units);
    const double busy = mmf_gpu_bandwidth(p->device) < slow ? t->starved : t->busy;
    const double products = steps * (t->alone + (busy - t->alone) * share);
    const bool dear = p->activation != MMF_ACT_NONE && p->activation != MMF_ACT_RELU;
    const double end = (dear ? t->dear : 0) + operands_time(kernel, p);
    const double epilogue = t->hidden + end;
    const bool hides = pingpong && !mmf_wgmma_is_general(kernel, p);
    const double parted = halving * kernel->tile_m * log +
                          (kernel->tile_m >> log < MMF_WGMMA_STORED_ROWS ? by_lines : 0);
    const double loads = memory * 1e6 * mmf_nvidia_b_seconds(p);
    /* A warpgroup of ping-pong begins every second tile, and waits where its last is not finished.
     */
    const double waits = hides && epilogue > products ? (double)(((int64_t)turns - 1) / 2) : 0;
    const double of_unit = turns * products + waits * (epilogue - products) +
                           (turns - 1) * (t->later + (hides ? 0 : epilogue));
    return 1e-6 * (t->first + (of_unit > loads ? of_unit : loads) + end + parted);
}
