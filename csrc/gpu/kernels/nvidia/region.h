/* The lines of A and B that a tile reads, wherever they lie in memory. Path of a call: what the
 * carriers of gemm_mma and gemm_fma are pointed at. */
#ifndef MMF_NVIDIA_REGION_H
#define MMF_NVIDIA_REGION_H

#include "gpu/kernels/common/tile.h"

/* How elements come: 16 bytes at once, the least that a copy takes, or one by one through
 * registers. */
enum { WIDE, NARROW, SINGLE };

/* The lines (m of A, n of B) that a tile has, in two halves; of a gate, the second half are the up
 * columns beside those of the first. Steps in bytes: gpu/nvidia_tiles.c bounds them, so that 32
 * bits hold an offset within a step of a tile. */
struct region {
    const char *at[2]; /* the first lines; of no lines, the matrix */
    long long k_step;
    int line_step, lines[2];
    int width;    /* WIDE, ... */
    bool along_k; /* neighbours in memory are neighbours along k, not along the lines */

    __attribute__((device, always_inline)) void set_half(int half, const char *matrix,
                                                         long long first, long long count, int most)
    {
        at[half] = count > 0 ? matrix + first * line_step : matrix;
        lines[half] = count > 0 ? (count < most ? (int)count : most) : 0;
    }

    /* k0: whole steps of a tile, so that width and along_k stay. */
    __attribute__((device, always_inline)) void start_at(long long k0)
    {
        at[0] += k0 * k_step;
        at[1] += k0 * k_step;
    }

    /* Set along_k and width, of elements of Size bytes. */
    template <int Size>
    __attribute__((device, always_inline)) void classify(const char *first, const char *second)
    {
        along_k = k_step == Size || (line_step != Size && k_step < line_step);
        const bool together = (along_k ? k_step : line_step) == Size;
        const unsigned long long places = (unsigned long long)first | (unsigned long long)second |
                                          (unsigned long long)(along_k ? line_step : k_step);
        width = together && places % 16 == 0                 ? WIDE
                : Size >= 4 || (together && places % 4 == 0) ? NARROW
                                                             : SINGLE;
    }
};

/* The rows of A under a tile, from k0 on. The step of an axis of one is never taken. */
template <int Size, int Lines>
MMF_DEVICE region find_a(const mmf_gemm_args &args, const tile &t, long long k0)
{
    const mmf_gemm_strides &s = args.strides[MMF_GEMM_A];
    const char *const matrix = t.matrix(MMF_GEMM_A);
    region r;
    r.k_step = args.k > 1 ? s.col * Size : 0;
    r.line_step = args.m > 1 ? (int)s.row * Size : 0;
    r.set_half(0, matrix, t.m0, t.rows, Lines / 2);
    r.set_half(1, matrix, t.m0 + Lines / 2, t.rows - Lines / 2, Lines / 2);
    r.classify<Size>(matrix, matrix);
    r.start_at(k0);
    return r;
}

/* The columns of B, or of the two weights of a gate, which have the same strides. */
template <int Size, int Lines>
MMF_DEVICE region find_b(const mmf_gemm_args &args, const tile &t, long long k0)
{
    const mmf_gemm_strides &s = args.strides[MMF_GEMM_B];
    const int further = args.gated ? 0 : Lines / 2;
    const char *const matrix = t.matrix(MMF_GEMM_B), *const second = args.gated
                                                                         ? t.matrix(MMF_GEMM_B_UP)
                                                                         : matrix;
    region r;
    r.k_step = args.k > 1 ? s.row * Size : 0;
    r.line_step = args.n > 1 ? (int)s.col * Size : 0;
    r.set_half(0, matrix, t.n0, t.cols, Lines / 2);
    r.set_half(1, second, t.n0 + further, t.cols - further, Lines / 2);
    r.classify<Size>(matrix, second);
    r.start_at(k0);
    return r;
}

/* What lies in shared memory while sums take the registers. */
struct kept {
    tile t;
    region a, b;
};

template <class Row>
MMF_DEVICE const kept &keep(const mmf_gemm_args &args, const tile &t, long long k0, char *shared)
{
    enum { SIZE = sizeof(typename element<Row::operands>::type) };
    kept &there = *(kept *)shared;
    if (thread_id() == 0) {
        there.t = t;
        there.a = find_a<SIZE, Row::tile_m>(args, t, k0);
    }
    if (thread_id() == 32)
        there.b = find_b<SIZE, Row::tile_n>(args, t, k0);
    barrier();
    return there;
}

#endif
