/* A tile that both warpgroups multiply, 64 rows of tall each: the products of a part of k, and the
 * end of a workgroup that has one tile, whose sums go through the ring's memory to an epilogue of
 * common/. Path of a call: from gemm_wgmma.hip, and from the ping-pong kernels for the general
 * epilogue. */
#ifndef MMF_NVIDIA_WGMMA_ONE_TILE_H
#define MMF_NVIDIA_WGMMA_ONE_TILE_H

#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/cluster.h"
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

#endif
