/* The products of a tile on gfx950: A and B go straight from memory to LDS, 16 bytes a lane, while
 * products are summed. pingpong.h has the schedule. Path of a call: the loop over k of
 * gemm_pingpong and gemm_pingpong_splitk.
 *
 * LDS holds two steps of k, the stages. What a phase loads was read for the last time in the phase
 * of reading before it:
 *
 *     read A's first half, B of stage s      load A's second half to the other stage
 *     read A's second half of stage s        load A's first half, B, of the step after the next */
#ifndef MMF_CDNA_PINGPONG_DIRECT_H
#define MMF_CDNA_PINGPONG_DIRECT_H

#include "gpu/kernels/cdna/pingpong.h"

enum {
    STAGE_BYTES = B_LINES + PARTS * B_PART,
    STAGES = 2,
    ROW_BYTES = PART_N * 2,      /* of a k of a part of B whose lines run across k */
    ROW_CHUNKS = ROW_BYTES / 16, /* in it */
    /* A thread's loads that may be under way when a phase ends: those of the last two. */
    AHEAD = A_LOADS + REST_LOADS,
};
static_assert(!ACROSS, "the first phase reads all of B");
static_assert(row::lds == STAGES * STAGE_BYTES + TILE_BYTES, "kernels.def");

/* A thread's chunks of rows of B, which are lines across k: of rows thread / ROW_CHUNKS of a step
 * and as many as the threads load at once further on, so placed that column_places meets no bank
 * twice: of 256 bytes of banks a row fills all, half, or a quarter. */
struct row_chunks {
    enum { ROWS = row::threads / ROW_CHUNKS };

    static __attribute__((device, always_inline)) unsigned swizzle_row(unsigned k)
    {
        return ROW_CHUNKS == 16  ? (k & 1) | (k >> 1 & 1) << 2 | (k >> 3 & 1) << 3
               : ROW_CHUNKS == 8 ? (k >> 1 & 1) | (k >> 3 & 1) << 2
                                 : k >> 3 & 1;
    }

    static __attribute__((device, always_inline)) int line(int)
    {
        const unsigned thread = thread_id();
        return (int)(thread % ROW_CHUNKS ^ swizzle_row(thread / ROW_CHUNKS)) * 8;
    }

    static __attribute__((device, always_inline)) int k(int load)
    {
        return (int)((unsigned)thread_id() / ROW_CHUNKS) + load * ROWS;
    }
};
static_assert(B_ALONG_K || ROW_CHUNKS == 4 || ROW_CHUNKS == 8 || ROW_CHUNKS == 16, "swizzle_row()");

/* Loads of A or B: Loads of a thread from each of Parts parts. to: where those of this wave go, in
 * stage 0. */
template <class Part, int Loads, int Parts, class Chunks> struct loads {
    Part of[Parts];
    unsigned offset[Parts][Loads];
    local to;

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      const halves &operands, long long first,
                                                      int count, local lines, int wave)
    {
        to = lines + wave * 1024;
        MMF_UNROLL
        for (int h = 0; h < Parts; h++) {
            of[h].start(args, t, h, operands, first, count);
            MMF_UNROLL
            for (int i = 0; i < Loads; i++)
                offset[h][i] = of[h].offset(Chunks::line(i), Chunks::k(i));
        }
    }

    __attribute__((device, always_inline)) static constexpr int place(int stage, int h, int i)
    {
        return stage * STAGE_BYTES + h * Part::LINES * LINE + i * LOAD_BYTES;
    }

    __attribute__((device, always_inline)) void load(int stage, int h, int i, unsigned k_at) const
    {
        __builtin_amdgcn_raw_ptr_buffer_load_lds(of[h].memory,
                                                 (MMF_LOCAL void *)(to + place(stage, h, i)), 16,
                                                 (int)offset[h][i], (int)k_at, 0, 0);
    }

    /* Parts first to last, to stage 0, as far as k goes. */
    __attribute__((device, always_inline)) void load_cut(int first, int last, unsigned k_at,
                                                         int left) const
    {
        MMF_UNROLL
        for (int i = 0; i < Loads; i++) {
            if (Chunks::k(i) >= left)
                continue;
            MMF_UNROLL
            for (int h = first; h <= last; h++)
                load(0, h, i, k_at);
        }
    }

    /* Zeros in stage 0 beyond k: what a load writes for a lane without an address is not known. */
    __attribute__((device, always_inline)) void clear_cut(int left) const
    {
        MMF_UNROLL
        for (int i = 0; i < Loads; i++) {
            if (Chunks::k(i) < left)
                continue;
            MMF_UNROLL
            for (int h = 0; h < Parts; h++)
                *(MMF_LOCAL chunk *)(to + place(0, h, i) + (thread_id() & 63) * 16) = chunk(0);
        }
    }

    __attribute__((device, always_inline)) void load_all(int stage, int h, unsigned k_at) const
    {
        MMF_UNROLL
        for (int i = 0; i < Loads; i++)
            load(stage, h, i, k_at);
    }
};

