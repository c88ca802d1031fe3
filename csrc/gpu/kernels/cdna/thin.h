/* The products of a tile of 16 or 32 rows and 32 columns (B along n: 64), for few rows of A:
 * loading B is what takes the time then. Both operands go straight from memory to the registers of
 * the lane that multiplies them, lines in whole chunks of 16 bytes. Path of a call: the loop over k
 * of gemm_thin and gemm_thin_splitk.
 *
 * The waves of a workgroup share k: each takes every fourth step. While a step is multiplied, the
 * wave's next one is on its way. Their sums meet in shared memory and are added in the order of the
 * waves. */
#ifndef MMF_CDNA_THIN_H
#define MMF_CDNA_THIN_H

#include "gpu/kernels/cdna/fragment.h"
#include "gpu/kernels/cdna/memory.h"
#include "gpu/kernels/cdna/piece.h"
#include "gpu/kernels/cdna/preshuffled.h"

typedef this_row row;

enum {
    WAVES = row::threads / 64,
    SHUFFLED = row::layout == LAYOUT_NP,            /* B */
    ALONG_K = row::layout == LAYOUT_NT || SHUFFLED, /* B's lines */
    A_BLOCKS = row::tile_m / 16,
    B_BLOCKS = row::tile_n / 16,            /* gated: the first half of gate, the second of up */
    PART_K = 4 * CHUNK_K,                   /* of 16 lanes each a chunk */
    PARTS = row::tile_k / (WAVES * PART_K), /* of a wave's step */
    STEPS = 2,                              /* of a wave at once: one multiplied, one on its way */
    PITCH = row::tile_n + 4,                /* sums of a line in shared memory */
    WAVE_SUMS = row::tile_m * PITCH,
    SUM_THREADS = row::tile_n / 4, /* of a row, when the sums of waves are added */
};
static_assert(ALONG_K || row::layout == LAYOUT_NN, "lines of A along k");
static_assert(B_BLOCKS == (ALONG_K ? 2 : 4), "halves of a block, or of two");
typedef products<row::operands> product;
typedef product::real real;
typedef product::sums sums;
static_assert(row::tile_k == WAVES * PARTS * PART_K, "kernels.def");
static_assert(row::lds == WAVES * WAVE_SUMS * (int)sizeof(real) + TILE_BYTES, "kernels.def");

MMF_DEVICE descriptor bounded(char *matrix, unsigned bytes)
{
    return __builtin_amdgcn_make_buffer_rsrc(matrix, 0, (int)bytes, RAW_BUFFER);
}

/* This lane's line of 16. Beyond the tile's last line that one stands for it; its sums are not
 * stored. */
template <bool Once> struct lane_of_block {
    descriptor memory;
    unsigned at;

    /* begin, count: lines of the tile; first: of the block. */
    __attribute__((device, always_inline)) void start(char *matrix, long long line, long long begin,
                                                      int count, int first, unsigned k_end)
    {
        const unsigned pitch = count > 1 ? (unsigned)line * ELEMENT : 0; /* a single line: any */
        const int mine = first + (thread_id() & 15), last = count - 1;
        memory = bounded(matrix + begin * line * ELEMENT, last * pitch + k_end * ELEMENT);
        at = (mine < last ? mine : last) * pitch;
    }

    /* A chunk from k on; zeros where there is no such k. What is read once leaves the caches to
     * others. */
    __attribute__((device, always_inline)) chunk load(unsigned k, unsigned k_end) const
    {
        return __builtin_amdgcn_raw_buffer_load_b128(
            memory, (int)(k < k_end ? at + k * ELEMENT : NOWHERE), 0, Once ? 2 : 0);
    }
};

/* A lane's four sums in shared memory: of a line of 16 (put), and of two blocks, whose elements are
 * the even and the odd ones of a line of 32 (put_pairs). */
template <class Real> struct lane_sums;

template <> struct lane_sums<float> {
    static __attribute__((device, always_inline)) void put(block sum, float *line)
    {
        *(block *)(line + (thread_id() & 63) / 16 * 4) = sum;
    }

    static __attribute__((device, always_inline)) void put_pairs(block even, block odd, float *line)
    {
        float *const to = line + (thread_id() & 63) / 16 * 8;
        *(block *)to = block{even[0], odd[0], even[1], odd[1]};
        *(block *)(to + 4) = block{even[2], odd[2], even[3], odd[3]};
    }
};

template <> struct lane_sums<double> {
    static __attribute__((device, always_inline)) void put(mmf_double4 sum, double *line)
    {
        MMF_UNROLL
        for (int r = 0; r < 4; r++)
            line[4 * r + (thread_id() & 63) / 16] = sum[r];
    }

    static __attribute__((device, always_inline)) void put_pairs(mmf_double4 even, mmf_double4 odd,
                                                                 double *line)
    {
        typedef double doubles __attribute__((ext_vector_type(2)));
        MMF_UNROLL
        for (int r = 0; r < 4; r++)
            *(doubles *)(line + (4 * r + (thread_id() & 63) / 16) * 2) = doubles{even[r], odd[r]};
    }
};

