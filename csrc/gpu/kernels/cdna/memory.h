/* Operands through buffer descriptors. Path of a call: the carriers of kernels for CDNA. */
#ifndef MMF_CDNA_MEMORY_H
#define MMF_CDNA_MEMORY_H

#include "gpu/kernels/cdna/lds.h"
#include "gpu/kernels/common/amd.h"

/* Lines (m of A, n of B) of an operand, from one k on. */
struct region {
    enum { SIZE = ELEMENT };
    const char *base;
    long long bytes; /* from base to the end of the last element; none: <= 0 */
    unsigned pitch;  /* bytes between lines, or between k */

    __attribute__((device, always_inline)) descriptor describe() const
    {
        const long long size = bytes < 0 ? 0 : bytes > MOST_BYTES ? MOST_BYTES : bytes;
        return __builtin_amdgcn_make_buffer_rsrc((void *)base, 0, (int)size, RAW_BUFFER);
    }
};

/* line: the first line of the region; lines: how many of it exist. */
template <bool AlongK>
MMF_DEVICE region region_of(const char *matrix, long long line_step, long long k_step,
                            long long line, int lines, long long all_lines, long long k)
{
    /* Axes of one element have any stride. */
    const long long pitch = AlongK ? (all_lines > 1 ? line_step : 0) : (k > 1 ? k_step : 0);
    region r;
    r.pitch = (unsigned)pitch * region::SIZE;
    r.base = matrix + line * (AlongK ? pitch : 1) * region::SIZE;
    r.bytes = lines <= 0 || k <= 0
                  ? 0
                  : ((AlongK ? lines - 1 : k - 1) * pitch + (AlongK ? k : lines)) * region::SIZE;
    return r;
}

/* Dwords of a chunk lie at multiples of 4 bytes, and all of a dword inside or outside. */
template <bool AlongK> MMF_DEVICE bool is_even(const region &r, long long run)
{
    const unsigned long long places = (unsigned long long)r.base | r.pitch;
    return ELEMENT > 2 || ((places & 3) == 0 && run % 2 == 0);
}

template <bool Wide>
MMF_DEVICE chunk load_chunk(descriptor from, unsigned offset, unsigned k_offset)
{
    if (Wide)
        return __builtin_amdgcn_raw_buffer_load_b128(from, (int)offset, (int)k_offset, 0);
    chunk value;
    MMF_UNROLL
    for (int i = 0; i < 4; i++) {
        const unsigned short low =
            __builtin_amdgcn_raw_buffer_load_b16(from, (int)(offset + 4 * i), (int)k_offset, 0);
        const unsigned short high =
            __builtin_amdgcn_raw_buffer_load_b16(from, (int)(offset + 4 * i + 2), (int)k_offset, 0);
        value[i] = low | (unsigned)high << 16;
    }
    return value;
}

#endif
