/* A matrix times one to four rows, on CDNA and RDNA: what takes the time is B, read once. float16,
 * bfloat16, float32 with exact products; float sums; lines of A and of B along k, each at a
 * multiple of 16 bytes. Path of a call: chosen where it is modelled as fastest; launched by
 * gpu/launch_plan.c.
 *
 * A wave has four columns, its lanes lie along k and load 16 bytes of B at a time, past the caches;
 * A stays in them. While a step is multiplied, the wave's next one is on its way. What lies behind
 * the end of a line is read as 0, without memory. The lanes of a wave add their sums up by DPP;
 * PARTS waves have the same columns, each a part of every step of k, and their sums are added in
 * the order of the parts. For one row of kernels.def and one kind of GPU the bits depend on K
 * alone. */
#include "gpu/kernels/common/amd.h"
#include "gpu/kernels/common/gemv_sums.h"

enum {
    STEPS = 2, /* of a wave at once: one multiplied, one on its way */
    STEP_BYTES = row::tile_k * form::size,
};

/* Lines that are read once: what the compiler makes of a non-temporal load. */
enum {
#if defined(__gfx90a__)
    ONCE = 3, /* glc slc */
#elif defined(__GFX9__)
    ONCE = 2, /* nt */
#elif defined(__GFX12__)
    ONCE = 1, /* TH_LOAD_NT */
#else
    ONCE = 6, /* slc dlc */
#endif
};

/* The lines that a wave reads: whole runs of 16 bytes, none of rows and columns that do not exist,
 * and the elements behind them. */
struct lines_of_wave {
    descriptor a[row::tile_m], b[COLUMNS];
    const char *rest_of_a[row::tile_m], *rest_of_b[COLUMNS];
    unsigned whole; /* bytes */

    __attribute__((device, always_inline)) void find(const mmf_gemm_args &args, const tile &t,
                                                     int column)
    {
        const bool second = column >= t.columns;
        const int operand = second ? MMF_GEMM_B_UP : MMF_GEMM_B;
        const int n = column - (second ? t.columns : 0);
        whole = (unsigned)args.k / RUN * 16;
        MMF_UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            const bool exists = n + c < t.cols;
            open(t.matrix(operand), exists, t.n0 + n + c, args.strides[operand].col, b[c],
                 rest_of_b[c]);
        }
        MMF_UNROLL
        for (int m = 0; m < row::tile_m; m++)
            open(t.matrix(MMF_GEMM_A), m < t.rows, m, args.strides[MMF_GEMM_A].row, a[m],
                 rest_of_a[m]);
    }

  private:
    __attribute__((device, always_inline)) void open(char *matrix, bool exists, long long line,
                                                     long long pitch, descriptor &memory,
                                                     const char *&rest) const
    {
        char *const begin = matrix + (exists ? line * pitch * form::size : 0);
        memory = __builtin_amdgcn_make_buffer_rsrc(begin, 0, exists ? (int)whole : 0, RAW_BUFFER);
        rest = begin + whole;
    }
};

/* What a lane has of a step of k. */
struct step {
    mmf_uint4 a[AT_ONCE][row::tile_m], b[AT_ONCE][COLUMNS];

    __attribute__((device, always_inline)) void load(const lines_of_wave &from, unsigned at)
    {
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            const int here = (int)(at + i * LANES * 16);
            MMF_UNROLL
            for (int m = 0; m < row::tile_m; m++)
                a[i][m] = __builtin_amdgcn_raw_buffer_load_b128(from.a[m], here, 0, 0);
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++)
                b[i][c] = __builtin_amdgcn_raw_buffer_load_b128(from.b[c], here, 0, ONCE);
            keep_order(); /* that of the waits */
        }
    }

    /* Sums of even k and of odd ones: CDNA multiplies two floats at once. */
    __attribute__((device, always_inline)) void
    multiply_into(mmf_float2 (&sum)[row::tile_m][COLUMNS]) const
    {
        MMF_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            mmf_float2 row_of_a[row::tile_m][RUN / 2];
            MMF_UNROLL
            for (int m = 0; m < row::tile_m; m++)
                form::unpack(a[i][m], row_of_a[m]);
            MMF_UNROLL
            for (int c = 0; c < COLUMNS; c++) {
                mmf_float2 column[RUN / 2];
                form::unpack(b[i][c], column);
                MMF_UNROLL
                for (int p = 0; p < RUN / 2; p++) {
                    MMF_UNROLL
                    for (int m = 0; m < row::tile_m; m++)
                        sum[m][c] = __builtin_elementwise_fma(row_of_a[m][p], column[p], sum[m][c]);
                }
            }
            keep_order(); /* or more elements are unpacked at once than there are registers for */
        }
    }
};