/* The same of a preshuffled B: this lane's column of 16, which are whole. Beyond the tile's last
 * block the first one stands for it. */
template <bool Once> struct lane_of_shuffled {
    descriptor memory;
    unsigned at;

    /* line: k of the matrix. */
    __attribute__((device, always_inline)) void start(char *matrix, long long line, long long begin,
                                                      int count, int first, unsigned k_end)
    {
        memory = bounded(matrix + (begin + (first < count ? first : 0)) * line * 2,
                         k_end * BLOCK_K_BYTES);
        at = place_in_block(thread_id() & 15, 0);
    }

    __attribute__((device, always_inline)) chunk load(unsigned k, unsigned k_end) const
    {
        return __builtin_amdgcn_raw_buffer_load_b128(
            memory, (int)(k < k_end ? at + k * BLOCK_K_BYTES : NOWHERE), 0, Once ? 2 : 0);
    }
};

template <bool Shuffled, bool Once> struct lane_of_columns {
    typedef lane_of_block<Once> type;
};
template <bool Once> struct lane_of_columns<true, Once> {
    typedef lane_of_shuffled<Once> type;
};

template <bool AlongK> struct columns_of;

/* B with lines along k. */
template <> struct columns_of<true> {
    /* More than 16 rows: other tiles may read it, too. */
    lane_of_columns<SHUFFLED, row::tile_m == 16>::type of[2];

    struct part {
        chunk of[2];

        __attribute__((device, always_inline)) chunk block_of(int j) const
        {
            return of[j];
        }
    };

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t)
    {
        const int up = args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B;
        const unsigned k_end = k_count(args);
        const unsigned begin = k_begin(args) * (SHUFFLED ? (int)BLOCK_K_BYTES : (int)ELEMENT);
        const long long line = SHUFFLED ? args.k : args.strides[MMF_GEMM_B].col;
        of[0].start(t.matrix(MMF_GEMM_B) + begin, line, t.n0, t.cols, 0, k_end);
        of[1].start(t.matrix(up) + begin, SHUFFLED ? args.k : args.strides[up].col, t.n0, t.cols,
                    args.gated ? 0 : 16, k_end);
    }

    __attribute__((device, always_inline)) void load(part &to, unsigned k, unsigned k_end) const
    {
        MMF_UNROLL
        for (int j = 0; j < 2; j++)
            to.of[j] = of[j].load(k, k_end);
    }

    /* Sums of one m and four n, of each block. */
    static __attribute__((device, always_inline)) void put(const sums *sum, real *line)
    {
        MMF_UNROLL
        for (int j = 0; j < 2; j++)
            lane_sums<real>::put(sum[j], line + j * 16);
    }
};

/* Two neighbouring elements of so many bytes, and the chunk of either of them from CHUNK_K k. */
template <int Element> struct neighbours;

template <> struct neighbours<2> {
    typedef unsigned type;

    static __attribute__((device, always_inline)) type load(descriptor memory, unsigned at)
    {
        return __builtin_amdgcn_raw_buffer_load_b32(memory, (int)at, 0, 0);
    }

    static __attribute__((device, always_inline)) chunk line(const type *of, int second)
    {
        const unsigned either = second ? 0x07060302 : 0x05040100;
        chunk all;
        MMF_UNROLL
        for (int i = 0; i < 4; i++)
            all[i] = __builtin_amdgcn_perm(of[2 * i + 1], of[2 * i], either);
        return all;
    }
};

template <> struct neighbours<4> {
    typedef half_chunk type;

    static __attribute__((device, always_inline)) type load(descriptor memory, unsigned at)
    {
        return __builtin_amdgcn_raw_buffer_load_b64(memory, (int)at, 0, 0);
    }

    static __attribute__((device, always_inline)) chunk line(const type *of, int second)
    {
        return chunk{of[0][second], of[1][second], of[2][second], of[3][second]};
    }
};

template <> struct neighbours<8> {
    typedef chunk type;

    static __attribute__((device, always_inline)) type load(descriptor memory, unsigned at)
    {
        return __builtin_amdgcn_raw_buffer_load_b128(memory, (int)at, 0, 0);
    }

    static __attribute__((device, always_inline)) chunk line(const type *of, int second)
    {
        return second ? chunk{of[0].z, of[0].w, of[1].z, of[1].w}
                      : chunk{of[0].x, of[0].y, of[1].x, of[1].y};
    }
};

/* B with lines along n: a lane reads two neighbouring columns of either half of the tile, of which
 * the first is in the even block of the half, the second in the odd one. */
