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

/* Where a thread's runs lie in an operand of Dtype: those of all groups in its first row. */
template <int Dtype, class Bounded, int Groups> struct rows_of {
    Bounded memory;
    unsigned pitch, at[Groups];

    __attribute__((device, always_inline)) void find(const mmf_gemm_args &args, int operand,
                                                     const tile &t, int row, const int *col)
    {
        const int size = run<Dtype>::size;
        const long long line = args.strides[operand].row * size;
        pitch = args.m > 1 ? (unsigned)line : 1u << 22; /* rows below a single one lie outside */
        memory.open(t.matrix(operand) + t.m0 * line + t.n0 * size,
                    (long long)(t.rows - 1) * pitch + t.cols * size);
        MMF_UNROLL
        for (int g = 0; g < Groups; g++)
            at[g] = col[g] < t.cols ? row * pitch + col[g] * size : NOWHERE;
    }
};

/* What a thread finishes at once: runs in Rows rows, of which row i lies Place::step(i) below the
 * first one, in the same columns of Groups groups; gated: of gate and up, which a tile of three
 * groups does not take. The sums of a run are in
 * such an order that Place::in_order() of its 16 bytes is that of memory, and back. */
template <int Dtype, int Rows, int Groups, class Bounded, class Place> struct register_epilogue {
    /* A bias per row changes the sums in place: where branches with and without it meet, all of
     * them would be copied. */
    enum { TAKES_ROW_BIAS = Rows == 1 };
    typedef run<Dtype> form;
    enum { PAIRS = form::pairs, HELD = Groups > GROUPS ? Groups : GROUPS };
    typedef rows_of<Dtype, Bounded, HELD> place;
    mmf_float2 z[HELD][Rows][PAIRS]; /* the sums, set before finish() */
    mmf_float2 bias[HELD][PAIRS];
    float alpha;
    int row, col[HELD];
    place out, c;

    /* Of a group. */
    static __attribute__((device, always_inline)) int bias_of(const mmf_gemm_args &args, int g)
    {
        return MMF_GEMM_BIAS + (HELD == GROUPS && args.gated ? g : 0);
    }

    template <int Bias>
    __attribute__((device, always_inline)) void load_bias(const mmf_gemm_args &args, const tile &t)
    {
        typedef run<Bias> of_bias;
        MMF_UNROLL
        for (int g = 0; g < HELD; g++) {
            Bounded memory;
            memory.open(t.matrix(bias_of(args, g)) + t.n0 * of_bias::size, t.cols * of_bias::size);
            MMF_UNROLL
            for (int i = 0; i < PAIRS; i += of_bias::pairs)
                of_bias::unpack(memory.template load<mmf_uint4>((col[g] + 2 * i) * of_bias::size),
                                bias[g] + i);
            order_bias(g);
        }
    }

    /* It is in registers from here on: activations need no waits of their own. */
    __attribute__((device, always_inline)) void have_bias()
    {
#if defined(__AMDGCN__)
        mmf_float2 *const a = bias[0], *const b = bias[1];
        if (PAIRS == 2)
            asm volatile("" : "+v"(a[0]), "+v"(a[1]), "+v"(b[0]), "+v"(b[1]));
        else
            asm volatile(""
                         : "+v"(a[0]), "+v"(a[1]), "+v"(a[2 % PAIRS]), "+v"(a[3 % PAIRS]),
                           "+v"(b[0]), "+v"(b[1]), "+v"(b[2 % PAIRS]), "+v"(b[3 % PAIRS]));
        mmf_float2 *const last = bias[HELD - 1];
        if (HELD > GROUPS)
            asm volatile(""
                         : "+v"(last[0]), "+v"(last[1]), "+v"(last[2 % PAIRS]),
                           "+v"(last[3 % PAIRS]));
#endif
    }

    /* None: -0 changes nothing. */
    __attribute__((device, always_inline)) void clear_bias()
    {
        MMF_UNROLL
        for (int g = 0; g < HELD; g++) {
            MMF_UNROLL
            for (int p = 0; p < PAIRS; p++)
                bias[g][p] = -0.f;
        }
        have_bias(); /* else it is cleared where one is loaded, too */
    }

    __attribute__((device, always_inline)) void order_bias(int g)
    {
        mmf_float4 half[2];
        if (PAIRS != 4)
            return;
        MMF_UNROLL
        for (int i = 0; i < 2; i++) {
            const mmf_float4 all = {bias[g][0][i], bias[g][1][i], bias[g][2 % PAIRS][i],
                                    bias[g][3 % PAIRS][i]};
            half[i] = Place::in_order(all);
        }
        MMF_UNROLL
        for (int p = 0; p < PAIRS; p++)
            bias[g][p] = (mmf_float2){half[0][p], half[1][p]};
    }

    /* Where the first run lies within the tile. */
    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      int first_row, int first_col)
    {
        row = first_row;
        col[0] = first_col;
        MMF_UNROLL
        for (int g = 1; g < HELD; g++)
            col[g] = args.gated || Groups == 1 ? first_col : first_col + g * (t.columns / HELD);
        /* No products: alpha does not count, infinite or not. */
        alpha = args.k > 0 ? (float)args.alpha : 1;
        if (args.dtype[MMF_GEMM_BIAS] == MMF_GEMM_ABSENT || args.epilogue != MMF_EPILOGUE_REGISTERS)
            clear_bias();
        else if (Dtype == MMF_GEMM_FLOAT32 || args.dtype[MMF_GEMM_BIAS] == Dtype)
            load_bias<Dtype>(args, t);
        else
            load_bias<MMF_GEMM_FLOAT32>(args, t);
        out.find(args, MMF_GEMM_OUT, t, row, col);
        if (args.dtype[MMF_GEMM_C] != MMF_GEMM_ABSENT)
            c.find(args, MMF_GEMM_C, t, row, col);
        have_bias();
    }

    /* Scale all sums and add the bias of their rows: before finish_as(), whose own is none then. */
    template <int Bias>
    __attribute__((device, always_inline)) void add_row_bias(const mmf_gemm_args &args,
                                                             const tile &t, int below)
    {
        typedef element<Bias> of_bias;
        typedef typename of_bias::type type;
        MMF_UNROLL
        for (int g = 0; g < HELD; g++) {
            const int operand = bias_of(args, g);
            const long long line = args.strides[operand].row * (int)sizeof(type);
            Bounded memory;
            memory.open(t.matrix(operand) + t.m0 * line, (t.rows - 1) * line + sizeof(type));
            MMF_UNROLL
            for (int i = 0; i < Rows; i++) {
                const unsigned at = (row + below + Place::step(i)) * (unsigned)line;
                const float value = of_bias::template load<float>(memory.template load<type>(at));
                MMF_UNROLL
                for (int p = 0; p < PAIRS; p++)
                    z[g][i][p] = z[g][i][p] * alpha + value;
                keep_order();
            }
        }
    }

    __attribute__((device, always_inline)) void add_c(float beta, unsigned at, mmf_float2 *value)
    {
        mmf_float2 other[PAIRS];
        form::unpack(Place::in_order(c.memory.template load<mmf_uint4>(at)), other);
        MMF_UNROLL
        for (int p = 0; p < PAIRS; p++)
            value[p] = other[p] * beta + value[p];
    }

    /* All runs, each to its end before the next one begins: nothing needs more registers than the
     * sums do, and no sum is moved to where the branches of a switch meet. */
    template <int Id, bool HasC>
    __attribute__((device, always_inline)) void finish_as(const mmf_gemm_args &args, float factor,
                                                          int below)
    {
        MMF_LOADED(factor); /* else all sums are scaled before the switch, and kept */
        MMF_UNROLL
        for (int g = 0; g < (activation<Id>::gated ? 1 : Groups); g++)
            MMF_UNROLL
        for (int i = 0; i < Rows; i++) {
            const int down = below + Place::step(i);
            mmf_float2 value[PAIRS], up[PAIRS];
            MMF_UNROLL
            for (int p = 0; p < PAIRS; p++) {
                value[p] = z[g][i][p] * factor + bias[g][p];
                up[p] = activation<Id>::gated ? z[1][i][p] * factor + bias[1][p] : value[p];
            }
            if (HasC)
                add_c((float)args.beta, c.at[g] + down * c.pitch, value);
            MMF_UNROLL
            for (int p = 0; p < PAIRS; p++)
                value[p] = activation<Id>::of(value[p], up[p]);
            out.memory.store(out.at[g] + down * out.pitch, Place::in_order(form::pack(value)));
            keep_order();
        }
    }

    /* The only run: its activations meet again, and there is one store. */
    __attribute__((device, always_inline)) void finish_run(const mmf_gemm_args &args, float factor,
                                                           int below)
    {
        mmf_float2 *const value = z[0][0], *const up = z[1][0];
        MMF_UNROLL
        for (int p = 0; p < PAIRS; p++) {
            value[p] = value[p] * factor + bias[0][p];
            if (args.gated)
                up[p] = up[p] * factor + bias[1][p];
        }
        if (args.dtype[MMF_GEMM_C] != MMF_GEMM_ABSENT)
            add_c((float)args.beta, c.at[0] + below * c.pitch, value);
        switch (args.activation) {
#define MMF_HOT(id)                                                                                \
    case ACT_##id:                                                                                 \
        activated<ACT_##id, PAIRS>::run(value, up);                                                \
        break;
#include "problem/activations.def"
        }
        out.memory.store(out.at[0] + below * out.pitch, Place::in_order(form::pack(value)));
    }

    /* The rows that lie `below` the first ones. */
    __attribute__((device, always_inline)) void finish(const mmf_gemm_args &args, const tile &t,
                                                       int below)
    {
        float factor = alpha;
        if (TAKES_ROW_BIAS && args.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS) {
            if (Dtype == MMF_GEMM_FLOAT32 || args.dtype[MMF_GEMM_BIAS] == Dtype)
                add_row_bias<Dtype>(args, t, below);
            else
                add_row_bias<MMF_GEMM_FLOAT32>(args, t, below);
            factor = 1;
        }
        if (Rows == 1 && Groups == 1)
            return finish_run(args, factor, below);
        if (args.dtype[MMF_GEMM_C] != MMF_GEMM_ABSENT)
            return finish_as<ACT_NONE, true>(args, factor, below);
        switch (args.activation) {
#define MMF_HOT(id)                                                                                \
    case ACT_##id:                                                                                 \
        if (HELD == GROUPS || !activation<ACT_##id>::gated)                                        \
            finish_as<ACT_##id, false>(args, factor, below);                                       \
        break;
#include "problem/activations.def"
        }
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

    template <class Vector>
    static __attribute__((device, always_inline)) Vector in_order(Vector value)
    {
        return value;
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
