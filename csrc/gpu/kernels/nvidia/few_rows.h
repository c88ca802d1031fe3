/* What the kernels for few rows of A share: B by loads that pass by the first cache, and what comes
 * to the last cache before its turn. Path of a call: under gemm_gemv and gemm_mma_thin. */
#ifndef MMF_FEW_ROWS_H
#define MMF_FEW_ROWS_H

#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/ring.h"

/* 16 bytes that are read once: not kept in the first cache. In order with the others. */
MMF_DEVICE mmf_uint4 load_once(const char *at)
{
    mmf_uint4 bits;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"((MMF_GLOBAL const char *)at));
    return bits;
}

/* The bias of the tile's columns comes to the last cache while products are summed. */
MMF_DEVICE void prefetch_bias(const mmf_gemm_args &args, const tile &t)
{
    const int operand = MMF_GEMM_BIAS + thread_id();
    if (thread_id() > args.gated || args.dtype[operand] == MMF_GEMM_ABSENT)
        return;
    const int size = element_size(args.dtype[operand]);
    if (size && args.strides[operand].col == 1)
        prefetch(t.matrix(operand) + t.n0 * size);
}

/* The epilogue in registers of a tile whose sums lie in shared memory, lines of floats Pitch apart:
 * a thread has one run at most. */
template <class Row, int Pitch>
MMF_DEVICE void finish_runs(const mmf_gemm_args &args, const tile &t, const float *lines)
{
    typedef staged_runs<Row, Row::threads, Pitch> form;
    enum { RUN = form::RUN, HALF = Row::tile_n / 2, ACROSS = Row::tile_n / RUN };
    static_assert(Row::tile_m * ACROSS <= Row::threads, "a run each");
    const int across = args.gated ? ACROSS / 2 : (int)ACROSS, m = thread_id() / across;
    const int n = thread_id() % across * RUN, up = args.gated ? (int)HALF : 0;
    if (m >= Row::tile_m)
        return;
    register_epilogue<Row::operands, 1, 1, bounded_pointer, form> run;
    run.start(args, t, m, n);
    MMF_UNROLL
    for (int p = 0; p < RUN / 2; p++) {
        const float *const pair = lines + m * Pitch + n + 2 * p;
        run.z[0][0][p] = *(const mmf_float2 *)pair;
        run.z[1][0][p] = *(const mmf_float2 *)(pair + up);
    }
    run.finish(args, t, 0);
}

#endif
