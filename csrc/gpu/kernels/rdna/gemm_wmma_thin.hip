/* Matrix instructions of RDNA3 (gfx11) and RDNA4 (gfx12), tiles of 16 rows and 32 columns, for few
 * rows of A: loading B is what takes the time then. Both operands go straight from memory to the
 * registers of the lane that multiplies them. Their lines are along k, in whole chunks of 16 bytes.
 * float16 and bfloat16, float sums. Path of a call: chosen where it is modelled as fastest;
 * launched by gpu/launch_plan.c.
 *
 * The waves of a workgroup share k: each takes every fourth step, 128 bytes of a line. While a step
 * is multiplied, the wave's next one is on its way. Their sums meet in shared memory and are added
 * in the order of the waves, so the bits of a row depend on K alone. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/rdna/fragment.h"

typedef this_row row;

enum {
    WAVES = row::threads / LANES,
    B_BLOCKS = row::tile_n / 16, /* gated: the first one of gate, the second one of up */
    WAVE_K = row::tile_k / WAVES,
    DEPTH = WAVE_K / 16,     /* fragments of a line in a wave's step */
    PITCH = row::tile_n + 4, /* floats of a line of sums in shared memory */
    WAVE_SUMS = row::tile_m * PITCH,
    SUM_THREADS = row::tile_n / 4, /* of a row, when the sums of waves are added */
};
static_assert(row::layout == LAYOUT_NT, "lines along k");
static_assert(row::tile_m == 16 && B_BLOCKS == 2, "halves of a tile are blocks");
static_assert(row::tile_k == WAVES * DEPTH * 16, "kernels.def");
static_assert(row::tile_m * SUM_THREADS == row::threads, "four sums for each thread");
static_assert(row::lds == WAVES * WAVE_SUMS * (int)sizeof(float) + TILE_BYTES, "kernels.def");

/* This lane's line of 16. Beyond the tile's last line that one stands for it; its sums are not
 * stored. */
struct lane_of_block {
    descriptor memory;
    unsigned at;

    /* Of the elements of a fragment, those of the lane's first chunk begin with this one. */
    static __attribute__((device, always_inline)) unsigned first_k()
    {
        return CHUNKS == 1 ? ((unsigned)thread_id() / 16 & 1) * 8 : 0;
    }

    /* begin, count: lines of the tile; mine: the lane's among them. */
    __attribute__((device, always_inline)) void start(char *matrix, long long line, long long begin,
                                                      int count, int mine, unsigned k_end)
    {
        const unsigned pitch = count > 1 ? (unsigned)line * 2 : 0; /* a single line: any */
        const int last = count - 1;
        memory = __builtin_amdgcn_make_buffer_rsrc(matrix + begin * line * 2, 0,
                                                   (int)(last * pitch + k_end * 2), RAW_BUFFER);
        at = (mine < last ? mine : last) * pitch + first_k() * 2;
    }

    /* Fragment `part` of the step that begins at k. Cut: zeros where k_end is reached. */
    template <bool Cut>
    __attribute__((device, always_inline)) fragment load(unsigned k, int part, unsigned k_end) const
    {
        fragment of;
        MMF_UNROLL
        for (int c = 0; c < CHUNKS; c++) {
            const unsigned on = part * 16 + c * 8;
            const bool beyond = Cut && k + on + first_k() >= k_end;
            const chunk one = __builtin_amdgcn_raw_buffer_load_b128(
                memory, (int)(beyond ? NOWHERE : at + on * 2), (int)(k * 2), 0);
            MMF_UNROLL
            for (int d = 0; d < 4; d++)
                of[c * 4 + d] = one[d];
        }
        return of;
    }
};

struct operands {
    lane_of_block a, b[B_BLOCKS];

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t)
    {
        const unsigned k_end = (unsigned)args.k, lane = (unsigned)thread_id() & (LANES - 1);
        const int up = args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B, line = (int)line_of_b(lane);
        a.start(t.matrix(MMF_GEMM_A), args.strides[MMF_GEMM_A].row, t.m0, t.rows, lane & 15, k_end);
        b[0].start(t.matrix(MMF_GEMM_B), args.strides[MMF_GEMM_B].col, t.n0, t.cols, line, k_end);
        b[1].start(t.matrix(up), args.strides[up].col, t.n0, t.cols, args.gated ? line : line + 16,
                   k_end);
    }
};

