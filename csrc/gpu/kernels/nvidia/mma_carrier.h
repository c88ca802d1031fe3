/* From global memory to the stages of gemm_mma and gemm_fma: cp.async of 16 bytes where lines allow
 * it, of one element or pair else, and single elements of 16 bits through registers. What a tile or
 * K does not have is 0. Path of a call: their main loops. Semantics: the PTX ISA, cp.async. */
#ifndef MMF_MMA_CARRIER_H
#define MMF_MMA_CARRIER_H

#include "gpu/kernels/nvidia/mma_args.h"
#include "gpu/kernels/nvidia/region.h"

MMF_DEVICE unsigned shared_window(const void *pointer)
{
    unsigned address;
    asm("{ .reg .u64 all; cvta.to.shared.u64 all, %1; cvt.u32.u64 %0, all; }"
        : "=r"(address)
        : "l"(pointer));
    return address;
}

/* `bytes` of Unit are copied, the rest is 0. */
template <int Unit> MMF_DEVICE void copy_async(unsigned to, const char *from, int bytes)
{
    if (Unit == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                     "l"((MMF_GLOBAL const char *)from), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to),
                     "l"((MMF_GLOBAL const char *)from), "r"(bytes), "n"(Unit)
                     : "memory");
}

/* All of them. */
template <int Unit> MMF_DEVICE void copy_whole_async(unsigned to, const char *from)
{
    if (Unit == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to),
                     "l"((MMF_GLOBAL const char *)from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to),
                     "l"((MMF_GLOBAL const char *)from), "n"(Unit)
                     : "memory");
}

/* All copies of this thread up to here are one group. */
MMF_DEVICE void end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All groups of this thread but the newest `Left` are there. */
template <int Left> MMF_DEVICE void wait_for_groups()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

/* Where element (line, k) of Lines lines lies in a stage. Along k, a line is 128 bytes; else k is
 * the row. Chunks of 16 bytes are swapped so that what a warp reads at once (fragments of 8 lines
 * by 16 bytes, or of 8 lines by 4 k) lies in different banks. */
template <int Size, int Lines, bool AlongK> MMF_DEVICE unsigned slot(int line, int k)
{
    const int across = AlongK ? k : line, down = AlongK ? line : k;
    const int pitch = AlongK ? (int)MMF_MMA_LINE : Lines * Size;
    const int swap = Size == 2 || (Size == 4 && AlongK) ? down & 7 : (down & 3) << 1;
    return down * pitch + ((across * Size / 16 ^ swap) << 4) + across * Size % 16;
}

/* How gemm_mma's stages lie. */
template <int Size, int Lines> struct swapped_chunks {
    enum { LINE = MMF_MMA_LINE, STAGES = MMF_MMA_STAGES, BYTES = Lines * LINE };
    static __attribute__((device, always_inline)) int place(bool along_k, int line, int k)
    {
        return (int)(along_k ? slot<Size, Lines, true>(line, k)
                             : slot<Size, Lines, false>(line, k));
    }
    static __attribute__((device, always_inline)) int step(bool along_k, int apart)
    {
        return apart * (along_k ? (int)MMF_MMA_LINE : Lines * Size);
    }
    /* What changes sides in every second turn of units that are so many lines, or k, apart. */
    static __attribute__((device, always_inline)) int swap(bool along_k, int apart)
    {
        return apart == (along_k || Size == 2 ? 4 : 2) ? 64 : 0;
    }
    static __attribute__((device, always_inline)) int beside(bool along_k)
    {
        return Lines / 2 * (along_k ? (int)MMF_MMA_LINE : Size);
    }
    static __attribute__((device, always_inline)) int other_half(int place, int beside)
    {
        return place ^ beside;
    }
};