template <> struct columns_of<false> {
    descriptor memory[2];
    unsigned at[2], pitch;

    struct part {
        neighbours<ELEMENT>::type pair[2][CHUNK_K];

        __attribute__((device, always_inline)) chunk block_of(int j) const
        {
            return neighbours<ELEMENT>::line(pair[j / 2], j % 2);
        }
    };

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t)
    {
        enum { HALF = row::tile_n / 2 };
        const int up = args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B;
        const int mine = (thread_id() & 15) * 2;
        pitch = (unsigned)args.strides[MMF_GEMM_B].row * ELEMENT;
        MMF_UNROLL
        for (int h = 0; h < 2; h++) {
            /* Without columns on the right those on the left are read again. */
            const int begin = h == 0 || args.gated || t.cols <= HALF ? 0 : HALF;
            /* Beyond the last pair of columns that one is read; its sums are not stored. */
            const int last = (t.cols - begin < HALF ? t.cols - begin : HALF) - 2;
            at[h] = (mine < last ? mine : last) * ELEMENT;
            /* The compiler may compute it in a vector register. */
            const int bytes = __builtin_amdgcn_readfirstlane(
                (int)((k_count(args) - 1) * pitch + (last + 2) * ELEMENT));
            char *const lines = t.matrix(h ? up : MMF_GEMM_B) + k_begin(args) * (long long)pitch;
            memory[h] = bounded(lines + (t.n0 + begin) * ELEMENT, (unsigned)bytes);
        }
    }

    __attribute__((device, always_inline)) void load(part &to, unsigned k, unsigned k_end) const
    {
        MMF_UNROLL
        for (int i = 0; i < CHUNK_K; i++) {
            MMF_UNROLL
            for (int h = 0; h < 2; h++) {
                const unsigned from = k < k_end ? at[h] + k * pitch : NOWHERE;
                to.pair[h][i] = neighbours<ELEMENT>::load(memory[h], from + i * pitch);
            }
        }
    }

    /* Of one m: in either half, sums of four even n and of the odd ones behind them. */
    static __attribute__((device, always_inline)) void put(const sums *sum, real *line)
    {
        MMF_UNROLL
        for (int h = 0; h < 2; h++)
            lane_sums<real>::put_pairs(sum[2 * h], sum[2 * h + 1], line + h * (row::tile_n / 2));
    }
};

typedef columns_of<ALONG_K> columns;

struct operands {
    lane_of_block<false> a[A_BLOCKS];
    columns b;
};

struct step {
    chunk a[PARTS][A_BLOCKS];
    columns::part b[PARTS];

    __attribute__((device, always_inline)) void load(const operands &of, unsigned k, unsigned k_end)
    {
        MMF_UNROLL
        for (int part = 0; part < PARTS; part++) {
            of.b.load(b[part], k + part * PART_K, k_end);
            MMF_UNROLL
            for (int i = 0; i < A_BLOCKS; i++)
                a[part][i] = of.a[i].load(k + part * PART_K, k_end);
        }
    }

    __attribute__((device, always_inline)) void multiply_into(sums sum[A_BLOCKS][B_BLOCKS]) const
    {
        MMF_UNROLL
        for (int part = 0; part < PARTS; part++) {
            MMF_UNROLL
            for (int j = 0; j < B_BLOCKS; j++) {
                const chunk of_b = b[part].block_of(j);
                MMF_UNROLL
                for (int i = 0; i < A_BLOCKS; i++) {
                    MMF_UNROLL
                    for (int of_chunk = 0; of_chunk < product::PARTS; of_chunk++)
                        sum[i][j] = product::add(of_b, a[part][i], sum[i][j], of_chunk);
                }
            }
        }
    }
};

MMF_DEVICE void find_operands(const mmf_gemm_args &args, const tile &t, operands &of)
{
    char *const a = t.matrix(MMF_GEMM_A) + k_begin(args) * ELEMENT;
    MMF_UNROLL
    for (int i = 0; i < A_BLOCKS; i++)
        of.a[i].start(a, args.strides[MMF_GEMM_A].row, t.m0, t.rows, i * 16, k_count(args));
    of.b.start(args, t);
}

/* The sums of this wave's share of k. */
MMF_DEVICE void sum_products(const operands &of, unsigned k_end, unsigned wave,
                             sums sum[A_BLOCKS][B_BLOCKS])
{
    unsigned k = wave * (PARTS * PART_K) + (thread_id() & 63) / 16 * CHUNK_K;
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

/* The sums of all waves, in their order: each thread hands some blocks of four columns to `to`. */
template <class To>
MMF_DEVICE void add_waves(const sums sum[A_BLOCKS][B_BLOCKS], unsigned wave, real *lines,
                          const To &to)
{
    real *const mine = lines + wave * WAVE_SUMS + (thread_id() & 15) * PITCH;
    MMF_UNROLL
    for (int i = 0; i < A_BLOCKS; i++)
        columns::put(sum[i], mine + i * 16 * PITCH);
    barrier();
    const int n = thread_id() % SUM_THREADS * 4;
    MMF_UNROLL
    for (int m = thread_id() / SUM_THREADS; m < row::tile_m; m += row::threads / SUM_THREADS) {
        real *const at = lines + m * PITCH + n;
        sums total = *(const sums *)at;
        MMF_UNROLL
        for (int w = 1; w < WAVES; w++)
            total += *(const sums *)(at + w * WAVE_SUMS);
        to.put(m, n, total);
    }
}

#endif
