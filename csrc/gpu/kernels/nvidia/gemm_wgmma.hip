/* Matrix instructions of Hopper (sm_90a): float16, bfloat16, and float32 rounded to 11 bits; float
 * sums; A and B each with stride 1 along one axis and a multiple of 16 bytes along the other. Path
 * of a call: chosen before gemm_simt on these GPUs; launched by gpu/launch_plan.c.
 *
 * A workgroup is two warpgroups that multiply and one whose first warp copies A and B to a ring
 * of stages in shared memory. The instruction's 64 rows are rows of `tall`, its columns those of
 * `flat`. float32 (allow_tf32, both along k) is rounded by the copies, and a workgroup has one
 * tile, whose sums go through the ring's memory.
 *
 * Tiles of 128 rows: tall is A. Two workgroups of a cluster take neighbouring tiles along m: each
 * loads half of B's columns for both. Where the epilogue is the one in registers, workgroups stay
 * and take one tile after the other, so that the ring is filled while a tile is finished; the
 * general one needs the ring's memory, and ends the workgroup.
 *
 * Tiles of fewer rows, for a few rows of A and all of B's memory: tall is B. The workgroups of a
 * cluster share B, too, or each takes a part of k, then each adds up some lines of their sums. With
 * a common epilogue (swapped_epilogue.h) a tile has as many columns as fill the GPU best, and
 * workgroups stay. Any other one takes the sums from the ring's memory, and ends the workgroup. */
#include "gpu/kernels/nvidia/swapped_epilogue.h"
#include "gpu/kernels/nvidia/wgmma_one_tile.h"

/* One tile after the other. What a tile needs besides its products is found under the first ones.
 */
template <int Columns> MMF_DEVICE void consume_all(const mmf_wgmma_args &args, ring r)
{
    const int thread = thread_id() % GROUP, consumer = warp_id() / (GROUP / 32);
    const unsigned shared = shared_address(dynamic_shared);
    typedef fragment_epilogue<row::operands, Columns> epilogue;
    static_assert(!epilogue::ONE_BUFFER, "both consumers store at once");
    const unsigned stores = shared + MMF_WGMMA_STORES + consumer * epilogue::STORE_BYTES;
    const unsigned biases = shared + MMF_WGMMA_BIASES + consumer * MMF_WGMMA_BIAS_BYTES;
    char *matrices = share_matrices(args.gemm, consumer, 0);
    turns turn;
    turn.start(args);
    MMF_ROLLED
    for (int i = 0; turn.at < turn.end; turn.at += turn.step, i++) {
        float sum[1][Columns / 2];
        multiply_stage(r, consumer, sum[0], false);
        const place at = place_of(i);
        if (args.gemm.batch_ndim)
            matrices = share_matrices(args.gemm, consumer, at.batch);
        const tile t = tile_from(args, at.m0, at.n0, at.batch, matrices);
        epilogue end = {args, t, {}, {}, 1, thread, consumer * 64, stores, biases};
        end.start();
        multiply<true>(args, r, turn, consumer, thread, sum[0]);
        meet_group(consumer); /* the last bias was read */
        end.share_bias();
        meet_group(consumer);
        end.finish(sum, at.batch);
    }
    if (is_elected())
        wait_for_stores();
}

/* One tile after the other of fewer than 128 rows, or a part of k of one. Where ptxas sees that all
 * lanes take the same way around, descriptors stay in uniform registers: a step of k is 5 %
 * shorter. The place of the tile is found before its products, as nothing hides what it takes after
 * them. */
MMF_DEVICE void consume_swapped(const mmf_wgmma_args &args, ring r)
{
    const int thread = thread_id() % GROUP, consumer = warp_id() / (GROUP / 32);
    turns turn;
    turn.start(args);
    MMF_ROLLED
    for (; uniform(turn.at < turn.end); turn.at += turn.step) {
        float sum[SUMS];
        tile t = turn.take(args);
        asm volatile("" : "+l"(t.m0), "+l"(t.n0), "+r"(t.rows), "+r"(t.cols));
        const int batch = (int)t.batch;
        t.matrices = (char **)share_matrices(args.gemm, consumer, batch);
        swapped_epilogue swapped = {args,
                                    t,
                                    batch,
                                    thread,
                                    consumer,
                                    shared_address(dynamic_shared),
                                    is_parted(args) ? turn.rank : 0,
                                    args.parts_log,
                                    {},
                                    1};
        swapped.start();
        multiply<false>(args, r, turn, consumer, thread, sum);
        if (is_parted(args))
            meet_consumers(); /* nobody reads the ring any more */
        swapped.finish(sum);
    }
}

template <bool InPlaces> struct consumers {
    enum { GIVERS = 0 };
    static __attribute__((device, always_inline)) int readers(const mmf_wgmma_args &)
    {
        return CONSUMERS;
    }
    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        if (args.gemm.epilogue == MMF_EPILOGUE_GENERAL)
            consume_one(args, r);
        else
            consume_all<FLAT>(args, r);
    }
};

template <> struct consumers<false> {
    enum { GIVERS = 0 };
    static __attribute__((device, always_inline)) int readers(const mmf_wgmma_args &)
    {
        return CONSUMERS;
    }
    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        if (SWAPPED && args.out_by_copies)
            consume_swapped(args, r);
        else
            consume_one(args, r);
    }
};

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_wgmma_args args)
{
    run_workgroup<consumers<IN_PLACES>>(args);
}
