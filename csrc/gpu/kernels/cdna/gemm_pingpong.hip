/* Matrix cores of CDNA4 (gfx950), tiles of 256 x 256: A and B go straight from memory to LDS, 16
 * bytes a lane, while products are summed. float16 and bfloat16, float sums; all lines are whole
 * chunks of 16 bytes. pingpong.h has the schedule.
 * Path of a call: chosen for large M and N; launched by gpu/launch_plan.c.
 *
 * LDS holds two steps of k, the stages. What a phase loads was read for the last time in the phase
 * of reading before it:
 *
 *     read A's first half, B of stage s      load A's second half to the other stage
 *     read A's second half of stage s        load A's first half, B, of the step after the next */
#include "gpu/kernels/cdna/pingpong.h"

enum {
    STAGE_BYTES = 2 * B_LINES,
    STAGES = 2,
    ROW_BYTES = HALF * 2, /* of a k of half of B whose lines run across k */
    AHEAD = 8, /* a thread's loads that may be under way when a phase ends: those of the last two */
};
static_assert(row::lds == STAGES * STAGE_BYTES + TILE_BYTES, "kernels.def");

/* A thread's chunks of rows of B, which are lines across k: of rows thread / 16 and + 32 of a step,
 * so placed that read_rows() meets no bank twice. */
struct row_chunks {
    static __attribute__((device, always_inline)) unsigned swizzle_row(unsigned k)
    {
        return (k & 1) | (k >> 1 & 1) << 2 | (k >> 3 & 1) << 3;
    }

    static __attribute__((device, always_inline)) int line(int)
    {
        return (int)((thread_id() & 15) ^ swizzle_row(thread_id() >> 4)) * 8;
    }

    static __attribute__((device, always_inline)) int k(int load)
    {
        return (thread_id() >> 4) + load * 32;
    }
};

/* Loads of A or B. to: where those of this wave go, in stage 0. */
template <bool AlongK, class Chunks> struct loads {
    half_tile<AlongK> of[2];
    unsigned offset[2][LOADS];
    local to;

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      const int operands[2], long long first,
                                                      int count, local lines, int wave)
    {
        to = lines + wave * 1024;
        MMF_UNROLL
        for (int h = 0; h < 2; h++) {
            of[h].start(args, t, h, operands, first, count);
            MMF_UNROLL
            for (int i = 0; i < LOADS; i++)
                offset[h][i] = of[h].offset(Chunks::line(i), Chunks::k(i));
        }
    }

    __attribute__((device, always_inline)) static constexpr int place(int stage, int h, int i)
    {
        return stage * STAGE_BYTES + h * HALF_BYTES + i * LOAD_BYTES;
    }

    __attribute__((device, always_inline)) void load(int stage, int h, int i, unsigned k_at) const
    {
        __builtin_amdgcn_raw_ptr_buffer_load_lds(of[h].memory,
                                                 (MMF_LOCAL void *)(to + place(stage, h, i)), 16,
                                                 (int)offset[h][i], (int)k_at, 0, 0);
    }

    /* To stage 0, as far as k goes. */
    __attribute__((device, always_inline)) void load_cut(int h, unsigned k_at, int left) const
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            if (Chunks::k(i) < left)
                load(0, h, i, k_at);
        }
    }

    /* Zeros in stage 0 beyond k: what a load writes for a lane without an address is not known. */
    __attribute__((device, always_inline)) void clear_cut(int h, int left) const
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            if (Chunks::k(i) >= left)
                *(MMF_LOCAL chunk *)(to + place(0, h, i) + (thread_id() & 63) * 16) = chunk(0);
        }
    }

    __attribute__((device, always_inline)) void load_all(int stage, int h, unsigned k_at) const
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
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

    template <int Half, int K>
    __attribute__((device, always_inline)) chunk read(local lines, int j) const
    {
        return of.read(lines, K, Half * HALF + block_line(j));
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
    template <int Half, int K>
    __attribute__((device, always_inline)) chunk read(local lines, int j) const
    {
        half_chunk part[2];
        const unsigned from = (unsigned)(unsigned long long)(lines + at[j]);
        asm volatile("ds_read_b64_tr_b16 %0, %1 offset:%2"
                     : "=v"(part[0])
                     : "v"(from), "i"(Half * HALF_BYTES + K * 32 * ROW_BYTES));
        asm volatile("ds_read_b64_tr_b16 %0, %1 offset:%2"
                     : "=v"(part[1])
                     : "v"(from), "i"(Half * HALF_BYTES + (K * 32 + 4) * ROW_BYTES));
        return __builtin_shufflevector(part[0], part[1], 0, 1, 2, 3);
    }
};