/* Fragments of B whose lines are along k. */
template <bool AlongK> struct column_places {
    fragment_places<true> of;

    __attribute__((device, always_inline)) void start(unsigned from, unsigned first)
    {
        of.start(from, first);
    }

    template <int Part, int K>
    __attribute__((device, always_inline)) chunk read(local lines, int j) const
    {
        return of.read(lines, K, Part * PART_N + block_line(j));
    }
};

/* Fragments of B's rows: the instruction gives lane i of 16 column i % 4 of what lane i / 4 of four
 * rows k reads. Blocks j are 4 columns apart, half a chunk: so that all halves are read at once,
 * odd lanes of four take the other one, and the two blocks are swapped in odd sixteens of lanes. */
template <> struct column_places<false> {
    unsigned at[2]; /* of block j */

    __attribute__((device, always_inline)) void start(unsigned from, unsigned first)
    {
        const unsigned lane = thread_id() & 63, k = lane / 16 * 8 + (lane & 15) / 4;
        const unsigned c = first / 8 + (lane & 3);
        const unsigned place = (c ^ row_chunks::swizzle_row(k)) * 16;
        MMF_UNROLL
        for (unsigned j = 0; j < 2; j++) {
            at[j] = from + k * ROW_BYTES + place + ((lane ^ j) & 1) * 8;
            keep(at[j]);
        }
    }

    /* As assembly: before the builtin the compiler waits for all loads to LDS. Whoever uses the
     * value waits for it. */
    template <int Part, int K>
    __attribute__((device, always_inline)) chunk read(local lines, int j) const
    {
        half_chunk part[2];
        const unsigned from = (unsigned)(unsigned long long)(lines + at[j]);
        asm volatile("ds_read_b64_tr_b16 %0, %1 offset:%2"
                     : "=v"(part[0])
                     : "v"(from), "i"(Part * B_PART + K * 32 * ROW_BYTES));
        asm volatile("ds_read_b64_tr_b16 %0, %1 offset:%2"
                     : "=v"(part[1])
                     : "v"(from), "i"(Part * B_PART + (K * 32 + 4) * ROW_BYTES));
        return __builtin_shufflevector(part[0], part[1], 0, 1, 2, 3);
    }
};

/* What a wave knows in the main loop. */
struct main_loop : wave_products<!B_ALONG_K> {
    loads<half_tile<true, HALF_M>, A_LOADS, 2, line_chunks> a_loads;
    loads<b_part, B_LOADS, PARTS, choose<B_ALONG_K, line_chunks, row_chunks>::type> b_loads;
    local lines;
    fragment_places<true> a_places[STAGES];
    column_places<B_ALONG_K> b_places[STAGES];

    template <int Stage> __attribute__((device, always_inline)) void read_a(int h, int i)
    {
        const int k = i / HALF_BLOCKS, n = i % HALF_BLOCKS;
        a[k][n] = a_places[Stage].read(lines, k, h * HALF_M + block_line(n));
    }

    /* A load sets M0, after which an instruction must come between: it follows a read. */
    template <int Stage> __attribute__((device, always_inline)) void read_first_half(unsigned a_at)
    {
        MMF_UNROLL
        for (int i = 0; i < 2 * HALF_BLOCKS; i++) {
            read_a<Stage>(0, i);
            if (i < A_LOADS) {
                a_loads.load(1 - Stage, 1, i, a_at);
                keep_order();
            }
        }
        MMF_UNROLL
        for (int j = 0; j < 2; j++) {
            b[0][0][j] = b_places[Stage].template read<0, 0>(lines, j);
            b[0][1][j] = b_places[Stage].template read<0, 1>(lines, j);
            b[1][0][j] = b_places[Stage].template read<1, 0>(lines, j);
            b[1][1][j] = b_places[Stage].template read<1, 1>(lines, j);
            if (PARTS > 2) {
                b[PARTS - 1][0][j] = b_places[Stage].template read<PARTS - 1, 0>(lines, j);
                b[PARTS - 1][1][j] = b_places[Stage].template read<PARTS - 1, 1>(lines, j);
            }
        }
        wait_until<AHEAD, 0>();
        meet();
    }

