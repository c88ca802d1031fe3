/* Carriers bring a step's part of A or B through registers to shared memory: fetch() loads, put()
 * writes. Path of a call: the main loops of kernels for CDNA without loads straight to LDS. */
#ifndef MMF_CDNA_CARRIER_H
#define MMF_CDNA_CARRIER_H

#include "gpu/kernels/cdna/lds.h"
#include "gpu/kernels/cdna/memory.h"

/* Lines: of the tile, in two regions of half as many. AlongK: k has stride 1, else the lines have.
 * Wide: chunks may be loaded at once. */
template <bool AlongK, bool Wide, int Lines, int Threads, int Element = ELEMENT> struct carrier;

/* k has stride 1: a thread takes chunk c of the lines thread / 8 + Threads / 8 * i. */
template <bool Wide, int Lines, int Threads, int Element>
struct carrier<true, Wide, Lines, Threads, Element> {
    enum { APART = Threads / 8, LOADS = Lines / APART };
    static_assert(APART % 16 == 0 && LOADS % 2 == 0, "a load lies in one region, swizzled alike");
    region regions[2];
    unsigned offset[LOADS], slot;
    chunk next[LOADS];

    static __attribute__((device, always_inline)) int region_of_load(int i)
    {
        return i / (LOADS / 2);
    }

    __attribute__((device, always_inline)) void start(const region &low, const region &high)
    {
        regions[0] = low;
        regions[1] = high;
        const unsigned c = thread_id() & 7, line = thread_id() >> 3;
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            const region &from = regions[region_of_load(i)];
            offset[i] =
                from.bytes <= 0 ? NOWHERE : (line + i % (LOADS / 2) * APART) * from.pitch + c * 16;
        }
        /* fetch adds k to what the bounds are checked with: they must not be smaller than k. */
        MMF_UNROLL
        for (int i = 0; i < 2; i++)
            if (regions[i].bytes <= 0)
                regions[i].bytes = MOST_BYTES;
        slot = place<true>(line, c);
    }

    /* The step that begins at k; only the next `left` elements of a line count. */
    __attribute__((device, always_inline)) void fetch_cut(long long k, int left)
    {
        const int mine = left * Element - (int)(thread_id() & 7) * 16; /* bytes */
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            const unsigned at = offset[i] + (unsigned)k * region::SIZE;
            next[i] =
                load_chunk<Wide>(regions[region_of_load(i)].describe(), mine > 0 ? at : NOWHERE, 0);
            MMF_UNROLL
            for (int d = 0; d < 4; d++) {
                const int inside = mine - 4 * d;
                next[i][d] &= inside > 2 ? 0xffffffff : inside == 2 ? 0xffff : 0;
            }
        }
    }

    __attribute__((device, always_inline)) void fetch(unsigned k)
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            next[i] = load_chunk<Wide>(regions[region_of_load(i)].describe(), offset[i],
                                       k * region::SIZE);
    }

    __attribute__((device, always_inline)) void put(local lines) const
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            *(MMF_LOCAL chunk *)(lines + slot + i * APART * LINE) = next[i];
    }
};

/* 16 bits, the lines have stride 1: a thread takes chunk c, eight lines, of four neighbouring k,
 * and transposes. Bit 6 of the thread chooses the half of the lines, so that a wave stays in one;
 * the other bits are dealt out so that 16 neighbours write to 16 different places of the banks. */
template <int Lines> struct transposer {
    enum { LOADS = 4, FEW = Lines == 64 };
    unsigned slot;
    chunk next[LOADS];

    static __attribute__((device, always_inline)) unsigned bit(int i)
    {
        return (unsigned)thread_id() >> i & 1;
    }

    static __attribute__((device, always_inline)) unsigned first_k()
    {
        return (bit(3) | bit(5) << 1 | bit(FEW ? 1 : 7) << 2 | bit(2) << 3) * LOADS;
    }

    /* Of the half. */
    static __attribute__((device, always_inline)) unsigned first_line()
    {
        const unsigned of_32 = bit(4) | bit(0) << 1;
        return (FEW ? of_32 : of_32 | bit(1) << 2 | (unsigned)thread_id() >> 8 << 3) * 8;
    }

    static __attribute__((device, always_inline)) int half()
    {
        return __builtin_amdgcn_readfirstlane((int)bit(6));
    }

    __attribute__((device, always_inline)) void start()
    {
        const unsigned k = first_k() / LOADS;
        slot = place<false>(first_line() + bit(6) * (Lines / 2), k >> 1) + (k & 1) * 8;
    }

    __attribute__((device, always_inline)) void put(local lines) const
    {
        MMF_UNROLL
        for (unsigned e = 0; e < 8; e++)
            *(MMF_LOCAL half_chunk *)(lines + ((slot ^ (e & 3) * 16) + e * LINE)) =
                transposed(next, e);
    }
};

