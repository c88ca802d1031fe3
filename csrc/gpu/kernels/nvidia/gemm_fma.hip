/* float32 on the fused multiply-adds of NVIDIA GPUs: exact products, any strides and alignment.
 * Path of a call: float32 without allow_tf32, where gemm_simt would do with smaller tiles and
 * single loads; launched by gpu/launch_plan.c.
 *
 * A thread computes 8 x 16 sums (8 x 4 in the smaller tile), a warp 32 rows by 8 times as many
 * columns. Stages of 128 bytes of k lie in a ring in shared memory as they lie in memory: lines
 * along k are read four k at a time, others four lines at a time. The sums go to shared memory,
 * from where either epilogue takes them. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/staged_loop.h"

typedef this_row row;
static_assert(row::operands == MMF_GEMM_FLOAT32, "kernels.def");

typedef plain_chunks<4, row::tile_m> a_stage;
typedef plain_chunks<4, row::tile_n> b_stage;
typedef mma_carrier<4, row::tile_m, row::threads, a_stage> a_carrier;
typedef mma_carrier<4, row::tile_n, row::threads, b_stage> b_carrier;

enum {
    LANES_M = 4, /* of a warp */
    LANES_N = 8,
    ROWS = 8, /* of a thread */
    COLS = row::tile_m * row::tile_n / row::threads / ROWS,
    WARPS_N = row::tile_n / (LANES_N * COLS),
    CHUNK = 4, /* floats of 16 bytes */
    PITCH = row::tile_n + MMF_MMA_PADDING,
};
static_assert(row::lds == 2 * sizeof(regions) + TILE_BYTES && row::tile_k * 4 == MMF_MMA_LINE &&
                  WARPS_N * (row::tile_m / (LANES_M * ROWS)) == row::threads / 32,
              "kernels.def");

extern MMF_DYNAMIC_SHARED char dynamic_shared[];

typedef float sums[ROWS][COLS];

/* Where a thread's lines lie among those of A or B: Count of them, from the warp's first line on.
 * Along k every Lanes-th one, else in groups of four. Lanes that differ in one bit of two read the
 * same chunk, which makes a load of a warp two transactions, not four. */
template <int Lanes, int Count, bool AlongK> struct lines_of {
    int first, lane;

    __attribute__((device, always_inline)) int line(int i) const
    {
        return first +
               (AlongK ? lane + i * Lanes : lane * CHUNK + i / CHUNK * (Lanes * CHUNK) + i % CHUNK);
    }

    /* Four k of line i. */
    __attribute__((device, always_inline)) mmf_float4 along_k(const char *stage, int chunk,
                                                              int i) const
    {
        const int place = (first + lane) * MMF_MMA_LINE + ((chunk ^ lane) << 4);
        return *(const mmf_float4 *)(stage + (place ^ (i * Lanes % 8 << 4)) +
                                     i * Lanes * MMF_MMA_LINE);
    }

    /* Four lines of group g at one k. */
    template <int Lines>
    __attribute__((device, always_inline)) mmf_float4 at_k(const char *stage, int k, int g) const
    {
        return *(const mmf_float4 *)(stage + (k * Lines + line(g * CHUNK)) * 4);
    }
};

template <bool AlongK> MMF_DEVICE lines_of<LANES_M, ROWS, AlongK> rows_of_thread()
{
    const int id = thread_id(), warp = id / 32;
    return {warp / WARPS_N * (LANES_M * ROWS), (id >> 1 & 1) | (id >> 4 & 1) << 1};
}

template <bool AlongK> MMF_DEVICE lines_of<LANES_N, COLS, AlongK> columns_of_thread()
{
    const int id = thread_id(), warp = id / 32;
    return {warp % WARPS_N * (LANES_N * COLS), (id & 1) | (id >> 2 & 3) << 1};
}

/* Four k of A's rows. */
template <bool AlongK> struct a_chunk {
    float part[CHUNK][ROWS]; /* k, row */

    __attribute__((device, always_inline)) void load(const char *stage, int chunk)
    {
        const lines_of<LANES_M, ROWS, AlongK> lines = rows_of_thread<AlongK>();
        MMF_UNROLL
        for (int i = 0; i < ROWS; i++) {
            const int k0 = i / (ROWS / CHUNK), row0 = i % (ROWS / CHUNK) * CHUNK;
            const mmf_float4 four =
                AlongK ? lines.along_k(stage, chunk, i)
                       : lines.template at_k<row::tile_m>(stage, chunk * CHUNK + k0, row0 / CHUNK);
            MMF_UNROLL
            for (int e = 0; e < CHUNK; e++)
                (AlongK ? part[e][i] : part[k0][row0 + e]) = four[e];
        }
    }
};

