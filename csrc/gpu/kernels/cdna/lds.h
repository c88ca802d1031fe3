/* A and B in shared memory: lines (m of A, n of B) of 128 bytes along k, in 8 chunks of 16 bytes;
 * chunk c of a line lies at place c ^ swizzle(line), against bank conflicts.
 * Path of a call: the main loops of kernels for CDNA. */
#ifndef MMF_CDNA_LDS_H
#define MMF_CDNA_LDS_H

#include "gpu/kernels/common/amd.h"
#include "gpu/kernels/common/tile.h"

enum {
    ELEMENT = sizeof(element<this_row::operands>::type),
    LINE = 128,              /* bytes of a line */
    LINE_K = LINE / ELEMENT, /* its elements */
    CHUNK_K = 16 / ELEMENT,  /* elements of a chunk */
};

/* The part of a swizzle that tells lines 16 apart from each other. gfx950 reads lines 0-3 and 16-19
 * of a fragment at once, at chunks that differ in bit 0: there those lines differ in bit 1. */
MMF_DEVICE constexpr unsigned swizzle_of_16(unsigned line)
{
#if defined(__gfx950__)
    return (line >> 4 & 1) << 1 | (line >> 5 & 1);
#else
    return line >> 4 & 3;
#endif
}

/* The 16 lanes of a fragment read lines 8 (i / 4) + i % 4, plus 4 for an odd block: the first two
 * terms tell 8 neighbours apart. AlongK is false where lines are written transposed, 16 threads
 * at once to lines 16 apart: the third term tells these apart. */
template <bool AlongK> MMF_DEVICE unsigned swizzle(unsigned line)
{
    return (line & 3) ^ (line >> 3 & 1) << 2 ^ (AlongK ? 0 : swizzle_of_16(line));
}

/* Where chunk c of a line lies. */
template <bool AlongK> MMF_DEVICE unsigned place(unsigned line, unsigned c)
{
    return line * LINE + (c ^ swizzle<AlongK>(line)) * 16;
}

/* Barrier of the workgroup without a fence, which would wait for the loads that are under way. */
MMF_DEVICE void meet()
{
    __builtin_amdgcn_sched_barrier(0);
    asm volatile("" ::: "memory");
    __builtin_amdgcn_s_barrier();
    asm volatile("" ::: "memory");
    __builtin_amdgcn_sched_barrier(0);
}

/* At most `memory` loads from memory and `shared` accesses to shared memory of this wave are under
 * way. The builtin needs a constant: 63 and 15 say nothing. */
template <int Memory, int Shared> MMF_DEVICE void wait_until()
{
    __builtin_amdgcn_s_waitcnt((Memory & 15) | Memory >> 4 << 14 | 7 << 4 | Shared << 8);
}
enum { ANY_MEMORY = 63, ANY_SHARED = 15 };

/* What this wave wrote to shared memory is there. */
MMF_DEVICE void wait_for_shared()
{
    __builtin_amdgcn_sched_barrier(0);
    wait_until<ANY_MEMORY, 0>();
}

#endif
