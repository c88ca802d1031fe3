/* Matrix instructions of a warpgroup: 64 rows of A by Columns columns of B, both in shared memory
 * in swizzled lines of 128 bytes, 32 bytes along k at a time. Path of a call: the main loops of
 * gemm_wgmma and its ping-pong kernels. Descriptors and registers: the PTX ISA, wgmma.mma_async. */
#ifndef MMF_NVIDIA_WGMMA_H
#define MMF_NVIDIA_WGMMA_H

#include "gpu/kernels/common/device.h"

/* A matrix of swizzled lines. Along k: a line is 128 bytes of a row, groups of 8 rows follow each
 * other. Else, of 16-bit elements, a line is 64 rows of one k; groups of 8 k follow each other, and
 * 64 k make a block of rows.
 */
template <bool AlongK> MMF_DEVICE unsigned long long describe(unsigned address)
{
    enum { SWIZZLE_128 = 1, GROUP = 8 * 128, BLOCK = 64 * 128 };
    return (address & 0x3ffff) >> 4 | (unsigned long long)(AlongK ? 1 : BLOCK >> 4) << 16 |
           (unsigned long long)(GROUP >> 4) << 32 | (unsigned long long)SWIZZLE_128 << 62;
}

/* From an instruction's k to the next one's, in a descriptor's units. */
template <bool AlongK> MMF_DEVICE constexpr int next_k()
{
    return AlongK ? 32 >> 4 : 16 * 128 >> 4;
}

MMF_DEVICE void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

MMF_DEVICE void products_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all but the last group are done. */
MMF_DEVICE void wait_for_all_but_one()
{
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

#define MMF_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MMF_D16(d, i) MMF_D4(d, i), MMF_D4(d, i + 4), MMF_D4(d, i + 8), MMF_D4(d, i + 12)
#define MMF_D64(d, i) MMF_D16(d, i), MMF_D16(d, i + 16), MMF_D16(d, i + 32), MMF_D16(d, i + 48)

/* add_to(): sum = A B, plus what was in sum if add is not 0. */
template <int Columns, int Dtype, bool AAlongK, bool BAlongK> struct products;

#define MMF_D8(d, i) MMF_D4(d, i), MMF_D4(d, i + 4)
#define MMF_D32(d, i) MMF_D16(d, i), MMF_D16(d, i + 16)
#define MMF_SUMS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MMF_INPUTS_16 "%8, %9, add, 1, 1"
#define MMF_MAJORS_16 ", %11, %12"
#define MMF_ADD_16 "%10"
#define MMF_OUTPUTS_16 MMF_D8(sum, 0)
#define MMF_SUMS_64                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MMF_INPUTS_64 "%32, %33, add, 1, 1"
#define MMF_MAJORS_64 ", %35, %36"
#define MMF_ADD_64 "%34"
#define MMF_OUTPUTS_64 MMF_D32(sum, 0)
#define MMF_SUMS_112                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55"
#define MMF_INPUTS_112 "%56, %57, add, 1, 1"
#define MMF_MAJORS_112 ", %59, %60"
#define MMF_ADD_112 "%58"
#define MMF_OUTPUTS_112 MMF_D32(sum, 0), MMF_D16(sum, 32), MMF_D8(sum, 48)
#define MMF_SUMS_128                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MMF_INPUTS_128 "%64, %65, add, 1, 1"
#define MMF_MAJORS_128 ", %67, %68"
#define MMF_ADD_128 "%66"
#define MMF_OUTPUTS_128 MMF_D64(sum, 0)
#define MMF_SUMS_160                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define MMF_INPUTS_160 "%80, %81, add, 1, 1"
#define MMF_MAJORS_160 ", %83, %84"
#define MMF_ADD_160 "%82"
#define MMF_OUTPUTS_160 MMF_D64(sum, 0), MMF_D16(sum, 64)
#define MMF_SUMS_192                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MMF_INPUTS_192 "%96, %97, add, 1, 1"
#define MMF_MAJORS_192 ", %99, %100"
#define MMF_ADD_192 "%98"
#define MMF_OUTPUTS_192 MMF_D64(sum, 0), MMF_D32(sum, 64)
#define MMF_SUMS_224                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define MMF_INPUTS_224 "%112, %113, add, 1, 1"
#define MMF_MAJORS_224 ", %115, %116"
#define MMF_ADD_224 "%114"
#define MMF_OUTPUTS_224 MMF_D64(sum, 0), MMF_D32(sum, 64), MMF_D16(sum, 96)
#define MMF_SUMS_256                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"
#define MMF_INPUTS_256 "%128, %129, add, 1, 1"
#define MMF_MAJORS_256 ", %131, %132"
#define MMF_ADD_256 "%130"
#define MMF_OUTPUTS_256 MMF_D64(sum, 0), MMF_D64(sum, 64)

/* A and B of 16 bits may lie along either axis, which `majors` says. */
#define MMF_PRODUCTS(columns, types, majors)                                                       \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, " MMF_ADD_##columns                     \
                 ", 0;\n\t"                                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #columns types " {" MMF_SUMS_##columns        \
                 "}, " MMF_INPUTS_##columns majors ";\n\t}"                                        \
                 : MMF_OUTPUTS_##columns                                                           \
                 : "l"(a), "l"(b), "r"(add), "n"(AAlongK ? 0 : 1), "n"(BAlongK ? 0 : 1))
