/* Both epilogues on a wave's blocks of sums. Path of a call: the last step of a tile of the kernels
 * for CDNA with matrix cores. */
#ifndef MMF_CDNA_FINISH_H
#define MMF_CDNA_FINISH_H

#include "gpu/kernels/cdna/fragment.h"
#include "gpu/kernels/cdna/memory.h"
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"

/* A wave's sums, Blocks x COLUMN_BLOCKS blocks of 16 x 16: PartBlocks blocks of rows in each of
 * Blocks / PartBlocks parts of the tile, and 32 columns in each of Groups groups of its columns
 * (gated: two, of gate and up).
 * Swapped: in lanes 16 to 31 and 48 to 63 the two blocks of 32 columns have changed places. */
template <class Row, int Blocks, int PartBlocks, bool Swapped, int Groups = GROUPS>
struct wave_sums {
    enum {
        COLUMN_BLOCKS = 2 * Groups,
        PART_ROWS = Row::tile_m / (Blocks / PartBlocks),
        WAVE_ROWS = PartBlocks * 16, /* in a part */
        WAVES_M = PART_ROWS / WAVE_ROWS,
        PITCH = Row::tile_n + 4, /* floats of a line of sums in shared memory */
        BAND = WAVES_M * 16,     /* lines of sums that the general epilogue takes at once */
        RUN = run<Row::operands>::count,
        RUNS = 8 / RUN, /* of a lane's eight columns in a group */
        RUN_BLOCKS = 2 / RUNS,
    };
    static_assert(BAND * PITCH * 4 + TILE_BYTES <= Row::lds,
                  "a band of sums and the tile's matrices");
    block sum[Blocks][COLUMN_BLOCKS];

    /* Of a wave, in a part. */
    static __attribute__((device, always_inline)) constexpr int first_row(int wave)
    {
        return PartBlocks % 2 ? block_line(wave * PartBlocks) : wave * WAVE_ROWS;
    }

    /* Row i of a thread's runs below its first. */
    static __attribute__((device, always_inline)) constexpr int step(int i)
    {
        return i / PartBlocks * PART_ROWS + block_line(i % PartBlocks);
    }

    /* The second half of a run before the first, where they are swapped. */
    template <class Vector>
    static __attribute__((device, always_inline)) Vector in_order(Vector value)
    {
        return Swapped && (thread_id() & 16) ? value.zwxy : value;
    }

    static __attribute__((device, always_inline)) int swapped_block(int j)
    {
        return Swapped ? j ^ (thread_id() >> 4 & 1) : j;
    }

    /* The blocks of the next rows, for a rolled loop. */
    template <int Rows> __attribute__((device, always_inline)) void move_up()
    {
        MMF_UNROLL
        for (int i = Rows; i < Blocks; i++) {
            MMF_UNROLL
            for (int j = 0; j < COLUMN_BLOCKS; j++)
                sum[i - Rows][j] = sum[i][j];
        }
    }

    /* The second runs of the first rows in the places of the first runs, for a rolled loop. */
    template <int Rows> __attribute__((device, always_inline)) void move_over()
    {
        MMF_UNROLL
        for (int i = 0; RUNS > 1 && i < Rows; i++) {
            MMF_UNROLL
            for (int j = 0; j < COLUMN_BLOCKS; j += 2)
                sum[i][j] = sum[i][j + 1];
        }
    }

    template <int Parts>
    using runs_of_part =
        register_epilogue<Row::operands, Blocks / Parts, Groups, bounded_buffer, wave_sums>;

    /* A loop that moves 128 sums from row to row needs too many registers. */
    static __attribute__((device, always_inline)) bool in_registers(const mmf_gemm_args &args)
    {
        return Blocks * COLUMN_BLOCKS * 4 < 128 ? args.epilogue != MMF_EPILOGUE_GENERAL
                                                : args.epilogue == MMF_EPILOGUE_REGISTERS;
    }

    /* m, n: of the tile, where the lane's first run lies. */
    template <int Parts>
    __attribute__((device, always_inline)) void finish_in_registers(const mmf_gemm_args &args,
                                                                    const tile &t, int m, int n)
    {
        enum { ROWS = Blocks / Parts };
        runs_of_part<Parts> runs;
        if (RUNS == 1)
            runs.start(read_again(args), t, m, n);
        MMF_ROLLED
        for (int part = 0; part < Parts; part++) {
            MMF_ROLLED
            for (int r = 0; r < RUNS; r++) {
                if (RUNS > 1)
                    runs.start(read_again(args), t, m, n + r * RUN);
                MMF_UNROLL
                for (int i = 0; i < ROWS; i++) {
                    MMF_UNROLL
                    for (int j = 0; j < COLUMN_BLOCKS; j++) {
                        if (j % 2 >= RUN_BLOCKS)
                            continue;
                        runs.z[j / 2][i][j % 2 * 2] = sum[i][j].xy;
                        runs.z[j / 2][i][j % 2 * 2 + 1] = sum[i][j].zw;
                    }
                }
                runs.finish(read_again(args), t, step(part * ROWS));
                move_over<ROWS>();
            }
            move_up<ROWS>();
        }
    }

    /* The lines of a band: block `index` of every wave. */
    struct band_rows {
        int count, index;

        __attribute__((device, always_inline)) int row(int line) const
        {
            return first_row(line / 16) + step(index) + lane_line(line % 16);
        }
    };

    __attribute__((device, always_inline)) void put_row(int i, float alpha, float *to) const
    {
        MMF_LOADED(alpha); /* else all products are computed before the loop */
        MMF_UNROLL
        for (int j = 0; j < COLUMN_BLOCKS; j++)
            *(block *)(to + j / 2 * (Row::tile_n / Groups) + swapped_block(j % 2) * 4) =
                sum[i][j] * alpha;
    }

    /* line: of a band, that of the lane's runs; nobody uses the memory of `lines` any more. */
    __attribute__((device, always_inline)) void
    finish_in_bands(const mmf_gemm_args &args, const tile &t, float *lines, int line, int n)
    {
        const float alpha = args.k > 0 ? (float)args.alpha : 1;
        float *const mine = lines + line * PITCH + n;
        MMF_ROLLED
        for (int band = 0; band < Blocks; band++) {
            /* Sums that moved up from band to band would be copied for it before the loop. */
            MMF_UNROLL
            for (int i = 0; i < Blocks; i++) {
                if (i == band)
                    put_row(i, alpha, mine);
            }
            barrier();
            const staged<float, Row::threads, Row::tile_n, PITCH, band_rows> some = {
                lines, t, {BAND, band}};
            finish_general<float>(args, some);
            barrier();
        }
    }

    /* wave_m, wave_n: which wave of the tile this is. */
    template <int Parts>
    __attribute__((device, always_inline)) void finish(const mmf_gemm_args &args, const tile &t,
                                                       char *shared, int wave_m, int wave_n)
    {
        const int lane = thread_id() & 63, n = wave_n * 32 + lane / 16 * 8;
        const int m = first_row(wave_m) + lane_line(lane & 15);
        if (!in_registers(args))
            finish_in_bands(read_again(args), t, (float *)shared, wave_m * 16 + (lane & 15), n);
        else if (args.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS)
            finish_in_registers<Blocks>(args, t, m, n);
        else
            finish_in_registers<Parts>(args, t, m, n);
    }
};

#endif
