/* The products of a tile for the kernels for CDNA whose A and B go through registers to shared
 * memory, each with stride 1 along one axis and below 2^24 bytes between its lines along the other.
 * Path of a call: the loop over k of gemm_mfma, gemm_mfma_f32, gemm_mfma_xf32 and gemm_mfma_f64.
 *
 * Each wave computes 64 x 64 sums of a tile, or 32 x 64: 64 or 32 rows, 32 columns of its left half
 * and the 32 columns half a tile further (gated: gate and up). 128 bytes of each line of A and B
 * lie in shared memory, so that two workgroups of 128 x 128 share a CU and one multiplies while the
 * other one fetches. The next step's elements travel to registers meanwhile.
 *
 * The last step of k comes first: it alone may be cut, and needs masks. Elements outside of the
 * operands are out of the bounds of a buffer descriptor and come as 0. */
#ifndef MMF_CDNA_MFMA_LOOP_H
#define MMF_CDNA_MFMA_LOOP_H

#include "gpu/kernels/cdna/carrier.h"
#include "gpu/kernels/cdna/fragment.h"

typedef this_row row;

enum {
    WAVE = 64,   /* lanes, and columns of a wave's sums */
    COLUMNS = 4, /* blocks of 16 x 16 sums along them */
    WAVES_N = row::tile_n / WAVE,
    WAVES_M = row::threads / WAVE / WAVES_N,
    WAVE_ROWS = row::tile_m / WAVES_M,
    BLOCKS = WAVE_ROWS / 16,      /* along the rows */
    HALF_M = row::tile_m / 2,     /* lines of a region */
    HALF_N = row::tile_n / 2,     /* gated: of a stream */
    B_LINES = row::tile_m * LINE, /* where B's lines begin */
    A_ALONG_K = row::layout == LAYOUT_NN || row::layout == LAYOUT_NT,
    B_ALONG_K = row::layout == LAYOUT_NT || row::layout == LAYOUT_TT,
};
static_assert(WAVE_ROWS == 64 || WAVE_ROWS == 32, "blocks of rows come in twos");
static_assert(row::tile_n % WAVE == 0 && row::tile_k == LINE_K, "kernels.def");
static_assert(row::threads == WAVES_M * WAVES_N * WAVE && row::tile_m == WAVES_M * WAVE_ROWS,
              "kernels.def");
static_assert(row::lds == (row::tile_m + row::tile_n) * LINE, "kernels.def");

/* Block j of a wave's columns begins this many lines of B after its first. */
MMF_DEVICE constexpr int column_line(int j)
{
    return j / 2 * HALF_N + block_line(j % 2);
}

MMF_DEVICE unsigned wave_of_group()
{
    return (unsigned)__builtin_amdgcn_readfirstlane(thread_id() >> 6);
}

/* Which wave of the tile this is. */
MMF_DEVICE unsigned wave_m()
{
    return wave_of_group() / WAVES_N;
}

MMF_DEVICE unsigned wave_n()
{
    return wave_of_group() % WAVES_N;
}

/* sum += A B over all of k; without any k a step of zeros. Product: part of what the chunks of a
 * fragment add to the sums of a block, by one instruction. */
