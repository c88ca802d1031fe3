/* The epilogue in registers: an activation marked HOT, bias per column or per row, C where there is
 * no activation, a result of A's dtype in whole runs of 16 bytes. gpu/epilogue_form.c says when.
 * The activation is chosen once for the tile.
 * Path of a call: the last step of a tile, from the sums to global memory. C may be out: a run of
 * both is read and written by the same thread, in this order. */
#ifndef MMF_EPILOGUE_REGISTERS_H
#define MMF_EPILOGUE_REGISTERS_H

#include "gpu/kernels/common/activations.h"
#include "gpu/kernels/common/run.h"
#include "gpu/kernels/common/tile.h"

enum { GROUPS = 2 }; /* of columns, half a tile apart; gated: gate and up */

/* Where a thread's runs lie in an operand of Dtype: both groups in its first row. */
template <int Dtype, class Bounded> struct rows_of {
    Bounded memory;
    unsigned pitch, at[GROUPS];

    __attribute__((device, always_inline)) void find(const mmf_gemm_args &args, int operand,
                                                     const tile &t, int row, const int *col)
    {
        const int size = run<Dtype>::size;
        const long long line = args.strides[operand].row * size;
        pitch = args.m > 1 ? (unsigned)line : 1u << 22; /* rows below a single one lie outside */
        memory.open(t.matrix(operand) + t.m0 * line + t.n0 * size,
                    (long long)(t.rows - 1) * pitch + t.cols * size);
        MMF_UNROLL
        for (int g = 0; g < GROUPS; g++)
            at[g] = col[g] < t.cols ? row * pitch + col[g] * size : NOWHERE;
    }
};

/* What a thread finishes at once: runs in Rows rows, of which row i lies Place::step(i) below the
 * first one, in the same columns of Groups groups; gated: of gate and up. */
template <int Dtype, int Rows, int Groups, class Bounded, class Place> struct register_epilogue {
    typedef run<Dtype> form;
    typedef rows_of<Dtype, Bounded> place;
    enum { PAIRS = form::pairs };
    mmf_float2 z[GROUPS][Rows][PAIRS]; /* the sums, set before finish() */
    mmf_float2 bias[GROUPS][PAIRS];
    float alpha;
    int row, col[GROUPS];
    place out, c;

    template <int Bias>
    __attribute__((device, always_inline)) void load_bias(const mmf_gemm_args &args, const tile &t)
    {
        typedef run<Bias> of_bias;
        MMF_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            Bounded memory;
            memory.open(t.matrix(MMF_GEMM_BIAS + (args.gated ? g : 0)) + t.n0 * of_bias::size,
                        t.cols * of_bias::size);
            MMF_UNROLL
            for (int i = 0; i < PAIRS; i += of_bias::pairs)
                of_bias::unpack(memory.template load<mmf_uint4>((col[g] + 2 * i) * of_bias::size),
                                bias[g] + i);
        }
    }

    /* Where the first run lies within the tile. */
    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      int first_row, int first_col)
    {
        row = first_row;
        col[0] = first_col;
        col[1] = args.gated || Groups == 1 ? first_col : first_col + t.columns / 2;
        /* No products: alpha does not count, infinite or not. */
        alpha = args.k > 0 ? (float)args.alpha : 1;
        MMF_UNROLL
        for (int g = 0; g < GROUPS; g++)
            MMF_UNROLL
        for (int p = 0; p < PAIRS; p++)
            bias[g][p] = -0.f; /* none: changes nothing */
        if (args.dtype[MMF_GEMM_BIAS] != MMF_GEMM_ABSENT &&
            args.epilogue == MMF_EPILOGUE_REGISTERS) {
            if (Dtype == MMF_GEMM_FLOAT32 || args.dtype[MMF_GEMM_BIAS] == Dtype)
                load_bias<Dtype>(args, t);
            else
                load_bias<MMF_GEMM_FLOAT32>(args, t);
        }
        out.find(args, MMF_GEMM_OUT, t, row, col);
        if (args.dtype[MMF_GEMM_C] != MMF_GEMM_ABSENT)
            c.find(args, MMF_GEMM_C, t, row, col);
    }

    template <int Bias>
    __attribute__((device, always_inline)) void add_row_bias(const mmf_gemm_args &args,
                                                             const tile &t, int below)
    {
        typedef element<Bias> of_bias;
        typedef typename of_bias::type type;
        MMF_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            const int operand = MMF_GEMM_BIAS + (args.gated ? g : 0);
            const long long line = args.strides[operand].row * (int)sizeof(type);
            Bounded memory;
            memory.open(t.matrix(operand) + t.m0 * line, (t.rows - 1) * line + sizeof(type));
            MMF_UNROLL
            for (int i = 0; i < Rows; i++) {
                const unsigned at = (row + below + Place::step(i)) * (unsigned)line;
                const float value = of_bias::template load<float>(memory.template load<type>(at));
                MMF_UNROLL
                for (int p = 0; p < PAIRS; p++)
                    z[g][i][p] += value;
            }
        }
    }

    __attribute__((device, always_inline)) void scale(int g)
    {
        MMF_UNROLL
        for (int i = 0; i < Rows; i++)
            MMF_UNROLL
        for (int p = 0; p < PAIRS; p++)
            z[g][i][p] = z[g][i][p] * alpha + bias[g][p];
    }

    template <int Id>
    __attribute__((device, always_inline)) void activate(const mmf_gemm_args &args)
    {
        const mmf_float2 p0 = (float)args.parameters[0], p1 = (float)args.parameters[1];
        MMF_UNROLL
        for (int g = 0; g < (activation<Id>::gated ? 1 : Groups); g++)
            MMF_UNROLL
        for (int i = 0; i < Rows; i++) {
            MMF_UNROLL
            for (int p = 0; p < PAIRS; p++)
                z[g][i][p] = activation<Id>::of(z[g][i][p], z[1][i][p], p0, p1);
            keep_order(); /* all runs at once need too many registers */
        }
    }

    __attribute__((device, always_inline)) void add_c(float beta, int below)
    {
        MMF_UNROLL
        for (int g = 0; g < Groups; g++)
            MMF_UNROLL
        for (int i = 0; i < Rows; i++) {
            const unsigned at = c.at[g] + (below + Place::step(i)) * c.pitch;
            mmf_float2 value[PAIRS];
            form::unpack(c.memory.template load<mmf_uint4>(at), value);
            MMF_UNROLL
            for (int p = 0; p < PAIRS; p++)
                z[g][i][p] = value[p] * beta + z[g][i][p];
        }
    }

    __attribute__((device, always_inline)) void store(int g, int below) const
    {
        MMF_UNROLL
        for (int i = 0; i < Rows; i++) {
            const unsigned at = out.at[g] + (below + Place::step(i)) * out.pitch;
            out.memory.store(at, form::pack(z[g][i]));
            keep_order();
        }
    }

    /* The rows that lie `below` the first ones. */
    __attribute__((device, always_inline)) void finish(const mmf_gemm_args &args, const tile &t,
                                                       int below)
    {
        scale(0);
        if (Groups == GROUPS || args.gated)
            scale(1);
        if (args.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS) {
            if (Dtype == MMF_GEMM_FLOAT32 || args.dtype[MMF_GEMM_BIAS] == Dtype)
                add_row_bias<Dtype>(args, t, below);
            else
                add_row_bias<MMF_GEMM_FLOAT32>(args, t, below);
        }
        if (args.dtype[MMF_GEMM_C] != MMF_GEMM_ABSENT)
            add_c((float)args.beta, below);
        switch (args.activation) {
#define MMF_HOT(id)                                                                                \
    case ACT_##id:                                                                                 \
        activate<ACT_##id>(args);                                                                  \
        break;
#define MMF_ACTIVATION(id, name, parameters, default0, default1, f)
#define MMF_GATED(id, name, parameters, default0, default1, f)
#define MMF_ALIAS(name, id)
#include "problem/activations.def"
#undef MMF_ACTIVATION
#undef MMF_GATED
#undef MMF_ALIAS
        }
        store(0, below);
        if (Groups == GROUPS && !args.gated)
            store(1, below);
    }
};

