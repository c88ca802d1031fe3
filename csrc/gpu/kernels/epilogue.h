/* From sums of products to the result, one tile at a time, for every family of kernels:
 *     z = alpha * sum + beta * C + bias -> preactivation -> activation -> multiply -> out
 * in float (double for float64), rounded once. The sums come through shared memory, so that the
 * threads can take them in the order of out's memory whatever the layout of the accumulators.
 * Path of a call: the last step of a tile. C may be out: an element of both is read and written by
 * the same thread, in this order. */
#ifndef MMF_EPILOGUE_H
#define MMF_EPILOGUE_H

#include "gpu/kernels/tile.h"

#include "gpu/kernels/elementary.h"

template <class Real> using four = Real __attribute__((ext_vector_type(4)));

/* mmf_activation of problem/activation.h */
enum {
#define MMF_ACTIVATION(id, name, parameters, default0, default1, f) ACT_##id,
#define MMF_GATED(id, name, parameters, default0, default1, f) ACT_##id,
#define MMF_ALIAS(name, id)
#include "problem/activations.def"
#undef MMF_ACTIVATION
#undef MMF_GATED
#undef MMF_ALIAS
};

#define MMF_REAL float
#define T(name) name##_float
#include "gpu/kernels/activate.inc"
#undef MMF_REAL
#undef T
#define MMF_REAL double
#define T(name) name##_double
#include "gpu/kernels/activate.inc"
#undef MMF_REAL
#undef T

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
    w.dtype = args.dtype[operand];
    const int size = element_size(w.dtype);
    w.row = strides.row * size;
    w.col = strides.col * size;
    w.at = t.matrix(operand) + t.m0 * w.row + t.n0 * w.col;
    w.wide = strides.col == 1 && t.cols == t.columns &&
             (((unsigned long long)w.at | (unsigned long long)w.row) & (4 * size - 1)) == 0;
    return w;
}

template <int Dtype, class Real>
MMF_DEVICE four<Real> load_as(const window &w, int row, int col, int cols)
{
    typedef element<Dtype> form;
    four<Real> value;
    const char *from = w.at + row * w.row;
    if (w.wide) {
        const typename form::type4 all =
            *(const typename form::type4 *)(from + col * sizeof(typename form::type));
        MMF_UNROLL
        for (int i = 0; i < 4; i++)
            value[i] = form::template load<Real>(all[i]);
    } else {
        MMF_UNROLL
        for (int i = 0; i < 4; i++) { /* beyond the edge: the last element again */
            const int at = col + i < cols ? col + i : cols - 1;
            value[i] = form::template load<Real>(*(const typename form::type *)(from + at * w.col));
        }
    }
    return value;
}

template <class Real> MMF_DEVICE four<Real> load_four(const window &w, int row, int col, int cols)
{
    switch (w.dtype) {
    case MMF_GEMM_FLOAT32:
        return load_as<MMF_GEMM_FLOAT32, Real>(w, row, col, cols);
    case MMF_GEMM_FLOAT64:
        return load_as<MMF_GEMM_FLOAT64, Real>(w, row, col, cols);
    case MMF_GEMM_FLOAT16:
        return load_as<MMF_GEMM_FLOAT16, Real>(w, row, col, cols);
    default:
        return load_as<MMF_GEMM_BFLOAT16, Real>(w, row, col, cols);
    }
}

template <int Dtype, class Real>
MMF_DEVICE void store_as(const window &w, int row, int col, int cols, const four<Real> &value)
{
    typedef element<Dtype> form;
    char *to = w.at + row * w.row;
    if (w.wide) {
        typename form::type4 all;
        MMF_UNROLL
        for (int i = 0; i < 4; i++)
            all[i] = form::store(value[i]);
        *(typename form::type4 *)(to + col * sizeof(typename form::type)) = all;
    } else {
        MMF_UNROLL
        for (int i = 0; i < 4; i++)
            if (col + i < cols)
                *(typename form::type *)(to + (col + i) * w.col) = form::store(value[i]);
    }
}

