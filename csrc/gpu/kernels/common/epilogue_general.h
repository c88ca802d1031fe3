/* The general epilogue: every operand, dtype and stride, every activation.
 *     z += beta * C, z += bias, preactivation = z, activation, z *= multiply, out = z
 * in float (double for float64), rounded once. z, alpha times the sums, lies in shared memory, so
 * that the threads can take it in the order of out's memory. Every step gives a thread the same
 * groups of four neighbours, so that no barrier is needed between steps. All loops are rolled: the
 * size of the code does not depend on the tile.
 * Path of a call: the last step of a tile that the epilogue in registers does not take. C may be
 * out: an element of both is read and written by the same thread, in this order. */
#ifndef MMF_EPILOGUE_GENERAL_H
#define MMF_EPILOGUE_GENERAL_H

#include "gpu/kernels/common/activations.h"
#include "gpu/kernels/common/tile.h"

/* The part of an operand that lies under a tile. */
struct window {
    char *at;
    long long row, col; /* strides in bytes */
    int dtype;
    bool wide; /* four elements of a row may be taken at once */
};

MMF_DEVICE window window_of(const mmf_gemm_args &args, int operand, const tile &t)
{
    const mmf_gemm_strides &strides = args.strides[operand];
    window w;
    w.dtype = dtype_of(args, operand);
    const int size = element_size(w.dtype);
    w.row = strides.row * size;
    w.col = strides.col * size;
    w.at = t.matrix(operand) + t.m0 * w.row + t.n0 * w.col;
    if (w.dtype == MMF_GEMM_IMMEDIATE) { /* no memory; past t.cols z is not stored */
        w.wide = true;
        return w;
    }
    w.wide = strides.col == 1 && t.cols == t.columns &&
             (((unsigned long long)w.at | (unsigned long long)w.row) & (4 * size - 1)) == 0;
    return w;
}

/* What a step does with an operand: out and preactivation are written, others change z. */
struct change {
    bool writes, multiplies;
    double factor; /* of what is added */
    double immediate;
};

/* Count, one or four, elements of an operand in memory. */
template <class Element, int Count> MMF_DEVICE void read(const char *at, typename Element::type *to)
{
    if (Count == 4) {
        const typename Element::type4 all = *(const typename Element::type4 *)at;
        MMF_UNROLL
        for (int i = 0; i < Count; i++)
            to[i] = all[i];
    } else {
        to[0] = *(const typename Element::type *)at;
    }
}

template <class Element, int Count>
MMF_DEVICE void write(char *at, const typename Element::type *from)
{
    if (Count == 4) {
        typename Element::type4 all;
        MMF_UNROLL
        for (int i = 0; i < Count; i++)
            all[i] = from[i];
        *(typename Element::type4 *)at = all;
    } else {
        *(typename Element::type *)at = from[0];
    }
}

template <int Dtype, int Count, class Real>
MMF_DEVICE void take_as(const change &c, char *at, Real *z)
{
    typedef element<Dtype> form;
    typename form::type there[Count];
    if (c.writes) {
        MMF_UNROLL
        for (int i = 0; i < Count; i++)
            there[i] = form::store(z[i]);
        write<form, Count>(at, there);
        return;
    }
    read<form, Count>(at, there);
    MMF_UNROLL
    for (int i = 0; i < Count; i++) {
        const Real other = form::template load<Real>(there[i]);
        z[i] = c.multiplies ? z[i] * other : z[i] + (Real)c.factor * other;
    }
}

template <int Count, class Real> MMF_DEVICE void take_immediate(const change &c, Real *z)
{
    const Real other = (Real)c.immediate;
    MMF_UNROLL
    for (int i = 0; i < Count; i++)
        z[i] = c.multiplies ? z[i] * other : z[i] + (Real)c.factor * other;
}

template <int Count, class Real> MMF_DEVICE void take(const change &c, int dtype, char *at, Real *z)
{
    switch (dtype) {
    case MMF_GEMM_FLOAT32:
        return take_as<MMF_GEMM_FLOAT32, Count>(c, at, z);
    case MMF_GEMM_FLOAT64:
        return take_as<MMF_GEMM_FLOAT64, Count>(c, at, z);
    case MMF_GEMM_FLOAT16:
        return take_as<MMF_GEMM_FLOAT16, Count>(c, at, z);
    case MMF_GEMM_IMMEDIATE:
        return take_immediate<Count>(c, z);
    default:
        return take_as<MMF_GEMM_BFLOAT16, Count>(c, at, z);
    }
}

