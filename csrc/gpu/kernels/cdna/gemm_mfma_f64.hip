/* Matrix cores of CDNA: float64 inputs and sums. Path of a call: chosen before gemm_simt on these
 * GPUs; launched by gpu/launch_plan.c. */
#include "gpu/kernels/cdna/mfma_loop.h"
#include "gpu/kernels/common/epilogue_general.h"

typedef products<row::operands> product;

/* Of 16 lines no more than two begin in the same bank, and two doubles are aligned. */
enum {
    PITCH = row::tile_n + 2, /* doubles of a line of sums in shared memory */
    BAND = 16,               /* lines of sums there at once: a row of blocks of some waves */
};
static_assert(BAND * PITCH * (int)sizeof(double) + TILE_BYTES <= row::lds, "a band of sums");

struct band_rows {
    int count, first; /* lines; row of the tile that is the first */

    __attribute__((device, always_inline)) int row(int line) const
    {
        return first + lane_line(line);
    }
};

/* A row of blocks of this wave, times alpha. */
MMF_DEVICE void put_row(const product::sums sum[COLUMNS], double alpha, double *to)
{
    MMF_UNROLL
    for (int j = 0; j < COLUMNS; j++) {
        MMF_UNROLL
        for (int r = 0; r < 4; r++)
            to[column_line(j) + lane_line(4 * r)] = sum[j][r] * alpha;
    }
}

MMF_DEVICE void finish(const mmf_gemm_args &args, const tile &t, char *shared,
                       const product::sums sum[BLOCKS][COLUMNS])
{
    const int lane = thread_id() & 63;
    const double alpha = args.k > 0 ? args.alpha : 1;
    double *const lines = (double *)shared;
    double *const mine = lines + (lane & 15) * PITCH + wave_n() * (WAVE / 2) + lane / 16;
    MMF_ROLLED
    for (unsigned band = 0; band < BLOCKS * WAVES_M; band++) {
        const unsigned index = band / WAVES_M, of_wave = band % WAVES_M;
        MMF_UNROLL
        for (unsigned i = 0; i < BLOCKS; i++) {
            if (i == index && of_wave == wave_m())
                put_row(sum[i], alpha, mine);
        }
        barrier();
        const int first = (int)of_wave * WAVE_ROWS + block_line((int)index);
        const staged<double, row::threads, row::tile_n, PITCH, band_rows> some = {
            lines, t, {BAND, first}};
        finish_general<double>(args, some);
        barrier();
    }
}

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    product::sums sum[BLOCKS][COLUMNS] = {};
    find_products<product>(args, shared, sum);
    const tile t = tile_of_workgroup<row>(read_again(args), shared);
    finish(read_again(args), t, shared, sum);
}
