/* What the kernels that multiply and load in turns share: where a thread loads from, a wave's
 * fragments and products, and the frame of a phase. Path of a call: the main loops of gemm_pingpong
 * and gemm_pingpong_staged, over all of k or a piece of it.
 *
 * A wave has HALF_ROWS rows in each half of the tile's rows (64 of a tile of 256 x 256, 16 of one
 * of 64 rows, else 32) and 32 columns in each part of its columns: two (gated: of gate and up), or
 * three of 192 columns. A step of k is four phases:
 *
 *     read the first half of A, and B        barrier
 *     multiply                               barrier
 *     read the second half of A              barrier
 *     multiply                               barrier
 *
 * Two waves share a SIMD, of which one multiplies while the other one reads and loads. Of 8 waves
 * (TURNS) those from 4 on therefore run one phase behind the others. 4 waves are half of what a
 * compute unit holds, 2 a quarter: the others are of other workgroups, and no barrier follows a
 * product.
 *
 * The last step of k comes first: it alone may be cut, and needs masks. After the last step the one
 * before is loaded once more, rather than branch. */
#ifndef MMF_CDNA_PINGPONG_H
#define MMF_CDNA_PINGPONG_H

#include "gpu/kernels/cdna/finish.h"
#include "gpu/kernels/cdna/piece.h"
#include "gpu/kernels/cdna/preshuffled.h"

typedef this_row row;

enum {
    PARTS = row::tile_n % 192 ? GROUPS : 3, /* of B */
    HALF_M = row::tile_m / 2,               /* lines of A in half a tile, and */
    PART_N = row::tile_n / PARTS,           /* of B in a part */
    A_HALF = HALF_M * LINE, /* bytes in shared memory: both halves of A, then the parts of B */
    B_PART = PART_N * LINE,
    B_LINES = 2 * A_HALF,
    TURNS = row::threads == 512,
    WAVES_N = PART_N / 32,
    WAVES_M = row::threads / 64 / WAVES_N,
    HALF_ROWS = HALF_M / WAVES_M,
    HALF_BLOCKS = HALF_ROWS / 16,   /* of a wave's sums in half a tile, and */
    ROW_BLOCKS = 2 * HALF_BLOCKS,   /* in the tile */
    LOAD_LINES = row::threads / 8,  /* that all threads load at once */
    LOAD_BYTES = LOAD_LINES * LINE, /* of them */
    A_LOADS = HALF_M / LOAD_LINES,  /* of a thread from half of A, and */
    B_LOADS = PART_N / LOAD_LINES,  /* from a part of B */
    B_SHUFFLED = row::layout == LAYOUT_NP,
    B_ALONG_K = row::layout == LAYOUT_NT || B_SHUFFLED,
    ONE_STEP = row::layout == LAYOUT_NT, /* from step to step of k are as many bytes of A as of B */
    /* Without loads straight to LDS, and a block of rows in each half, B is most of what is read,
     * more than LDS gives in a phase. There the first phase reads A and all of B but a part, the
     * second one this part, and either multiplies half of the blocks. */
    STAGED = MULTIPLY_PARTS == 2,
    /* LDS has room for this part twice: nothing is written but in the second phase. */
    TWICE = STAGED && HALF_BLOCKS == 1 && PART_N == 64,
    ACROSS = STAGED && HALF_BLOCKS == 1 && (B_ALONG_K || TWICE),
    /* Loads of a thread: of a step of B, of what is written late, and of the rest. */
    ROW_LOADS = PARTS == 3 ? 6 : 4, /* of rows of B on their way through registers */
    B_FETCHES = B_ALONG_K || !STAGED ? PARTS * B_LOADS : ROW_LOADS,
    LATE_LOADS = ACROSS ? B_LOADS * !TWICE : A_LOADS,
    REST_LOADS = 2 * A_LOADS + B_FETCHES - LATE_LOADS,
};
static_assert(row::threads == 128 || row::threads == 256 || row::threads == 512,
              "2, 4, or 8 waves");
static_assert(HALF_ROWS == 16 || HALF_ROWS == 32 || HALF_ROWS == 64,
              "a wave's rows: a block, or pairs");
static_assert(A_LOADS * LOAD_LINES == HALF_M && B_LOADS * LOAD_LINES == PART_N &&
                  row::tile_k == LINE_K,
              "whole loads");
static_assert(B_ALONG_K || row::layout == LAYOUT_NN, "lines of A are along k");

/* Where the halves of A or of B lie: two operands only of a gate. */
struct halves {
    int left, right;

    __attribute__((device, always_inline)) int of(int h) const
    {
        return h ? right : left;
    }
};

/* A part of the lines of A or of B under a tile, Half ones (gated: gate or up), from the tile's
 * first line on; lines are contiguous along k (AlongK) or across it. Where lines lie beyond the
 * matrix, the last ones stand for them, so that every address is inside; their sums are not stored.
 */
