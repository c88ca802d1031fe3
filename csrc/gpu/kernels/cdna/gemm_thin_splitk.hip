/* Split-K for few rows of A, its first launch: gemm_thin on a piece of K, without an epilogue; the
 * pieces of a tile are workgroups along y. Path of a call: chosen where tiles are few and K is
 * long; launched by gpu/launch_plan.c, before reduce_splitk. */
enum { IN_PIECES = true }; /* of k */
#include "gpu/kernels/cdna/thin.h"

/* Gated: the second half of a tile's columns is of up. */
struct lines_of_piece {
    piece_sums of;
    int columns;

    __attribute__((device, always_inline)) void put(int m, int n, sums total) const
    {
        const bool second = n >= columns;
        of.store(m, second ? n - columns : n, second, total);
    }
};

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    const unsigned wave = (unsigned)__builtin_amdgcn_readfirstlane(thread_id() >> 6);
    const tile t = tile_of_workgroup<row>(args, shared);
    operands of;
    sums sum[A_BLOCKS][B_BLOCKS] = {};
    find_operands(args, t, of);
    sum_products(of, k_count(args), wave, sum);
    lines_of_piece to;
    to.of.start(read_again(args), t);
    to.columns = t.columns;
    add_waves(sum, wave, (float *)shared, to);
}
