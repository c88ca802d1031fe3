/* How the threads of gemm_gemv share a tile: a warp has four columns, its lanes lie along k. Path
 * of a call: the loop of gemm_gemv.hip. */
#ifndef MMF_NVIDIA_GEMV_H
#define MMF_NVIDIA_GEMV_H

#include "gpu/kernels/common/gemv_sums.h"
#include "gpu/kernels/nvidia/few_rows.h"

enum { LINE = 128 }; /* bytes of a line of the last cache */

/* What a lane reads: from its k on, k of the whole runs being below `left`. */
struct share_of_lane {
    const char *a[row::tile_m], *b[COLUMNS];
    int left;

    /* Beyond the last row or column of the tile that one stands for it; its sums are not stored. */
    __attribute__((device, always_inline)) void find(const mmf_gemm_args &args, const tile &t,
                                                     int part, int lane, int column)
    {
        const int k = part * (AT_ONCE * ACROSS) + lane * RUN;
        const bool second = column >= t.columns;
        const int operand = second ? MMF_GEMM_B_UP : MMF_GEMM_B;
        const int n = column - (second ? t.columns : 0);
        const char *const of_b = t.matrix(operand) + k * form::size;
        const char *const of_a = t.matrix(MMF_GEMM_A) + k * form::size;
        MMF_UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            const int mine = n + c < t.cols ? n + c : t.cols - 1;
            b[c] = of_b + (t.n0 + mine) * args.strides[operand].col * form::size;
        }
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            const int mine = m < t.rows ? m : t.rows - 1;
            a[m] = of_a + (long long)mine * args.strides[MMF_GEMM_A].row * form::size;
        }
        left = (int)args.k / RUN * RUN - k;
    }

    __attribute__((device, always_inline)) void prefetch_first(int lane) const
    {
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++)
                if (lane % (LINE / 16) == 0 && i * ACROSS < left)
                    prefetch(b[c] + i * ACROSS * form::size);
        }
    }

    /* The products of one step; Cut: of its runs that there are. */
    template <bool Cut>
    __attribute__((device, always_inline)) void multiply_into(float (&sum)[row::tile_m][COLUMNS])
    {
        mmf_uint4 of_b[AT_ONCE][COLUMNS], of_a[AT_ONCE][row::tile_m];
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            const bool there = !Cut || i * ACROSS < left;
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++) {
                of_b[i][c] = mmf_uint4{};
                if (there)
                    of_b[i][c] = load_once(b[c] + i * ACROSS * form::size);
            }
            MMF_UNROLL
            for (int m = 0; m < row::tile_m; m++) {
                of_a[i][m] = mmf_uint4{};
                if (there)
                    of_a[i][m] = *(const MMF_GLOBAL mmf_uint4 *)(a[m] + i * ACROSS * form::size);
            }
        }
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            mmf_float2 row_of_a[row::tile_m][RUN / 2];
            MMF_UNROLL
            for (int m = 0; m < row::tile_m; m++)
                form::unpack(of_a[i][m], row_of_a[m]);
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++) {
                mmf_float2 column[RUN / 2];
                form::unpack(of_b[i][c], column);
                MMF_UNROLL
                for (int m = 0; m < row::tile_m; m++) {
                    MMF_UNROLL
                    for (int p = 0; p < RUN / 2; p++) {
                        sum[m][c] = fused(row_of_a[m][p].x, column[p].x, sum[m][c]);
                        sum[m][c] = fused(row_of_a[m][p].y, column[p].y, sum[m][c]);
                    }
                }
            }
        }
    }

    /* The elements behind the last whole run, less than one: a lane has one. */
    __attribute__((device, always_inline)) void
    multiply_last(int last, float (&sum)[row::tile_m][COLUMNS]) const
    {
        typedef typename form::type type;
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            const float x = form::form::template load<float>(((const type *)a[m])[last]);
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++)
                sum[m][c] = fused(x, form::form::template load<float>(((const type *)b[c])[last]),
                                  sum[m][c]);
        }
    }

    __attribute__((device, always_inline)) void advance()
    {
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++)
            a[m] += row::tile_k * form::size;
        MMF_UNROLL
        for (int c = 0; c < COLUMNS; c++)
            b[c] += row::tile_k * form::size;
        left -= row::tile_k;
    }

    static __attribute__((device, always_inline)) int steps(const mmf_gemm_args &args)
    {
        return (int)args.k / RUN * RUN / row::tile_k;
    }

    /* Behind the whole steps. */
    __attribute__((device, always_inline)) void
    multiply_rest(const mmf_gemm_args &args, int part, int lane, float (&sum)[row::tile_m][COLUMNS])
    {
        if ((int)args.k / RUN * RUN % row::tile_k)
            multiply_into<true>(sum);
        if (part == 0 && lane < (int)args.k % RUN) /* `left` is the way to the last run */
            multiply_last(left + lane, sum);
    }
};

#endif