template <bool AlongK, int Half> struct half_tile {
    enum { LINES = Half };
    descriptor memory;
    unsigned pitch;  /* bytes from line to line; not AlongK: from k to k */
    int first, most; /* the part's first line, and the last at which a chunk may begin */

    /* h: which part. begin, count: lines of the tile. */
    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      int h, const halves &operands,
                                                      long long begin, int count)
    {
        /* Rows of gate and up have one pitch: gemm_pingpong.c. */
        const mmf_gemm_strides &s = args.strides[AlongK ? operands.of(h) : operands.left];
        const bool is_a = operands.left == MMF_GEMM_A; /* it has k in its columns, B in its rows */
        const long long line = is_a ? s.row : s.col, along = is_a ? s.col : s.row;
        const unsigned step =
            (unsigned)(AlongK ? (count > 1 ? line : 0) : along); /* one line: any */
        const unsigned k = k_count(args), last = AlongK ? count - 1 : k - 1;
        pitch = step * 2;
        first = operands.left == operands.right ? h * Half : 0;
        most = count - (AlongK ? 1 : 8);
        memory = __builtin_amdgcn_make_buffer_rsrc(
            t.matrix(operands.of(h)) + (begin * line + k_begin(args) * along) * 2, 0,
            (int)(last * pitch + (AlongK ? k : (unsigned)count) * 2), RAW_BUFFER);
    }

    /* Bytes from the tile's first line to a chunk of line `at` of the part. */
    __attribute__((device, always_inline)) unsigned offset(int at, int k) const
    {
        const int there = first + at, line = there < most ? there : most;
        return AlongK ? line * pitch + k * 2 : k * pitch + line * 2;
    }

    /* From step to step of k. */
    __attribute__((device, always_inline)) unsigned step() const
    {
        return AlongK ? (unsigned)LINE : pitch * LINE_K;
    }
};

/* The same of the columns of a preshuffled B, of which a tile has whole blocks. */
template <int Half> struct half_of_blocks {
    enum { LINES = Half };
    descriptor memory;
    unsigned pitch; /* bytes from block to block */
    int first, most;

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      int h, const halves &operands,
                                                      long long begin, int count)
    {
        pitch = (unsigned)args.k * BLOCK_K_BYTES;
        first = operands.left == operands.right ? h * Half : 0;
        most = count - 1;
        memory = __builtin_amdgcn_make_buffer_rsrc(
            t.matrix(operands.of(h)) + begin * args.k * 2 + place_in_block(0, k_begin(args)), 0,
            (int)((unsigned)most / BLOCK_COLUMNS * pitch + place_in_block(0, k_count(args))),
            RAW_BUFFER);
    }

    __attribute__((device, always_inline)) unsigned offset(int at, int k) const
    {
        const int there = first + at;
        const unsigned line = (unsigned)(there < most ? there : most);
        return line / BLOCK_COLUMNS * pitch + place_in_block(line, (unsigned)k);
    }

    __attribute__((device, always_inline)) unsigned step() const
    {
        return LINE_K * BLOCK_K_BYTES;
    }
};

/* A thread's chunks of lines along k: of lines thread / 8 + LOAD_LINES * load, the chunk that
 * belongs to place thread % 8 of shared memory, so that the threads fill it from end to end. */
struct line_chunks {
    static __attribute__((device, always_inline)) int line(int load)
    {
        return (thread_id() >> 3) + load * LOAD_LINES;
    }

    static __attribute__((device, always_inline)) int k(int)
    {
        return (int)((thread_id() & 7) ^ swizzle<true>(thread_id() >> 3)) * 8;
    }

    static __attribute__((device, always_inline)) unsigned slot()
    {
        return thread_id() * 16;
    }
};

/* Products of a wave. */
template <bool Swapped>
struct wave_products : wave_sums<row, ROW_BLOCKS, HALF_BLOCKS, Swapped, PARTS> {
    using wave_sums<row, ROW_BLOCKS, HALF_BLOCKS, Swapped, PARTS>::sum;
    chunk a[2][ACROSS ? ROW_BLOCKS : HALF_BLOCKS],
        b[PARTS][2][2]; /* [half of k][block], [part of columns][half of k][block] */

    __attribute__((device, always_inline)) void clear()
    {
        MMF_UNROLL
        for (int i = 0; i < ROW_BLOCKS; i++) {
            MMF_UNROLL
            for (int j = 0; j < 2 * PARTS; j++)
                sum[i][j] = zeros();
        }
    }

