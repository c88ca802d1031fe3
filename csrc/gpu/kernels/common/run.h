/* Runs of 16 bytes of a row of the result, and memory with an end. Path of a call: what the
 * epilogue in registers loads and stores. */
#ifndef MMF_RUN_H
#define MMF_RUN_H

#include "gpu/kernels/common/device.h"

constexpr unsigned NOWHERE = 1u << 31; /* an offset beyond the end of any bounded memory */
constexpr long long MOST_BYTES = 0x7ffffff0;

/* Memory under a tile: beyond its end nothing is written, and a load gives what nobody needs. */
struct bounded_pointer {
    char *base;
    unsigned bytes;

    __attribute__((device, always_inline)) void open(char *begin, long long size)
    {
        base = begin;
        bytes = (unsigned)size;
    }

    template <class Type> __attribute__((device, always_inline)) Type load(unsigned at) const
    {
        return *(const Type *)(base + (at < bytes ? at : 0));
    }

    __attribute__((device, always_inline)) void store(unsigned at, mmf_uint4 value) const
    {
        if (at < bytes)
            *(mmf_uint4 *)(base + at) = value;
    }
};

/* 16 bytes of a row, as pairs of floats. */
template <int Dtype> struct run {
    typedef element<Dtype> form;
    typedef typename form::type type;
    enum { size = sizeof(type), count = 16 / size, pairs = count / 2 };

    static __attribute__((device, always_inline)) void unpack(mmf_uint4 bits, mmf_float2 *value)
    {
        MMF_UNROLL
        for (int i = 0; i < pairs; i++) {
            if (size == 4) {
                value[i] = (mmf_float2){float_of(bits[2 * i]), float_of(bits[2 * i + 1])};
            } else {
                value[i].x = form::template load<float>((type)bits[i]);
                value[i].y = form::template load<float>((type)(bits[i] >> 16));
            }
        }
    }

    static __attribute__((device, always_inline)) mmf_uint4 pack(const mmf_float2 *value)
    {
        mmf_uint4 bits;
        if (Dtype == MMF_GEMM_BFLOAT16)
            return pack_bfloat16(value);
        MMF_UNROLL
        for (int i = 0; i < pairs; i++) {
            if (size == 4) {
                bits[2 * i] = bits_of(value[i].x);
                bits[2 * i + 1] = bits_of(value[i].y);
            } else {
                bits[i] = (unsigned)form::store(value[i].x) | (unsigned)form::store(value[i].y)
                                                                  << 16;
            }
        }
        return bits;
    }
};

#endif
