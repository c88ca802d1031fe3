/* The epilogue in registers on sums whose 64 rows of a matrix instruction are columns of out: a
 * thread has pairs of neighbouring rows in two columns of every eight rows. What it implements is
 * what common/epilogue_registers.h does without C and a bias per row; gpu/gemm_wgmma.c says when.
 * Path of a call: the last step of a tile of gemm_wgmma with fewer than 128 rows, from the sums to
 * global memory by way of swizzled lines in shared memory. Workgroups that have the products of a
 * part of k each first give each other the sums of the rows that each finishes. */
#ifndef MMF_SWAPPED_EPILOGUE_H
#define MMF_SWAPPED_EPILOGUE_H

#include "gpu/kernels/nvidia/fragment_epilogue.h"
#include "gpu/kernels/nvidia/wgmma_tile.h"

/* Of the sums of a warp: 16 bytes of each thread follow each other. A slot has a workgroup's sums
 * of one share of the rows, warp by warp. */
enum {
    WARPS = CONSUMERS * 4,
    LINES = MMF_WGMMA_STORED_ROWS,
    RUNS = SUMS / 4,     /* of 16 bytes that a thread has */
    RUN_BYTES = 16 * 32, /* of a warp */
    /* Lines on their way to out, and z of the up columns. */
    FINISHED = CONSUMERS * MMF_WGMMA_STORE_BYTES + RUNS * RUN_BYTES * 4,
};
static_assert(!SWAPPED || (RUNS & (RUNS - 1)) == 0, "parts of k have as many runs each");
static_assert(!SWAPPED || RUNS * RUN_BYTES * WARPS <= RING - MMF_WGMMA_STORES,
              "the sums of other parts of k fit where stores are");
static_assert(!SWAPPED || FINISHED <= RING - MMF_WGMMA_STORES, "of whole sums, there");
static_assert(!SWAPPED || RUNS * RUN_BYTES * WARPS + FINISHED <= STAGES * STAGE_BYTES,
              "else behind those that are sent, where stages were");
static_assert(2 * STAGES * 8 <= MMF_WGMMA_SHARED_BARRIER - MMF_WGMMA_BARRIERS, "above the ring's");

/* Bytes of shared memory of this workgroup to another one of the cluster. */
MMF_DEVICE void send(unsigned to, unsigned from, unsigned bytes, unsigned barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

MMF_DEVICE void put(unsigned address, const float *four)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four[0]),
                 "f"(four[1]), "f"(four[2]), "f"(four[3])
                 : "memory");
}

MMF_DEVICE mmf_float4 get(unsigned address)
{
    mmf_float4 four;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "r"(address)
                 : "memory");
    return four;
}

/* Two 8 x 8 matrices, a column of each to the address of one of the first 16 lanes. */
MMF_DEVICE void store_two_transposed(unsigned address, unsigned first, unsigned second)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
                 "r"(first), "r"(second)
                 : "memory");
}

/* Four 8 x 8 matrices, a column of each to the address of one of the 32 lanes. */
MMF_DEVICE void store_transposed(unsigned address, const unsigned bits[4])
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
        : "memory");
}

struct swapped_epilogue {
    const mmf_wgmma_args &args;
    const tile &t;
    int batch, thread, consumer;
    unsigned shared, rank, log; /* the address of shared memory; of the cluster */
    unsigned loaded[2];         /* the bias of two columns */
    float alpha;

    template <class Type> __attribute__((device, always_inline)) void load_bias(int operand)
    {
        const int first = args.gemm.gated ? 0 : consumer * half_of(args);
        const int col = first + thread / 32 * 16 + thread % 32 / 4;
        const Type *const at = (const Type *)t.matrix(operand) + t.n0 + col;
        MMF_UNROLL
        for (int half = 0; half < 2; half++)
            if (col + 8 * half < t.cols)
                loaded[half] = at[8 * half];
    }

    /* Before the main loop, which hides what the loads take. */
    __attribute__((device, always_inline)) void start()
    {
        const int operand = MMF_GEMM_BIAS + (args.gemm.gated ? consumer : 0);
        alpha = (float)args.gemm.alpha;
        loaded[0] = loaded[1] = 0;
        if (args.gemm.dtype[operand] == MMF_GEMM_FLOAT32)
            load_bias<unsigned>(operand);
        else if (args.gemm.dtype[operand] != MMF_GEMM_ABSENT)
            load_bias<unsigned short>(operand);
    }

    __attribute__((device, always_inline)) unsigned shared_barrier() const
    {
        return shared + MMF_WGMMA_SHARED_BARRIER;
    }

    /* The sums of this workgroup's share of the rows, of all parts in the order of k, become the
     * first ones. */
    __attribute__((device, always_inline)) void share(float (&sum)[SUMS]) const
    {
        const unsigned parts = 1u << log, runs = RUNS >> log, warp = thread / 32 + consumer * 4;
        const unsigned own = runs * RUN_BYTES, slot = WARPS * own, lane = thread % 32;
        const unsigned mine = shared + RING + warp * own;
        const unsigned theirs = shared + MMF_WGMMA_STORES + warp * own;
        MMF_UNROLL
        for (unsigned i = 0; i < RUNS; i++) {
            const unsigned part = i * parts / RUNS;
            put(mine + part * (slot - own) + i * RUN_BYTES + lane * 16, sum + 4 * i);
        }
        publish_to_copies();
        meet_warp();
        if (lane < parts && lane != rank)
            send(address_in(lane, theirs + (rank - (rank > lane)) * slot), mine + lane * slot, own,
                 address_in(lane, shared_barrier()));
        wait_for(shared_barrier(), 0);
        MMF_ROLLED
        for (unsigned part = 0; part < parts; part++) {
            const unsigned from =
                part == rank ? mine + part * slot : theirs + (part - (part > rank)) * slot;
            MMF_UNROLL
            for (unsigned i = 0; i < (RUNS + 1) / 2; i++) {
                if (i >= runs)
                    break;
                const mmf_float4 four = get(from + i * RUN_BYTES + lane * 16);
                MMF_UNROLL
                for (int j = 0; j < 4; j++)
                    sum[4 * i + j] = part ? sum[4 * i + j] + four[j] : four[j];
            }
        }
    }

