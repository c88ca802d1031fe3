/* Carriers bring a step's part of A or B through registers to LDS: fetch() loads, put() writes.
 * Path of a call: the main loop of gemm_wmma. */
#ifndef MMF_RDNA_CARRIER_H
#define MMF_RDNA_CARRIER_H

#include "gpu/kernels/common/tile.h"
#include "gpu/kernels/rdna/fragment.h"

enum { RUNS = LINE_K / 8 }; /* chunks of a line in a step */

/* The lines of an operand under a tile. */
struct operand_lines {
    const char *base;  /* the first one's beginning */
    unsigned pitch;    /* bytes from line to line; lines not along k: from k to k */
    unsigned count, k; /* lines of the tile inside the operand, and their elements */

    __attribute__((device, always_inline)) void find(const char *matrix, long long line_step,
                                                     long long k_step, long long first, int lines,
                                                     long long all_k, bool along_k)
    {
        count = (unsigned)lines;
        k = (unsigned)all_k;
        /* A single line has any step. */
        pitch = (unsigned)(along_k ? (count > 1 ? line_step : 0) : k_step) * 2;
        base = matrix + first * (along_k ? line_step : 1) * 2;
    }
};

/* Of Lines lines, by Threads threads. AlongK: k has stride 1, else the lines have. */
template <bool AlongK, int Lines, int Threads> struct carrier;

/* A thread takes chunk c of the lines thread / 4 + APART * i. Beyond the tile's last line that one
 * stands for it; its sums are not stored. */
template <int Lines, int Threads> struct carrier<true, Lines, Threads> {
    enum { APART = Threads / RUNS, LOADS = Lines / APART, HALF = Lines / 2 };
    static_assert(LOADS * APART == Lines && LOADS % 2 == 0, "as many lines of either half");
    descriptor memory[2];
    unsigned offset[LOADS], slot;
    chunk next[LOADS];

    static __attribute__((device, always_inline)) unsigned first_k()
    {
        return ((unsigned)thread_id() & 3) * 8;
    }

    /* right: the lines of the right half, another operand's or those of `left` further on. */
    __attribute__((device, always_inline)) void start(const operand_lines &left,
                                                      const operand_lines &right, bool other)
    {
        const operand_lines *const of[2] = {&left, &right};
        const unsigned line = (unsigned)thread_id() / RUNS;
        MMF_UNROLL
        for (int h = 0; h < 2; h++) {
            const unsigned last = of[h]->count - 1;
            memory[h] = __builtin_amdgcn_make_buffer_rsrc(
                (void *)of[h]->base, 0, (int)(last * of[h]->pitch + of[h]->k * 2), RAW_BUFFER);
            MMF_UNROLL
            for (int i = h * LOADS / 2; i < (h + 1) * LOADS / 2; i++) {
                const unsigned mine = line + i * APART - (other && h ? HALF : 0);
                offset[i] = (mine < last ? mine : last) * of[h]->pitch + first_k() * 2;
            }
        }
        slot = place(line, first_k() / 8);
    }

    /* The step that begins at k; only the next `left` elements of a line count. */
    __attribute__((device, always_inline)) void fetch_cut(unsigned k, unsigned left)
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            next[i] = __builtin_amdgcn_raw_buffer_load_b128(
                memory[i / (LOADS / 2)], (int)(first_k() < left ? offset[i] + k * 2 : NOWHERE), 0,
                0);
    }

    __attribute__((device, always_inline)) void fetch(unsigned k)
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            next[i] = __builtin_amdgcn_raw_buffer_load_b128(memory[i / (LOADS / 2)], (int)offset[i],
                                                            (int)(k * 2), 0);
    }

    __attribute__((device, always_inline)) void put(local lines) const
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            *(MMF_LOCAL chunk *)(lines + slot + i * APART * LINE) = next[i];
    }
};

/* A thread takes a chunk, eight lines, of LOADS neighbouring k, and transposes; half of the waves
 * take the right half of the lines. Those that differ in k alone write all of a line. */
template <int Lines, int Threads> struct carrier<false, Lines, Threads> {
    enum { LOADS = Lines * RUNS / Threads, BESIDE = LINE_K / LOADS, HALF = Lines / 2 };
    static_assert(LOADS == 4 || LOADS == 2, "it writes 8 bytes, or 4");
    typedef unsigned some __attribute__((ext_vector_type(LOADS / 2))); /* of a line */
    descriptor memory;
    unsigned pitch, offset[LOADS], slot[5]; /* of lines 0, 2, 4, 6, and 7 */
    chunk next[LOADS];

    static __attribute__((device, always_inline)) unsigned first_k()
    {
        return (unsigned)thread_id() % BESIDE * LOADS;
    }

    __attribute__((device, always_inline)) void start(const operand_lines &left,
                                                      const operand_lines &right, bool other)
    {
        const bool second = __builtin_amdgcn_readfirstlane(thread_id() / (Threads / 2));
        const operand_lines &of = second ? right : left;
        const unsigned line = (unsigned)thread_id() / BESIDE * 8;
        const unsigned mine = other && second ? line - HALF : line;
        pitch = of.pitch;
        memory = __builtin_amdgcn_make_buffer_rsrc(
            (void *)of.base, 0, (int)((of.k - 1) * pitch + of.count * 2), RAW_BUFFER);
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            offset[i] = mine < of.count ? (first_k() + i) * pitch + mine * 2 : NOWHERE;
        MMF_UNROLL
        for (unsigned i = 0; i < 5; i++)
            slot[i] = place(line + (i < 4 ? 2 * i : 7), first_k() / 8) + first_k() % 8 * 2;
    }

    __attribute__((device, always_inline)) void fetch_cut(unsigned k, unsigned left)
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            next[i] = __builtin_amdgcn_raw_buffer_load_b128(
                memory, (int)(first_k() + i < left ? offset[i] : NOWHERE), (int)(k * pitch), 0);
    }

    __attribute__((device, always_inline)) void fetch(unsigned k)
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            next[i] =
                __builtin_amdgcn_raw_buffer_load_b128(memory, (int)offset[i], (int)(k * pitch), 0);
    }

    __attribute__((device, always_inline)) void put(local lines) const
    {
        MMF_UNROLL
        for (unsigned e = 0; e < 8; e++) {
            const unsigned pick = e % 2 ? 0x07060302 : 0x05040100; /* high halves, or low */
            some of_line;
            MMF_UNROLL
            for (int i = 0; i < LOADS / 2; i++)
                of_line[i] =
                    __builtin_amdgcn_perm(next[2 * i + 1][e / 2], next[2 * i][e / 2], pick);
            const unsigned to = e < 7 ? slot[e / 2] + e % 2 * LINE : slot[4];
            *(MMF_LOCAL some *)(lines + to) = of_line;
        }
    }
};

#endif
