/* The products of a tile on gfx90a and gfx942: A and B go through registers to LDS while products
 * are summed. pingpong.h has the schedule. Path of a call: the loop over k of gemm_pingpong_staged
 * and gemm_pingpong_staged_splitk.
 *
 * LDS holds one step of k. A phase of reading also writes what the next one reads, and loads the
 * same for the step after it:
 *
 *     read A's first half, B     write A's second half       load it for the next step
 *     read A's second half       write A's first half, B     load them for the step after
 *
 * What the first phase reads is called soon here, the rest late; ACROSS, the rest is a part of B.
 * TWICE, LDS has two places for this part, which steps take in turns: the second phase writes
 * everything, and the first one may read from the part already. */
#ifndef MMF_CDNA_PINGPONG_STAGED_H
#define MMF_CDNA_PINGPONG_STAGED_H

#include "gpu/kernels/cdna/staged_rows.h"

enum {
    STEP_BYTES = B_LINES + (PARTS + TWICE) * B_PART,
    LAST_PART = B_LINES + (PARTS - 1) * B_PART, /* where it lies, or B_PART further on */
    /* Of the chunks of A that it multiplies, a wave loads half itself, in the lanes that need them:
     * it reads the others alone. LDS has no more to do than the matrix cores then. */
    OWN = TWICE && PARTS == 2 && WAVES_M == 2 && A_LOADS == 1,
    /* A lane's chunks of B, and those of the last part that the first phase reads, so that both
     * phases keep LDS as long: A's and the other parts', beside the second one's, and writes. */
    CHUNKS = 4 * PARTS,
    A_READS = OWN ? 2 : 4,
    MORE_LATE = 4 + 2 * A_LOADS + PARTS * B_LOADS - A_READS - (CHUNKS - 4),
    EARLY = TWICE && MORE_LATE > 0 ? MORE_LATE / 2 : 0,
    CHUNKS_SOON = CHUNKS - 4 * ACROSS + EARLY,
    /* The step lies where the tile's matrices do, unless the sums of a band take more. */
    OVER_MATRICES = row::lds < STEP_BYTES + TILE_BYTES,
};
static_assert(row::lds >= STEP_BYTES, "kernels.def");
static_assert(!TWICE || LAST_PART % (2 * B_PART) == 0, "a bit tells the places apart");

/* To the other place of the last part. */
MMF_DEVICE void turn(unsigned &at)
{
    at ^= B_PART;
    keep(at);
}

/* At once, so that the next load goes where this one went: else its value is copied once it comes.
 */
MMF_DEVICE void copy(const chunk &from, chunk &to)
{
    MMF_UNROLL
    for (int d = 0; d < 4; d++) {
        unsigned value;
        asm volatile("v_mov_b32 %0, %1" : "=&v"(value) : "v"(from[d]));
        to[d] = value;
    }
}

/* A thread's chunk of lines of A, which its wave multiplies: of two waves beside each other the
 * first one has the first half of k. */
struct own_chunks {
    static __attribute__((device, always_inline)) int line(int)
    {
        return block_line((thread_id() >> 6) / WAVES_N) + lane_line(thread_id() & 15);
    }

    static __attribute__((device, always_inline)) int k(int)
    {
        return ((thread_id() >> 6) % WAVES_N * 4 + (thread_id() & 63) / 16) * 8;
    }

    static __attribute__((device, always_inline)) unsigned slot()
    {
        return place<true>(line(0), k(0) / 8);
    }
};

/* Chunks of lines along k on their way: Loads of a thread from each of Parts parts, to `at` in
 * shared memory, as Chunks says. The second phase reads the last Late parts, the first one the
 * rest. Turns: the last part takes two places in turns. */
