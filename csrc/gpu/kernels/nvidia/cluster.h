/* Shared memory by its 32-bit address, and workgroups of a cluster (sm_90 and later) that read each
 * other's, each of which has the sums of a part of k of one tile. Path of a call: the main loops of
 * the kernels of this folder; the end of a tile whose k is split.
 * Semantics and syntax: the PTX ISA, barrier.cluster, mapa and ld.shared::cluster. */
#ifndef MMF_NVIDIA_CLUSTER_H
#define MMF_NVIDIA_CLUSTER_H

#include "gpu/kernels/common/device.h"

/* The 32-bit address of shared memory. */
MMF_DEVICE unsigned shared_address(const void *pointer)
{
    unsigned address;
    asm("{ .reg .u64 all; cvta.to.shared.u64 all, %1; cvt.u32.u64 %0, all; }"
        : "=r"(address)
        : "l"(pointer));
    return address;
}

MMF_DEVICE unsigned cluster_rank()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

MMF_DEVICE unsigned cluster_size()
{
    unsigned size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

/* All threads of the cluster. */
MMF_DEVICE void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

/* What threads that met this one wrote is seen by the cluster after its next barrier. */
MMF_DEVICE void publish_to_cluster()
{
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
}

/* 16 bytes of another workgroup of the cluster, at the same address. */
MMF_DEVICE unsigned address_in(unsigned rank, unsigned address)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

MMF_DEVICE void read_from(unsigned rank, unsigned address, mmf_float4 &value)
{
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address_in(rank, address))
                 : "memory");
}

typedef double mmf_double2 __attribute__((ext_vector_type(2)));

MMF_DEVICE void read_from(unsigned rank, unsigned address, mmf_double2 &value)
{
    asm volatile("ld.shared::cluster.v2.f64 {%0, %1}, [%2];"
                 : "=d"(value.x), "=d"(value.y)
                 : "r"(address_in(rank, address))
                 : "memory");
}

/* 16 bytes of sums. */
template <class Real> struct sum_run {
    typedef mmf_float4 type;
};
template <> struct sum_run<double> {
    typedef mmf_double2 type;
};

/* Of a tile, the lines that this workgroup of a cluster finishes. */
struct some_rows {
    int count, first;

    __attribute__((device, always_inline)) int row(int line) const
    {
        return first + line;
    }
};

/* The sums of a cluster's workgroups for those lines, added up in the order of k. They lie at
 * `memory`, the 32-bit address of `lines`. */
template <int Threads, int TileN, int Pitch, class Real>
MMF_DEVICE void add_parts(const some_rows &some, int parts, Real factor, unsigned memory,
                          Real *lines)
{
    typedef typename sum_run<Real>::type run;
    enum { MOST = 8, RUN = sizeof(run) / sizeof(Real), LINE = TileN / RUN };
    MMF_ROLLED
    for (int i = thread_id(); i < some.count * LINE; i += Threads) {
        const int at = (some.first + i / LINE) * Pitch + i % LINE * RUN;
        run part[MOST], sum = {};
        MMF_UNROLL
        for (int p = 0; p < MOST; p++) {
            part[p] = sum;
            if (p < parts)
                read_from(p, memory + at * (int)sizeof(Real), part[p]);
        }
        MMF_UNROLL
        for (int p = 0; p < MOST; p++)
            sum += part[p];
        *(run *)(lines + at) = sum * factor;
    }
}

#endif