/* The runs of a tile whose sums lie in shared memory, lines of floats Pitch apart (gated: the left
 * half is the gate's), one at a time. Neighbouring threads take neighbouring runs, so that their
 * stores meet in a line of memory. */
template <class Row, int Threads, int Pitch> struct staged_runs {
    enum {
        RUN = 16 / sizeof(typename element<Row::operands>::type),
        RUNS = Row::tile_n / GROUPS / RUN, /* of a row, in either group of columns */
        APART = Threads / RUNS,            /* rows */
    };

    static __attribute__((device, always_inline)) constexpr int step(int)
    {
        return 0;
    }

    /* Rows first, ..., first + count - 1 of the tile. */
    static __attribute__((device, always_inline)) void
    finish(const mmf_gemm_args &args, const tile &t, int first, int count, const float *lines)
    {
        const int n = thread_id() % RUNS * RUN, m = first + thread_id() / RUNS;
        register_epilogue<Row::operands, 1, 1, bounded_pointer, staged_runs> runs;
        MMF_ROLLED
        for (int g = 0; g < (args.gated ? 1 : GROUPS); g++) {
            runs.start(args, t, m, n + g * Row::tile_n / GROUPS);
            MMF_ROLLED
            for (int below = 0; below < count; below += APART) {
                /* Where all threads take as many rows, the loop needs no guard. */
                if (count % APART && m + below >= first + count)
                    break;
                const float *const from = lines + (m + below) * Pitch + n;
                MMF_UNROLL
                for (int p = 0; p < RUN / 2; p++) {
                    const float *const pair = from + 2 * p;
                    runs.z[0][0][p] = *(const mmf_float2 *)(pair + g * Row::tile_n / GROUPS);
                    runs.z[1][0][p] = *(const mmf_float2 *)(pair + Row::tile_n / GROUPS);
                }
                runs.finish(args, t, below);
            }
        }
    }
};

#endif
