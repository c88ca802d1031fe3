/* Sums of products in float32 by fused multiply-adds, in the registers of a workgroup: what a tile
 * of gemm_fma and gemm_fma_split begins with.
 *
 * A thread computes 8 x 16, 8 x 8 or 8 x 4 sums, a warp 32 rows by 8 times as many columns. Stages
 * of 8 k lie in a ring in shared memory, a row of lines for each k; rows and columns of a thread
 * are groups of four. Path of a call: the body of both kernels. */
#ifndef MMF_FMA_PRODUCTS_H
#define MMF_FMA_PRODUCTS_H

#include "gpu/kernels/nvidia/cluster.h"
#include "gpu/kernels/nvidia/stage_forms.h"
#include "gpu/kernels/nvidia/staged_loop.h"

typedef this_row row;
static_assert(row::operands == MMF_GEMM_FLOAT32, "kernels.def");

typedef padded_rows<row::tile_m, row::tile_k> a_stage;
typedef padded_rows<row::tile_n, row::tile_k> b_stage;

enum {
    LANES_M = 4, /* of a warp */
    LANES_N = 8,
    ROWS = 8, /* of a thread */
    COLS = row::tile_m * row::tile_n / row::threads / ROWS,
    WARPS_N = row::tile_n / (LANES_N * COLS),
    GROUP = 4, /* floats of 16 bytes */
    A_PITCH = a_stage::PITCH,
    B_PITCH = b_stage::PITCH,
    PITCH = row::tile_n + MMF_MMA_PADDING,
};
static_assert(row::lds == sizeof(kept) + TILE_BYTES &&
                  WARPS_N * (row::tile_m / (LANES_M * ROWS)) == row::threads / 32,
              "kernels.def");

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

typedef float sums[ROWS][COLS];

/* First of a thread's lines. Lanes that differ in one bit of two read the same group, which makes
 * a load of a warp two transactions, not four. */
MMF_DEVICE int first_row()
{
    const int id = thread_id(), warp = id / 32;
    return warp / WARPS_N * (LANES_M * ROWS) + ((id >> 1 & 1) | (id >> 4 & 1) << 1) * GROUP;
}

MMF_DEVICE int first_column()
{
    const int id = thread_id(), warp = id / 32;
    return warp % WARPS_N * (LANES_N * COLS) + ((id & 1) | (id >> 2 & 3) << 1) * GROUP;
}

/* What a thread multiplies at one k. */
struct operands_at_k {
    float a[ROWS], b[COLS];

    __attribute__((device, always_inline)) void load(const char *a_row, const char *b_row)
    {
        MMF_UNROLL
        for (int i = 0; i < ROWS; i += GROUP)
            load_group(a_row + i * LANES_M * 4, a + i);
        MMF_UNROLL
        for (int j = 0; j < COLS; j += GROUP)
            load_group(b_row + j * LANES_N * 4, b + j);
    }

    static __attribute__((device, always_inline)) void load_group(const char *from, float *to)
    {
        const mmf_float4 four = *(const mmf_float4 *)from;
        MMF_UNROLL
        for (int e = 0; e < GROUP; e++)
            to[e] = four[e];
    }

    /* An instruction shares an operand with the one before it, which the register file then need
     * not read: down one column and up the next. */
    __attribute__((device, always_inline)) void add_to(sums &sum) const
    {
        MMF_UNROLL
        for (int at = 0; at < ROWS * COLS; at++) {
            const int j = at / ROWS, i = j % 2 ? ROWS - 1 - at % ROWS : at % ROWS;
            sum[i][j] = fused(a[i], b[j], sum[i][j]);
        }
    }
};

/* What each_stage_ahead() asks for. The operands of a k are loaded while the k before is
 * multiplied. */
template <bool, bool> struct products {
    sums &sum;
    operands_at_k both[2];

    __attribute__((device, always_inline)) products(sums &to) : sum(to)
    {
    }

    template <class A, class B>
    __attribute__((device, always_inline)) void each(long long count, A &a, B &b)
    {
        each_stage_ahead(count, a, b, shared_address(dynamic_shared), *this);
    }

    __attribute__((device, always_inline)) void load(unsigned stage, int k, operands_at_k &to)
    {
        const char *const at = dynamic_shared + stage;
        to.load(at + first_row() * 4 + k * A_PITCH,
                at + a_stage::BYTES + first_column() * 4 + k * B_PITCH);
    }

    __attribute__((device, always_inline)) void begin(unsigned stage)
    {
        load(stage, 0, both[0]);
    }

    __attribute__((device, always_inline)) void rest(unsigned stage)
    {
        MMF_UNROLL
        for (int k = 1; k < row::tile_k; k++) {
            load(stage, k, both[k % 2]);
            both[(k - 1) % 2].add_to(sum);
        }
    }

    __attribute__((device, always_inline)) void last(unsigned next)
    {
        load(next, 0, both[0]);
        both[(row::tile_k - 1) % 2].add_to(sum);
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
MMF_DEVICE void put_sums(float factor, float *lines, const sums &sum)
{
    const int m = first_row(), n = first_column();
    MMF_UNROLL
    for (int i = 0; i < ROWS; i++) {
        MMF_UNROLL
        for (int j = 0; j < COLS; j += GROUP) {
            mmf_float4 four;
            MMF_UNROLL
            for (int e = 0; e < GROUP; e++)
                four[e] = sum[i][j + e] * factor;
            *(mmf_float4 *)(lines + (m + i / GROUP * (LANES_M * GROUP) + i % GROUP) * PITCH + n +
                            j * LANES_N) = four;
        }
    }
}

#endif
