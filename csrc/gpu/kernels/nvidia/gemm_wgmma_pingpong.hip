/* Matrix instructions of Hopper (sm_90a) on float16 and bfloat16, A row-major, B transposed; the
 * epilogue hides behind products. Path of a call: chosen where K is short or the epilogue long;
 * launched by gpu/launch_plan.c.
 *
 * Each of the two warpgroups that multiply has tiles of its own, every other one of the
 * workgroup's. While one finishes a tile, the other has the matrix instructions; in the ring their
 * tiles follow each other. Two workgroups of a cluster take neighbouring tiles along m, each loads
 * half of B's columns for both. */
#include "gpu/kernels/nvidia/fragment_epilogue.h"
#include "gpu/kernels/nvidia/wgmma.h"
#include "gpu/kernels/nvidia/wgmma_tile.h"

static_assert(!SWAPPED && !ROUNDED && row::layout == LAYOUT_NT, "kernels.def");
typedef fragment_epilogue<row::operands, FLAT, true> epilogue;
enum { HALVES = epilogue::HALVES }; /* of a tile's rows: 64 each, which an instruction takes */

/* Barriers by which consumer 0, 1 is told that the other one's products are all under way; those
 * below are meet_consumers()'s and the epilogue's. */
enum { TURN_OF_0 = 4, TURN_OF_1 = 5 };

template <int Barrier> MMF_DEVICE void wait_for_turn()
{
    named_barrier<Barrier, CONSUMERS * GROUP>();
}

template <int Barrier> MMF_DEVICE void give_turn()
{
    arrive_at_named_barrier<Barrier, CONSUMERS * GROUP>();
}

/* sum = the products of a tile, by halves. Returns with the last ones under way. */
MMF_DEVICE void multiply(const mmf_wgmma_args &args, ring &r, int k_end, int thread,
                         float (&sum)[HALVES][SUMS], unsigned *last)
{
    typedef products<FLAT, row::operands, true, true> product;
    const int readers = readers_of(args);
    unsigned before = 0;
    MMF_ROLLED
    for (int k = 0; k < k_end; k += row::tile_k) {
        wait_for(r.full + 8 * r.stage, r.parity);
        const unsigned long long tall = describe<true>(r.tall()), flat = describe<true>(r.flat());
        products_begin();
        MMF_UNROLL
        for (int i = 0; i < STEPS; i++) {
            MMF_UNROLL
            for (int h = 0; h < HALVES; h++)
                product::add_to(sum[h], tall + (h * BOX_BYTES >> 4) + i * next_k<true>(),
                                flat + i * next_k<true>(), i > 0 || k > 0);
        }
        products_end();
        if (k > 0) {
            wait_for_all_but_one();
            if (thread < readers)
                arrive_at(r.empty + 8 * before, thread);
        }
        before = r.stage;
        r.advance();
    }
    *last = before;
}

/* A consumer. */
struct alternating {
    typedef products<FLAT, row::operands, true, true> product;

    /* Where a consumer's tile lies, for the end of its products: found anew it would take
     * registers beside the sums. */
    struct place {
        int m0, n0, rows, cols, batch;
    };
    static_assert(MMF_GEMM_OPERANDS * sizeof(char *) + sizeof(place) <= TILE_BYTES,
                  "behind the addresses of the operands");
    static_assert(MMF_WGMMA_MATRICES + CONSUMERS * TILE_BYTES <= MMF_WGMMA_RING, "before the ring");

    static __attribute__((device, always_inline)) char *shared_of(int consumer)
    {
        return dynamic_shared + MMF_WGMMA_MATRICES + consumer * TILE_BYTES;
    }

    static __attribute__((device, always_inline)) place *place_of(int consumer)
    {
        return (place *)(shared_of(consumer) + TILE_BYTES - sizeof(place));
    }

    static __attribute__((device, always_inline)) epilogue begin(const mmf_wgmma_args &args,
                                                                 const tile &t, int consumer,
                                                                 int thread)
    {
        const unsigned memory = shared_address(dynamic_shared);
        epilogue e = {args,
                      t,
                      {},
                      {},
                      1,
                      thread,
                      0,
                      memory + MMF_WGMMA_STORES + consumer * 2 * MMF_WGMMA_STORE_BYTES,
                      memory + MMF_WGMMA_BIASES + consumer * row::tile_n * 4};
        e.start();
        return e;
    }

    /* What a tile needs besides its products, while the other consumer has the instructions. */
    static __attribute__((device, always_inline)) void
    prepare(const mmf_wgmma_args &args, const turns &turn, int consumer, int thread, bool first)
    {
        int batch;
        tile t = turn.take(args, &batch);
        t.matrices = (char **)shared_of(consumer);
        meet_group(consumer); /* the last tile is finished: nobody needs what is shared of it */
        if (first || args.gemm.batch_ndim) {
            find_matrices(args.gemm, batch, t.matrices, thread);
            meet_group(consumer);
        }
        if (thread == 0)
            *place_of(consumer) = {(int)t.m0, (int)t.n0, t.rows, t.cols, batch};
        begin(args, t, consumer, thread).share_bias();
    }

    static __attribute__((device, always_inline)) void finish(const mmf_wgmma_args &args,
                                                              int consumer, int thread,
                                                              float (&sum)[HALVES][SUMS])
    {
        asm volatile("" : "+r"(thread)); /* what follows is not kept across products */
        meet_group(consumer);            /* its place and the bias are shared */
        const place at = *place_of(consumer);
        const tile t = {at.batch, at.m0, at.n0, at.rows, at.cols, row::tile_n,
                        (char **)shared_of(consumer)};
        begin(args, t, consumer, thread).finish(sum, at.batch);
    }

    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        const int thread = thread_id() % GROUP, consumer = warp_id() / (GROUP / 32);
        const unsigned steps = ((unsigned)args.gemm.k + row::tile_k - 1) / row::tile_k;
        MMF_ROLLED
        for (int pair = 0;; pair++) {
            const int i = 2 * pair + consumer;
            turns turn;
            turn.start_at(args, i);
            if (turn.at >= turn.end)
                break;
            prepare(args, turn, consumer, thread, i < 2);
            if (consumer)
                wait_for_turn<TURN_OF_1>();
            else if (i > 0)
                wait_for_turn<TURN_OF_0>();
            float sum[HALVES][SUMS];
            unsigned last;
            r.go_to((unsigned long long)i * steps);
            multiply(args, r, (int)args.gemm.k, thread, sum, &last);
            turn.start_at(args, i);
            if (turn.at + turn.step < turn.end) {
                if (consumer)
                    give_turn<TURN_OF_0>();
                else
                    give_turn<TURN_OF_1>();
            }
            product::wait(sum[0]);
            product::waited(sum[1]);
            if (thread < readers_of(args))
                arrive_at(r.empty + 8 * last, thread);
            finish(args, consumer, thread, sum);
        }
        if (is_elected())
            wait_for_stores<0>();
    }
};

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_wgmma_args args)
{
    run_workgroup<alternating, 1, 24, 240>(args);
}