/* What a wave multiplies at once. */
struct step {
    fragment a[DEPTH], b[DEPTH][B_BLOCKS];

    template <bool Cut>
    __attribute__((device, always_inline)) void load(operands &of, unsigned k, unsigned k_end)
    {
        /* Else their sums with the places of all fragments are kept in registers. */
        MMF_LOADED(of.a.at);
        MMF_BOTH_LOADED(of.b[0].at, of.b[1].at);
        MMF_UNROLL
        for (int part = 0; part < DEPTH; part++) {
            MMF_UNROLL
            for (int j = 0; j < B_BLOCKS; j++)
                b[part][j] = of.b[j].load<Cut>(k, part, k_end);
            a[part] = of.a.load<Cut>(k, part, k_end);
        }
        keep_order();
    }

    __attribute__((device, always_inline)) void multiply_into(block sum[B_BLOCKS]) const
    {
        MMF_UNROLL
        for (int part = 0; part < DEPTH; part++) {
            MMF_UNROLL
            for (int j = 0; j < B_BLOCKS; j++)
                sum[j] = multiply<row::operands>(b[part][j], a[part], sum[j]);
        }
        MMF_BOTH_LOADED(sum[0], sum[1]); /* before the next load, into the same registers */
        keep_order();
    }
};

/* The sums of this wave's share of k. The last step comes first, as it alone may be cut, and with
 * it the one before if the others would not be pairs. */
MMF_DEVICE void sum_products(operands &of, unsigned k_end, unsigned wave, block sum[B_BLOCKS])
{
    const unsigned k_last = (k_end - 1) / row::tile_k * row::tile_k, mine = wave * WAVE_K;
    const unsigned k_pairs = k_last / (2 * row::tile_k) * (2 * row::tile_k);
    step even, odd;
    even.load<true>(of, k_last + mine, k_end);
    odd.load<true>(of, k_pairs < k_last ? k_pairs + mine : k_end, k_end);
    MMF_ROLLED
    for (unsigned k = mine; k < k_pairs; k += 2 * row::tile_k) {
        even.multiply_into(sum);
        even.load<false>(of, k, k_end);
        odd.multiply_into(sum);
        odd.load<false>(of, k + row::tile_k, k_end);
    }
    even.multiply_into(sum);
    odd.multiply_into(sum);
}

/* The sums of all waves, in their order, times a factor: into `lines`, seen by all threads. */
MMF_DEVICE void add_waves(const block sum[B_BLOCKS], unsigned wave, float factor, float *lines)
{
    const int lane = thread_id() & (LANES - 1);
    float *const mine = lines + wave * WAVE_SUMS + (lane & 15) * PITCH + lane / 16 * 8;
    MMF_UNROLL
    for (int j = 0; j < B_BLOCKS; j++) {
        *(mmf_float4 *)(mine + j * 16) = sum[j].lo;
        *(mmf_float4 *)(mine + j * 16 + 4) = sum[j].hi;
    }
    barrier();
    float *const at = lines + thread_id() / SUM_THREADS * PITCH + thread_id() % SUM_THREADS * 4;
    mmf_float4 total = *(const mmf_float4 *)at;
    MMF_UNROLL
    for (int w = 1; w < WAVES; w++)
        total += *(const mmf_float4 *)(at + w * WAVE_SUMS);
    *(mmf_float4 *)at = total * factor;
    barrier();
}

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const lines = (float *)shared;
    const unsigned wave = (unsigned)__builtin_amdgcn_readfirstlane(thread_id() / LANES);
    const tile t = tile_of_workgroup<row>(args, shared);
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    operands of;
    block sum[B_BLOCKS] = {};
    of.start(args, t);
    sum_products(of, (unsigned)args.k, wave, sum);
    add_waves(sum, wave, general ? (float)args.alpha : 1, lines);
    if (!general) {
        /* One wave takes all rows at once; those below the tile are outside of out. */
        if (wave == 0)
            staged_runs<row, LANES, PITCH>::finish(read_again(args), t, 0, row::tile_m, lines);
        return;
    }
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<float>(read_again(args), all);
}
