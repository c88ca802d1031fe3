/* B with lines along n: a lane has 16 bytes of them, of as many neighbouring k as A has in 16
 * bytes. Path of a call: the loop of gemm_gemv.hip. */
#ifndef MMF_NVIDIA_GEMV_COLUMNS_H
#define MMF_NVIDIA_GEMV_COLUMNS_H

#include "gpu/kernels/nvidia/gemv_lines.h"

/* What a lane reads: from its k on, of which there are `left`. */
template <> struct share_of_lane<false> {
    const char *a[row::tile_m], *b;
    long long pitch; /* of B, in bytes */
    int left;

    /* Beyond the last row or run of the tile that one stands for it; its sums are not stored. */
    __attribute__((device, always_inline)) void find(const mmf_gemm_args &args, const tile &t,
                                                     int part, int lane, int column)
    {
        const bool second = column >= t.columns;
        const int operand = second ? MMF_GEMM_B_UP : MMF_GEMM_B;
        const int n = column - (second ? t.columns : 0), last = t.cols - RUN;
        const int k = part * ACROSS + lane / LANES * RUN;
        pitch = args.strides[operand].row * form::size;
        b = t.matrix(operand) + (t.n0 + (n < last ? n : last)) * form::size + k * pitch;
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            const int mine = m < t.rows ? m : t.rows - 1;
            a[m] = t.matrix(MMF_GEMM_A) +
                   ((long long)mine * args.strides[MMF_GEMM_A].row + k) * form::size;
        }
        left = (int)args.k - k;
    }

    __attribute__((device, always_inline)) void prefetch_first(int lane) const
    {
        MMF_UNROLL
        for (int i = 0; i < RUN; i++)
            if (lane % LANES % (LINE / 16) == 0 && i < left)
                prefetch(b + i * pitch);
    }

    /* Eight k of a line of A, of which there are `left` where it is cut. */
    template <bool Cut>
    __attribute__((device, always_inline)) mmf_uint4 load_a(const char *at) const
    {
        typedef typename form::type type;
        mmf_uint4 bits = {};
        if (!Cut || left >= RUN)
            return *(const MMF_GLOBAL mmf_uint4 *)at;
        MMF_UNROLL
        for (int i = 0; i < RUN; i++)
            if (i < left)
                bits[i * form::size / 4] |= (unsigned)((const MMF_GLOBAL type *)at)[i]
                                            << i * form::size % 4 * 8;
        return bits;
    }

    /* The products of one step; Cut: of its k that there are. */
    template <bool Cut>
    __attribute__((device, always_inline)) void multiply_into(float (&sum)[row::tile_m][COLUMNS])
    {
        mmf_uint4 of_b[RUN], of_a[row::tile_m];
        const char *at = b;
        MMF_UNROLL
        for (int i = 0; i < RUN; i++) {
            of_b[i] = mmf_uint4{};
            if (!Cut || i < left)
                of_b[i] = load_once(at);
            at += pitch;
        }
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++)
            of_a[m] = load_a<Cut>(a[m]);
        mmf_float2 row_of_a[row::tile_m][RUN / 2];
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++)
            form::unpack(of_a[m], row_of_a[m]);
        MMF_UNROLL
        for (int i = 0; i < RUN; i++) {
            mmf_float2 line[RUN / 2];
            form::unpack(of_b[i], line);
            MMF_UNROLL
            for (int m = 0; m < row::tile_m; m++) {
                const float x = i % 2 ? row_of_a[m][i / 2].y : row_of_a[m][i / 2].x;
                MMF_UNROLL
                for (int p = 0; p < RUN / 2; p++) {
                    sum[m][2 * p] = fused(x, line[p].x, sum[m][2 * p]);
                    sum[m][2 * p + 1] = fused(x, line[p].y, sum[m][2 * p + 1]);
                }
            }
        }
    }

    __attribute__((device, always_inline)) void advance()
    {
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++)
            a[m] += row::tile_k * form::size;
        b += row::tile_k * pitch;
        left -= row::tile_k;
    }

    static __attribute__((device, always_inline)) int steps(const mmf_gemm_args &args)
    {
        return (int)args.k / row::tile_k;
    }

    __attribute__((device, always_inline)) void multiply_rest(const mmf_gemm_args &args, int, int,
                                                              float (&sum)[row::tile_m][COLUMNS])
    {
        if ((int)args.k % row::tile_k)
            multiply_into<true>(sum);
    }
};

#endif
