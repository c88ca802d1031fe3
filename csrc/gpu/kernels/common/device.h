/* What the two kinds of device differ in, and no vendor's header: ids, barriers, the fast
 * exponential, element conversions. Compiled by clang for AMDGPU (-x hip), for NVPTX (-x cuda), and
 * by hipRTC of ROCm 5.2 and later (LLVM 15: no __bf16, no exp2f builtin), as C++14.
 * Path of a call: under everything in this folder but gemm_args.h and kernels.def. */
#ifndef MMF_DEVICE_H
#define MMF_DEVICE_H

#include "gpu/kernels/common/gemm_args.h"

#define MMF_ENTRY extern "C" __attribute__((global))
#define MMF_SHARED __attribute__((shared, aligned(64)))
#define MMF_DYNAMIC_SHARED __attribute__((shared, aligned(1024)))
#define MMF_DEVICE static inline __attribute__((device, always_inline))
#define MMF_GLOBAL __attribute__((address_space(1)))
#define MMF_UNROLL _Pragma("unroll")
#define MMF_ROLLED _Pragma("unroll 1")

/* Vectors that may lie at any address of an element's alignment are never dereferenced: the wide
 * paths check the alignment first. */
typedef float mmf_float2 __attribute__((ext_vector_type(2)));
typedef float mmf_float8 __attribute__((ext_vector_type(8)));
typedef float mmf_float4 __attribute__((ext_vector_type(4)));
typedef double mmf_double4 __attribute__((ext_vector_type(4)));
typedef unsigned short mmf_ushort4 __attribute__((ext_vector_type(4)));
typedef unsigned mmf_uint4 __attribute__((ext_vector_type(4)));

#if defined(__NVPTX__)

#define MMF_LOADED(value) (void)0
#define MMF_BOTH_LOADED(a, b) (void)0

/* The 1: ptxas otherwise stops at 128 registers and spills in the float64 kernel. */
#define MMF_THREADS(count) __attribute__((launch_bounds(count, 1)))
/* Registers for two workgroups on a unit. */
#define MMF_THREADS_PAIRED(count) __attribute__((launch_bounds(count, 2)))
/* For so many of them. */
#define MMF_THREADS_AT_ONCE(count, workgroups) __attribute__((launch_bounds(count, workgroups)))
/* Without it clang copies the arguments to local memory. */
#define MMF_ARGUMENT const __attribute__((grid_constant))

MMF_DEVICE int thread_id()
{
    return __nvvm_read_ptx_sreg_tid_x();
}

MMF_DEVICE int workgroup_id()
{
    return __nvvm_read_ptx_sreg_ctaid_x();
}

MMF_DEVICE int workgroup_count()
{
    return __nvvm_read_ptx_sreg_nctaid_x();
}

/* Which piece of K a workgroup computes. */
MMF_DEVICE int piece_id()
{
    return __nvvm_read_ptx_sreg_ctaid_y();
}

/* Wait for every thread of the workgroup; what they wrote to shared memory is seen after it. */
MMF_DEVICE void barrier()
{
    asm volatile("bar.sync 0;" ::: "memory");
}

MMF_DEVICE const mmf_gemm_args &read_again(const mmf_gemm_args &args)
{
    return args;
}

/* An address in global memory that is the same in every thread. */
MMF_DEVICE char *uniform_global(char *address)
{
    return (char *)(MMF_GLOBAL char *)address;
}

/* 2^x, relative error <= 2^-22.5 (PTX ISA), subnormals are 0. */
MMF_DEVICE float fast_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x, error <= 1 unit in the last place (PTX ISA), subnormals are 0. */
MMF_DEVICE float fast_rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

MMF_DEVICE void keep_order()
{
}

#elif defined(__AMDGCN__)

/* The value is in a register from here on. Without it a switch loads it anew in each of its cases.
 */
#define MMF_LOADED(value) asm volatile("" : "+v"(value))
#define MMF_BOTH_LOADED(a, b) asm volatile("" : "+v"(a), "+v"(b)) /* one wait for both */

