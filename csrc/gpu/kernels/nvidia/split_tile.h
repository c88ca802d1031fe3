/* The end of a tile whose k a cluster's workgroups share, and its part of k. Path of a call: the
 * body of gemm_fma_split and gemm_mma_split, whose sums lie in shared memory as lines of the tile.
 * The workgroups add their sums up and finish some lines each. */
#ifndef MMF_SPLIT_TILE_H
#define MMF_SPLIT_TILE_H

#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/cluster.h"

/* Which part of k: whole steps, the last ones less. */
template <class Row> struct part_of_k {
    unsigned rank, parts;
    long long first, count; /* below 1: none */

    __attribute__((device, always_inline)) void find(long long k)
    {
        rank = cluster_rank();
        parts = cluster_size();
        const long long steps = (k + Row::tile_k - 1) / Row::tile_k;
        const long long each = (steps + parts - 1) / parts * Row::tile_k;
        first = rank * each;
        count = k - first < each ? k - first : each;
    }
};

/* The tile of this workgroup's cluster. */
template <class Row>
MMF_DEVICE tile tile_of_cluster(const mmf_gemm_args &args, unsigned parts, char *shared)
{
    return tile_at<Row>(args, (unsigned)workgroup_id() / parts, shared);
}

template <class Row, int Pitch, class Real> struct split_epilogue {
    static __attribute__((device, always_inline)) void
    in_registers(const mmf_gemm_args &args, const tile &t, const some_rows &some, const float *z)
    {
        staged_runs<Row, Row::threads, Pitch>::finish(args, t, some.first, some.count, z);
    }

    /* The host chooses the general epilogue. */
    static __attribute__((device, always_inline)) void
    in_registers(const mmf_gemm_args &, const tile &, const some_rows &, const double *)
    {
    }

    /* `lines`, at the start of the dynamic shared memory, has this workgroup's sums. */
    static __attribute__((device, always_inline)) void
    finish(const mmf_gemm_args &args, const tile &t, unsigned rank, unsigned parts, Real *lines)
    {
        const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
        const int share = (Row::tile_m + (int)parts - 1) / (int)parts, first = (int)rank * share;
        const some_rows some = {t.rows - first < share ? t.rows - first : share, first};
        barrier();
        if (thread_id() == 0)
            publish_to_cluster(); /* by one thread: it is a fence of the whole GPU */
        cluster_barrier();
        add_parts<Row::threads, Row::tile_n, Pitch>(
            some, (int)parts, general && args.k > 0 ? (Real)args.alpha : (Real)1,
            shared_address(lines), lines);
        barrier();
        if (!general)
            return in_registers(args, t, some, lines);
        const staged<Real, Row::threads, Row::tile_n, Pitch, some_rows> all = {
            lines + some.first * Pitch, t, some};
        finish_general<Real>(args, all);
    }
};

#endif
