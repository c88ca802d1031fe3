/* Few rows of A times lines of B: how the lanes of all vendors share a tile, and its sums from
 * their lanes to the epilogue. Path of a call: under gemm_gemv of every vendor, from its loop on.
 */
#ifndef MMF_GEMV_SUMS_H
#define MMF_GEMV_SUMS_H

#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"

typedef this_row row;
typedef run<row::operands> form;

enum {
#if defined(__GFX9__)
    LANES = 64,
#else
    LANES = 32,
#endif
    WAVES = row::threads / LANES,
    RUN = form::count,                        /* elements of 16 bytes */
    COLUMNS = 4,                              /* of a wave */
    PARTS = WAVES * COLUMNS / row::tile_n,    /* of k, a wave each */
    ACROSS = LANES * RUN,                     /* k of one load of a wave */
    AT_ONCE = row::tile_k / (PARTS * ACROSS), /* loads of a column */
    PITCH = row::tile_n + 4,                  /* floats of a line of sums in shared memory */
    PART_SUMS = row::tile_m * PITCH,
};
static_assert(row::layout == LAYOUT_NT, "lines of A and of B along k");
static_assert(AT_ONCE * PARTS * ACROSS == row::tile_k && AT_ONCE > 0, "kernels.def");
static_assert(row::tile_n % (2 * COLUMNS) == 0, "half a tile, of a gate, is whole waves");
static_assert(row::lds >= PARTS * PART_SUMS * (int)sizeof(float) + TILE_BYTES, "kernels.def");

/* The sums of all waves, times a factor, into `sums`; seen by all threads. sum: of the wave's lanes
 * together, in its writers, which have the numbers from 0 on; other lanes are below 0. Of WRITERS,
 * each writes as many columns. Parts are added in their order. */
template <int WRITERS>
MMF_DEVICE void add_parts(const float (&sum)[row::tile_m][COLUMNS], int writer, int part,
                          int column, float factor, float *sums)
{
    enum { FOURS = row::tile_n / 4 };
    static_assert(WRITERS == 1 || WRITERS == COLUMNS, "four columns, or one");
    if (writer >= 0) {
        float *const mine = sums + part * PART_SUMS + column + writer;
        const float by = PARTS > 1 ? 1 : factor;
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++) {
            const mmf_float4 four = {sum[m][0], sum[m][1], sum[m][2], sum[m][3]};
            if (WRITERS == 1)
                *(mmf_float4 *)(mine + m * PITCH) = PARTS > 1 ? four : four * factor;
            else
                mine[m * PITCH] = (writer < 2    ? writer ? four.y : four.x
                                   : writer == 2 ? four.z
                                                 : four.w) *
                                  by;
        }
    }
    barrier();
    if (PARTS > 1) {
        MMF_ROLLED
        for (int i = thread_id(); i < row::tile_m * FOURS; i += row::threads) {
            float *const at = sums + i / FOURS * PITCH + i % FOURS * 4;
            mmf_float4 total = *(const mmf_float4 *)at;
            MMF_UNROLL
            for (int p = 1; p < PARTS; p++)
                total += *(const mmf_float4 *)(at + p * PART_SUMS);
            *(mmf_float4 *)at = total * factor;
        }
        barrier();
    }
}

/* The epilogue of a tile whose sums are in shared memory; alpha is in those of the general one. */
MMF_DEVICE void finish_sums(const mmf_gemm_args &args, const tile &t, bool general, float *sums)
{
    if (!general)
        return staged_runs<row, row::threads, PITCH>::finish(args, t, 0, row::tile_m, sums);
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {sums, t, {t.rows}};
    finish_general<float>(args, all);
}

#endif
