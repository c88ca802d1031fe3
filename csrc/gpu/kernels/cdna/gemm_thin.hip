/* Matrix cores of CDNA, tiles of 16 or 32 rows and 32 columns (B along n: 64), for few rows of A.
 * float16 and bfloat16, float sums. thin.h has the loop; the bits of a row depend on K alone. Path
 * of a call: chosen where it is modelled as fastest; launched by gpu/launch_plan.c.
 *
 * gfx90a has the rows of bfloat16 alone: its matrix cores read subnormals of float16 as 0. */
enum { IN_PIECES = false }; /* all of k */
#include "gpu/kernels/cdna/thin.h"
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"

/* The sums times a factor, where those of the first wave were. */
struct lines_of_sums {
    float *lines, factor;

    __attribute__((device, always_inline)) void put(int m, int n, block total) const
    {
        *(block *)(lines + m * PITCH + n) = total * factor;
    }
};

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const lines = (float *)shared;
    const unsigned wave = (unsigned)__builtin_amdgcn_readfirstlane(thread_id() >> 6);
    const tile t = tile_of_workgroup<row>(args, shared);
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    operands of;
    block sum[A_BLOCKS][B_BLOCKS] = {};
    find_operands(args, t, of);
    sum_products(of, k_count(args), wave, sum);
    const lines_of_sums to = {lines, general ? (float)args.alpha : 1};
    add_waves(sum, wave, lines, to);
    barrier();
    if (!general) {
        /* One wave takes ROWS rows at once; those below the tile are outside of out. */
        enum { ROWS = 64 / (row::tile_n / 16), COUNT = row::tile_m < ROWS ? ROWS : row::tile_m };
        if (wave == 0)
            staged_runs<row, 64, PITCH>::finish(read_again(args), t, 0, COUNT, lines);
        return;
    }
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<float>(read_again(args), all);
}
