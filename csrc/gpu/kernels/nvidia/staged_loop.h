/* The loop over k of gemm_mma and gemm_fma: a ring of stages in shared memory, of which one is
 * multiplied while the next ones are on their way. Path of a call: the body of both. */
#ifndef MMF_STAGED_LOOP_H
#define MMF_STAGED_LOOP_H

#include "gpu/kernels/nvidia/line_carrier.h"

/* The stages as they are filled, one after the other. A stage is named by its offset in the memory,
 * B's lines lie behind A's. */
template <class A, class B> struct stage_filler {
    enum { STAGES = A::stage_form::STAGES, STAGE = A::BYTES + B::BYTES, STEP = A::K };
    A &a; /* they stand at the first k */
    B &b;
    unsigned memory, stage = 0;

    __attribute__((device, always_inline)) stage_filler(A &a_, B &b_, unsigned memory_)
        : a(a_), b(b_), memory(memory_)
    {
    }

    static __attribute__((device, always_inline)) unsigned after(unsigned stage)
    {
        return stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }

    /* What is left of k from this stage on: most of its copies are made. */
    __attribute__((device, always_inline)) void begin(long long left)
    {
        a.copy(memory + stage, left >= STEP);
        b.copy(memory + stage + A::BYTES, left >= STEP);
    }

    /* All of them. */
    __attribute__((device, always_inline)) void end(long long left)
    {
        const int now = left < STEP ? (int)left : (int)STEP;
        if (now > 0 && a.needs_rest(now == STEP))
            a.copy_rest(memory + stage, now);
        if (now > 0 && b.needs_rest(now == STEP))
            b.copy_rest(memory + stage + A::BYTES, now);
        end_group();
        stage = after(stage);
    }

    template <int Count> __attribute__((device, always_inline)) void first(long long k_end)
    {
        MMF_ROLLED
        for (int i = 0; i < Count; i++) {
            begin(k_end - i * STEP);
            end(k_end - i * STEP);
        }
    }
};

/* products.multiply(stage), for every stage. */
template <class A, class B, class Products>
MMF_DEVICE void each_stage(long long k_end, A &a, B &b, unsigned memory, Products &products)
{
    typedef stage_filler<A, B> filler;
    enum { AHEAD = filler::STAGES - 1 };
    filler fill(a, b, memory);
    fill.template first<AHEAD>(k_end);
    unsigned stage = 0;
    MMF_ROLLED
    for (long long k = k_end; k > 0; k -= filler::STEP) {
        const long long left = k - AHEAD * filler::STEP;
        wait_for_groups<AHEAD - 1>();
        barrier(); /* all see this stage, and none reads the one before */
        fill.begin(left);
        fill.end(left);
        products.multiply(stage);
        stage = filler::after(stage);
    }
    wait_for_groups<0>();
    barrier(); /* the stages' memory is free */
}

/* The same where registers are left for what is multiplied next: products.begin(stage) reads the
 * first operands of a stage, rest(stage) reads the others and multiplies all but the last, which
 * last(next) does, while it reads the first ones of the next stage. So a stage may be filled before
 * its last operands are multiplied. */
template <class A, class B, class Products>
MMF_DEVICE void each_stage_ahead(long long k_end, A &a, B &b, unsigned memory, Products &products)
{
    typedef stage_filler<A, B> filler;
    enum { STAGES = filler::STAGES };
    filler fill(a, b, memory);
    fill.template first<STAGES>(k_end);
    wait_for_groups<STAGES - 1>();
    barrier();
    products.begin(0);
    MMF_ROLLED
    for (long long k = k_end; k > 0; k -= filler::STEP) {
        const long long left = k - STAGES * filler::STEP;
        products.rest(fill.stage);
        wait_for_groups<STAGES - 2>();
        barrier(); /* all have read this stage, and see the next */
        fill.begin(left);
        products.last(filler::after(fill.stage));
        fill.end(left);
    }
    wait_for_groups<0>();
    barrier(); /* the stages' memory is free */
}

/* Of a kernel: Loop::row; a_stage, b_stage, how its stages lie; sums; products<A_AlongK, B_AlongK>,
 * what is asked for above, whose each(count, a, b) is one of these loops. */
template <class Loop, bool A_AlongK, bool B_AlongK, bool Wide>
MMF_DEVICE void sum_stages(const kept &of, long long count, typename Loop::sums &sum)
{
    typedef typename Loop::row row;
    typedef typename Loop::a_stage a_stage;
    typedef typename Loop::b_stage b_stage;
    enum { SIZE = sizeof(typename element<row::operands>::type) };
    const region of_a = of.a, of_b = of.b;
    line_carrier<SIZE, row::tile_m, row::threads, A_AlongK, Wide, false, a_stage> a(of.a, of_a);
    line_carrier<SIZE, row::tile_n, row::threads, B_AlongK, Wide, true, b_stage> b(of.b, of_b);
    typename Loop::template products<A_AlongK, B_AlongK> own(sum);
    own.each(count, a, b);
}

template <class Loop, bool A_AlongK, bool B_AlongK>
MMF_DEVICE void sum_in_units(const kept &of, long long count, typename Loop::sums &sum)
{
    enum { SIZE = sizeof(typename element<Loop::row::operands>::type) };
    if (can_be_wide<SIZE, A_AlongK, typename Loop::a_stage>(of.a) &&
        can_be_wide<SIZE, B_AlongK, typename Loop::b_stage>(of.b))
        sum_stages<Loop, A_AlongK, B_AlongK, true>(of, count, sum);
    else
        sum_stages<Loop, A_AlongK, B_AlongK, false>(of, count, sum);
}

/* The sums of `count` products from k0 on, of a tile. */
template <class Loop>
MMF_DEVICE void sum_products(const mmf_gemm_args &args, const tile &t, long long k0,
                             long long count, char *shared, typename Loop::sums &sum)
{
    const kept &of = keep<typename Loop::row>(args, t, k0, shared);
    if (of.a.along_k)
        of.b.along_k ? sum_in_units<Loop, true, true>(of, count, sum)
                     : sum_in_units<Loop, true, false>(of, count, sum);
    else
        of.b.along_k ? sum_in_units<Loop, false, true>(of, count, sum)
                     : sum_in_units<Loop, false, false>(of, count, sum);
}

#endif