template <class Part, class Chunks, int Loads, int Parts, int Late, bool Turns>
struct staged_lines {
    enum { SOON = Parts - Late };
    Part of[Parts];
    unsigned offset[Parts][Loads];
    chunk next[Parts][Loads];
    unsigned at, last;

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      const halves &operands, long long first,
                                                      int count, unsigned begin)
    {
        at = begin + Chunks::slot();
        last = LAST_PART + Chunks::slot();
        MMF_UNROLL
        for (int h = 0; h < Parts; h++) {
            of[h].start(args, t, h, operands, first, count);
            MMF_UNROLL
            for (int i = 0; i < Loads; i++)
                offset[h][i] = of[h].offset(Chunks::line(i), Chunks::k(i));
        }
    }

    __attribute__((device, always_inline)) void fetch(int h, unsigned k_at)
    {
        MMF_UNROLL
        for (int i = 0; i < Loads; i++)
            next[h][i] = load_chunk<true>(of[h].memory, offset[h][i], k_at);
    }

    __attribute__((device, always_inline)) unsigned step() const
    {
        return of[0].step();
    }

    /* As far as k goes; zeros beyond. */
    __attribute__((device, always_inline)) void fetch_cut(int h, unsigned k_at, int left)
    {
        MMF_UNROLL
        for (int i = 0; i < Loads; i++) {
            const bool inside = Chunks::k(i) < left;
            next[h][i] = load_chunk<true>(of[h].memory, inside ? offset[h][i] + k_at : NOWHERE, 0);
        }
    }

    __attribute__((device, always_inline)) void put(local lines, int h) const
    {
        const unsigned to = Turns && h == Parts - 1 ? last : at + h * Part::LINES * LINE;
        MMF_UNROLL
        for (int i = 0; i < Loads; i++)
            *(MMF_LOCAL chunk *)(lines + (to + i * LOAD_BYTES)) = next[h][i];
    }

    __attribute__((device, always_inline)) void fetch_soon(unsigned k_at)
    {
        MMF_UNROLL
        for (int h = 0; h < SOON; h++)
            fetch(h, k_at);
    }

    __attribute__((device, always_inline)) void fetch_late(unsigned k_at)
    {
        MMF_UNROLL
        for (int h = SOON; h < Parts; h++)
            fetch(h, k_at);
    }

    __attribute__((device, always_inline)) void fetch_soon_cut(unsigned k_at, int left)
    {
        MMF_UNROLL
        for (int h = 0; h < SOON; h++)
            fetch_cut(h, k_at, left);
    }

    __attribute__((device, always_inline)) void fetch_late_cut(unsigned k_at, int left)
    {
        MMF_UNROLL
        for (int h = SOON; h < Parts; h++)
            fetch_cut(h, k_at, left);
    }

    __attribute__((device, always_inline)) void put_soon(local lines)
    {
        MMF_UNROLL
        for (int h = 0; h < SOON; h++)
            put(lines, h);
        if (Turns)
            turn(last);
    }

    __attribute__((device, always_inline)) void put_late(local lines) const
    {
        MMF_UNROLL
        for (int h = SOON; h < Parts; h++)
            put(lines, h);
    }
};

/* What a wave knows in the main loop. */
struct main_loop : wave_products<false> {
    staged_lines<half_tile<true, HALF_M>, choose<OWN, own_chunks, line_chunks>::type, A_LOADS, 2,
                 !ACROSS, false>
        a_chunks;
    choose<B_ALONG_K, staged_lines<b_part, line_chunks, B_LOADS, PARTS, ACROSS && !TWICE, TWICE>,
           staged_rows>::type b_chunks;
    local lines;
    chunk own[2], rest[2]; /* OWN: of a half of A's rows, what the wave loaded, and the other half
                            * of k */
    bool second;           /* it loads the second one */
    fragment_places<true> a_places;
    fragment_places<B_ALONG_K> b_places, last_places; /* TWICE: of the last part */

    __attribute__((device, always_inline)) void read_a(int h)
    {
        if (OWN) {
            rest[h] = a_places.read(lines, 0, h * HALF_M);
            return;
        }
        MMF_UNROLL
        for (int i = 0; i < 2 * HALF_BLOCKS; i++) {
            const int k = i / HALF_BLOCKS, n = i % HALF_BLOCKS;
            a[k][ACROSS ? h : n] = a_places.read(lines, k, h * HALF_M + block_line(n));
        }
    }

    /* OWN: which half of k read_a() reads, and what is multiplied. */
    __attribute__((device, always_inline)) void begin_own(int wave)
    {
        second = wave % WAVES_N;
        a_places.of.at[0] = second ? a_places.of.at[0] : a_places.of.at[1];
    }

    __attribute__((device, always_inline)) void place_own()
    {
        MMF_UNROLL
        for (int h = 0; h < 2; h++) {
            a[0][h] = second ? rest[h] : own[h];
            a[1][h] = second ? own[h] : rest[h];
        }
    }

