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
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/swapped_epilogue.h"
#include "gpu/kernels/nvidia/wgmma.h"
#include "gpu/kernels/nvidia/wgmma_tile.h"

typedef products<FLAT, row::operands, TALL_ALONG_K, FLAT_ALONG_K> product;

/* sum = the products of a stage, plus what it was if `more`, of this warpgroup's 64 rows of tall.
 */
MMF_DEVICE void multiply_stage(const ring &r, int consumer, float (&sum)[SUMS], bool more)
{
    wait_for(r.full + 8 * r.stage, r.parity);
    const unsigned long long tall = describe<TALL_ALONG_K>(r.tall() + consumer * BOX_BYTES),
                             flat = describe<FLAT_ALONG_K>(r.flat());
    products_begin();
    MMF_UNROLL
    for (int i = 0; i < STEPS; i++)
        product::add_to(sum, tall + i * next_k<TALL_ALONG_K>(), flat + i * next_k<FLAT_ALONG_K>(),
                        i > 0 || more);
    products_end();
}

/* sum = the products of a tile and a part of k. Begun: those of the first stage are under way; not
 * for tiles of 64 rows: ptxas keeps their descriptors in uniform registers only if no stage is
 * outside of the loop. */
template <bool Begun>
MMF_DEVICE void multiply(const mmf_wgmma_args &args, ring &r, const turns &turn, int consumer,
                         int thread, float (&sum)[SUMS])
{
    const int readers = readers_of(args), reader = is_parted(args) ? (int)turn.rank : thread;
    const int first = turn.k_begin + (Begun ? row::tile_k : 0);
    unsigned before = r.stage;
    if (Begun)
        r.advance();
    MMF_ROLLED
    for (int k = first; k < turn.k_end; k += row::tile_k) {
        const bool more = Begun || k > first;
        multiply_stage(r, consumer, sum, more);
        if (more) {
            wait_for_all_but_one();
            if (thread < readers)
                arrive_at(r.empty + 8 * before, reader);
        }
        before = r.stage;
        r.advance();
    }
    product::wait(sum);
    if (thread < readers)
        arrive_at(r.empty + 8 * before, reader);
}

/* z of this warpgroup's rows of tall, lines along n. */
MMF_DEVICE void put_sums(float alpha, float *lines, int consumer, int thread,
                         const float (&sum)[SUMS])
{
    const int tall = consumer * 64 + thread / 32 * 16 + thread % 32 / 4, flat = thread % 4 * 2;
    if (SWAPPED) {
        float *const mine = lines + flat * PITCH + tall;
        MMF_UNROLL
        for (int i = 0; i < SUMS; i++)
            mine[(i / 4 * 8 + i % 2) * PITCH + i / 2 % 2 * 8] = sum[i] * alpha;
    } else {
        float *const mine = lines + tall * PITCH + flat;
        MMF_UNROLL
        for (int i = 0; i < SUMS; i += 2)
            *(mmf_float2 *)(mine + i / 4 * 8 + i / 2 % 2 * 8 * PITCH) =
                (mmf_float2){sum[i], sum[i + 1]} * alpha;
    }
}

/* Matrices of a batch index, for a consumer. */
MMF_DEVICE char *share_matrices(const mmf_gemm_args &args, int consumer, int batch)
{
    char *const matrices = matrices_of(consumer);
    const int operand = thread_id() % GROUP;
    meet_group(consumer); /* the last tile's are not needed any more */
    if (args.batch_ndim)
        find_matrices_soon(args, batch, (char **)matrices, operand);
    else if (operand < MMF_GEMM_OPERANDS)
        ((char **)matrices)[operand] = (char *)args.data[operand];
    meet_group(consumer);
    return matrices;
}

/* The bias of the tile's columns comes to the last cache while products are summed. */
MMF_DEVICE void prefetch_bias(const mmf_gemm_args &args, const tile &t)
{
    enum { LINE = 128, LINES = row::tile_n * 4 / LINE };
    const int operand = MMF_GEMM_BIAS + thread_id() / LINES, at = thread_id() % LINES * LINE;
    if (thread_id() >= (args.gated ? 2 : 1) * LINES || args.dtype[operand] == MMF_GEMM_ABSENT)
        return;
    const int size = element_size(args.dtype[operand]);
    if (args.strides[operand].col == 1 && at < t.cols * size)
        prefetch(t.matrix(operand) + t.n0 * size + at);
}

/* One tile, whose sums go by way of shared memory. */
MMF_DEVICE void consume_one(const mmf_wgmma_args &args, ring r)
{
    const int thread = thread_id() % GROUP, consumer = warp_id() / (GROUP / 32);
    float *const lines = (float *)(dynamic_shared + RING);
    const bool general = args.gemm.epilogue == MMF_EPILOGUE_GENERAL;
    const float alpha = general ? (float)args.gemm.alpha : 1;
    const bool parted = is_parted(args);
    float sum[SUMS];
    turns turn;
    turn.start(args);
    tile t = turn.take(args);
    const int batch = (int)t.batch;
    some_rows some = {t.rows, 0};
    if (parted) {
        const int share = row::tile_m >> args.cluster_log;
        some.first = share * (int)turn.rank;
        some.count = t.rows - some.first < share ? t.rows - some.first : share;
    }
    t.matrices = (char **)share_matrices(args.gemm, consumer, batch);
    prefetch_bias(args.gemm, t);
    multiply<false>(args, r, turn, consumer, thread, sum);
    meet_consumers(); /* nobody reads the ring any more */
    put_sums(parted ? 1 : alpha, lines, consumer, thread, sum);
    if (parted) {
        meet_consumers();
        if (thread_id() == 0)
            publish_to_cluster(); /* by one thread: it is a fence of the whole GPU */
        cluster_barrier();
        add_parts<CONSUMERS * GROUP, row::tile_n, PITCH>(some, 1 << args.cluster_log, alpha,
                                                         r.memory, lines);
    }
    meet_consumers();
    if (!IN_PLACES && !general) {
        staged_runs<row, CONSUMERS * GROUP, PITCH>::finish(args.gemm, t, some.first, some.count,
                                                           lines);
        return;
    }
    const staged<float, CONSUMERS * GROUP, row::tile_n, PITCH, some_rows> all = {
        lines + some.first * PITCH, t, some};
    finish_general<float>(args.gemm, all);
}

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
    run_workgroup<consumers<IN_PLACES>, CONSUMERS>(args);
}