#define MMF_COLUMNS(columns)                                                                       \
    template <int Dtype, bool AAlongK, bool BAlongK>                                               \
    struct products<columns, Dtype, AAlongK, BAlongK> {                                            \
        static __attribute__((device, always_inline)) void                                         \
        add_to(float (&sum)[columns / 2], unsigned long long a, unsigned long long b, int add)     \
        {                                                                                          \
            if (Dtype == MMF_GEMM_FLOAT16)                                                         \
                MMF_PRODUCTS(columns, "k16.f32.f16.f16", MMF_MAJORS_##columns);                    \
            else if (Dtype == MMF_GEMM_BFLOAT16)                                                   \
                MMF_PRODUCTS(columns, "k16.f32.bf16.bf16", MMF_MAJORS_##columns);                  \
            else                                                                                   \
                MMF_PRODUCTS(columns, "k8.f32.tf32.tf32", "");                                     \
        }                                                                                          \
                                                                                                   \
        /* Until all are done; nothing reads the sums before. */                                   \
        static __attribute__((device, always_inline)) void wait(float (&sum)[columns / 2])         \
        {                                                                                          \
            asm volatile("wgmma.wait_group.sync.aligned 0;" : MMF_OUTPUTS_##columns::"memory");    \
        }                                                                                          \
                                                                                                   \
        /* Of further sums, after wait(): ptxas takes a second one for another stage. */           \
        static __attribute__((device, always_inline)) void waited(float (&sum)[columns / 2])       \
        {                                                                                          \
            asm volatile("" : MMF_OUTPUTS_##columns::"memory");                                    \
        }                                                                                          \
    };
MMF_COLUMNS(16)
MMF_COLUMNS(64)
MMF_COLUMNS(112)
MMF_COLUMNS(128)
MMF_COLUMNS(160)
MMF_COLUMNS(192)
MMF_COLUMNS(224)
MMF_COLUMNS(256)
#undef MMF_COLUMNS
#undef MMF_PRODUCTS
#undef MMF_SUMS_16
#undef MMF_INPUTS_16
#undef MMF_MAJORS_16
#undef MMF_ADD_16
#undef MMF_OUTPUTS_16
#undef MMF_SUMS_64
#undef MMF_INPUTS_64
#undef MMF_MAJORS_64
#undef MMF_ADD_64
#undef MMF_OUTPUTS_64
#undef MMF_SUMS_112
#undef MMF_INPUTS_112
#undef MMF_MAJORS_112
#undef MMF_ADD_112
#undef MMF_OUTPUTS_112
#undef MMF_SUMS_128
#undef MMF_INPUTS_128
#undef MMF_MAJORS_128
#undef MMF_ADD_128
#undef MMF_OUTPUTS_128
#undef MMF_SUMS_160
#undef MMF_INPUTS_160
#undef MMF_MAJORS_160
#undef MMF_ADD_160
#undef MMF_OUTPUTS_160
#undef MMF_SUMS_192
#undef MMF_INPUTS_192
#undef MMF_MAJORS_192
#undef MMF_ADD_192
#undef MMF_OUTPUTS_192
#undef MMF_SUMS_224
#undef MMF_INPUTS_224
#undef MMF_MAJORS_224
#undef MMF_ADD_224
#undef MMF_OUTPUTS_224
#undef MMF_SUMS_256
#undef MMF_INPUTS_256
#undef MMF_MAJORS_256
#undef MMF_ADD_256
#undef MMF_OUTPUTS_256
#undef MMF_D8
#undef MMF_D32
#undef MMF_D4
#undef MMF_D16
#undef MMF_D64

#endif