/* What a wave knows in the main loop. */
struct main_loop : wave_products<!B_ALONG_K> {
    loads<true, line_chunks> a_loads;
    loads<B_ALONG_K, typename choose<B_ALONG_K, line_chunks, row_chunks>::type> b_loads;
    local lines;
    fragment_places<true> a_places[STAGES];
    column_places<B_ALONG_K> b_places[STAGES];

    template <int Stage> __attribute__((device, always_inline)) void read_a(int h, int i)
    {
        const int k = i / HALF_BLOCKS, n = i % HALF_BLOCKS;
        a[k][n] = a_places[Stage].read(lines, k, h * HALF + block_line(n));
    }

    /* A load sets M0, after which an instruction must come between: it follows a read. */
    template <int Stage> __attribute__((device, always_inline)) void read_first_half(unsigned a_at)
    {
        MMF_UNROLL
        for (int i = 0; i < 2 * HALF_BLOCKS; i++) {
            read_a<Stage>(0, i);
            if (i < LOADS) {
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
        }
        wait_until<AHEAD, 0>();
        meet();
    }

    template <int Stage>
    __attribute__((device, always_inline)) void read_second_half(unsigned a_at, unsigned b_at)
    {
        MMF_UNROLL
        for (int i = 0; i < 2 * HALF_BLOCKS; i++) {
            read_a<Stage>(1, i);
            if (i < LOADS)
                a_loads.load(Stage, 0, i, a_at);
            else if (i < 3 * LOADS)
                b_loads.load(Stage, i / LOADS - 1, i % LOADS, b_at);
            if (i < 3 * LOADS)
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
        MMF_UNROLL
        for (int h = 0; h < 2; h++) {
            a_loads.clear_cut(h, next.left);
            b_loads.clear_cut(h, next.left);
        }
        a_loads.load_cut(0, next.of_a.cut, next.left);
        b_loads.load_cut(0, next.b().cut, next.left);
        b_loads.load_cut(1, next.b().cut, next.left);
        a_loads.load_cut(1, next.of_a.cut, next.left);
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
            a_loads.load_all(0, 1, next.of_a.cut);
        }
        a_loads.load_all(1, 0, 0);
        b_loads.load_all(1, 0, 0);
        b_loads.load_all(1, 1, 0);
        this->clear();
        wait_until<AHEAD, 0>();
        meet();
        if (late)
            meet();
        MMF_ROLLED
        for (unsigned pairs = next.steps / 2; pairs; pairs--) {
            step_k<0>(next);
            step_k<1>(next);
        }
        if (next.steps % 2)
            step_k<0>(next);
        if (!late)
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
    const int of_a[] = {MMF_GEMM_A, MMF_GEMM_A};
    const int of_b[] = {MMF_GEMM_B, args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B};
    loop.a_loads.start(args, t, of_a, t.m0, t.rows, loop.lines, wave);
    loop.b_loads.start(args, t, of_b, t.n0, t.cols, loop.lines + B_LINES, wave);
    MMF_UNROLL
    for (int stage = 0; stage < STAGES; stage++) {
        loop.a_places[stage].start(stage * STAGE_BYTES, wave / 4 * 64);
        loop.b_places[stage].start(stage * STAGE_BYTES + B_LINES, wave % 4 * 32);
    }
    loop.run((unsigned)args.k, wave / 4);
    if (!loop.in_registers<1>(args))
        barrier();
    loop.finish<1>(read_again(args), t, shared, wave / 4, wave % 4);
}
