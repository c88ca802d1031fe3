/* What the matrix kernels of all AMD GPUs share: chunks of 16 bytes in LDS, and global memory
 * through buffer descriptors, which bound it: what lies outside is read as 0 and not written.
 * Path of a call: under the main loops and the epilogue in registers of these kernels. */
#ifndef MMF_AMD_H
#define MMF_AMD_H

#include "gpu/kernels/common/run.h"

#define MMF_LOCAL __attribute__((address_space(3)))
typedef MMF_LOCAL char *local;
typedef unsigned chunk __attribute__((ext_vector_type(4))); /* 16 bytes: 8 elements */
typedef unsigned half_chunk __attribute__((ext_vector_type(2)));

typedef __amdgpu_buffer_rsrc_t descriptor;

/* Its last word: of bytes without structure. */
#if defined(__GFX9__)
enum { RAW_BUFFER = 0x20000 };
#else
enum { RAW_BUFFER = 0x31004000 };
#endif

/* As bounded_pointer. */
struct bounded_buffer {
    descriptor memory;

    __attribute__((device, always_inline)) void open(char *base, long long bytes)
    {
        memory = __builtin_amdgcn_make_buffer_rsrc(base, 0, (int)bytes, RAW_BUFFER);
    }

    template <class Type> __attribute__((device, always_inline)) Type load(unsigned at) const
    {
        return load(at, (Type *)0);
    }

    __attribute__((device, always_inline)) void store(unsigned at, mmf_uint4 value) const
    {
        __builtin_amdgcn_raw_buffer_store_b128(value, memory, (int)at, 0, 0);
    }

  private:
    __attribute__((device, always_inline)) mmf_uint4 load(unsigned at, mmf_uint4 *) const
    {
        return __builtin_amdgcn_raw_buffer_load_b128(memory, (int)at, 0, 0);
    }

    __attribute__((device, always_inline)) float load(unsigned at, float *) const
    {
        return float_of(__builtin_amdgcn_raw_buffer_load_b32(memory, (int)at, 0, 0));
    }

    __attribute__((device, always_inline)) unsigned short load(unsigned at, unsigned short *) const
    {
        return __builtin_amdgcn_raw_buffer_load_b16(memory, (int)at, 0, 0);
    }
};

/* Of chunks of eight lines for each of four neighbouring k: line e along these k. */
MMF_DEVICE half_chunk transposed(const chunk of_k[4], unsigned e)
{
    const unsigned pick = e % 2 ? 0x07060302 : 0x05040100; /* high halves, or low */
    half_chunk value;
    value[0] = __builtin_amdgcn_perm(of_k[1][e / 2], of_k[0][e / 2], pick);
    value[1] = __builtin_amdgcn_perm(of_k[3][e / 2], of_k[2][e / 2], pick);
    return value;
}

#endif