/* Four k of B's columns. */
template <bool AlongK> struct b_chunk {
    float part[CHUNK][COLS]; /* k, column */

    __attribute__((device, always_inline)) void load(const char *stage, int chunk)
    {
        const lines_of<LANES_N, COLS, AlongK> lines = columns_of_thread<AlongK>();
        MMF_UNROLL
        for (int i = 0; i < COLS; i++) {
            const int k0 = i / (COLS / CHUNK), col0 = i % (COLS / CHUNK) * CHUNK;
            const mmf_float4 four =
                AlongK ? lines.along_k(stage, chunk, i)
                       : lines.template at_k<row::tile_n>(stage, chunk * CHUNK + k0, col0 / CHUNK);
            MMF_UNROLL
            for (int e = 0; e < CHUNK; e++)
                (AlongK ? part[e][i] : part[k0][col0 + e]) = four[e];
        }
    }
};

/* sum += A B over a stage. An instruction shares an operand with the one before it, which the
 * register file then need not read: down one column and up the next, or so along the rows. What a
 * wide load brings along k lies in one bank for one k, so the operand that changes is the other one
 * where there is a choice. */
template <bool A_AlongK, bool B_AlongK> MMF_DEVICE void multiply(const char *stage, sums &sum)
{
    enum { ALONG_ROWS = A_AlongK && !B_AlongK, SIDE = ALONG_ROWS ? (int)COLS : (int)ROWS };
#pragma unroll 2
    for (int chunk = 0; chunk < row::tile_k / CHUNK; chunk++) {
        a_chunk<A_AlongK> a;
        b_chunk<B_AlongK> b;
        a.load(stage, chunk);
        b.load(stage + a_stage::BYTES, chunk);
        MMF_UNROLL
        for (int k = 0; k < CHUNK; k++) {
            MMF_UNROLL
            for (int at = 0; at < ROWS * COLS; at++) {
                const int slow = at / SIDE;
                const int fast = slow % 2 ? SIDE - 1 - at % SIDE : at % SIDE;
                const int i = ALONG_ROWS ? slow : fast, j = ALONG_ROWS ? fast : slow;
                sum[i][j] = fused(a.part[k][i], b.part[k][j], sum[i][j]);
            }
        }
    }
}

/* The sums of all products. */
MMF_DEVICE void sum_products(const mmf_gemm_args &args, const regions *of, sums &sum)
{
    each_stage<row, a_carrier, b_carrier>(args.k, of, shared_window(dynamic_shared),
                                          [&](unsigned offset) __attribute__((always_inline)) {
                                              const char *const stage = dynamic_shared + offset;
                                              switch (of[0].along_k * 2 + of[1].along_k) {
                                              case 0:
                                                  multiply<false, false>(stage, sum);
                                                  break;
                                              case 1:
                                                  multiply<false, true>(stage, sum);
                                                  break;
                                              case 2:
                                                  multiply<true, false>(stage, sum);
                                                  break;
                                              default:
                                                  multiply<true, true>(stage, sum);
                                              }
                                          });
}

/* The sums times a factor as lines of the tile. */
template <bool A_AlongK, bool B_AlongK>
MMF_DEVICE void put_sums(float factor, float *lines, const sums &sum)
{
    const lines_of<LANES_M, ROWS, A_AlongK> rows = rows_of_thread<A_AlongK>();
    const lines_of<LANES_N, COLS, B_AlongK> columns = columns_of_thread<B_AlongK>();
    MMF_UNROLL
    for (int i = 0; i < ROWS; i++) {
        MMF_UNROLL
        for (int j = 0; j < COLS; j++)
            lines[rows.line(i) * PITCH + columns.line(j)] = sum[i][j] * factor;
    }
}

MMF_ENTRY MMF_THREADS_PAIRED(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const lines = (float *)dynamic_shared;
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    const regions *const of = (const regions *)shared;
    int layout = 0;
    sums sum = {};
    if (args.k > 0) {
        find_regions<row, a_carrier, b_carrier>(args, tile_of_workgroup<row>(args, shared),
                                                (regions *)shared);
        layout = of[0].along_k * 2 + of[1].along_k;
        sum_products(args, of, sum);
    }
    /* Once more, not kept in registers; nobody reads the stages any more. */
    const tile t = tile_of_workgroup<row>(args, shared);
    const float factor = general && args.k > 0 ? (float)args.alpha : 1;
    switch (layout) {
    case 0:
        put_sums<false, false>(factor, lines, sum);
        break;
    case 1:
        put_sums<false, true>(factor, lines, sum);
        break;
    case 2:
        put_sums<true, false>(factor, lines, sum);
        break;
    default:
        put_sums<true, true>(factor, lines, sum);
    }
    barrier();
    if (!general)
        return staged_runs<row, row::threads, PITCH>::finish(args, t, 0, row::tile_m, lines);
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<float>(args, all);
}
