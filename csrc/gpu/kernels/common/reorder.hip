/* A matrix copied from any strides to any others, through shared memory, so that both sides may
 * touch neighbours in memory. No GEMM: A is the matrix, out its copy; elements are moved as bits,
 * and the row's operands say of how many bytes they are. Path of a call: mf.prepack() and
 * PackedMatrix.unpack() on a GPU; launched by gpu/reorder.c. */
#include "gpu/kernels/common/tile.h"

typedef this_row row;

template <int Bytes> struct bits_of_size;
template <> struct bits_of_size<2> {
    typedef unsigned short type;
};
template <> struct bits_of_size<4> {
    typedef unsigned type;
};
template <> struct bits_of_size<8> {
    typedef unsigned long long type;
};
typedef bits_of_size<sizeof(element<row::operands>::type)>::type bits;

enum {
    PAD = sizeof(bits) == 2 ? 2 : 1, /* a whole bank */
    PITCH = row::tile_n + PAD, /* of a line in shared memory: columns take different banks, too */
    EACH = row::tile_m * row::tile_n / row::threads,
};
static_assert(row::lds == row::tile_m * PITCH * sizeof(bits) + TILE_BYTES, "kernels.def");
static_assert(row::tile_m == row::tile_n, "place() turns tiles");

/* Element i of a tile for this thread: neighbouring threads take neighbours in memory. */
struct place {
    int m, n;
};

MMF_DEVICE place place_of(const mmf_gemm_strides &strides, int i)
{
    const long long row_step = strides.row < 0 ? -strides.row : strides.row;
    const long long col_step = strides.col < 0 ? -strides.col : strides.col;
    const int at = i * row::threads + thread_id();
    const int slow = at / row::tile_n, fast = at % row::tile_n;
    return col_step <= row_step ? place{slow, fast} : place{fast, slow};
}

MMF_DEVICE long long offset_of(const mmf_gemm_strides &strides, const tile &t, int m, int n)
{
    return (t.m0 + m) * strides.row + (t.n0 + n) * strides.col;
}

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    bits *const lines = (bits *)shared;
    const tile t = tile_of_workgroup<row>(args, shared);
    const mmf_gemm_strides &from = args.strides[MMF_GEMM_A], &to = args.strides[MMF_GEMM_OUT];
    const bits *const source = (const bits *)t.matrix(MMF_GEMM_A);
    bits *const copy = (bits *)t.matrix(MMF_GEMM_OUT);
    bits value[EACH];
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) { /* beyond the edge: the last row or column once more */
        const place p = place_of(from, i);
        const int m = p.m < t.rows ? p.m : t.rows - 1, n = p.n < t.cols ? p.n : t.cols - 1;
        value[i] = source[offset_of(from, t, m, n)];
    }
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) {
        const place p = place_of(from, i);
        lines[p.m * PITCH + p.n] = value[i];
    }
    barrier();
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) {
        const place p = place_of(to, i);
        if (p.m < t.rows && p.n < t.cols)
            copy[offset_of(to, t, p.m, p.n)] = lines[p.m * PITCH + p.n];
    }
}