    template <int Stage>
    __attribute__((device, always_inline)) void read_second_half(unsigned a_at, unsigned b_at)
    {
        MMF_UNROLL
        for (int i = 0; i < 2 * HALF_BLOCKS || i < REST_LOADS; i++) {
            const int of_b = i - A_LOADS;
            if (i < 2 * HALF_BLOCKS)
                read_a<Stage>(1, i);
            if (i < A_LOADS)
                a_loads.load(Stage, 0, i, a_at);
            else if (i < REST_LOADS)
                b_loads.load(Stage, of_b / B_LOADS, of_b % B_LOADS, b_at);
            if (i < REST_LOADS)
                keep_order();
        }
        wait_until<AHEAD, 0>();
        meet();
    }

    template <int Stage> __attribute__((device, always_inline)) void step_k(step_offsets &next)
    {
        read_first_half<Stage>(next.of_a.at);
        this->template multiply_half<0>();
        next.advance();
        read_second_half<Stage>(next.of_a.at, next.b().at);
        this->template multiply_half<1>();
    }

    /* The last step of k, to stage 0. */
    __attribute__((device, always_inline)) void load_cut(const step_offsets &next)
    {
        a_loads.clear_cut(next.left);
        b_loads.clear_cut(next.left);
        a_loads.load_cut(0, 0, next.of_a.cut, next.left);
        b_loads.load_cut(0, PARTS - 1, next.b().cut, next.left);
        a_loads.load_cut(1, 1, next.of_a.cut, next.left);
    }

    __attribute__((device, always_inline)) void run(unsigned k_end, bool late)
    {
        step_offsets next;
        next.start(k_end, a_loads.of[0].step(), b_loads.of[0].step());
        if (next.left < LINE_K) {
            load_cut(next);
        } else {
            a_loads.load_all(0, 0, next.of_a.cut);
            b_loads.load_all(0, 0, next.b().cut);
            b_loads.load_all(0, 1, next.b().cut);
            if (PARTS > 2)
                b_loads.load_all(0, PARTS - 1, next.b().cut);
            a_loads.load_all(0, 1, next.of_a.cut);
        }
        a_loads.load_all(1, 0, 0);
        b_loads.load_all(1, 0, 0);
        b_loads.load_all(1, 1, 0);
        if (PARTS > 2)
            b_loads.load_all(1, PARTS - 1, 0);
        this->clear();
        wait_until<AHEAD, 0>();
        meet();
        if (TURNS && late)
            meet();
        MMF_ROLLED
        for (unsigned pairs = next.steps / 2; pairs; pairs--) {
            step_k<0>(next);
            step_k<1>(next);
        }
        if (next.steps % 2)
            step_k<0>(next);
        if (TURNS && !late)
            meet();
        wait_until<0, 0>(); /* a wave that is gone must not be written for */
    }
};

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    const int wave = __builtin_amdgcn_readfirstlane(thread_id() >> 6);
    const tile t = tile_of_workgroup<row>(args, shared);
    main_loop loop;
    loop.lines = (local)shared;
    const halves of_a = {MMF_GEMM_A, MMF_GEMM_A};
    const halves of_b = {MMF_GEMM_B, args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B};
    loop.a_loads.start(args, t, of_a, t.m0, t.rows, loop.lines, wave);
    loop.b_loads.start(args, t, of_b, t.n0, t.cols, loop.lines + B_LINES, wave);
    MMF_UNROLL
    for (int stage = 0; stage < STAGES; stage++) {
        loop.a_places[stage].start(stage * STAGE_BYTES, HALF_BLOCKS % 2
                                                            ? block_line(wave / WAVES_N)
                                                            : wave / WAVES_N * HALF_ROWS);
        loop.b_places[stage].start(stage * STAGE_BYTES + B_LINES, wave % WAVES_N * 32);
    }
    loop.run(k_count(args), wave / 4);
    if (IN_PIECES) {
        store_piece(read_again(args), t, loop, wave);
        return;
    }
    if (!loop.in_registers(args))
        barrier();
    loop.finish<1>(read_again(args), t, shared, wave / WAVES_N, wave % WAVES_N);
}

#endif
