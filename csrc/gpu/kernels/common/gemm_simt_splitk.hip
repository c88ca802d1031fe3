/* Split-K of the generic kernel, its first launch: workgroup (w, s) computes the sums of tile w
 * over piece s of K and stores them as they are. reduce_splitk adds the pieces up. Path of a call:
 * few tiles and a long K; launched by gpu/launch_plan.c. */
#include "gpu/kernels/common/simt_products.h"

static_assert(row::lds == PRODUCT_BYTES + TILE_BYTES, "kernels.def");

/* The partial sums are the operand PREACTIVATION, of both streams, in the type of the sums: columns
 * in whole fours, `plane` elements from piece to piece. */
MMF_DEVICE void store(const mmf_gemm_args &args, const tile &t, int ty, int tx,
                      const real4 sum[PER_THREAD])
{
    char *const gate = t.matrix(MMF_GEMM_PREACTIVATION);
    char *const up = t.matrix(MMF_GEMM_PREACTIVATION_UP);
    const bool second = tx * PER_THREAD >= t.columns;
    const int n = tx * PER_THREAD - (second ? t.columns : 0);
    const long long pitch = args.strides[MMF_GEMM_PREACTIVATION].row;
    real *const at = (real *)(second ? up : gate) + piece_id() * args.plane + t.m0 * pitch + t.n0;
    if (n >= t.cols)
        return;
    MMF_UNROLL
    for (int i = 0; i < PER_THREAD; i++)
        if (ty * PER_THREAD + i < t.rows)
            *(real4 *)(at + (ty * PER_THREAD + i) * pitch + n) = sum[i];
}

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    const tile t = tile_of_workgroup<row>(args, shared);
    const int tx = thread_id() % 16, ty = thread_id() / 16;
    const long long k0 = piece_id() * args.piece, left = args.k - k0;
    real4 sum[PER_THREAD] = {};
    sum_products(args, t, k0, left < args.piece ? left : args.piece, (real *)shared, ty, tx, sum);
    store(read_again(args), t, ty, tx, sum);
}