template <class Real>
MMF_DEVICE void store_four(const window &w, int row, int col, int cols, const four<Real> &value)
{
    switch (w.dtype) {
    case MMF_GEMM_FLOAT32:
        return store_as<MMF_GEMM_FLOAT32>(w, row, col, cols, value);
    case MMF_GEMM_FLOAT64:
        return store_as<MMF_GEMM_FLOAT64>(w, row, col, cols, value);
    case MMF_GEMM_FLOAT16:
        return store_as<MMF_GEMM_FLOAT16>(w, row, col, cols, value);
    default:
        return store_as<MMF_GEMM_BFLOAT16>(w, row, col, cols, value);
    }
}

/* Sums of a tile in shared memory, lines Pitch apart: Lines says how many there are (count) and
 * which row of the tile each of them is (row). Every thread owns the same groups of four neighbours
 * in all steps, so that no barrier stands between the steps. */
template <class Real, int Threads, int Pitch, class Lines> struct sums {
    Real *z;
    tile of;
    Lines lines;

    /* step(row, col, where) for each group of four of this thread */
    template <class Step> __attribute__((device, always_inline)) void each(Step step) const
    {
        const int shift = of.columns == 128 ? 5 : of.columns == 64 ? 4 : 3; /* groups of a line */
        MMF_ROLLED
        for (int group = thread_id(); group < lines.count << shift; group += Threads) {
            const int line = group >> shift, col = (group & ((1 << shift) - 1)) * 4;
            const int row = lines.row(line);
            if (row < of.rows && col < of.cols)
                step(row, col, (four<Real> *)(z + line * Pitch + col));
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

/* z of one stream; second is 1 for the up columns: their operands follow the gate's. */
template <class Real, class Sums>
MMF_DEVICE void make_z(const mmf_gemm_args &args, const Sums &sums, int second)
{
    const int c = MMF_GEMM_C + second, bias = MMF_GEMM_BIAS + second,
              preactivation = MMF_GEMM_PREACTIVATION + second;
    const bool has_c = args.dtype[c] != MMF_GEMM_ABSENT,
               has_bias = args.dtype[bias] != MMF_GEMM_ABSENT,
               has_preactivation = args.dtype[preactivation] != MMF_GEMM_ABSENT;
    /* No products: alpha does not count, infinite or not. */
    const Real alpha = args.k > 0 ? (Real)args.alpha : 1, beta = (Real)args.beta;
    if (!has_c && !has_bias && !has_preactivation && alpha == 1)
        return;
    window from_c = {}, from_bias = {}, to = {};
    if (has_c)
        from_c = window_of(args, c, sums.of);
    if (has_bias)
        from_bias = window_of(args, bias, sums.of);
    if (has_preactivation)
        to = window_of(args, preactivation, sums.of);
    sums.each([&](int row, int col, four<Real> *z) {
        z += second * sums.of.columns / 4;
        four<Real> value = *z;
        value *= alpha;
        if (has_c)
            value += beta * load_four<Real>(from_c, row, col, sums.of.cols);
        if (has_bias)
            value += load_four<Real>(from_bias, row, col, sums.of.cols);
        if (has_preactivation)
            store_four(to, row, col, sums.of.cols, value);
        *z = value;
    });
}

/* Finish a tile whose sums stand in shared memory, seen by all threads. */
template <class Real, class Sums>
MMF_DEVICE void finish(const mmf_gemm_args &args, const Sums &sums)
{
    MMF_ROLLED
    for (int second = 0; second <= args.gated; second++)
        make_z<Real>(read_again(args), sums, second);
    activate(read_again(args), sums, Real());

    const bool has_factor = args.dtype[MMF_GEMM_MULTIPLY] != MMF_GEMM_ABSENT;
    window factor = {};
    if (has_factor)
        factor = window_of(args, MMF_GEMM_MULTIPLY, sums.of);
    const window out = window_of(args, MMF_GEMM_OUT, sums.of);
    sums.each([&](int row, int col, four<Real> *z) {
        four<Real> value = *z;
        if (has_factor)
            value *= load_four<Real>(factor, row, col, sums.of.cols);
        store_four(out, row, col, sums.of.cols, value);
    });
}

#endif
