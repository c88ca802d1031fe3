/* From global memory to the stages of gemm_mma and gemm_fma: cp.async of 16 bytes where lines allow
 * it, of one element or pair else, and single elements of 16 bits through registers. What K does
 * not have is 0, and so are lines that a tile does not have, or their sums are not stored. Path of
 * a call: their main loops. Semantics: the PTX ISA, cp.async. */
#ifndef MMF_LINE_CARRIER_H
#define MMF_LINE_CARRIER_H

#include "gpu/kernels/nvidia/region.h"

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

/* All of them if this bit of a mask is set, else none. */
template <int Unit>
MMF_DEVICE void copy_async_if(unsigned mask, unsigned bit, unsigned to, const char *from)
{
    if (Unit == 16)
        asm volatile("{\n\t.reg .pred p;\n\t.reg .b32 bit;\n\tand.b32 bit, %2, %3;\n\t"
                     "setp.ne.u32 p, bit, 0;\n\t"
                     "@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n\t}" ::"r"(to),
                     "l"((MMF_GLOBAL const char *)from), "r"(mask), "n"(bit)
                     : "memory");
    else
        asm volatile("{\n\t.reg .pred p;\n\t.reg .b32 bit;\n\tand.b32 bit, %2, %3;\n\t"
                     "setp.ne.u32 p, bit, 0;\n\t"
                     "@p cp.async.ca.shared.global [%0], [%1], %4;\n\t}" ::"r"(to),
                     "l"((MMF_GLOBAL const char *)from), "r"(mask), "n"(bit), "n"(Unit)
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

/* Are lines copied in units of 16 bytes, or in those of one element in any case? */
template <int Size, bool AlongK, class Stage> MMF_DEVICE bool can_be_wide(const region &r)
{
    enum { COUNT = 16 / Size };
    return (AlongK && Stage::K_IS_ROW) ||
           (r.width == WIDE && (AlongK || (r.lines[0] | r.lines[1]) % COUNT == 0));
}

/* What a thread brings of Lines lines, a stage after the other: units of UNIT bytes, in each half
 * the first one at (line, k). Wide: of 16 bytes. Pair: the halves may be of two matrices. Stage
 * says how a stage lies in memory. */
template <int Size, int Lines, int Threads, bool AlongK, bool Wide, bool Pair, class Stage>
struct line_carrier {
    typedef Stage stage_form;
    enum {
        K = Stage::K,         /* of a stage */
        BYTES = Stage::BYTES, /* of a stage */
        HALF = Lines / 2,
        LEAST = Size == 8 ? 8 : 4, /* bytes */
        /* Lines along k are copied element by element to where k is the row. */
        UNIT = Wide && !(AlongK && Stage::K_IS_ROW) ? 16 : LEAST,
        COUNT = UNIT / Size,                                /* elements of a unit */
        SIDE = (AlongK ? (int)K : (int)HALF) * Size / UNIT, /* units side by side in memory */
        APART = Threads / SIDE, /* lines, or k, from a thread's unit to its next one */
        ALL = HALF * K * Size / UNIT,
        HALVES = ALL < Threads ? 1 : 2, /* of a thread */
        EACH = ALL < Threads ? 1 : ALL / Threads,
        STEP = Stage::template step<AlongK>(APART),
        SWAP = Stage::template swap<AlongK>(APART),
    };
    static_assert((ALL % Threads == 0 || ALL * 2 == Threads) && Threads % SIDE == 0, "kernels.def");

    /* This thread's first unit in a half of the lines. */
    struct first_unit {
        int line, k, half; /* half: of a thread that has units of one half */
    };

    static __attribute__((device, always_inline)) first_unit first()
    {
        unsigned id = thread_id();
        asm volatile("" : "+r"(id)); /* what follows is not kept between stages */
        const int half = HALVES == 1 ? id / ALL : 0;
        id = HALVES == 1 ? id % ALL : id;
        const int next = id % SIDE * COUNT, other = id / SIDE;
        return {AlongK ? other : next, AlongK ? next : other, half};
    }

    const region &of;   /* in shared memory: for what is rare */
    const char *from;   /* this thread's first unit, at the next stage's k */
    const char *second; /* of two matrices: that of the second half */
    int slot;           /* where it lies in a stage */
    int step;           /* bytes to the next unit */
    int of_line;        /* bytes to the next line */
    int advance;        /* bytes to the next stage */
    unsigned there;     /* a bit for each unit whose lines exist; 0: elements come one by one */

    /* r: what lies in `in_memory`. */
    __attribute__((device, always_inline)) line_carrier(const region &in_memory, const region &r)
        : of(in_memory), step(APART * (AlongK ? r.line_step : (int)r.k_step)), of_line(r.line_step),
          advance(K * (int)r.k_step), there(0)
    {
        const first_unit unit = first();
        slot = Stage::template place<AlongK>(unit.line, unit.k);
        if (unit.half)
            slot = Stage::template other_half<AlongK>(slot);
        const long long offset = (long long)unit.line * r.line_step + unit.k * r.k_step;
        from = (unit.half ? r.at[1] : r.at[0]) + offset;
        second = r.at[1] + offset;
        if (!one_by_one(r)) {
            MMF_UNROLL
            for (int i = 0; i < HALVES * EACH; i++) {
                const bool second = HALVES == 1 ? unit.half : i >= EACH;
                const int line = unit.line + (AlongK ? i % EACH * APART : 0);
                there |= line < (second ? r.lines[1] : r.lines[0]) ? 1u << i : 0;
            }
        }
    }

    /* Are pairs of 16 bits not side by side, or cut by the tile's end? */
    static __attribute__((device, always_inline)) bool one_by_one(const region &r)
    {
        return Size == 2 && !Wide &&
               (r.width == SINGLE || (!AlongK && (r.lines[0] | r.lines[1]) % 2));
    }

    __attribute__((device, always_inline)) const char *first_of(int half) const
    {
        if (Size == 2) /* whose kernels have few registers */
            return half ? from + (of.at[1] - of.at[0]) : from;
        return !half ? from : Pair ? second : from + HALF * of_line;
    }

    /* Of this thread's unit i of a half. */
    __attribute__((device, always_inline)) unsigned place(unsigned stage, int half, int i) const
    {
        const unsigned all = (stage + slot) ^ (i % 2 ? (int)SWAP : 0);
        return (half ? Stage::template other_half<AlongK>(all) : all) + i * STEP;
    }

    /* The elements of a stage on their way to it, if all of its k exist and units are there. */
    __attribute__((device, always_inline)) void copy(unsigned stage, bool all_k)
    {
        /* What follows from it is not kept between stages: sums need the registers. */
        asm volatile("" : "+r"(slot));
        const unsigned now = all_k ? there : 0;
        MMF_UNROLL
        for (int half = 0; half < HALVES; half++) {
            const char *next = first_of(half);
            MMF_UNROLL
            for (int i = 0; i < EACH; i++, next += step)
                copy_async_if<UNIT>(now, 1u << (half * EACH + i), place(stage, half, i), next);
        }
        from += advance;
        second += advance;
    }

    /* Bytes of unit i that exist. */
    __attribute__((device, always_inline)) int count(const first_unit &unit, int lines, int i,
                                                     int k_left) const
    {
        const int own_lines = lines - unit.line - (AlongK ? i * APART : 0),
                  own_k = k_left - unit.k - (AlongK ? 0 : i * APART);
        const int bytes = (AlongK ? own_k : own_lines) * Size;
        return own_lines <= 0 || own_k <= 0 ? 0 : bytes < UNIT ? bytes : (int)UNIT;
    }

    /* Does copy() leave something to do? */
    __attribute__((device, always_inline)) bool needs_rest(bool all_k) const
    {
        return !all_k || (Size == 2 && !Wide && one_by_one(of));
    }

    /* After copy() of the same stage, of which k_left exist along k. Rare, so one copy after the
     * other: sums need the registers. */
    __attribute__((device, always_inline)) void copy_rest(unsigned stage, int k_left) const
    {
        const first_unit unit = first();
        MMF_ROLLED
        for (int half = 0; half < HALVES; half++) {
            const bool second = HALVES == 1 ? unit.half : half;
            const int lines = second ? of.lines[1] : of.lines[0];
            const char *next = first_of(half) - advance;
            if (one_by_one(of)) {
                move_pairs(stage, half, next, unit, lines, k_left);
                continue;
            }
            MMF_ROLLED
            for (int i = 0; i < EACH; i++, next += step)
                copy_async<UNIT>(place(stage, half, i), next, count(unit, lines, i, k_left));
        }
    }

    /* Four of them under way at once: of more, the sums leave no room. */
    __attribute__((device, always_inline)) void move_pairs(unsigned stage, int half, const char *at,
                                                           const first_unit &unit, int lines,
                                                           int k_left) const
    {
        enum { AT_ONCE = EACH % 4 ? 1 : 4 };
        const int beside = AlongK ? (int)of.k_step : of.line_step;
        MMF_ROLLED
        for (int turn = 0; turn < EACH; turn += AT_ONCE) {
            unsigned short value[AT_ONCE][2];
            MMF_UNROLL
            for (int i = 0; i < AT_ONCE; i++, at += step) {
                const int bytes = count(unit, lines, turn + i, k_left);
                MMF_UNROLL
                for (int e = 0; e < 2; e++)
                    value[i][e] =
                        2 * e < bytes ? *(MMF_GLOBAL const unsigned short *)(at + e * beside) : 0;
            }
            MMF_UNROLL
            for (int i = 0; i < AT_ONCE; i++)
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(place(stage, half, turn + i)),
                             "r"((unsigned)value[i][0] | (unsigned)value[i][1] << 16)
                             : "memory");
        }
    }
};

#endif
