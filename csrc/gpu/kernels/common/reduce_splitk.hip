/* Split-K, its last launch: adds the partial sums of a tile in the order of the pieces, and has the
 * general epilogue, which costs little here: a thread has four neighbours. No GEMM: A is the
 * partial sums [m, piece] of lines, `k` their number; the operands that they were made of may be of
 * any dtype with sums of this one. Path of a call: behind gemm_simt_splitk; launched by
 * gpu/launch_plan.c. */
#include "gpu/kernels/common/epilogue_general.h"

typedef this_row row;
typedef sum_type<element<row::operands>::type>::type real;
typedef real real4 __attribute__((ext_vector_type(4)));

enum {
    PITCH = row::tile_n + 4, /* of a line in shared memory */
    PER_THREAD = 4,          /* neighbours of a row */
    ACROSS = row::tile_n / PER_THREAD,
    AT_ONCE = 8, /* pieces that are loaded before the first of them is added */
};
static_assert(row::threads == row::tile_m * ACROSS, "four neighbours for each thread");
static_assert(row::lds == row::tile_m * PITCH * sizeof(real) + TILE_BYTES, "kernels.def");

/* The sum of `count` pieces, `plane` elements from one to the next. */
MMF_DEVICE real4 add_pieces(const real *at, long long plane, int count)
{
    real4 sum = {};
    MMF_ROLLED
    for (int first = 0; first < count; first += AT_ONCE) {
        real4 piece[AT_ONCE];
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            piece[i] = *(const real4 *)(at + (first + i < count ? first + i : first) * plane);
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            sum = first + i < count ? sum + piece[i] : sum;
    }
    return sum;
}

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    real *const lines = (real *)shared;
    const tile t = tile_of_workgroup<row>(args, shared);
    const int m = thread_id() / ACROSS, column = thread_id() % ACROSS * PER_THREAD;
    const bool second = column >= t.columns;
    const int n = column - (second ? t.columns : 0);
    const mmf_gemm_strides &strides = args.strides[MMF_GEMM_A];
    real4 sum = {};
    if (m < t.rows && n < t.cols) {
        const long long up = second ? strides.row / 2 : 0; /* a line is gate columns, up columns */
        const real *const sums = (const real *)t.matrix(MMF_GEMM_A);
        sum = add_pieces(sums + (t.m0 + m) * strides.row + up + t.n0 + n, strides.col, (int)args.k);
    }
    *(real4 *)(lines + m * PITCH + column) = sum * (real)args.alpha;
    barrier();
    const staged<real, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<real>(read_again(args), all);
}
