/* What PTX calls asynchronous: barriers in shared memory, tensor copies, launches that overlap.
 * Path of a call: the main loops of gemm_wgmma and its ping-pong kernels; the ring of
 * gemm_gemv_stream; the begin of gemm_gemv and of repack. Semantics and syntax: the PTX ISA,
 * mbarrier, cp.async.bulk.tensor and griddepcontrol. Shared memory is named by its 32-bit address.
 */
#ifndef MMF_NVIDIA_RING_H
#define MMF_NVIDIA_RING_H

#include "gpu/kernels/nvidia/cluster.h"
#include "gpu/kernels/nvidia/wgmma_args.h"

/* The kernel before in the stream is done, and what it wrote is seen. */
MMF_DEVICE void wait_for_kernel_before()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The next kernel in the stream may begin, up to its own wait. */
MMF_DEVICE void let_next_kernel_begin()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* One thread of a warp that is here as a whole. ptxas takes what it does for uniform: other
 * conditions cost a loop around each copy. */
MMF_DEVICE bool is_elected()
{
    int elected;
    asm volatile("{\n\t.reg .pred one;\n\t"
                 "elect.sync _|one, 0xffffffff;\n\t"
                 "selp.s32 %0, 1, 0, one;\n\t}"
                 : "=r"(elected));
    return elected;
}

/* A number that all threads of the warp have, which ptxas takes for uniform. */
MMF_DEVICE int uniform(int number)
{
    return __nvvm_shfl_sync_idx_i32(~0u, number, 0, 31);
}

/* The number of this thread's warp. */
MMF_DEVICE int warp_id()
{
    return uniform(thread_id() / 32);
}

MMF_DEVICE void meet_warp()
{
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

MMF_DEVICE void prefetch_map(const mmf_tensor_map &map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/* The first `threads` threads that name barrier `id`, a constant: ptxas reserves all 16 otherwise.
 */
template <int Id, int Threads> MMF_DEVICE void named_barrier()
{
    asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}

/* As named_barrier, without waiting: Threads count those who wait, too. */
template <int Id, int Threads> MMF_DEVICE void arrive_at_named_barrier()
{
    asm volatile("bar.arrive %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}

MMF_DEVICE void barrier_init(unsigned barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Barriers that were initialised are seen by the cluster and by asynchronous copies. */
MMF_DEVICE void barriers_are_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::
                     : "memory");
}

MMF_DEVICE void expect_bytes(unsigned barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

MMF_DEVICE void wait_for(unsigned barrier, unsigned parity)
{
    asm volatile("{\n\t.reg .pred done;\n"
                 "again_%=:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again_%=;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

MMF_DEVICE void arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* At the same barrier of another workgroup of the cluster. No .release.cluster: what is released is
 * only that its data was read, and a fence here would stall the loop over k. */
MMF_DEVICE void arrive_at(unsigned barrier, unsigned rank)
{
    asm volatile("{\n\t.reg .b32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* The line of memory at an address comes to the last cache. */
MMF_DEVICE void prefetch(const void *address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

/* A box of a tensor to shared memory of this workgroup; outside of the tensor are zeros. */
MMF_DEVICE void load_box(unsigned to, const mmf_tensor_map &map, unsigned barrier, int x, int y,
                         int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* The same to every workgroup whose bit is set, at the same address and barrier. */
MMF_DEVICE void load_box_for(unsigned short ranks, unsigned to, const mmf_tensor_map &map,
                             unsigned barrier, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(ranks)
                 : "memory");
}

/* What lies outside of the tensor is not written. */
MMF_DEVICE void store_box(const mmf_tensor_map &map, unsigned from, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4}], [%1];" ::"l"(&map),
                 "r"(from), "r"(x), "r"(y), "r"(z)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until no store of this thread reads shared memory any more. */
MMF_DEVICE void wait_for_stores()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* What this thread wrote to shared memory is seen by asynchronous copies. */
MMF_DEVICE void publish_to_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
