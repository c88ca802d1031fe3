/* A matrix copied from any strides to any others, through shared memory, so that both sides may
 * touch neighbours in memory. No GEMM: A is the matrix, out its copy; elements are moved as bits,
 * and the row's operands say of how many bytes they are. In the row of layout NP one of the two is
 * in the prepacked layout "preshuffle_16x16": out, or A where k is 0. Path of a call: mf.prepack()
 * and PackedMatrix.unpack() on a GPU; launched by gpu/reorder.c. */
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
    SHUFFLES = row::layout == LAYOUT_NP,
};
static_assert(row::lds == row::tile_m * PITCH * sizeof(bits) + TILE_BYTES, "kernels.def");
static_assert(row::tile_m == row::tile_n && row::tile_n % 16 == 0, "take()");
static_assert(!SHUFFLES || sizeof(bits) == 2, "eights of rows are 16 bytes");

/* An element of a tile. */
struct place {
    int m, n;
};

/* A matrix of `rows` rows, which has strides or is shuffled: blocks of 16 columns; in a block,
 * eights of rows; in these the columns, one after another. */
struct side {
    long long row_step, col_step, rows;
    bool shuffled;

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, int operand,
                                                      bool is_shuffled)
    {
        row_step = args.strides[operand].row;
        col_step = args.strides[operand].col;
        rows = args.m;
        shuffled = SHUFFLES && is_shuffled;
    }

    /* Element i for this thread: neighbouring threads take neighbours in memory. */
    __attribute__((device, always_inline)) place take(int i) const
    {
        enum { BLOCK = row::tile_m * 16, EIGHTS = 8 * 16 };
        const int at = i * row::threads + thread_id();
        if (shuffled)
            return place{at % BLOCK / EIGHTS * 8 + at % 8, at / BLOCK * 16 + at / 8 % 16};
        const long long down = row_step < 0 ? -row_step : row_step;
        const long long right = col_step < 0 ? -col_step : col_step;
        const int slow = at / row::tile_n, fast = at % row::tile_n;
        return right <= down ? place{slow, fast} : place{fast, slow};
    }

    __attribute__((device, always_inline)) long long offset(const tile &t, int in_m, int in_n) const
    {
        const long long m = t.m0 + in_m, n = t.n0 + in_n;
        if (shuffled)
            return (n >> 4) * rows * 16 + (m >> 3) * (8 * 16) + (n & 15) * 8 + (m & 7);
        return m * row_step + n * col_step;
    }
};

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    bits *const lines = (bits *)shared;
    const tile t = tile_of_workgroup<row>(args, shared);
    side from, to;
    from.start(args, MMF_GEMM_A, args.k == 0);
    to.start(args, MMF_GEMM_OUT, args.k != 0);
    const bits *const source = (const bits *)t.matrix(MMF_GEMM_A);
    bits *const copy = (bits *)t.matrix(MMF_GEMM_OUT);
    bits value[EACH];
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) { /* beyond the edge: the last row or column once more */
        const place p = from.take(i);
        const int m = p.m < t.rows ? p.m : t.rows - 1, n = p.n < t.cols ? p.n : t.cols - 1;
        value[i] = source[from.offset(t, m, n)];
    }
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) {
        const place p = from.take(i);
        lines[p.m * PITCH + p.n] = value[i];
    }
    barrier();
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) {
        const place p = to.take(i);
        if (p.m < t.rows && p.n < t.cols)
            copy[to.offset(t, p.m, p.n)] = lines[p.m * PITCH + p.n];
    }
}