#define MMF_THREADS(count) __attribute__((amdgpu_flat_work_group_size(count, count)))
#define MMF_WAVES(count) __attribute__((amdgpu_waves_per_eu(count))) /* at least, on a SIMD */
#define MMF_ARGUMENT const

MMF_DEVICE int thread_id()
{
    return __builtin_amdgcn_workitem_id_x();
}

MMF_DEVICE int workgroup_id()
{
    return __builtin_amdgcn_workgroup_id_x();
}

MMF_DEVICE int piece_id()
{
    return __builtin_amdgcn_workgroup_id_y();
}

MMF_DEVICE void barrier()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

/* The kernel's arguments, as if never read before: without it the compiler keeps all of them in
 * scalar registers across the loops, and runs out of them. */
MMF_DEVICE const mmf_gemm_args &read_again(const mmf_gemm_args &)
{
    typedef const __attribute__((address_space(4))) mmf_gemm_args *pointer;
    pointer args = (pointer)__builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(args));
    /* Where the alignment is known, bytes are read by scalar loads, and branches on them are too.
     */
    return *(const mmf_gemm_args *)__builtin_align_down(args, 8);
}

/* An address in global memory that is the same in every thread: the compiler cannot know either. */
MMF_DEVICE char *uniform_global(char *address)
{
    const unsigned long long bits = (unsigned long long)address;
    const unsigned low = __builtin_amdgcn_readfirstlane((int)bits);
    const unsigned high = __builtin_amdgcn_readfirstlane((int)(bits >> 32));
    return (char *)(MMF_GLOBAL char *)((unsigned long long)high << 32 | low);
}

/* 2^x, error <= 1 unit in the last place (ISA manual of V_EXP_F32), subnormals may be 0. */
MMF_DEVICE float fast_exp2(float x)
{
#if __has_builtin(__builtin_amdgcn_exp2f)
    return __builtin_amdgcn_exp2f(x);
#else
    return __builtin_exp2f(x);
#endif
}

/* 1 / x, error <= 1 unit in the last place (ISA manual of V_RCP_F32), subnormals may be 0. */
MMF_DEVICE float fast_rcp(float x)
{
    return __builtin_amdgcn_rcpf(x);
}

/* Does it hold in any lane of this wave? Where a compiler cannot say: in this lane? */
MMF_DEVICE bool any_lane(bool holds)
{
#if defined(__GFX9__) && __has_builtin(__builtin_amdgcn_ballot_w64)
    return __builtin_amdgcn_ballot_w64(holds) != 0;
#elif !defined(__GFX9__) && __has_builtin(__builtin_amdgcn_ballot_w32)
    return __builtin_amdgcn_ballot_w32(holds) != 0;
#else
    return holds;
#endif
}

/* The compiler moves nothing across. */
MMF_DEVICE void keep_order()
{
#if __has_builtin(__builtin_amdgcn_sched_barrier)
    __builtin_amdgcn_sched_barrier(0);
#endif
}

#else
#error "device code is compiled for AMDGPU or NVPTX"
#endif

