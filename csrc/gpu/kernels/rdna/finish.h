/* Both epilogues on a wave's blocks of sums. Path of a call: the last step of a tile of gemm_wmma.
 */
#ifndef MMF_RDNA_FINISH_H
#define MMF_RDNA_FINISH_H

#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/rdna/fragment.h"

/* The sums of one of WAVES_M x WAVES_N waves: blocks of 16 rows and 16 columns, half of the columns
 * in each half of the tile (gated: of gate and up). 64 x 64 sums are half of a wave's registers; it
 * has no more. A run of the epilogue in registers is a lane's row of a block. */
template <class Row> struct wave_sums {
    enum {
        WAVES_M = Row::tile_m > 128 ? Row::tile_m / 64 : 2,
        WAVES_N = Row::threads / LANES / WAVES_M,
        ROWS = Row::tile_m / WAVES_M,
        COLUMNS = Row::tile_n / WAVES_N,
        BLOCKS_M = ROWS / 16,
        BLOCKS_N = COLUMNS / 16,
        HALF_BLOCKS = BLOCKS_N / GROUPS, /* of columns in a half */
        PITCH = Row::tile_n + 4,         /* floats of a line of sums in shared memory */
        BAND = WAVES_M * 16,             /* lines of sums that the general epilogue takes at once */
    };
    static_assert(HALF_BLOCKS * GROUPS * 16 * WAVES_N == Row::tile_n && HALF_BLOCKS <= 2,
                  "one or two blocks in each half");
    static_assert(BAND * PITCH * 4 + TILE_BYTES <= Row::lds,
                  "a band of sums and the tile's matrices");
    block sum[BLOCKS_M][BLOCKS_N];

    /* Row i of a thread's runs below its first. */
    static __attribute__((device, always_inline)) constexpr int step(int i)
    {
        return i * 16;
    }

    template <class Vector>
    static __attribute__((device, always_inline)) Vector in_order(Vector value)
    {
        return value;
    }

    /* m, n: of the tile, where the lane's first run lies. Rows: blocks of rows at a time, in a loop
     * to which the sums of the next ones move up. */
    template <int Rows>
    __attribute__((device, always_inline)) void finish_in_registers(const mmf_gemm_args &args,
                                                                    const tile &t, int m, int n)
    {
        register_epilogue<Row::operands, Rows, GROUPS, bounded_buffer, wave_sums> runs;
        MMF_ROLLED
        for (int column = 0; column < HALF_BLOCKS; column++) {
            runs.start(read_again(args), t, m, n + column * 16);
            MMF_ROLLED
            for (int done = 0; done < BLOCKS_M; done += Rows) {
                MMF_UNROLL
                for (int i = 0; i < Rows * GROUPS * 4; i++)
                    runs.z[i / 4 % GROUPS][i / 4 / GROUPS][i % 4] =
                        pair_of(sum[i / 4 / GROUPS][i / 4 % GROUPS * HALF_BLOCKS], i % 4);
                runs.finish(read_again(args), t, step(done));
                MMF_UNROLL
                for (int i = Rows; i < BLOCKS_M; i++) {
                    MMF_UNROLL
                    for (int g = 0; g < GROUPS; g++)
                        sum[i - Rows][g * HALF_BLOCKS] = sum[i][g * HALF_BLOCKS];
                }
            }
            MMF_UNROLL
            for (int i = 0; i < BLOCKS_M; i++) {
                MMF_UNROLL
                for (int g = 0; g < GROUPS; g++)
                    sum[i][g * HALF_BLOCKS] = sum[i][g * HALF_BLOCKS + HALF_BLOCKS - 1];
            }
        }
    }

    static __attribute__((device, always_inline)) mmf_float2 pair_of(block of, int i)
    {
        return (mmf_float2){of[2 * i], of[2 * i + 1]};
    }

    /* The lines of a band: block `index` of every wave. */
    struct band_rows {
        int count, index;

        __attribute__((device, always_inline)) int row(int line) const
        {
            return line / 16 * ROWS + index * 16 + line % 16;
        }
    };

    __attribute__((device, always_inline)) void put_row(int i, float alpha, float *to) const
    {
        MMF_LOADED(alpha); /* else all products are computed before the loop */
        MMF_UNROLL
        for (int j = 0; j < BLOCKS_N; j++) {
            float *const at = to + j / HALF_BLOCKS * (Row::tile_n / 2) + j % HALF_BLOCKS * 16;
            const block z = sum[i][j] * alpha;
            *(mmf_float4 *)at = z.lo;
            *(mmf_float4 *)(at + 4) = z.hi;
        }
    }

    /* line: of a band, that of the lane's runs; nobody uses the memory of `lines` any more. */
    __attribute__((device, always_inline)) void
    finish_in_bands(const mmf_gemm_args &args, const tile &t, float *lines, int line, int n)
    {
        const float alpha = args.k > 0 ? (float)args.alpha : 1;
        float *const mine = lines + line * PITCH + n;
        MMF_ROLLED
        for (int band = 0; band < BLOCKS_M; band++) {
            /* Sums that moved up from band to band would be copied for it before the loop. */
            MMF_UNROLL
            for (int i = 0; i < BLOCKS_M; i++) {
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
    __attribute__((device, always_inline)) void finish(const mmf_gemm_args &args, const tile &t,
                                                       char *shared, int wave_m, int wave_n)
    {
        const int lane = thread_id() & (LANES - 1), m = lane & 15;
        const int n = wave_n * (COLUMNS / GROUPS) + lane / 16 * 8;
        if (args.epilogue == MMF_EPILOGUE_GENERAL)
            finish_in_bands(read_again(args), t, (float *)shared, wave_m * 16 + m, n);
        else if (args.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS)
            finish_in_registers<1>(args, t, wave_m * ROWS + m, n);
        else
            finish_in_registers<BLOCKS_M>(args, t, wave_m * ROWS + m, n);
    }
};

#endif
