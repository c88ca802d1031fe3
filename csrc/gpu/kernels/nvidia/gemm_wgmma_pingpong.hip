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

typedef products<FLAT, row::operands, true, true> product;

/* sum = the products of a stage, plus what it was if `more`, by halves. */
MMF_DEVICE void multiply_stage(const ring &r, float (&sum)[HALVES][SUMS], bool more)
{
    wait_for(r.full + 8 * r.stage, r.parity);
    const unsigned long long tall = describe<true>(r.tall()), flat = describe<true>(r.flat());
    products_begin();
    MMF_UNROLL
    for (int i = 0; i < STEPS; i++) {
        MMF_UNROLL
        for (int h = 0; h < HALVES; h++)
            product::add_to(sum[h], tall + (h * BOX_BYTES >> 4) + i * next_k<true>(),
                            flat + i * next_k<true>(), i > 0 || more);
    }
    products_end();
}

/* sum += the products of a tile but for the first stage's, which are under way. Returns with the
 * last ones, those of a stage, under way. */
MMF_DEVICE unsigned multiply(const mmf_wgmma_args &args, ring &r, int thread,
                             float (&sum)[HALVES][SUMS])
{
    const int readers = readers_of(args);
    unsigned before = r.stage;
    r.advance();
    MMF_ROLLED
    for (int k = row::tile_k; k < (int)args.gemm.k; k += row::tile_k) {
        multiply_stage(r, sum, true);
        wait_for_all_but_one();
        if (thread < readers)
            arrive_at(r.empty + 8 * before, thread);
        before = r.stage;
        r.advance();
    }
    return before;
}

/* A consumer. */
struct alternating {
    static __attribute__((device, always_inline)) epilogue begin(const mmf_wgmma_args &args,
                                                                 const tile &t, int consumer,
                                                                 int thread)
    {
        const unsigned memory = shared_address(dynamic_shared);
        return {args,
                t,
                {},
                {},
                1,
                thread,
                0,
                memory + MMF_WGMMA_STORES + consumer * 2 * MMF_WGMMA_STORE_BYTES,
                memory + MMF_WGMMA_BIASES + consumer * MMF_WGMMA_BIAS_BYTES};
    }

    /* Matrices of a batch index, for the consumer's threads. */
    static __attribute__((device, always_inline)) char *
    share_matrices(const mmf_wgmma_args &args, int consumer, int thread, int batch)
    {
        char *const matrices = dynamic_shared + MMF_WGMMA_MATRICES + consumer * TILE_BYTES;
        find_matrices(args.gemm, batch, (char **)matrices, thread);
        meet_group(consumer);
        return matrices;
    }

    /* The workgroup's tile i, whose products are done. */
    static __attribute__((device, always_inline)) void
    finish(const mmf_wgmma_args &args, int i, int consumer, int thread, float (&sum)[HALVES][SUMS])
    {
        asm volatile("" : "+r"(thread)); /* what follows is not kept across products */
        const place at = place_of(i);
        const tile t = tile_from(args, at.m0, at.n0, at.batch, nullptr);
        epilogue e = begin(args, t, consumer, thread);
        e.alpha = (float)args.gemm.alpha;
        meet_group(consumer); /* the bias is shared */
        e.finish(sum, at.batch);
    }

    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        const int thread = thread_id() % GROUP, consumer = warp_id() / (GROUP / 32);
        const unsigned steps = ((unsigned)args.gemm.k + row::tile_k - 1) / row::tile_k;
        char *matrices = share_matrices(args, consumer, thread, 0);
        turns turn;
        turn.start(args);
        const int count = turn.count();
        if (consumer)
            r.skip(steps);
        MMF_ROLLED
        for (int i = consumer; i < count; i += 2) {
            if (consumer)
                wait_for_turn<TURN_OF_1>();
            else if (i > 0)
                wait_for_turn<TURN_OF_0>();
            float sum[HALVES][SUMS];
            multiply_stage(r, sum, false);
            const place at = place_of(i); /* what a tile needs besides is found under products */
            if (args.gemm.batch_ndim)
                matrices = share_matrices(args, consumer, thread, at.batch);
            const tile t = tile_from(args, at.m0, at.n0, at.batch, matrices);
            epilogue bias = begin(args, t, consumer, thread);
            bias.start();
            const unsigned last = multiply(args, r, thread, sum);
            if (i + 1 < count) {
                if (consumer)
                    give_turn<TURN_OF_0>();
                else
                    give_turn<TURN_OF_1>();
            }
            product::wait(sum[0]);
            product::waited(sum[1]);
            if (thread < readers_of(args))
                arrive_at(r.empty + 8 * last, thread);
            r.skip(steps); /* of the other consumer's tile */
            bias.share_bias();
            finish(args, i, consumer, thread, sum);
        }
        if (is_elected())
            wait_for_stores();
    }
};

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_wgmma_args args)
{
    run_workgroup<alternating, 1, 24, 240>(args);
}
