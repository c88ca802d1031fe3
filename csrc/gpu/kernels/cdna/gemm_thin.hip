/* Matrix cores of CDNA, tiles of 16 or 32 rows and 32 columns, for few rows of A: loading B is what
 * takes the time then. Both operands go straight from memory to the registers of the lane that
 * multiplies them; lines are along k, in whole chunks of 16 bytes. float16 and bfloat16, float
 * sums. Path of a call: chosen where it is modelled as fastest; launched by gpu/launch_plan.c.
 *
 * The waves of a workgroup share k: each takes every fourth step. While a step is multiplied, the
 * wave's next one is on its way. Their sums meet in shared memory and are added in the order of the
 * waves, so the bits of a row depend on K alone.
 *
 * gfx90a has the rows of bfloat16 alone: its matrix cores read subnormals of float16 as 0. */
#include "gpu/kernels/cdna/fragment.h"
#include "gpu/kernels/cdna/memory.h"
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"

typedef this_row row;

enum {
    WAVES = row::threads / 64,
    A_BLOCKS = row::tile_m / 16,
    B_BLOCKS = row::tile_n / 16, /* gated: one of gate, one of up */
    PARTS = 4,                   /* of 32 k in a wave's step */
    STEPS = 2,                   /* of a wave at once: one multiplied, one on its way */
    PITCH = row::tile_n + 4,     /* floats of a line of sums in shared memory */
    WAVE_SUMS = row::tile_m * PITCH,
};
static_assert(B_BLOCKS == 2 && row::layout == LAYOUT_NT, "lines of A and B along k");
static_assert(row::tile_k == WAVES * PARTS * 32, "kernels.def");
static_assert(row::lds == WAVES * WAVE_SUMS * (int)sizeof(float) + TILE_BYTES, "kernels.def");
static_assert(row::tile_m * row::tile_n / 4 <= row::threads, "four sums for a thread");

/* This lane's line of 16. Beyond the tile's last line that one stands for it; its sums are not
 * stored. */
template <bool Once> struct lane_of_block {
    descriptor memory;
    unsigned at;

    /* begin, count: lines of the tile; first: of the block. */
    __attribute__((device, always_inline)) void start(char *matrix, long long line, long long begin,
                                                      int count, int first, unsigned k_end)
    {
        const unsigned pitch = count > 1 ? (unsigned)line * 2 : 0; /* a single line: any */
        const int mine = first + (thread_id() & 15), last = count - 1;
        memory = __builtin_amdgcn_make_buffer_rsrc(matrix + begin * line * 2, 0,
                                                   (int)(last * pitch + k_end * 2), RAW_BUFFER);
        at = (mine < last ? mine : last) * pitch;
    }

    /* 8 elements from k on; zeros where there is no such k. What is read once leaves the caches to
     * others. */
    __attribute__((device, always_inline)) chunk load(unsigned k, unsigned k_end) const
    {
        return __builtin_amdgcn_raw_buffer_load_b128(memory, (int)(k < k_end ? at + k * 2 : NOWHERE),
                                                     0, Once ? 2 : 0);
    }
};

struct operands {
    lane_of_block<false> a[A_BLOCKS];
    lane_of_block<row::tile_m == 16> b[B_BLOCKS]; /* more rows: other tiles may read it, too */
};

struct step {
    chunk a[PARTS][A_BLOCKS], b[PARTS][B_BLOCKS];

    __attribute__((device, always_inline)) void load(const operands &of, unsigned k, unsigned k_end)
    {
        MMF_UNROLL
        for (int part = 0; part < PARTS; part++) {
            MMF_UNROLL
            for (int j = 0; j < B_BLOCKS; j++)
                b[part][j] = of.b[j].load(k + part * 32, k_end);
            MMF_UNROLL
            for (int i = 0; i < A_BLOCKS; i++)
                a[part][i] = of.a[i].load(k + part * 32, k_end);
        }
    }