/* What a thread brings of Lines lines: units of one width, the first one at (line, k). */
template <int Size, int Lines, int Threads, class Stage> struct mma_carrier {
    enum {
        STAGES = Stage::STAGES,
        BYTES = Stage::BYTES, /* of a stage */
        LINE = Stage::LINE,
        HALF = Lines / 2,
        LEAST = Size == 8 ? 8 : 4, /* bytes of a unit that is not wide */
    };
    const regions &r;
    int line = 0, k = 0;
    int offset = 0, slot = 0; /* bytes: from the half's first element at k0, and in a stage */

    /* Units side by side: along k of a line, or of the lines at one k. */
    static __attribute__((device, always_inline)) int across(const regions &r)
    {
        const int unit = r.width == WIDE ? 16 : (int)LEAST;
        return (r.along_k ? (int)LINE : HALF * Size) / unit;
    }

    /* One thread, when the rest of r is set. */
    static __attribute__((device, always_inline)) void share_out(regions &r)
    {
        const int apart = Threads / across(r), unit = r.width == WIDE ? 16 : (int)LEAST;
        r.step = r.along_k ? apart * r.line_step : apart * (int)r.k_step;
        r.slot_step = Stage::step(r.along_k, apart);
        r.swap = Stage::swap(r.along_k, apart);
        r.line_stride = r.along_k ? apart : 0;
        r.k_stride = r.along_k ? 0 : apart;
        r.of_line = r.along_k ? unit : Size;
        r.of_k = r.along_k ? Size : unit;
    }

    __attribute__((device, always_inline)) void start()
    {
        const int count = (r.width == WIDE ? 16 : (int)LEAST) / Size, side = across(r);
        int id = thread_id();
        asm volatile(""
                     : "+r"(id)); /* what follows is not kept between steps: sums need registers */
        const int next = id % side * count, other = id / side;
        line = r.along_k ? other : next;
        k = r.along_k ? next : other;
        offset = line * r.line_step + k * (int)r.k_step;
        slot = Stage::place(r.along_k, line, k);
    }

    __attribute__((device, always_inline)) unsigned place(unsigned stage, int half, int i) const
    {
        const int first = (slot + i * r.slot_step) ^ (i % 2 ? r.swap : 0);
        return stage + (half ? Stage::other_half(first, Stage::beside(r.along_k)) : first);
    }

    /* Bytes of a unit that exist. */
    template <int Unit>
    __attribute__((device, always_inline)) int count(int half, int i, int k_left) const
    {
        const int lines = half ? r.lines[1] : r.lines[0];
        const int of_lines = (lines - line - i * r.line_stride) * r.of_line,
                  of_k = (k_left - k - i * r.k_stride) * r.of_k;
        const int both = of_lines < of_k ? of_lines : of_k;
        return both < 0 ? 0 : both < Unit ? both : Unit;
    }

    /* This thread's first unit of a half. */
    __attribute__((device, always_inline)) const char *first(int half, long long k0) const
    {
        return (half ? r.at[1] : r.at[0]) + k0 * r.k_step + offset;
    }

    template <int Unit>
    __attribute__((device, always_inline)) void copy_half(unsigned stage, int half, long long k0,
                                                          int k_left) const
    {
        enum { ALL = HALF * LINE / Unit, EACH = (ALL + Threads - 1) / Threads };
        static_assert(ALL >= Threads, "kernels.def");
        const char *const from = first(half, k0);
        MMF_UNROLL
        for (int i = 0; i < EACH; i++)
            copy_async<Unit>(place(stage, half, i), from + i * r.step,
                             count<Unit>(half, i, k_left));
    }

    /* A half whose lines and k all exist. */
    template <int Unit>
    __attribute__((device, always_inline)) void copy_whole_half(unsigned stage, int half,
                                                                long long k0) const
    {
        enum { EACH = HALF * LINE / Unit / Threads };
        const char *from = first(half, k0);
        MMF_UNROLL
        for (int i = 0; i < EACH; i++, from += r.step)
            copy_whole_async<Unit>(place(stage, half, i), from);
    }

    /* Pairs of 16 bits, four of them under way at once: of more, the sums leave no room. */
    __attribute__((device, always_inline)) void move_half(unsigned stage, int half, long long k0,
                                                          int k_left) const
    {
        enum { EACH = HALF * LINE / 4 / Threads, AT_ONCE = 4 };
        static_assert(EACH % AT_ONCE == 0, "kernels.def");
        const int apart = r.along_k ? (int)r.k_step : r.line_step;
        const char *from = first(half, k0);
        MMF_ROLLED
        for (int turn = 0; turn < EACH; turn += AT_ONCE) {
            unsigned short value[AT_ONCE][2];
            MMF_UNROLL
            for (int i = 0; i < AT_ONCE; i++) {
                const int bytes = count<4>(half, turn + i, k_left);
                MMF_UNROLL
                for (int e = 0; e < 2; e++) {
                    const char *const at = from + e * apart;
                    value[i][e] = 2 * e < bytes ? *(MMF_GLOBAL const unsigned short *)at : 0;
                }
                from += r.step;
            }
            MMF_UNROLL
            for (int i = 0; i < AT_ONCE; i++)
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(place(stage, half, turn + i)),
                             "r"((unsigned)value[i][0] | (unsigned)value[i][1] << 16)
                             : "memory");
        }
    }

    /* A step's elements from k0 on, of which k_left exist along k, on their way to a stage. */
    __attribute__((device, always_inline)) void copy(unsigned stage, long long k0, int k_left) const
    {
        const regions once = r; /* not read again after every copy */
        mma_carrier own = {once, line, k, offset, slot};
        own.start();
        const bool whole = once.lines[0] + once.lines[1] == Lines && k_left * Size == LINE;
        if (once.width == WIDE && whole) {
            own.template copy_whole_half<16>(stage, 0, k0);
            own.template copy_whole_half<16>(stage, 1, k0);
            return;
        }
        if (once.width == WIDE) {
            own.template copy_half<16>(stage, 0, k0, k_left);
            own.template copy_half<16>(stage, 1, k0, k_left);
            return;
        }
        MMF_ROLLED
        for (int half = 0; half < 2; half++) {
            if (Size > 2 && once.width == NARROW && whole)
                own.template copy_whole_half<LEAST>(stage, half, k0);
            else if (once.width == NARROW)
                own.template copy_half<LEAST>(stage, half, k0, k_left);
            else if (Size == 2)
                own.move_half(stage, half, k0, k_left);
        }
    }
};

#endif
