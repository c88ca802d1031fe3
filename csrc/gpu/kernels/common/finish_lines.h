/* The end of a tile whose sums lie in shared memory, in lines of tile_n values: either epilogue,
 * with runs of a line for each thread. Path of a call: the last step of gemm_simt and
 * reduce_splitk. */
#ifndef MMF_FINISH_LINES_H
#define MMF_FINISH_LINES_H

#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"

template <class Row, int Pitch, class Real> struct finish_lines;

/* One run at a time. Neighbouring threads take neighbouring runs, so that their stores meet in a
 * line of memory. */
template <class Row, int Pitch> struct finish_lines<Row, Pitch, float> {
    enum {
        RUN = 16 / sizeof(typename element<Row::operands>::type),
        RUNS = Row::tile_n / GROUPS / RUN, /* of a row, in either group of columns */
        APART = Row::threads / RUNS,       /* rows */
    };
    static_assert(APART % Row::tile_m == 0 || Row::tile_m % APART == 0, "as many runs for each");

    static __attribute__((device, always_inline)) constexpr int step(int)
    {
        return 0;
    }

    static __attribute__((device, always_inline)) void
    in_registers(const mmf_gemm_args &args, const tile &t, const float *lines)
    {
        const int n = thread_id() % RUNS * RUN, m = thread_id() / RUNS;
        if (APART > Row::tile_m && m >= Row::tile_m)
            return;
        register_epilogue<Row::operands, 1, 1, bounded_pointer, finish_lines> runs;
        MMF_ROLLED
        for (int g = 0; g < (args.gated ? 1 : GROUPS); g++) {
            runs.start(args, t, m, n + g * Row::tile_n / GROUPS);
            MMF_ROLLED
            for (int below = 0; below < Row::tile_m; below += APART) {
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

/* The host chooses the general epilogue. */
template <class Row, int Pitch> struct finish_lines<Row, Pitch, double> {
    static __attribute__((device, always_inline)) void in_registers(const mmf_gemm_args &,
                                                                    const tile &, const double *)
    {
    }
};

/* Finish a tile whose sums, times alpha where the epilogue is the general one, lie in shared
 * memory, seen by all threads. */
template <class Row, int Pitch, class Real>
MMF_DEVICE void finish_tile(const mmf_gemm_args &args, const tile &t, Real *lines)
{
    if (args.epilogue != MMF_EPILOGUE_GENERAL)
        return finish_lines<Row, Pitch, Real>::in_registers(read_again(args), t, lines);
    const staged<Real, Row::threads, Row::tile_n, Pitch, all_rows> all = {lines, t, {t.rows}};
    finish_general<Real>(read_again(args), all);
}

#endif
