/* Two warpgroups of a workgroup that multiply by turns, on float16 and bfloat16. Path of a call:
 * the tiles of gemm_wgmma_pingpong and gemm_wgmma_pingpong_aux that are finished in registers.
 *
 * Each of the two has tiles of its own, every other one of the workgroup's. While one finishes a
 * tile, the other has the matrix instructions; in the ring their tiles follow each other. The last
 * tile is finished by both, 64 rows each. Two workgroups of a cluster take neighbouring tiles along
 * m, each loads half of B's columns for both. */
#ifndef MMF_NVIDIA_WGMMA_TURNS_H
#define MMF_NVIDIA_WGMMA_TURNS_H

#include "gpu/kernels/nvidia/fragment_epilogue.h"
#include "gpu/kernels/nvidia/wgmma_one_tile.h"

static_assert(!SWAPPED && !ROUNDED, "kernels.def");
typedef fragment_epilogue<row::operands, FLAT, PLAIN> lines; /* as those of AUXILIARY */
enum { HALVES = lines::HALVES }; /* of a tile's rows: 64 each, which an instruction takes */

/* Named barriers, two each: the number of who waits is added. TURN: the other's products are all
 * under way. STORED: the one store buffer has been read. Those below are meet_consumers()'s and the
 * epilogue's. */
enum { TURN = 4, STORED = 6 };

template <int Barrier> MMF_DEVICE void wait_until_told(int consumer)
{
    if (consumer)
        named_barrier<Barrier + 1, CONSUMERS * GROUP>();
    else
        named_barrier<Barrier, CONSUMERS * GROUP>();
}

template <int Barrier> MMF_DEVICE void tell(int consumer)
{
    if (consumer)
        arrive_at_named_barrier<Barrier + 1, CONSUMERS * GROUP>();
    else
        arrive_at_named_barrier<Barrier, CONSUMERS * GROUP>();
}

/* sum = the products of a stage, plus what it was if `more`, by halves. */
MMF_DEVICE void multiply_halves(const ring &r, float (&sum)[HALVES][SUMS], bool more)
{
    wait_for(r.full + 8 * r.stage, r.parity);
    const unsigned long long tall = describe<TALL_ALONG_K>(r.tall()),
                             flat = describe<FLAT_ALONG_K>(r.flat());
    products_begin();
    MMF_UNROLL
    for (int i = 0; i < STEPS; i++) {
        MMF_UNROLL
        for (int h = 0; h < HALVES; h++)
            product::add_to(sum[h], tall + (h * BOX_BYTES >> 4) + i * next_k<TALL_ALONG_K>(),
                            flat + i * next_k<FLAT_ALONG_K>(), i > 0 || more);
    }
    products_end();
}

/* sum += the products of a tile but for the first stage's, which are under way. Returns with the
 * last ones, those of a stage, under way. */
MMF_DEVICE unsigned multiply_rest(const mmf_wgmma_args &args, ring &r, int thread,
                                  float (&sum)[HALVES][SUMS])
{
    const int readers = readers_of(args);
    unsigned before = r.stage;
    r.advance();
    MMF_ROLLED
    for (int k = row::tile_k; k < (int)args.gemm.k; k += row::tile_k) {
        multiply_halves(r, sum, true);
        wait_for_all_but_one();
        if (thread < readers)
            arrive_at(r.empty + 8 * before, thread);
        before = r.stage;
        r.advance();
    }
    return before;
}

/* Stages that hold the sums of 64 rows. Where the consumers have one store buffer, who helps with
 * the last tile stores from one more stage. */
enum { GIVEN = (SUMS * GROUP * 4 + STAGE_BYTES - 1) / STAGE_BYTES, OF_STAGE = SUMS / GIVEN };
enum { ONE_BUFFER = lines::ONE_BUFFER };
static_assert(GIVEN + ONE_BUFFER <= STAGES, "they are of one tile");
static_assert(SUMS % (4 * GIVEN) == 0, "16 bytes are in one stage");

/* Address of the stage that is `back` before the ring's place. */
MMF_DEVICE unsigned stage_before(const ring &r, int back)
{
    return r.memory + (r.stage + STAGES - back) % STAGES * STAGE_BYTES;
}

/* Where a thread's sums i to i + 3 of the last tile's second half are handed over: in the tile's
 * last stages. r: the ring after the tile. */
MMF_DEVICE unsigned given_at(const ring &r, int thread, int i)
{
    return stage_before(r, GIVEN - i / OF_STAGE) + (i % OF_STAGE / 4 * GROUP + thread) * 16;
}

MMF_DEVICE void give_sums(const ring &r, int thread, const float (&sum)[SUMS])
{
    MMF_UNROLL
    for (int i = 0; i < SUMS; i += 4)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(given_at(r, thread, i)),
                     "f"(sum[i]), "f"(sum[i + 1]), "f"(sum[i + 2]), "f"(sum[i + 3])
                     : "memory");
}

MMF_DEVICE void take_sums(const ring &r, int thread, float (&sum)[SUMS])
{
    MMF_UNROLL
    for (int i = 0; i < SUMS; i += 4)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(sum[i]), "=f"(sum[i + 1]), "=f"(sum[i + 2]), "=f"(sum[i + 3])
                     : "r"(given_at(r, thread, i))
                     : "memory");
}

