/* Matrix instructions of RDNA3 (gfx11) and RDNA4 (gfx12): float16 and bfloat16 inputs, float sums.
 * Lines of A are along k, those of B along k or n, in whole chunks of 16 bytes.
 * Path of a call: chosen where it is modelled as faster than gemm_simt; launched by
 * gpu/launch_plan.c.
 *
 * Each of the waves, 2 above each other or 4 of 256 rows, computes up to 64 x 64 sums of a tile:
 * columns of its left half and as many half a tile further (gated: gate and up). Two steps of k lie
 * in LDS: while one is multiplied, the next one is written from registers, and the one after that
 * is on its way to them.
 *
 * The last step of k comes first: it alone may be cut. */
#include "gpu/kernels/rdna/carrier.h"
#include "gpu/kernels/rdna/finish.h"

typedef this_row row;
typedef wave_sums<row> sums_of_wave;

enum {
    BLOCKS_M = sums_of_wave::BLOCKS_M,
    BLOCKS_N = sums_of_wave::BLOCKS_N,
    HALF_BLOCKS = sums_of_wave::HALF_BLOCKS,
    WAVES_N = sums_of_wave::WAVES_N,
    B_LINES = row::tile_m * LINE, /* where B's lines begin */
    STAGE = B_LINES + row::tile_n * LINE,
    B_ALONG_K = row::layout == LAYOUT_NT,
};
static_assert(row::tile_k == LINE_K && row::lds == 2 * STAGE, "kernels.def");
static_assert(row::layout == LAYOUT_NT || row::layout == LAYOUT_NN, "lines of A are along k");

/* Block j of a wave's columns begins this many lines of B after its first. */
MMF_DEVICE constexpr int column_line(int j)
{
    return j / HALF_BLOCKS * (row::tile_n / 2) + j % HALF_BLOCKS * 16;
}

/* What this wave wrote to LDS is there, and so is what the others wrote. Loads from memory stay
 * under way. */
MMF_DEVICE void meet()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

struct main_loop {
    typedef carrier<true, row::tile_m, row::threads> carrier_a;
    typedef carrier<B_ALONG_K, row::tile_n, row::threads> carrier_b;
    carrier_a a;
    carrier_b b;
    reader of_a, of_b;
    unsigned k, k_top; /* that is fetched next, and the last one to be fetched */

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      unsigned wave)
    {
        const mmf_gemm_strides &a_strides = args.strides[MMF_GEMM_A],
                               &left = args.strides[MMF_GEMM_B],
                               &right = args.strides[args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B];
        const char *const up = t.matrix(args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B);
        operand_lines rows, columns[2];
        rows.find(t.matrix(MMF_GEMM_A), a_strides.row, 1, t.m0, t.rows, args.k, true);
        columns[0].find(t.matrix(MMF_GEMM_B), left.col, left.row, t.n0, t.cols, args.k, B_ALONG_K);
        columns[1].find(up, right.col, right.row, t.n0, t.cols, args.k, B_ALONG_K);
        a.start(rows, rows, false);
        b.start(columns[0], columns[1], args.gated);
        const unsigned lane = (unsigned)thread_id() & (LANES - 1);
        of_a.start(wave / WAVES_N * sums_of_wave::ROWS, lane & 15);
        of_b.start(wave % WAVES_N * (sums_of_wave::COLUMNS / 2), line_of_b(lane));
    }

    __attribute__((device, always_inline)) void read(local stage, int part, fragment rows[BLOCKS_M],
                                                     fragment columns[BLOCKS_N]) const
    {
        rows[0] = of_a.read(stage, part, 0); /* with B's, enough for the first products */
        MMF_UNROLL
        for (int j = 0; j < BLOCKS_N; j++)
            columns[j] = of_b.read(stage + B_LINES, part, column_line(j));
        MMF_UNROLL
        for (int i = 1; i < BLOCKS_M; i++)
            rows[i] = of_a.read(stage, part, i * 16);
    }

    __attribute__((device, always_inline)) void put(local stage) const
    {
        a.put(stage);
        b.put(stage + B_LINES);
    }

    /* After the last step the one before is fetched once more, rather than branch. */
    __attribute__((device, always_inline)) void fetch()
    {
        a.fetch(k);
        b.fetch(k);
        k = k + LINE_K < k_top ? k + LINE_K : k_top;
    }

    __attribute__((device, always_inline)) void multiply_step(local stage, local other,
                                                              block sum[BLOCKS_M][BLOCKS_N])
    {
        meet();
        MMF_UNROLL
        for (int part = 0; part < PARTS; part++) {
            fragment rows[BLOCKS_M], columns[BLOCKS_N];
            read(stage, part, rows, columns);
            MMF_UNROLL
            for (int i = 0; i < BLOCKS_M; i++) {
                if (part == 0 && i == 1) {
                    keep_order(); /* these fragments are read first, and these products begin */
                    put(other);
                    fetch();
                    keep_order();
                }
                MMF_UNROLL
                for (int j = 0; j < BLOCKS_N; j++)
                    sum[i][j] = multiply<row::operands>(columns[j], rows[i], sum[i][j]);
            }
        }
    }

    /* sum += A B over all of k. */
    __attribute__((device, always_inline)) void run(unsigned k_end, local lines,
                                                    block sum[BLOCKS_M][BLOCKS_N])
    {
        const unsigned k_last = (k_end - 1) / LINE_K * LINE_K;
        a.fetch_cut(k_last, k_end - k_last);
        b.fetch_cut(k_last, k_end - k_last);
        put(lines);
        k = 0;
        k_top = k_last ? k_last - LINE_K : 0;
        fetch();
        MMF_ROLLED
        for (unsigned done = 0;; done += 2 * LINE_K) {
            multiply_step(lines, lines + STAGE, sum);
            if (done == k_last)
                break;
            multiply_step(lines + STAGE, lines, sum);
            if (done + LINE_K == k_last)
                break;
        }
        /* The last loads, all at once: or each use of their registers would wait. */
        enum { A = carrier_a::LOADS, B = carrier_b::LOADS };
        asm volatile("" ::"v"(a.next[0]), "v"(a.next[1]), "v"(a.next[2 % A]), "v"(a.next[3 % A]),
                     "v"(b.next[0]), "v"(b.next[1]), "v"(b.next[2 % B]), "v"(b.next[3 % B]));
    }
};

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    const unsigned wave = (unsigned)__builtin_amdgcn_readfirstlane(thread_id() / LANES);
    sums_of_wave sums = {};
    {
        main_loop loop;
        /* The tile's matrices lie in the second stage, which nobody writes before all have met. */
        loop.start(read_again(args), tile_of_workgroup<row>(read_again(args), shared), wave);
        loop.run((unsigned)read_again(args).k, (local)shared, sums.sum);
    }
    barrier();
    const tile t = tile_of_workgroup<row>(read_again(args), shared);
    sums.finish(read_again(args), t, shared, (int)(wave / WAVES_N), (int)(wave % WAVES_N));
}
