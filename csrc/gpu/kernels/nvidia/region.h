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
 * bits hold an offset within a step of a tile. It lies in shared memory: sums take the registers.
 */
struct regions {
    const char *at[2]; /* the first lines; of no lines, the matrix */
    long long k_step;
    int line_step, lines[2];
    int width;    /* WIDE, ... */
    bool along_k; /* neighbours in memory are neighbours along k, not along the lines */
    /* What a thread copies follows each other by so much, in memory and in a stage; `swap` bytes
     * of the latter change sides in every second turn. */
    int step, slot_step, swap, line_stride, k_stride;
    int of_line, of_k; /* bytes of a unit that an existing line, an existing k stands for */

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

/* The rows of A under a tile. The step of an axis of one is never taken. */
template <int Size, int Lines>
MMF_DEVICE void find_a(const mmf_gemm_args &args, const tile &t, regions &r)
{
    const mmf_gemm_strides &s = args.strides[MMF_GEMM_A];
    const char *const matrix = t.matrix(MMF_GEMM_A);
    r.k_step = args.k > 1 ? s.col * Size : 0;
    r.line_step = args.m > 1 ? (int)s.row * Size : 0;
    r.set_half(0, matrix, t.m0, t.rows, Lines / 2);
    r.set_half(1, matrix, t.m0 + Lines / 2, t.rows - Lines / 2, Lines / 2);
    r.classify<Size>(matrix, matrix);
}

/* The columns of B, or of the two weights of a gate, which have the same strides. */
template <int Size, int Lines>
MMF_DEVICE void find_b(const mmf_gemm_args &args, const tile &t, regions &r)
{
    const mmf_gemm_strides &s = args.strides[MMF_GEMM_B];
    const int further = args.gated ? 0 : Lines / 2;
    const char *const matrix = t.matrix(MMF_GEMM_B), *const second = args.gated
                                                                         ? t.matrix(MMF_GEMM_B_UP)
                                                                         : matrix;
    r.k_step = args.k > 1 ? s.row * Size : 0;
    r.line_step = args.n > 1 ? (int)s.col * Size : 0;
    r.set_half(0, matrix, t.n0, t.cols, Lines / 2);
    r.set_half(1, second, t.n0 + further, t.cols - further, Lines / 2);
    r.classify<Size>(matrix, second);
}

#endif
