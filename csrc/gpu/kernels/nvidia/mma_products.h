/* Sums of products by matrix instructions, in the registers of a workgroup: what a tile of gemm_mma
 * and gemm_mma_split begins with.
 *
 * Stages of 128 bytes of k lie in a ring in shared memory; one is multiplied while the next two
 * are on their way. A warp computes 64 x 64, 64 x 32, 32 x 32 or 16 x 32 sums, half of its columns
 * in the tile's left half and half in the right one. Path of a call: the body of both kernels. */
#ifndef MMF_MMA_PRODUCTS_H
#define MMF_MMA_PRODUCTS_H

#include "gpu/kernels/nvidia/mma.h"
#include "gpu/kernels/nvidia/staged_loop.h"

typedef this_row row;
typedef element<row::operands> operand;
typedef sum_type<operand::type>::type real;
typedef matrices<row::operands> form;

enum {
    SIZE = sizeof(operand::type),
    WARPS = row::threads / 32,
    SIDE_N = row::tile_m * row::tile_n == WARPS * 64 * 64 ? 64 : 32, /* of a warp's sums */
    SIDE_M = row::tile_m * row::tile_n / WARPS / SIDE_N,
    WARPS_N = row::tile_n / SIDE_N,
    BLOCKS_M = SIDE_M / 16, /* fragments */
    BLOCKS_N = SIDE_N / 16, /* each of two times 8 columns */
    HALF_N = row::tile_n / 2,
    PARTS = row::tile_k / form::K, /* of a step */
    PITCH = row::tile_n + MMF_MMA_PADDING,
};
static_assert(WARPS_N * (row::tile_m / SIDE_M) == WARPS &&
                  row::lds == 2 * sizeof(regions) + TILE_BYTES &&
                  row::tile_k * SIZE == MMF_MMA_LINE && row::tile_k == PARTS * form::K,
              "kernels.def");

typedef mma_carrier<SIZE, row::tile_m, row::threads, swapped_chunks<SIZE, row::tile_m>> a_carrier;
typedef mma_carrier<SIZE, row::tile_n, row::threads, swapped_chunks<SIZE, row::tile_n>> b_carrier;

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

typedef real sums[BLOCKS_M][2 * BLOCKS_N][4];

/* First column of block j of a warp: two times 8. */
MMF_DEVICE int column_of(int warp, int j)
{
    return j / (BLOCKS_N / 2) * HALF_N + warp % WARPS_N * (SIDE_N / 2) + j % (BLOCKS_N / 2) * 16;
}

/* sum += A B over a stage. */
template <bool A_AlongK, bool B_AlongK>
MMF_DEVICE void multiply(unsigned stage, int warp, int lane, sums &sum)
{
    /* Addresses of fragments are computed in each step: kept, they would need too many registers.
     */
    asm volatile("" : "+r"(lane));
    fragments<row::operands, row::tile_m, A_AlongK> a_lines;
    fragments<row::operands, row::tile_n, B_AlongK> b_lines;
    a_lines.start(stage, warp / WARPS_N * SIDE_M, lane);
    b_lines.start(stage + a_carrier::BYTES, column_of(warp, 0), lane);
    MMF_UNROLL
    for (int part = 0; part < PARTS; part++) {
        form::word a[BLOCKS_M][form::A_WORDS], b[BLOCKS_N][2 * form::B_WORDS];
        MMF_UNROLL
        for (int i = 0; i < BLOCKS_M; i++)
            a_lines.read_a(i * 16, part * form::K, a[i]);
        MMF_UNROLL
        for (int j = 0; j < BLOCKS_N; j++)
            b_lines.read_b(column_of(0, j), part * form::K, b[j]);
        MMF_UNROLL
        for (int j = 0; j < 2 * BLOCKS_N; j++) {
            MMF_UNROLL
            for (int i = 0; i < BLOCKS_M; i++)
                form::add_to(sum[i][j], a[i], b[j / 2] + j % 2 * form::B_WORDS);
        }
    }
}

/* The sums of `count` products from k0 on, of the tile whose matrices are found. */
MMF_DEVICE void sum_products(const mmf_gemm_args &args, const tile &t, long long k0,
                             long long count, regions *of, sums &sum)
{
    const unsigned memory = shared_window(dynamic_shared);
    const int warp = thread_id() / 32, lane = thread_id() % 32;
    find_regions<row, a_carrier, b_carrier>(args, t, k0, of);
    each_stage<row, a_carrier, b_carrier>(count, of, memory,
                                          [&](unsigned offset) __attribute__((always_inline)) {
                                              const unsigned stage = memory + offset;
                                              switch (of[0].along_k * 2 + of[1].along_k) {
                                              case 0:
                                                  multiply<false, false>(stage, warp, lane, sum);
                                                  break;
                                              case 1:
                                                  multiply<false, true>(stage, warp, lane, sum);
                                                  break;
                                              case 2:
                                                  multiply<true, false>(stage, warp, lane, sum);
                                                  break;
                                              default:
                                                  multiply<true, true>(stage, warp, lane, sum);
                                              }
                                          });
}

/* The sums times a factor as lines of the tile. */
MMF_DEVICE void put_sums(real factor, real *lines, const sums &sum)
{
    const int warp = thread_id() / 32, lane = thread_id() % 32;
    typedef real pair __attribute__((ext_vector_type(2)));
    real *const mine = lines + (warp / WARPS_N * SIDE_M + lane / 4) * PITCH + lane % 4 * 2;
    MMF_UNROLL
    for (int i = 0; i < BLOCKS_M; i++) {
        MMF_UNROLL
        for (int j = 0; j < 2 * BLOCKS_N; j++) {
            const int col = column_of(warp, j / 2) + j % 2 * 8;
            MMF_UNROLL
            for (int half = 0; half < 2; half++)
                *(pair *)(mine + (i * 16 + half * 8) * PITCH + col) =
                    (pair){sum[i][j][2 * half], sum[i][j][2 * half + 1]} * factor;
        }
    }
}

#endif
