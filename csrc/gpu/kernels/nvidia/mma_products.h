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
    /* Workgroups on a unit: those of float64 that are large have the registers of one alone. */
    AT_ONCE = SIZE == 8 && row::tile_m == 128 ? 1 : 2,
};
static_assert(WARPS_N * (row::tile_m / SIDE_M) == WARPS && row::lds == sizeof(kept) + TILE_BYTES &&
                  row::tile_k * SIZE == MMF_MMA_LINE && row::tile_k == PARTS * form::K,
              "kernels.def");

typedef swapped_chunks<SIZE, row::tile_m> a_stage;
typedef swapped_chunks<SIZE, row::tile_n> b_stage;

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

typedef real sums[BLOCKS_M][2 * BLOCKS_N][4];

/* First column of block j of a warp: two times 8. */
MMF_DEVICE int column_of(int warp, int j)
{
    return j / (BLOCKS_N / 2) * HALF_N + warp % WARPS_N * (SIDE_N / 2) + j % (BLOCKS_N / 2) * 16;
}

/* What the loops over stages ask for. */
template <bool A_AlongK, bool B_AlongK, int Dtype = row::operands,
          bool Slow = Dtype == MMF_GEMM_FLOAT64>
struct products {
    sums &sum;
    unsigned memory;
    fragments<Dtype, row::tile_m, A_AlongK> a_lines;
    fragments<Dtype, row::tile_n, B_AlongK> b_lines;

    __attribute__((device, always_inline)) products(sums &to) : sum(to)
    {
        const int warp = thread_id() / 32, lane = thread_id() % 32;
        memory = shared_address(dynamic_shared);
        a_lines.find(warp / WARPS_N * SIDE_M, lane);
        b_lines.find(column_of(warp, 0), lane);
    }

    template <class A, class B>
    __attribute__((device, always_inline)) void each(long long count, A &a, B &b)
    {
        each_stage(count, a, b, memory, *this);
    }

    __attribute__((device, always_inline)) void multiply(unsigned stage)
    {
        a_lines.start(memory + stage);
        b_lines.start(memory + stage + a_stage::BYTES);
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
};

/* Of float64, whose instructions take long: while a part is multiplied, the next one is read, of A
 * to the registers that become free. */
template <bool A_AlongK, bool B_AlongK, int Dtype>
struct products<A_AlongK, B_AlongK, Dtype, true> {
    typedef matrices<Dtype> form;
    sums &sum;
    unsigned memory;
    fragments<Dtype, row::tile_m, A_AlongK> a_lines;
    fragments<Dtype, row::tile_n, B_AlongK> b_lines;
    typename form::word a[BLOCKS_M][form::A_WORDS], b[2][BLOCKS_N][2 * form::B_WORDS];

    __attribute__((device, always_inline)) products(sums &to) : sum(to)
    {
        const int warp = thread_id() / 32, lane = thread_id() % 32;
        memory = shared_address(dynamic_shared);
        a_lines.find(memory, warp / WARPS_N * SIDE_M, lane);
        b_lines.find(memory + a_stage::BYTES, column_of(warp, 0), lane);
    }

    template <class A, class B>
    __attribute__((device, always_inline)) void each(long long count, A &a, B &b)
    {
        each_stage_ahead(count, a, b, memory, *this);
    }

    __attribute__((device, always_inline)) void read_b(unsigned stage, int part)
    {
        MMF_UNROLL
        for (int j = 0; j < BLOCKS_N; j++)
            b_lines.read_b(stage, column_of(0, j), part * form::K, b[part % 2][j]);
    }

    __attribute__((device, always_inline)) void begin(unsigned stage)
    {
        read_b(stage, 0);
        MMF_UNROLL
        for (int i = 0; i < BLOCKS_M; i++)
            a_lines.read_a(stage, i * 16, 0, a[i]);
    }

    /* Multiply a part, read the next one, which is of `stage`. */
    __attribute__((device, always_inline)) void multiply(int part, unsigned stage, int next)
    {
        a_lines.forget();
        b_lines.forget();
        read_b(stage, next);
        MMF_UNROLL
        for (int i = 0; i < BLOCKS_M; i++) {
            MMF_UNROLL
            for (int j = 0; j < 2 * BLOCKS_N; j++)
                form::add_to(sum[i][j], a[i], b[part % 2][j / 2] + j % 2 * form::B_WORDS);
            a_lines.read_a(stage, i * 16, next * form::K, a[i]);
        }
    }

    __attribute__((device, always_inline)) void rest(unsigned stage)
    {
        MMF_UNROLL
        for (int part = 0; part + 1 < PARTS; part++)
            multiply(part, stage, part + 1);
    }

    __attribute__((device, always_inline)) void last(unsigned next)
    {
        static_assert(PARTS % 2 == 0, "the first part is read to the buffer that is free");
        multiply(PARTS - 1, next, 0);
    }
};

/* What sum_products() asks for. */
struct loop {
    typedef this_row row;
    typedef ::a_stage a_stage;
    typedef ::b_stage b_stage;
    typedef ::sums sums;
    template <bool A_AlongK, bool B_AlongK> using products = ::products<A_AlongK, B_AlongK>;
};

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