/* The elements behind the last whole run, less than one: a lane has one. */
MMF_DEVICE void multiply_rest(const lines_of_wave &of, int lane,
                              mmf_float2 (&sum)[row::tile_m][COLUMNS])
{
    typedef typename form::type type;
    MMF_UNROLL
    for (int m = 0; m < row::tile_m; m++) {
        const float x = form::form::template load<float>(((const type *)of.rest_of_a[m])[lane]);
        MMF_UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            const type bits = ((const type *)of.rest_of_b[c])[lane];
            sum[m][c].x = fused(x, form::form::template load<float>(bits), sum[m][c].x);
        }
    }
}

/* value, and that of another lane: DPP says which. */
template <int Control> MMF_DEVICE float with_other(float value)
{
    const int other = __builtin_amdgcn_update_dpp(0, (int)bits_of(value), Control, 15, 15, true);
    return value + float_of((unsigned)other);
}

/* Of all lanes of the wave, in its last four. */
MMF_DEVICE float sum_of_lanes(float value)
{
    value = with_other<0xb1>(value);  /* quad_perm:[1,0,3,2] */
    value = with_other<0x4e>(value);  /* quad_perm:[2,3,0,1] */
    value = with_other<0x141>(value); /* row_half_mirror */
    value = with_other<0x140>(value); /* row_mirror: lanes of a row of 16 have its sum */
#if defined(__GFX9__)
    value = with_other<0x142>(value); /* row_bcast:15, to the row behind */
    return with_other<0x143>(value);  /* row_bcast:31, to the second half */
#else
    const unsigned bits = bits_of(value);
    return value + float_of(__builtin_amdgcn_permlanex16(bits, bits, 0, 0, false, false));
#endif
}

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const sums = (float *)shared;
    tile t = tile_of_workgroup<row>(args, shared);
    t.m0 = 0; /* known to the compiler: no registers */
    t.rows = row::tile_m == 1 ? 1 : (int)args.m;
    const int wave = __builtin_amdgcn_readfirstlane(thread_id() / LANES);
    const int lane = thread_id() % LANES, part = wave % PARTS;
    const int column = wave / PARTS * COLUMNS;
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    mmf_float2 pairs[row::tile_m][COLUMNS] = {};
    lines_of_wave lines;
    step steps[STEPS];
    lines.find(args, t, column);
    unsigned at = part * (AT_ONCE * LANES * 16) + lane * 16;
    MMF_UNROLL
    for (int s = 0; s < STEPS; s++)
        steps[s].load(lines, at + s * STEP_BYTES);
    MMF_ROLLED
    for (unsigned done = 0; done < lines.whole; done += STEPS * STEP_BYTES) {
        MMF_UNROLL
        for (int s = 0; s < STEPS; s++) {
            at += STEP_BYTES;
            steps[s].multiply_into(pairs);
            steps[s].load(lines, at + STEP_BYTES); /* behind the last step: zeros */
        }
    }
    if (part == 0 && lane < (int)args.k % RUN)
        multiply_rest(lines, lane, pairs);
    float sum[row::tile_m][COLUMNS];
    MMF_UNROLL
    for (int m = 0; m < row::tile_m; m++) {
        MMF_UNROLL
        for (int c = 0; c < COLUMNS; c++)
            sum[m][c] = sum_of_lanes(pairs[m][c].x + pairs[m][c].y);
    }
    add_parts<COLUMNS>(sum, lane - (LANES - COLUMNS), part, column, general ? (float)args.alpha : 1,
                       sums);
    finish_sums(read_again(args), t, general, sums);
}
