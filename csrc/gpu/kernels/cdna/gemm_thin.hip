/* Matrix cores of CDNA, tiles of 16 or 32 rows and 32 columns (B along n: 64), for few rows of A.
 * float16, bfloat16 and float32, float sums; float64. thin.h has the loop; the bits of a row depend
 * on K alone. Path of a call: chosen where it is modelled as fastest; launched by
 * gpu/launch_plan.c. */
enum { IN_PIECES = false }; /* all of k */
#include "gpu/kernels/cdna/thin.h"
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"

/* The sums times a factor, where those of the first wave were. */
struct lines_of_sums {
    real *lines, factor;

    __attribute__((device, always_inline)) void put(int m, int n, sums total) const
    {
        *(sums *)(lines + m * PITCH + n) = total * factor;
    }
};

/* The epilogue in registers by one wave, which takes ROWS rows at once; those below the tile are
 * outside of out. float64 has none. */
template <class Real> struct by_runs {
    static __attribute__((device, always_inline)) void finish(const mmf_gemm_args &args,
                                                              const tile &t, const float *lines)
    {
        enum {
            ROWS = 64 / (row::tile_n / 2 / CHUNK_K),
            COUNT = row::tile_m < ROWS ? ROWS : row::tile_m
        };
        staged_runs<row, 64, PITCH>::finish(args, t, 0, COUNT, lines);
    }
};

template <> struct by_runs<double> {
    static __attribute__((device, always_inline)) void finish(const mmf_gemm_args &, const tile &,
                                                              const double *)
    {
    }
};

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    real *const lines = (real *)shared;
    const unsigned wave = (unsigned)__builtin_amdgcn_readfirstlane(thread_id() >> 6);
    const tile t = tile_of_workgroup<row>(args, shared);
    const bool general = ELEMENT == 8 || args.epilogue == MMF_EPILOGUE_GENERAL;
    operands of;
    sums sum[A_BLOCKS][B_BLOCKS] = {};
    find_operands(args, t, of);
    sum_products(of, k_count(args), wave, sum);
    const lines_of_sums to = {lines, general ? (real)args.alpha : 1};
    add_waves(sum, wave, lines, to);
    barrier();
    if (!general) {
        if (wave == 0)
            by_runs<real>::finish(read_again(args), t, lines);
        return;
    }
    const staged<real, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<real>(read_again(args), all);
}