/* A consumer that has tiles of its own. */
template <class Epilogue> struct alternating {
    /* It is in the ring. */
    static __attribute__((device, always_inline)) unsigned given_barrier()
    {
        return shared_address(dynamic_shared) + MMF_WGMMA_SHARED_BARRIER;
    }

    /* Owner: the consumer that multiplied the tile, and shared its bias. */
    static __attribute__((device, always_inline)) Epilogue begin(const mmf_wgmma_args &args,
                                                                 const tile &t, int consumer,
                                                                 int owner, int thread)
    {
        const unsigned memory = shared_address(dynamic_shared);
        return {args,
                t,
                {},
                {},
                1,
                thread,
                0,
                memory + MMF_WGMMA_STORES + consumer * Epilogue::STORE_BYTES,
                memory + MMF_WGMMA_BIASES + owner * MMF_WGMMA_BIAS_BYTES};
    }

    /* Matrices of a batch index, for the consumer's threads. */
    static __attribute__((device, always_inline)) void
    share_matrices(const mmf_wgmma_args &args, int consumer, int thread, int batch)
    {
        find_matrices_soon(args.gemm, batch, (char **)matrices_of(consumer), thread);
        meet_group(consumer);
    }

    /* Halves of the workgroup's tile i, whose products are done. */
    static __attribute__((device, always_inline)) void
    finish(const mmf_wgmma_args &args, const ring &r, int i, int consumer, int owner, int thread,
           float (&sum)[HALVES][SUMS], int first, int end)
    {
        asm volatile("" : "+r"(thread)); /* what follows is not kept across products */
        const place at = place_of(i);
        const tile t = tile_from(args, at.m0, at.n0, at.batch, matrices_of(owner));
        Epilogue e = begin(args, t, consumer, owner, thread);
        e.alpha = (float)args.gemm.alpha;
        if (ONE_BUFFER && consumer != owner)
            e.stores = stage_before(r, GIVEN + 1);
        else if (ONE_BUFFER && i > 0)
            wait_until_told<STORED>(consumer);
        meet_group(consumer); /* the bias is shared */
        e.finish(sum, at.batch, first, end);
    }

    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        const int thread = thread_id() % GROUP, consumer = warp_id() / (GROUP / 32);
        const unsigned steps = ((unsigned)args.gemm.k + row::tile_k - 1) / row::tile_k;
        share_matrices(args, consumer, thread, 0);
        turns turn;
        turn.start(args);
        const int count = turn.count();
        const bool helped = steps >= GIVEN + ONE_BUFFER; /* the last tile is finished by both */
        if (consumer)
            r.skip(steps);
        MMF_ROLLED
        for (int i = consumer; i < count; i += 2) {
            if (i > 0)
                wait_until_told<TURN>(consumer);
            float sum[HALVES][SUMS];
            multiply_halves(r, sum, false);
            const place at = place_of(i); /* what a tile needs besides is found under products */
            if (args.gemm.batch_ndim)
                share_matrices(args, consumer, thread, at.batch);
            const tile t = tile_from(args, at.m0, at.n0, at.batch, matrices_of(consumer));
            Epilogue bias = begin(args, t, consumer, consumer, thread);
            bias.start();
            const unsigned last = multiply_rest(args, r, thread, sum);
            const bool more = i + 1 < count, given = helped && !more;
            if (more)
                tell<TURN>(1 - consumer);
            product::wait(sum[0]);
            product::waited(sum[1]);
            if (thread < readers_of(args))
                arrive_at(r.empty + 8 * last, thread);
            bias.share_bias();
            if (given) {
                meet_group(consumer); /* no warp's products read the ring any more */
                give_sums(r, thread, sum[1]);
                arrive(given_barrier());
            }
            r.skip(steps); /* of the other consumer's tile */
            finish(args, r, i, consumer, consumer, thread, sum, 0, given ? 1 : (int)HALVES);
            if (ONE_BUFFER && more) {
                if (is_elected())
                    wait_for_stores();
                meet_warp();
                tell<STORED>(1 - consumer);
            }
        }
        if (helped && count > 0 && consumer == count % 2) {
            float sum[HALVES][SUMS];
            wait_for(given_barrier(), 0);
            take_sums(r, thread, sum[1]);
            finish(args, r, count - 1, consumer, 1 - consumer, thread, sum, 1, HALVES);
        }
        if (is_elected())
            wait_for_stores();
    }
};

/* What a warpgroup that multiplies does; Code: of the epilogue in registers. With the general one a
 * workgroup has one tile, of which each warpgroup multiplies 64 rows. */
template <fragment_code Code> struct by_turns {
    enum { GIVERS = GROUP }; /* of the last tile's second half */

    static __attribute__((device, always_inline)) int readers(const mmf_wgmma_args &args)
    {
        return takes_turns(args) ? 1 : CONSUMERS;
    }

    static __attribute__((device, always_inline)) void run(const mmf_wgmma_args &args, ring r)
    {
        if (takes_turns(args))
            alternating<fragment_epilogue<row::operands, FLAT, Code>>::run(args, r);
        else
            consume_one(args, r);
    }
};

#endif