    __attribute__((device, always_inline)) void multiply_into(block sum[A_BLOCKS][B_BLOCKS]) const
    {
        MMF_UNROLL
        for (int part = 0; part < PARTS; part++) {
            MMF_UNROLL
            for (int i = 0; i < A_BLOCKS; i++) {
                MMF_UNROLL
                for (int j = 0; j < B_BLOCKS; j++)
                    sum[i][j] = multiply<row::operands>(b[part][j], a[part][i], sum[i][j]);
            }
        }
    }
};

MMF_DEVICE void find_operands(const mmf_gemm_args &args, const tile &t, operands &of)
{
    const unsigned k_end = (unsigned)args.k;
    const int up = args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B;
    char *const a = t.matrix(MMF_GEMM_A);
    MMF_UNROLL
    for (int i = 0; i < A_BLOCKS; i++)
        of.a[i].start(a, args.strides[MMF_GEMM_A].row, t.m0, t.rows, i * 16, k_end);
    of.b[0].start(t.matrix(MMF_GEMM_B), args.strides[MMF_GEMM_B].col, t.n0, t.cols, 0, k_end);
    of.b[1].start(t.matrix(up), args.strides[up].col, t.n0, t.cols, args.gated ? 0 : 16, k_end);
}

/* The sums of this wave's share of k. */
MMF_DEVICE void sum_products(const operands &of, unsigned k_end, unsigned wave,
                             block sum[A_BLOCKS][B_BLOCKS])
{
    unsigned k = wave * (PARTS * 32) + (thread_id() & 63) / 16 * 8;
    step steps[STEPS];
    MMF_UNROLL
    for (int s = 0; s < STEPS; s++)
        steps[s].load(of, k + s * row::tile_k, k_end);
    MMF_ROLLED
    for (unsigned done = 0; done < k_end; done += STEPS * row::tile_k) {
        MMF_UNROLL
        for (int s = 0; s < STEPS; s++) {
            k += row::tile_k;
            steps[s].multiply_into(sum);
            steps[s].load(of, k + row::tile_k, k_end); /* behind the last step: zeros */
        }
    }
    wait_until<0, ANY_SHARED>(); /* the zeros: or each use of their registers would wait */
}

/* The sums of all waves, in their order, times a factor: into `lines`, seen by all threads. */
MMF_DEVICE void add_waves(const block sum[A_BLOCKS][B_BLOCKS], unsigned wave, float factor,
                          float *lines)
{
    const int lane = thread_id() & 63;
    float *const mine = lines + wave * WAVE_SUMS + (lane & 15) * PITCH + lane / 16 * 4;
    MMF_UNROLL
    for (int i = 0; i < A_BLOCKS; i++) {
        MMF_UNROLL
        for (int j = 0; j < B_BLOCKS; j++)
            *(block *)(mine + i * 16 * PITCH + j * 16) = sum[i][j];
    }
    barrier();
    const int across = row::tile_n / 4, m = thread_id() / across, n = thread_id() % across * 4;
    if (m < row::tile_m) {
        float *const at = lines + m * PITCH + n;
        block total = *(const block *)at;
        MMF_UNROLL
        for (int w = 1; w < WAVES; w++)
            total += *(const block *)(at + w * WAVE_SUMS);
        *(block *)at = total * factor;
    }
    barrier();
}

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const lines = (float *)shared;
    const unsigned wave = (unsigned)__builtin_amdgcn_readfirstlane(thread_id() >> 6);
    const tile t = tile_of_workgroup<row>(args, shared);
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    operands of;
    block sum[A_BLOCKS][B_BLOCKS] = {};
    find_operands(args, t, of);
    sum_products(of, (unsigned)args.k, wave, sum);
    add_waves(sum, wave, general ? (float)args.alpha : 1, lines);
    if (!general) {
        /* One wave takes 32 rows at once; those below the tile are outside of out. */
        if (wave == 0)
            staged_runs<row, 64, PITCH>::finish(read_again(args), t, 0, 32, lines);
        return;
    }
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<float>(read_again(args), all);
}
