/* From global memory to the stages of gemm_fma: k is the row there, whatever lies side by side in
 * memory, so that four lines at one k are one load. What K does not have is 0. Path of a call: the
 * main loop of the kernels on fused multiply-adds. */
#ifndef MMF_FMA_CARRIER_H
#define MMF_FMA_CARRIER_H

#include "gpu/kernels/nvidia/mma_carrier.h"

/* A row begins four banks behind the one before: 8 k of 4 lines lie in different banks. */
template <int Lines> struct padded_rows {
    enum {
        LINE = MMF_MMA_LINE,
        STAGES = MMF_MMA_STAGES,
        PITCH = (Lines + MMF_MMA_PADDING) * 4,
        BYTES = LINE / 4 * PITCH,
    };
    static __attribute__((device, always_inline)) int place(bool, int line, int k)
    {
        return k * PITCH + line * 4;
    }
    static __attribute__((device, always_inline)) int step(bool along_k, int apart)
    {
        return apart * (along_k ? 4 : (int)PITCH);
    }
    static __attribute__((device, always_inline)) int swap(bool, int)
    {
        return 0;
    }
    static __attribute__((device, always_inline)) int beside(bool)
    {
        return Lines / 2 * 4;
    }
    static __attribute__((device, always_inline)) int other_half(int place, int beside)
    {
        return place + beside;
    }
};

/* The regions of A or B: a copy, not read again for each unit, where a thread has registers. */
template <bool InRegisters> struct regions_of_a_stage {
    typedef const regions type;
};
template <> struct regions_of_a_stage<false> {
    typedef const regions &type;
};

/* What a thread brings of Lines lines. Lines that a tile does not have are not copied where whole
 * units are: their sums are not stored. */
template <int Lines, int Threads> struct fma_carrier {
    typedef padded_rows<Lines> stage_form;
    typedef mma_carrier<4, Lines, Threads, stage_form> any_strides;
    enum {
        STAGES = stage_form::STAGES,
        BYTES = stage_form::BYTES, /* of a stage */
        PITCH = stage_form::PITCH,
        HALF = Lines / 2,
        STEP = stage_form::LINE / 4,
        K_LANES = 8, /* of a warp, where 8 k of 4 lines are copied at once */
    };
    const regions &of;

    /* One thread, when the rest of r is set. */
    static __attribute__((device, always_inline)) void share_out(regions &r)
    {
        if (r.along_k)
            r.width = NARROW;
        any_strides::share_out(r);
    }

    /* Where a thread's first unit lies. */
    struct place {
        unsigned line, k;
    };

    static __attribute__((device, always_inline)) place transposed(unsigned id)
    {
        return {id / K_LANES, id % K_LANES};
    }

    template <int Unit> static __attribute__((device, always_inline)) place in_rows(unsigned id)
    {
        enum { ACROSS = HALF * 4 / Unit };
        return {id % ACROSS * (Unit / 4), id / ACROSS};
    }

    /* This thread's first unit of the first half, at k0. */
    __attribute__((device, always_inline)) const char *first(const place &p, long long k0) const
    {
        return of.at[0] + (long long)(int)p.line * of.line_step + (k0 + (int)p.k) * of.k_step;
    }

    /* Both halves of a step. */
    template <bool Whole>
    __attribute__((device, always_inline)) void transpose(unsigned stage, const place &p,
                                                          const char *from) const
    {
        enum { APART = Threads / K_LANES };
        static_assert(HALF % APART == 0, "kernels.def");
        const int step = APART * of.line_step;
        const long long second = of.at[1] - of.at[0];
        MMF_UNROLL
        for (int half = 0; half < 2; half++) {
            const unsigned to = stage + (p.line + half * HALF) * 4 + p.k * PITCH;
            const int left = of.lines[half] - (int)p.line;
            const char *next = half ? from + second : from;
            MMF_UNROLL
            for (int line = 0; line < HALF; line += APART, next += step) {
                if (!Whole && line >= left)
                    break;
                MMF_UNROLL
                for (int k = 0; k < STEP; k += K_LANES)
                    copy_whole_async<4>(to + line * 4 + k * PITCH, next + k * 4);
            }
        }
    }

    template <bool Whole, int Unit>
    __attribute__((device, always_inline)) void copy_rows(unsigned stage, const place &p,
                                                          const char *from) const
    {
        enum { APART = Threads * Unit / (HALF * 4) };
        static_assert(STEP % APART == 0, "kernels.def");
        const long long step = APART * of.k_step, second = of.at[1] - of.at[0];
        MMF_UNROLL
        for (int half = 0; half < 2; half++) {
            const unsigned to = stage + (p.line + half * HALF) * 4 + p.k * PITCH;
            const char *next = half ? from + second : from;
            if (!Whole && of.lines[half] <= (int)p.line)
                continue;
            MMF_UNROLL
            for (int k = 0; k < STEP; k += APART, next += step)
                copy_whole_async<Unit>(to + k * PITCH, next);
        }
    }

    template <bool Whole>
    __attribute__((device, always_inline)) void copy_units(unsigned stage, long long k0,
                                                           unsigned id) const
    {
        if (of.along_k) {
            const place p = transposed(id);
            transpose<Whole>(stage, p, first(p, k0));
        } else if (of.width == WIDE) {
            const place p = in_rows<16>(id);
            copy_rows<Whole, 16>(stage, p, first(p, k0));
        } else {
            const place p = in_rows<4>(id);
            copy_rows<Whole, 4>(stage, p, first(p, k0));
        }
    }

    /* Whole units of what lies side by side? */
    __attribute__((device, always_inline)) bool in_units() const
    {
        if (of.along_k)
            return of.k_step == 4;
        return of.width == NARROW || ((of.lines[0] | of.lines[1]) & 3) == 0;
    }

    /* A step's elements from k0 on, of which k_left exist along k, on their way to a stage. */
    __attribute__((device, always_inline)) void copy(unsigned stage, long long k0, int k_left) const
    {
        unsigned id = thread_id();
        asm volatile("" : "+r"(id)); /* what follows is not kept between steps */
        if (k_left < STEP || !in_units())
            return copy_some(stage, k0, k_left);
        if (of.lines[0] + of.lines[1] == Lines)
            copy_units<true>(stage, k0, id);
        else
            copy_units<false>(stage, k0, id);
    }

    __attribute__((device, always_inline)) void copy_some(unsigned stage, long long k0,
                                                          int k_left) const
    {
        enum { FEW_SUMS = this_row::tile_m * this_row::tile_n <= 128 * 64 };
        typename regions_of_a_stage<FEW_SUMS>::type r = of;
        any_strides own = {r};
        own.start();
        MMF_ROLLED
        for (int half = 0; half < 2; half++) {
            if (r.width == WIDE)
                own.template copy_half<16>(stage, half, k0, k_left);
            else
                own.template copy_half<4>(stage, half, k0, k_left);
        }
    }
};

#endif
