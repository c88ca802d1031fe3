/* float32 as matrix instructions of a warpgroup take it: they truncate it to 11 bits, so it is
 * rounded before. A comes through registers and is rounded there; B, along k, in its stage in
 * shared memory. Path of a call: the main loop of gemm_wgmma.hip where allow_tf32 allows it. */
#ifndef MMF_WGMMA_ROUNDED_H
#define MMF_WGMMA_ROUNDED_H

#include "gpu/kernels/nvidia/mma.h"
#include "gpu/kernels/nvidia/ring.h"
#include "gpu/kernels/nvidia/wgmma.h"

/* The stages of a ring, for 64 rows of A and all of a tile's Columns columns of B. A stage is
 * rounded by all Threads that multiply, each a part, while the one before it is multiplied; of A,
 * two stages are in registers. */
template <class Ring, int Columns, int Threads> struct rounded_loop {
    enum { STEPS = MMF_WGMMA_LINE / 32 }; /* of an instruction's 8 k */
    typedef matrices<MMF_GEMM_FLOAT32> form;
    typedef rounded_products<Columns> product;
    typedef unsigned rows[STEPS][4];
    Ring &r;
    int consumer, thread;
    int readers; /* of a stage: workgroups */
    int left;    /* stages */
    unsigned before;
    bool begun;

    /* 16 rows of each warp. */
    __attribute__((device, always_inline)) void load_rows(rows &a) const
    {
        const int lane = thread % 32, line = consumer * 64 + thread / 32 * 16 + lane % 16;
        MMF_UNROLL
        for (int i = 0; i < STEPS; i++) {
            const int chunk = 2 * i + lane / 16;
            load_matrices<false>(r.tall() + line * MMF_WGMMA_LINE + ((chunk ^ (line & 7)) << 4),
                                 a[i]);
            MMF_UNROLL
            for (int w = 0; w < 4; w++)
                a[i][w] = form::rounded(a[i][w]);
        }
    }

    __attribute__((device, always_inline)) void round_columns() const
    {
        enum { EACH = Columns * MMF_WGMMA_LINE / 16 / Threads };
        const unsigned mine = r.flat() + thread_id() * 16;
        unsigned word[EACH][4];
        MMF_UNROLL
        for (int i = 0; i < EACH; i++)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(word[i][0]), "=r"(word[i][1]), "=r"(word[i][2]), "=r"(word[i][3])
                         : "r"(mine + i * Threads * 16)
                         : "memory");
        MMF_UNROLL
        for (int i = 0; i < EACH; i++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(mine + i * Threads * 16),
                         "r"(form::rounded(word[i][0])), "r"(form::rounded(word[i][1])),
                         "r"(form::rounded(word[i][2])), "r"(form::rounded(word[i][3]))
                         : "memory");
        publish_to_copies();
    }

    __attribute__((device, always_inline)) void prepare(rows &a) const
    {
        wait_for(r.full + 8 * r.stage, r.parity);
        load_rows(a);
        round_columns();
        named_barrier<1, Threads>();
    }

    __attribute__((device, always_inline)) void release(unsigned stage) const
    {
        if (thread < readers)
            arrive_at(r.empty + 8 * stage, thread);
    }

    /* Multiply a stage, prepare the next one. */
    __attribute__((device, always_inline)) void step(const rows &a, rows &next,
                                                     float (&sum)[Columns / 2])
    {
        const unsigned long long flat = describe<true>(r.flat());
        products_begin();
        MMF_UNROLL
        for (int i = 0; i < STEPS; i++)
            product::add_to(sum, a[i], flat + i * next_k<true>(), i > 0 || begun);
        products_end();
        if (begun) {
            wait_for_all_but_one();
            release(before);
        }
        begun = true;
        before = r.stage;
        r.advance();
        if (--left > 0)
            prepare(next);
    }

    __attribute__((device, always_inline)) void run(float (&sum)[Columns / 2])
    {
        rows even, odd;
        prepare(even);
        MMF_ROLLED
        while (left > 0) {
            step(even, odd, sum);
            if (left > 0)
                step(odd, even, sum);
        }
        product::wait(sum);
        release(before);
    }
};

#endif
