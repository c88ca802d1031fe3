/* B in rows on its way to LDS on CDNA without loads straight there: its lines run across k, and are
 * transposed in registers. Path of a call: the loop over k of gemm_pingpong_staged, layout NN.
 *
 * A thread takes a square of columns and k, which it loads in Ks parts, one of each k, and writes
 * in Columns lines. Which one says its number, bit by bit, so that the lanes of a wave fill lines
 * of memory, and those that write at once go to different places of the banks. */
#ifndef MMF_CDNA_STAGED_ROWS_H
#define MMF_CDNA_STAGED_ROWS_H

#include "gpu/kernels/cdna/pingpong.h"

/* The bits of the thread's number that the digits of `places` name, the last digit's first; 15
 * stands before all of them. */
MMF_DEVICE unsigned dealt(unsigned places)
{
    unsigned value = 0;
    MMF_UNROLL
    for (int i = 0; places != 15; i++, places >>= 4)
        value |= ((unsigned)thread_id() >> (places & 15) & 1) << i;
    return value;
}

template <int Dwords> struct dwords {
    typedef chunk type;
};
template <> struct dwords<2> {
    typedef half_chunk type;
};

MMF_DEVICE void load_dwords(chunk &to, descriptor from, unsigned offset, unsigned k_at)
{
    to = __builtin_amdgcn_raw_buffer_load_b128(from, (int)offset, (int)k_at, 0);
}

MMF_DEVICE void load_dwords(half_chunk &to, descriptor from, unsigned offset, unsigned k_at)
{
    to = __builtin_amdgcn_raw_buffer_load_b64(from, (int)offset, (int)k_at, 0);
}

/* Of two parts of B, which bit 6 tells apart so that a wave stays in one (Part < 0), or of one.
 * OfK, OfColumn: bits of the number of the square, for dealt(). */
template <int Columns, int Ks, int Part, unsigned OfK, unsigned OfColumn> struct squares {
    enum { HAS_LAST = TWICE && (Part < 0 ? PARTS == 2 : Part == PARTS - 1) }; /* of B */
    half_tile<false, PART_N> of;
    unsigned offset[Ks], slot, other; /* other: what leads to the last part's other place */
    typename dwords<Columns / 2>::type next[Ks];

    static __attribute__((device, always_inline)) unsigned first_k()
    {
        return dealt(OfK) * Ks;
    }

    static __attribute__((device, always_inline)) int part()
    {
        return Part < 0 ? __builtin_amdgcn_readfirstlane(thread_id() >> 6 & 1) : Part;
    }

    /* begin: where B's lines lie in shared memory. */
    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      const halves &operands, long long first,
                                                      int count, unsigned begin)
    {
        const unsigned column = dealt(OfColumn) * Columns, k = first_k();
        of.start(args, t, part(), operands, first, count);
        of.most = count - Columns;
        MMF_UNROLL
        for (int i = 0; i < Ks; i++)
            offset[i] = of.offset((int)column, (int)k + i);
        slot = begin + place<false>(part() * PART_N + column, k / 8) + k % 8 * 2;
        other = part() == PARTS - 1 ? B_PART : 0;
    }

    __attribute__((device, always_inline)) void fetch(unsigned k_at)
    {
        MMF_UNROLL
        for (int i = 0; i < Ks; i++)
            load_dwords(next[i], of.memory, offset[i], k_at);
    }

    __attribute__((device, always_inline)) void fetch_cut(unsigned k_at, int left)
    {
        MMF_UNROLL
        for (int i = 0; i < Ks; i++) {
            const bool inside = (int)first_k() + i < left;
            load_dwords(next[i], of.memory, inside ? offset[i] + k_at : NOWHERE, 0);
        }
    }

    /* Of a column two neighbouring k. */
    __attribute__((device, always_inline)) unsigned pair(int k, int column) const
    {
        return __builtin_amdgcn_perm(next[k + 1][column / 2], next[k][column / 2],
                                     column % 2 ? 0x07060302 : 0x05040100);
    }

    __attribute__((device, always_inline)) void put(local lines)
    {
        MMF_UNROLL
        for (int c = 0; c < Columns; c++) {
            local to = lines + ((slot ^ (c & 3) * 16) + c * LINE);
            if (Ks == 2)
                *(MMF_LOCAL unsigned *)to = pair(0, c);
            else
                *(MMF_LOCAL half_chunk *)to = (half_chunk){pair(0, c), pair(2 % Ks, c)};
        }
        if (HAS_LAST) {
            slot ^= other;
            keep(slot);
        }
    }
};

/* 16 threads write 8 bytes each at once, 32 threads 4 bytes. */
typedef choose<row::threads == 2 * row::tile_n,
               choose<row::tile_n == 64, squares<8, 4, -1, 0xf5342, 0xf01>,
                      squares<8, 4, -1, 0xf2753, row::tile_n == 256 ? 0xf8104 : 0xf104>>::type,
               squares<4, 4, -1, 0xf8753, 0xf1024>>::type first_squares;

/* The rows of a tile; of 192 columns the last 64 are apart. */
struct staged_rows {
    static_assert(B_ALONG_K || row::threads == 2 * row::tile_n || PART_N == 64, "squares");
    first_squares first;
    squares<4, 2, 2, 0xf87610, 0xf4325> rest;

    __attribute__((device, always_inline)) void start(const mmf_gemm_args &args, const tile &t,
                                                      const halves &operands, long long line,
                                                      int count, unsigned begin)
    {
        first.start(args, t, operands, line, count, begin);
        if (PARTS > 2)
            rest.start(args, t, operands, line, count, begin);
    }

    __attribute__((device, always_inline)) unsigned step() const
    {
        return first.of.step();
    }

    __attribute__((device, always_inline)) void fetch_soon(unsigned k_at)
    {
        first.fetch(k_at);
        if (PARTS > 2)
            rest.fetch(k_at);
    }

    __attribute__((device, always_inline)) void fetch_soon_cut(unsigned k_at, int left)
    {
        first.fetch_cut(k_at, left);
        if (PARTS > 2)
            rest.fetch_cut(k_at, left);
    }

    __attribute__((device, always_inline)) void put_soon(local lines)
    {
        first.put(lines);
        if (PARTS > 2)
            rest.put(lines);
    }

    __attribute__((device, always_inline)) void fetch_late(unsigned)
    {
    }

    __attribute__((device, always_inline)) void fetch_late_cut(unsigned, int)
    {
    }

    __attribute__((device, always_inline)) void put_late(local) const
    {
    }
};

#endif