    /* A phase: the rows of a half of A. ACROSS: half of the blocks, in order of their columns.
     * Few blocks of rows take the columns in turns, so that sums next to each other differ. The
     * wave that multiplies goes before the one that reads. */
    template <int Half> __attribute__((device, always_inline)) void multiply_half()
    {
        typedef products<row::operands> product;
        enum { STEPS = 2 * product::PARTS };
        __builtin_amdgcn_s_setprio(1);
        MMF_UNROLL
        for (int at = 0; at < PARTS * STEPS; at++) {
            const int part = HALF_BLOCKS == 1 ? at / PARTS : at % STEPS;
            const int n = HALF_BLOCKS == 1 ? at % PARTS : at / STEPS;
            const int columns = ACROSS ? (Half * PARTS + n) / 2 : n;
            const int half = ACROSS ? (Half * PARTS + n) % 2 : Half;
            const int k = part / product::PARTS;
            MMF_UNROLL
            for (int i = 0; i < HALF_BLOCKS; i++) {
                MMF_UNROLL
                for (int j = 0; j < 2; j++) {
                    block &s = sum[half * HALF_BLOCKS + i][columns * 2 + j];
                    s = product::add(b[columns][k][j], a[k][ACROSS ? half : i], s,
                                     part % product::PARTS);
                }
            }
        }
        __builtin_amdgcn_s_setprio(0);
        if (TURNS)
            meet();
        else
            keep_order();
    }

  private:
    /* Two registers at once. */
    static __attribute__((device, always_inline)) block zeros()
    {
        mmf_float2 low, up;
#if defined(__gfx90a__)
        asm volatile("v_pk_mov_b32 %0, 0, 0" : "=v"(low));
        asm volatile("v_pk_mov_b32 %0, 0, 0" : "=v"(up));
#else
        asm volatile("v_mov_b64 %0, 0" : "=v"(low));
        asm volatile("v_mov_b64 %0, 0" : "=v"(up));
#endif
        return __builtin_shufflevector(low, up, 0, 1, 2, 3);
    }
};

template <bool First, class A, class B> struct choose {
    typedef A type;
};
template <class A, class B> struct choose<false, A, B> {
    typedef B type;
};

/* A part of B. */
typedef choose<B_SHUFFLED, half_of_blocks<PART_N>, half_tile<B_ALONG_K, PART_N>>::type b_part;

/* The compiler cannot compute the value anew in a loop. */
MMF_DEVICE void keep(unsigned &value)
{
    asm volatile("" : "+v"(value));
}

/* Where the loads of a step of k begin, in bytes: of the last one, which may be cut, then of the
 * first one on. After the last whole step it stays. */
struct step_offset {
    unsigned cut, at, top, step;

    __attribute__((device, always_inline)) void start(unsigned steps, unsigned bytes)
    {
        step = bytes;
        at = 0;
        cut = (steps - 1) * bytes;
        /* The compiler may subtract in a vector register, for the carry. */
        top = __builtin_amdgcn_readfirstlane(steps > 1 ? cut - bytes : 0);
        asm volatile("" : "+s"(top));
    }

    __attribute__((device, always_inline)) void advance()
    {
        at = at + step < top ? at + step : top;
    }
};

/* Of A and of B: one where both have plain lines along k. The halves of B have one pitch where its
 * lines run across k. */
struct step_offsets {
    step_offset of_a, of_b;
    unsigned steps; /* of k */
    int left;       /* k of the last step */

    __attribute__((device, always_inline)) void start(unsigned k, unsigned a_step, unsigned b_step)
    {
        steps = (k + LINE_K - 1) / LINE_K;
        left = (int)(k - (steps - 1) * LINE_K);
        of_a.start(steps, a_step);
        if (!ONE_STEP)
            of_b.start(steps, b_step);
    }

    __attribute__((device, always_inline)) const step_offset &b() const
    {
        return ONE_STEP ? of_a : of_b;
    }

    __attribute__((device, always_inline)) void advance()
    {
        of_a.advance();
        if (!ONE_STEP)
            of_b.advance();
    }
};

/* Where a lane's chunks of a fragment lie, beginning `from` bytes on. */
template <bool AlongK> struct fragment_places {
    reader<AlongK> of;

    __attribute__((device, always_inline)) void start(unsigned from, unsigned first_line)
    {
        of.start(first_line);
        MMF_UNROLL
        for (int k = 0; k < 2; k++) {
            of.at[k] += from;
            keep(of.at[k]);
        }
    }

    __attribute__((device, always_inline)) chunk read(local lines, int k, unsigned lines_on) const
    {
        return of.read(lines, k, lines_on);
    }
};

/* The sums of a piece, once the products of all waves are done. */
template <class Sums>
MMF_DEVICE void store_piece(const mmf_gemm_args &args, const tile &t, const Sums &of, int wave)
{
    const int lane = thread_id() & 63, wave_m = wave / WAVES_N;
    const int m = Sums::first_row(wave_m) + lane_line(lane & 15);
    const int n = wave % WAVES_N * 32 + lane / 16 * 8;
    piece_sums to;
    to.start(args, t);
    MMF_UNROLL
    for (int i = 0; i < ROW_BLOCKS; i++) {
        MMF_UNROLL
        for (int j = 0; j < 2 * PARTS; j++) {
            const int part = args.gated ? 0 : j / 2 * PART_N;
            to.store(m + Sums::step(i), part + n + Sums::swapped_block(j % 2) * 4,
                     args.gated && j / 2, of.sum[i][j]);
        }
    }
}

#endif
