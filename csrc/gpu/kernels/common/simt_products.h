/* The products of a tile by fused multiply-adds: every dtype, layout and stride. A thread of 256
 * computes 4 x 4 of 64 x 64 sums. 16 columns of A and 16 rows of B lie in shared memory; the next
 * ones travel to registers meanwhile.
 * Path of a call: the loop over k of gemm_simt and gemm_simt_splitk. */
#ifndef MMF_SIMT_PRODUCTS_H
#define MMF_SIMT_PRODUCTS_H

#include "gpu/kernels/common/tile.h"

typedef this_row row;
typedef element<row::operands> operand;
typedef sum_type<operand::type>::type real;
typedef real real4 __attribute__((ext_vector_type(4)));

enum {
    LOADS = row::tile_m * row::tile_k / row::threads, /* elements of A, and of B, for each thread */
    PITCH = row::tile_m + 4,                          /* of a line in shared memory */
    PER_THREAD = 4,
};
static_assert(row::tile_m == 64 && row::tile_n == 64 && row::threads == 256,
              "a 16 x 16 grid of 4 x 4");
constexpr int PRODUCT_BYTES = 2 * row::tile_k * PITCH * (int)sizeof(real); /* of shared memory */

/* The elements of A or B that this thread carries to shared memory: lines (m of A, n of B) by k. */
struct carrier {
    const char *at[LOADS], *safe;
    long long step[LOADS]; /* bytes from k to k + tile_k */
    int line[LOADS], k[LOADS];

    __attribute__((device, always_inline)) real *slot(real *lines, int load) const
    {
        return lines + k[load] * PITCH + line[load];
    }
};

MMF_DEVICE long long magnitude(long long x)
{
    return x < 0 ? -x : x;
}

/* Neighbouring threads take neighbouring memory: along k, or along the lines. */
MMF_DEVICE void share_out(carrier &c, bool along_k)
{
    MMF_UNROLL
    for (int i = 0; i < LOADS; i++) {
        const int index = thread_id() + i * row::threads;
        c.k[i] = along_k ? index % row::tile_k : index / row::tile_m;
        c.line[i] = along_k ? index / row::tile_k : index % row::tile_m;
    }
}

/* Element i of c lies in the given line of a matrix, k0 and more along k; line_step and k_step are
 * its strides. Lines that the matrix does not have read its first: their sums are never stored. */
MMF_DEVICE void point(carrier &c, int i, const char *matrix, long long line, bool exists,
                      long long k0, long long line_step, long long k_step)
{
    const int size = sizeof(operand::type);
    c.at[i] = matrix + ((exists ? line : 0) * line_step + (k0 + c.k[i]) * k_step) * size;
    c.step[i] = k_step * size * row::tile_k;
}

MMF_DEVICE void point_a(carrier &a, const mmf_gemm_args &args, const tile &t, long long k0)
{
    const mmf_gemm_strides &strides = args.strides[MMF_GEMM_A];
    a.safe = t.matrix(MMF_GEMM_A);
    share_out(a, magnitude(strides.col) < magnitude(strides.row));
    MMF_UNROLL
    for (int i = 0; i < LOADS; i++)
        point(a, i, a.safe, t.m0 + a.line[i], a.line[i] < t.rows, k0, strides.row, strides.col);
}

/* Gated: the left half of the lines are gate columns, the right half the up columns beside them. */
MMF_DEVICE void point_b(carrier &b, const mmf_gemm_args &args, const tile &t, long long k0)
{
    const mmf_gemm_strides &gate = args.strides[MMF_GEMM_B], &up = args.strides[MMF_GEMM_B_UP];
    const char *const up_matrix = t.matrix(MMF_GEMM_B_UP);
    b.safe = t.matrix(MMF_GEMM_B);
    share_out(b, magnitude(gate.row) < magnitude(gate.col));
    MMF_UNROLL
    for (int i = 0; i < LOADS; i++) {
        const bool second = b.line[i] >= t.columns;
        const int n = second ? b.line[i] - t.columns : b.line[i];
        point(b, i, second ? up_matrix : b.safe, t.n0 + n, n < t.cols, k0,
              second ? up.col : gate.col, second ? up.row : gate.row);
    }
}

/* A step's elements. Cut: only those below k_left count; the others are read where it is safe. */
template <bool Cut> MMF_DEVICE void fetch(carrier &c, real value[LOADS], long long k_left)
{
    MMF_UNROLL
    for (int i = 0; i < LOADS; i++) {
        const bool inside = !Cut || c.k[i] < k_left;
        const real x = operand::load<real>(*(const operand::type *)(inside ? c.at[i] : c.safe));
        value[i] = inside ? x : 0;
        c.at[i] += c.step[i];
    }
}

/* sum += A B over a step. */
MMF_DEVICE void multiply(const real *a_lines, const real *b_lines, real4 sum[PER_THREAD])
{
    MMF_UNROLL
    for (int k = 0; k < row::tile_k; k++) {
        const real4 a = *(const real4 *)(a_lines + k * PITCH);
        const real4 b = *(const real4 *)(b_lines + k * PITCH);
        MMF_UNROLL
        for (int i = 0; i < PER_THREAD; i++)
            MMF_UNROLL
        for (int j = 0; j < PER_THREAD; j++)
            sum[i][j] = fused(a[i], b[j], sum[i][j]);
    }
}

/* The sums of `count` products, from k0 on. */
MMF_DEVICE void sum_products(const mmf_gemm_args &args, const tile &t, long long k0,
                             long long count, real *lines, int ty, int tx, real4 sum[PER_THREAD])
{
    real *const b_lines = lines + row::tile_k * PITCH;
    real a_next[LOADS], b_next[LOADS];
    carrier a, b;
    point_a(a, args, t, k0);
    point_b(b, args, t, k0);
    MMF_ROLLED
    for (long long k_left = count; k_left > 0; k_left -= row::tile_k) {
        if (k_left >= row::tile_k) {
            fetch<false>(a, a_next, k_left);
            fetch<false>(b, b_next, k_left);
        } else {
            fetch<true>(a, a_next, k_left);
            fetch<true>(b, b_next, k_left);
        }
        barrier(); /* the step before has been read */
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            *a.slot(lines, i) = a_next[i];
            *b.slot(b_lines, i) = b_next[i];
        }
        barrier();
        multiply(lines + ty * PER_THREAD, b_lines + tx * PER_THREAD, sum);
    }
}

#endif