    __attribute__((device, always_inline)) void read_b(int first, int end)
    {
        MMF_UNROLL
        for (int i = first; i < end; i++) {
            const int k = i / 2 % 2, line = block_line(i % 2);
            b[i / 4][k][i % 2] = TWICE && i / 4 == PARTS - 1
                                     ? last_places.read(lines, k, line)
                                     : b_places.read(lines, k, i / 4 * PART_N + line);
        }
    }

    __attribute__((device, always_inline)) void read_soon()
    {
        read_a(0);
        if (ACROSS)
            read_a(1);
        read_b(0, CHUNKS_SOON);
    }

    __attribute__((device, always_inline)) void read_late()
    {
        if (!ACROSS)
            read_a(1);
        read_b(CHUNKS_SOON, CHUNKS);
        if (TWICE) {
            turn(last_places.of.at[0]);
            turn(last_places.of.at[1]);
        }
    }

    __attribute__((device, always_inline)) void put_soon()
    {
        a_chunks.put_soon(lines);
        MMF_UNROLL
        for (int h = 0; OWN && h < 2; h++)
            copy(a_chunks.next[h][0], own[h]);
        b_chunks.put_soon(lines);
    }

    __attribute__((device, always_inline)) void put_late()
    {
        a_chunks.put_late(lines);
        b_chunks.put_late(lines);
    }

    __attribute__((device, always_inline)) void fetch_soon(const step_offsets &next)
    {
        a_chunks.fetch_soon(next.of_a.at);
        b_chunks.fetch_soon(next.b().at);
    }

    __attribute__((device, always_inline)) void fetch_late(const step_offsets &next)
    {
        a_chunks.fetch_late(next.of_a.at);
        b_chunks.fetch_late(next.b().at);
    }

    __attribute__((device, always_inline)) void run(unsigned k_end, bool late)
    {
        step_offsets next;
        next.start(k_end, a_chunks.step(), b_chunks.step());
        a_chunks.fetch_soon_cut(next.of_a.cut, next.left);
        b_chunks.fetch_soon_cut(next.b().cut, next.left);
        a_chunks.fetch_late_cut(next.of_a.cut, next.left);
        b_chunks.fetch_late_cut(next.b().cut, next.left);
        keep_order();
        this->clear();
        wait_until<LATE_LOADS, ANY_SHARED>();
        put_soon();
        keep_order();
        fetch_soon(next);
        wait_until<ANY_MEMORY, 0>();
        meet();
        if (TURNS && late)
            meet();
        MMF_ROLLED
        for (unsigned left = next.steps; left; left--) {
            read_soon();
            keep_order();
            if (!TWICE) {
                wait_until<REST_LOADS, ANY_SHARED>();
                put_late();
                fetch_late(next);
            }
            wait_until<ANY_MEMORY, 0>();
            if (OWN)
                place_own();
            meet();
            this->template multiply_half<0>();
            next.advance();
            read_late();
            keep_order();
            wait_until<LATE_LOADS, ANY_SHARED>();
            put_soon();
            fetch_soon(next);
            wait_until<ANY_MEMORY, 0>();
            meet();
            this->template multiply_half<1>();
        }
        if (TURNS && !late)
            meet();
        wait_until<0, ANY_SHARED>(); /* for what was loaded once more: the registers are free */
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
    loop.a_chunks.start(args, t, of_a, t.m0, t.rows, 0);
    loop.b_chunks.start(args, t, of_b, t.n0, t.cols, B_LINES);
    /* ACROSS, what lies there is written behind the first barrier of the loop. */
    if (OVER_MATRICES && !ACROSS)
        barrier();
    loop.a_places.start(0,
                        HALF_BLOCKS % 2 ? block_line(wave / WAVES_N) : wave / WAVES_N * HALF_ROWS);
    if (OWN)
        loop.begin_own(wave);
    loop.b_places.start(B_LINES, wave % WAVES_N * 32);
    loop.last_places.start(LAST_PART, wave % WAVES_N * 32);
    loop.run(k_count(args), wave / 4);
    if (OVER_MATRICES || !(IN_PIECES || loop.in_registers(args)))
        barrier();
    if (OVER_MATRICES)
        find_matrices_again(read_again(args), t);
    if (IN_PIECES)
        store_piece(read_again(args), t, loop, wave);
    else
        loop.finish<1>(read_again(args), t, shared, wave / WAVES_N, wave % WAVES_N);
}

#endif
