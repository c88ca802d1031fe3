/* The loops over k of gemm_mma and gemm_fma: a ring of stages in shared memory, of which one is
 * multiplied while the next ones are on their way. Path of a call: the body of both. */
#ifndef MMF_STAGED_LOOP_H
#define MMF_STAGED_LOOP_H

#include "gpu/kernels/nvidia/mma_carrier.h"

/* The lines of A, then those of B, from k0 on, seen by all threads. */
template <class Row, class A, class B>
MMF_DEVICE void find_regions(const mmf_gemm_args &args, const tile &t, long long k0, regions *to)
{
    enum { SIZE = sizeof(typename element<Row::operands>::type) };
    if (thread_id() == 0) {
        find_a<SIZE, Row::tile_m>(args, t, to[0]);
        to[0].start_at(k0);
        A::share_out(to[0]);
    }
    if (thread_id() == 32) {
        find_b<SIZE, Row::tile_n>(args, t, to[1]);
        to[1].start_at(k0);
        B::share_out(to[1]);
    }
    barrier();
}

/* For matrix instructions: multiply(offset) for every stage, at this offset of the memory, B's
 * lines behind A's. */
template <class Row, class A, class B, class Multiply>
MMF_DEVICE void each_stage(long long k_end, const regions *of, unsigned memory, Multiply multiply)
{
    enum { AHEAD = A::STAGES - 1, STAGE = A::BYTES + B::BYTES, STEP = Row::tile_k };
    A a = {of[0]};
    B b = {of[1]};
    long long fetched = 0;
    unsigned filled = 0, next = 0; /* stages */
    /* The first turns only fill. */
    MMF_ROLLED
    for (long long k = -(long long)AHEAD * STEP; k < k_end; k += STEP) {
        if (k >= 0) {
            wait_for_groups<AHEAD - 1>();
            barrier(); /* all see this stage, and none reads the one before */
        }
        if (fetched < k_end) {
            const int left = k_end - fetched < STEP ? (int)(k_end - fetched) : (int)STEP;
            a.copy(memory + filled * STAGE, fetched, left);
            b.copy(memory + filled * STAGE + A::BYTES, fetched, left);
            fetched += STEP;
            filled = (filled + 1) % A::STAGES;
        }
        end_group();
        if (k < 0)
            continue;
        multiply(next * STAGE);
        next = (next + 1) % A::STAGES;
    }
    wait_for_groups<0>();
}

/* For fused multiply-adds, whose operands are few: what is multiplied at the end of a stage is in
 * registers while the next one is waited for, and the stage is free to be filled. A stage is
 * multiplied in groups of Products::AT_ONCE k: begin(stage, k) reads the first operands of the
 * group at this k, most(stage, k) the others, and multiplies all but the last, which last() does.
 * `stage` is an offset of the memory, B's lines lie behind A's. */
template <class Row, class A, class B, class Products>
MMF_DEVICE void pipelined_stages(long long k_end, const regions *of, unsigned memory,
                                 Products &products)
{
    enum {
        STAGES = A::STAGES,
        STAGE = A::BYTES + B::BYTES,
        STEP = Row::tile_k,
        AT_ONCE = Products::AT_ONCE
    };
    A a = {of[0]};
    B b = {of[1]};
    long long fetched = 0;
    unsigned stage = 0;
    const auto fill = [&]() __attribute__((always_inline)) {
        if (fetched < k_end) {
            const int left = k_end - fetched < STEP ? (int)(k_end - fetched) : (int)STEP;
            a.copy(memory + stage, fetched, left);
            b.copy(memory + stage + A::BYTES, fetched, left);
            fetched += STEP;
        }
        end_group();
        stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    };
    MMF_ROLLED
    for (int i = 0; i < STAGES; i++)
        fill();
    wait_for_groups<STAGES - 1>();
    barrier();
    products.begin(0, 0);
    MMF_ROLLED
    for (long long k = k_end; k > 0; k -= STEP) {
        MMF_ROLLED
        for (int group = 0; group < STEP; group += AT_ONCE) {
            products.most(stage, group);
            if (group == STEP - AT_ONCE) {
                wait_for_groups<STAGES - 2>();
                barrier(); /* all have read this stage, and see the next */
                fill();
                products.begin(stage, 0);
            } else {
                products.begin(stage, group + AT_ONCE);
            }
            products.last();
        }
    }
    wait_for_groups<0>();
}

#endif