/* z of a tile in shared memory: lines of TileN values, Pitch apart (gated: the left half is the
 * gate's). Lines says how many there are (count) and which row of the tile each of them is (row).
 */
template <class Real, int Threads, int TileN, int Pitch, class Lines> struct staged {
    static_assert(TileN % 8 == 0 && Pitch * sizeof(Real) % 16 == 0,
                  "four neighbours lie in one stream, two doubles are aligned");
    Real *z;
    tile of;
    Lines lines;

    /* step(row, col, where) for each group of four of this thread */
    template <class Step> __attribute__((device, always_inline)) void each(Step step) const
    {
        const bool whole = of.columns == TileN;
        const int groups = of.columns / 4;
        MMF_ROLLED
        for (int group = thread_id(); group < lines.count * groups; group += Threads) {
            const int line = whole ? group / (TileN / 4) : group / (TileN / 8);
            const int col = (group - line * groups) * 4;
            const int row = lines.row(line);
            if (row < of.rows && col < of.cols)
                step(row, col, z + line * Pitch + col);
        }
    }
};

/* Lines that are the rows of the tile. */
struct all_rows {
    int count;

    __attribute__((device, always_inline)) int row(int line) const
    {
        return line;
    }
};

/* One step: an operand is read or written; second: those of the up columns. */
template <class Real, class Staged>
MMF_DEVICE void take_operand(const mmf_gemm_args &args, const Staged &sums, int operand, int second)
{
    const window w = window_of(args, operand, sums.of);
    const change c = {operand >= MMF_GEMM_PREACTIVATION, operand == MMF_GEMM_MULTIPLY,
                      operand == MMF_GEMM_C + second ? args.beta : 1,
                      operand >= MMF_GEMM_PREACTIVATION ? 0
                                                        : args.immediates[operand - MMF_GEMM_BIAS]};
    sums.each([&](int row, int col, Real *z) {
        char *const at = w.at + row * w.row + col * w.col;
        z += second * sums.of.columns;
        if (w.wide)
            return take<4>(c, w.dtype, at, z);
        const int count = sums.of.cols - col < 4 ? sums.of.cols - col : 4;
        MMF_ROLLED
        for (int i = 0; i < count; i++)
            take<1>(c, w.dtype, at + i * w.col, z + i);
    });
}

template <class Real, class Staged>
MMF_DEVICE void activate(const mmf_gemm_args &args, const Staged &sums)
{
    typedef typename act_unit<Real>::type unit;
    enum { COUNT = sizeof(unit) / sizeof(Real) };
    const unit p0 = (Real)args.parameters[0], p1 = (Real)args.parameters[1],
               p2 = (Real)args.parameters[2], p3 = (Real)args.parameters[3];
    const int id = args.activation, up = args.gated ? sums.of.columns : 0;
    if (id == ACT_NONE)
        return;
    sums.each([&](int, int, Real *z) {
        MMF_ROLLED
        for (int i = 0; i < 4; i += COUNT) {
            unit value = *(unit *)(z + i), of_up = *(const unit *)(z + i + up);
            MMF_BOTH_LOADED(value, of_up);
            switch (id) {
#define MMF_ACTIVATION(id, name, formula, source, f)                                               \
    case ACT_##id:                                                                                 \
        value = activation<ACT_##id>::of(value, of_up, p0, p1, p2, p3);                            \
        break;
#define MMF_GATED MMF_ACTIVATION
#include "problem/activations.def"
            }
            *(unit *)(z + i) = value;
        }
    });
}

/* Finish a tile whose z lies in shared memory, seen by all threads. */
template <class Real, class Staged>
MMF_DEVICE void finish_general(const mmf_gemm_args &args, const Staged &sums)
{
    enum { STEPS = 5 };
    /* Two streams of three steps, then the last two: one loop, so that there is one body. */
    MMF_ROLLED
    for (int i = args.gated ? 0 : 3; i < 3 + STEPS; i++) {
        const int second = i < 3, at = second ? i : i - 3;
        if (at == 3)
            activate<Real>(read_again(args), sums);
        const int operand = at == 0   ? MMF_GEMM_C + second
                            : at == 1 ? MMF_GEMM_BIAS + second
                            : at == 2 ? MMF_GEMM_PREACTIVATION + second
                            : at == 3 ? (int)MMF_GEMM_MULTIPLY
                                      : (int)MMF_GEMM_OUT;
        const mmf_gemm_args &again = read_again(args);
        if (dtype_of(again, operand) != MMF_GEMM_ABSENT)
            take_operand<Real>(again, sums, operand, second);
    }
}

#endif