MMF_DEVICE unsigned bits_of(float value)
{
    unsigned bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

MMF_DEVICE float float_of(unsigned bits)
{
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

MMF_DEVICE float fused(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

MMF_DEVICE double fused(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}

/* Round to odd: cut the double to a float and keep "something was cut" in the last bit. A second
 * rounding to 22 or fewer bits then gives what one rounding from the double would have given. */
MMF_DEVICE float odd_float(double value)
{
    const float nearest = (float)value;
    const double back = nearest;
    const unsigned away = __builtin_fabs(back) > __builtin_fabs(value);
    return back != value && value == value ? float_of((bits_of(nearest) - away) | 1) : nearest;
}

MMF_DEVICE float odd_float(float value)
{
    return value;
}

/* One element of each dtype, to and from the type of the sums (float or double); to 16 bits by one
 * rounding to nearest, ties to even. NaN stays NaN. */
template <int Dtype> struct element;

template <> struct element<MMF_GEMM_FLOAT32> {
    typedef float type;
    typedef mmf_float4 type4;
    template <class Real> static __attribute__((device)) Real load(float x)
    {
        return (Real)x;
    }
    template <class Real> static __attribute__((device)) float store(Real x)
    {
        return (float)x;
    }
};

template <> struct element<MMF_GEMM_FLOAT64> {
    typedef double type;
    typedef mmf_double4 type4;
    template <class Real> static __attribute__((device)) Real load(double x)
    {
        return (Real)x;
    }
    template <class Real> static __attribute__((device)) double store(Real x)
    {
        return (double)x;
    }
};

template <> struct element<MMF_GEMM_FLOAT16> {
    typedef unsigned short type;
    typedef mmf_ushort4 type4;
    template <class Real> static __attribute__((device)) Real load(unsigned short bits)
    {
        _Float16 x;
        __builtin_memcpy(&x, &bits, sizeof x);
        return (Real)(float)x;
    }
    template <class Real> static __attribute__((device)) unsigned short store(Real value)
    {
        const _Float16 x = (_Float16)odd_float(value);
        unsigned short bits;
        __builtin_memcpy(&bits, &x, sizeof bits);
        return bits;
    }
};

template <> struct element<MMF_GEMM_BFLOAT16> {
    typedef unsigned short type;
    typedef mmf_ushort4 type4;
    template <class Real> static __attribute__((device)) Real load(unsigned short bits)
    {
        return (Real)float_of((unsigned)bits << 16);
    }
    template <class Real> static __attribute__((device)) unsigned short store(Real value)
    {
        const float x = odd_float(value);
        const unsigned bits = bits_of(x), quiet_nan = bits >> 16 | 0x40;
        return (unsigned short)(x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : quiet_nan);
    }
};

/* Eight floats as bfloat16. */
MMF_DEVICE mmf_uint4 pack_bfloat16(const mmf_float2 value[4])
{
    mmf_uint4 packed;
#if defined(__gfx950__)
    typedef __bf16 brains __attribute__((ext_vector_type(2)));
    MMF_UNROLL
    for (int i = 0; i < 4; i++) {
        const brains pair = __builtin_convertvector(value[i], brains);
        __builtin_memcpy((char *)&packed + 4 * i, &pair, sizeof pair);
    }
#elif defined(__AMDGCN__)
    /* Rounding carries out of a NaN whose upper bits are all ones: such NaNs, the greatest of their
     * sign as integers, are cut. A NaN anywhere makes this sum NaN. */
    unsigned bits[8];
    mmf_float2 all = value[0] * value[1];
    all = value[2] * value[3] + all;
    const bool mend = !(all.x == all.x && all.y == all.y);
    MMF_UNROLL
    for (int i = 0; i < 8; i++)
        bits[i] = bits_of(i % 2 ? value[i / 2].y : value[i / 2].x);
    if (__builtin_expect(any_lane(mend), 0)) {
        MMF_UNROLL
        for (int i = 0; i < 8; i++) {
            bits[i] = (int)bits[i] < 0x7fff0000 ? bits[i] : 0x7fff0000;
            bits[i] = bits[i] < 0xffff0000 ? bits[i] : 0xffff0000;
        }
    }
    MMF_UNROLL
    for (int i = 0; i < 8; i++)
        bits[i] += 0x7fff + (bits[i] >> 16 & 1);
    MMF_UNROLL
    for (int i = 0; i < 4; i++)
        packed[i] = __builtin_amdgcn_perm(bits[2 * i + 1], bits[2 * i], 0x07060302);
#else
    MMF_UNROLL
    for (int i = 0; i < 4; i++) {
        unsigned pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value[i].y), "f"(value[i].x));
        packed[i] = pair;
    }
#endif
    return packed;
}

/* The type that sums of products are kept in, of operands of a type. */
template <class Type> struct sum_type {
    typedef float type;
};
template <> struct sum_type<double> {
    typedef double type;
};

MMF_DEVICE int element_size(int dtype)
{
    switch (dtype) {
#define MMF_DTYPE(id, name, shift, code, bits, sum)                                                \
    case MMF_GEMM_##id:                                                                            \
        return 1 << (shift);
#include "problem/dtypes.def"
#undef MMF_DTYPE
    default:
        return 0;
    }
}

#endif