    /* z of the sums. */
    __attribute__((device, always_inline)) void scale(float (&sum)[SUMS]) const
    {
        const float bias[2] = {loaded_bias<row::operands>(args.gemm, loaded[0]),
                               loaded_bias<row::operands>(args.gemm, loaded[1])};
        MMF_UNROLL
        for (int i = 0; i < SUMS; i++)
            sum[i] = fused(sum[i], alpha, bias[i / 2 % 2]);
    }

    /* Of eight rows: z of the gate's columns, or of all, becomes what is stored. */
    template <int Id>
    __attribute__((device, always_inline)) void activate(float *of_gate, const mmf_float4 *up) const
    {
        mmf_float2 z[4], of_up[4];
        MMF_UNROLL
        for (int p = 0; p < 4; p++) {
            z[p] = (mmf_float2){of_gate[2 * p], of_gate[2 * p + 1]};
            of_up[p] = (mmf_float2){up[p / 2][p % 2 * 2], up[p / 2][p % 2 * 2 + 1]};
        }
        activated<Id, 4>::run(z, of_up);
        MMF_UNROLL
        for (int p = 0; p < 4; p++) {
            of_gate[2 * p] = z[p].x;
            of_gate[2 * p + 1] = z[p].y;
        }
    }

    /* From z, of which that of the up columns lies at `ups`, to lines in a buffer. */
    template <int Id>
    __attribute__((device, always_inline)) void finish_as(float (&z)[SUMS], unsigned lines,
                                                          unsigned buffer, unsigned ups) const
    {
        const unsigned lane = thread % 32, first = warp_id() % 4 * 2, width = half_of(args);
        const bool both = 8 * (first + 2) <= width;
        const unsigned chunk = both ? first + lane / 8 % 2 : first;
        const unsigned line = both ? lane / 16 * 8 + lane % 8 : lane % 16;
        const unsigned turn = width == 64 ? line & 7 : 0; /* swizzled */
        MMF_ROLLED
        for (unsigned m = 0; m < lines; m += 16, ups += 2 * GROUP * 16) {
            unsigned bits[4];
            mmf_float4 up[2] = {};
            if (activation<Id>::gated) {
                up[0] = get(ups);
                up[1] = get(ups + GROUP * 16);
            }
            activate<Id>(z, up);
            MMF_UNROLL
            for (int i = 0; i < 4; i++)
                bits[i] = pack_pair<row::operands>((mmf_float2){z[2 * i], z[2 * i + 1]});
            const unsigned to = buffer + (m + line) * 2 * width + ((chunk ^ turn) << 4);
            if (both)
                store_transposed(to, bits);
            else if (8 * first < width)
                store_two_transposed(to, bits[0], bits[2]);
            MMF_UNROLL
            for (int i = 8; i < SUMS; i++)
                z[i - 8] = z[i];
        }
    }

    /* Once both consumers have all products, if k is in parts: these use the ring's memory. Sums of
     * up columns go to the other consumer. */
    __attribute__((device, always_inline)) void finish(float (&sum)[SUMS])
    {
        const unsigned lines = FLAT >> log;
        const int warp_of_group = warp_id() % 4;
        const unsigned memory = shared + (log ? RING + RUNS * RUN_BYTES * WARPS : MMF_WGMMA_STORES);
        const unsigned buffer = memory + consumer * MMF_WGMMA_STORE_BYTES;
        const unsigned ups = memory + CONSUMERS * MMF_WGMMA_STORE_BYTES + thread * 16;
        if (log)
            share(sum);
        scale(sum);
        const bool gives = args.gemm.gated && consumer;
        if (gives) {
            MMF_UNROLL
            for (int i = 0; i < RUNS; i++)
                put(ups + i * GROUP * 16, sum + 4 * i);
        }
        if (args.gemm.gated)
            meet_consumers(); /* given */
        switch (gives ? -1 : args.gemm.activation) {
#define MMF_HOT(id)                                                                                \
    case ACT_##id:                                                                                 \
        finish_as<ACT_##id>(sum, lines, buffer, ups);                                              \
        break;
#include "problem/activations.def"
        }
        if (args.gemm.gated)
            meet_consumers(); /* taken */
        publish_to_copies();
        meet_group(consumer);
        const int width = half_of(args), first = (int)(rank * lines);
        const int left = !gives && consumer * width < t.cols ? t.rows - first : 0;
        MMF_ROLLED
        for (int line = warp_of_group * LINES; line < (int)lines; line += 4 * LINES)
            if (line < left && is_elected())
                store_box(args.out, buffer + line * 2 * width, (int)t.n0 + consumer * width,
                          (int)t.m0 + first + line, batch);
        if (is_elected())
            wait_for_stores();
    }
};

#endif