template <bool Wide, int Lines, int Threads>
struct carrier<false, Wide, Lines, Threads, 2> : transposer<Lines> {
    using transposer<Lines>::FEW;
    using transposer<Lines>::LOADS;
    using transposer<Lines>::next;
    using transposer<Lines>::half;
    using transposer<Lines>::first_k;
    using transposer<Lines>::first_line;
    static_assert(Lines / 8 * (LINE_K / LOADS) == Threads && (FEW || Lines % 128 == 0),
                  "one chunk a thread");
    region begin, at;
    unsigned offset[LOADS];

    __attribute__((device, always_inline)) void start(const region &low, const region &high)
    {
        begin = half() ? high : low;
        at = begin;
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            offset[i] = (first_k() + i) * begin.pitch + first_line() * region::SIZE;
        transposer<Lines>::start();
    }

    __attribute__((device, always_inline)) void go_to(long long k)
    {
        at.base = begin.base + k * begin.pitch;
        at.bytes = begin.bytes - k * begin.pitch;
    }

    __attribute__((device, always_inline)) void fetch_cut(long long k, int left)
    {
        go_to(k);
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            const bool inside = (int)first_k() + i < left;
            next[i] = load_chunk<Wide>(at.describe(), inside ? offset[i] : NOWHERE, 0);
        }
    }

    __attribute__((device, always_inline)) void fetch(unsigned k)
    {
        go_to(k);
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            next[i] = load_chunk<Wide>(at.describe(), offset[i], 0);
    }
};

/* 32 and 64 bits, the lines have stride 1: a thread takes squares of CHUNK_K neighbouring lines and
 * k, and turns them over. Eight neighbours take the k of a line, so that they write to all places
 * of the banks; the lines of a wave make 128 bytes of each k. */
template <bool Wide, int Lines, int Threads, int Element>
struct carrier<false, Wide, Lines, Threads, Element> {
    enum {
        APART = Threads / 8 * CHUNK_K, /* lines between a thread's squares */
        SQUARES = Lines / APART,
    };
    static_assert(SQUARES * APART == Lines && Lines / 2 % (8 * CHUNK_K) == 0,
                  "a wave's square lies in one region");
    region begin[SQUARES], at[SQUARES];
    unsigned offset[SQUARES][CHUNK_K], slot;
    chunk next[SQUARES][CHUNK_K];

    static __attribute__((device, always_inline)) int first_k()
    {
        return (thread_id() & 7) * CHUNK_K;
    }

    __attribute__((device, always_inline)) void start(const region &low, const region &high)
    {
        const unsigned line = ((unsigned)thread_id() >> 3) * CHUNK_K;
        MMF_UNROLL
        for (int s = 0; s < SQUARES; s++) {
            const unsigned mine = s * APART + line;
            const bool second = __builtin_amdgcn_readfirstlane((int)mine) >= Lines / 2;
            begin[s] = second ? high : low;
            MMF_UNROLL
            for (int i = 0; i < CHUNK_K; i++)
                offset[s][i] =
                    (first_k() + i) * begin[s].pitch + (mine - second * (Lines / 2)) * region::SIZE;
        }
        slot = place<true>(line, thread_id() & 7);
    }

    __attribute__((device, always_inline)) void go_to(long long k)
    {
        MMF_UNROLL
        for (int s = 0; s < SQUARES; s++) {
            at[s].base = begin[s].base + k * begin[s].pitch;
            at[s].bytes = begin[s].bytes - k * begin[s].pitch;
        }
    }

    __attribute__((device, always_inline)) void fetch_cut(long long k, int left)
    {
        go_to(k);
        MMF_UNROLL
        for (int s = 0; s < SQUARES; s++) {
            MMF_UNROLL
            for (int i = 0; i < CHUNK_K; i++) {
                const bool inside = first_k() + i < left;
                next[s][i] = load_chunk<Wide>(at[s].describe(), inside ? offset[s][i] : NOWHERE, 0);
            }
        }
    }

    __attribute__((device, always_inline)) void fetch(unsigned k)
    {
        go_to(k);
        MMF_UNROLL
        for (int s = 0; s < SQUARES; s++) {
            MMF_UNROLL
            for (int i = 0; i < CHUNK_K; i++)
                next[s][i] = load_chunk<Wide>(at[s].describe(), offset[s][i], 0);
        }
    }

    /* Dwords of element `line` of each k's chunk, one after another. */
    __attribute__((device, always_inline)) chunk turned(int s, int line) const
    {
        enum { DWORDS = Element / 4 };
        chunk value;
        MMF_UNROLL
        for (int d = 0; d < 4; d++)
            value[d] = next[s][d / DWORDS][line * DWORDS + d % DWORDS];
        return value;
    }

    __attribute__((device, always_inline)) void put(local lines) const
    {
        MMF_UNROLL
        for (int s = 0; s < SQUARES; s++) {
            MMF_UNROLL
            for (unsigned line = 0; line < CHUNK_K; line++)
                *(MMF_LOCAL chunk *)(lines + (slot ^ line * 16) + (s * APART + line) * LINE) =
                    turned(s, (int)line);
        }
    }
};

#endif