template <class Product, bool Wide>
MMF_DEVICE void sum_products(const region a_regions[2], const region b_regions[2], long long k_end,
                             local lines, typename Product::sums sum[BLOCKS][COLUMNS])
{
    carrier<A_ALONG_K, Wide, row::tile_m, row::threads> a;
    carrier<B_ALONG_K, Wide, row::tile_n, row::threads> b;
    reader<A_ALONG_K || ELEMENT != 2> a_reader;
    reader<B_ALONG_K || ELEMENT != 2> b_reader;
    a.start(a_regions[0], a_regions[1]);
    b.start(b_regions[0], b_regions[1]);
    a_reader.start(wave_m() * WAVE_ROWS);
    b_reader.start(wave_n() * (WAVE / 2));
    MMF_UNROLL
    for (int half = 0; half < 2; half++) /* else their additions move into the loop */
        MMF_BOTH_LOADED(a_reader.at[half], b_reader.at[half]);

    const unsigned k_last = k_end ? (unsigned)(k_end - 1) / LINE_K * LINE_K : 0;
    a.fetch_cut(k_last, (int)(k_end - k_last));
    b.fetch_cut(k_last, (int)(k_end - k_last));
    /* After the last step the one before is fetched once more, rather than branch. */
    const unsigned k_top = k_last ? k_last - LINE_K : 0;
    MMF_ROLLED
    for (unsigned k = 0; k <= k_last; k += LINE_K) {
        Product::prepare(a);
        Product::prepare(b);
        meet();
        a.put(lines);
        b.put(lines + B_LINES);
        const unsigned k_next = k < k_top ? k : k_top;
        a.fetch(k_next);
        if (!Wide)
            keep_order(); /* single elements of both at once need too many registers */
        b.fetch(k_next);
        wait_for_shared();
        meet();
        chunk of_a[2][BLOCKS], of_b[2][COLUMNS];
        MMF_UNROLL
        for (int half = 0; half < 2; half++) {
            MMF_UNROLL
            for (int i = 0; i < BLOCKS; i++)
                of_a[half][i] = a_reader.read(lines, half, block_line(i));
            MMF_UNROLL
            for (int j = 0; j < COLUMNS; j++)
                of_b[half][j] = b_reader.read(lines + B_LINES, half, column_line(j));
        }
        MMF_UNROLL
        for (int half = 0; half < 2; half++) {
            MMF_UNROLL
            for (int part = 0; part < Product::PARTS; part++) {
                MMF_UNROLL
                for (int i = 0; i < BLOCKS; i++) {
                    MMF_UNROLL
                    for (int j = 0; j < COLUMNS; j++)
                        sum[i][j] = Product::add(of_b[half][j], of_a[half][i], sum[i][j], part);
                }
            }
        }
    }
}

MMF_DEVICE int at_most(int lines, int most)
{
    return lines < most ? lines : most;
}

template <class Product>
MMF_DEVICE void find_products_of(const mmf_gemm_args &args, const tile &t, char *shared,
                                 typename Product::sums sum[BLOCKS][COLUMNS])
{
    const mmf_gemm_strides &of_a = args.strides[MMF_GEMM_A], &of_b = args.strides[MMF_GEMM_B],
                           &of_up = args.strides[args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B];
    const char *const a_matrix = t.matrix(MMF_GEMM_A), *const b_matrix = t.matrix(MMF_GEMM_B),
                      *const up_matrix = t.matrix(args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B);
    region a[2], b[2];
    a[0] = region_of<A_ALONG_K>(a_matrix, of_a.row, of_a.col, t.m0, at_most(t.rows, HALF_M), args.m,
                                args.k);
    a[1] = region_of<A_ALONG_K>(a_matrix, of_a.row, of_a.col, t.m0 + HALF_M, t.rows - HALF_M,
                                args.m, args.k);
    b[0] = region_of<B_ALONG_K>(b_matrix, of_b.col, of_b.row, t.n0, at_most(t.cols, HALF_N), args.n,
                                args.k);
    b[1] = region_of<B_ALONG_K>(up_matrix, of_up.col, of_up.row, args.gated ? t.n0 : t.n0 + HALF_N,
                                args.gated ? t.cols : t.cols - HALF_N, args.n, args.k);
    const long long a_run = A_ALONG_K ? args.k : args.m, b_run = B_ALONG_K ? args.k : args.n;
    /* Always, where elements are whole dwords. */
    const bool wide = is_even<A_ALONG_K>(a[0], a_run) && is_even<B_ALONG_K>(b[0], b_run) &&
                      is_even<B_ALONG_K>(b[1], b_run);
    if (wide)
        sum_products<Product, true>(a, b, args.k, (local)shared, sum);
    else
        sum_products<Product, false>(a, b, args.k, (local)shared, sum);
}

/* The sums of this workgroup's tile. Shared memory is free then. */
template <class Product>
MMF_DEVICE void find_products(const mmf_gemm_args &args, char *shared,
                              typename Product::sums sum[BLOCKS][COLUMNS])
{
    const tile t = tile_of_workgroup<row>(read_again(args), shared);
    find_products_of<Product>(read_again(args), t, shared, sum);
    barrier();
}

#endif
