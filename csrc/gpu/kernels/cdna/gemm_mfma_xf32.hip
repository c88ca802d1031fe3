/* Matrix cores of gfx942: float32 inputs rounded to 11 bits (allow_tf32), to nearest, ties to even;
 * products of these exact, float sums. The instruction was reported to truncate what has more bits
 * (docs/amd_gpus.md), so nothing that it gets has more.
 * Path of a call: chosen before gemm_mfma_f32 where allow_tf32 is set; launched by
 * gpu/launch_plan.c. */
#include "gpu/kernels/cdna/finish.h"
#include "gpu/kernels/cdna/mfma_loop.h"

/* Not of a NaN. Beyond the greatest number of 11 bits: infinity. */
MMF_DEVICE unsigned rounded(unsigned bits)
{
    return (bits + __builtin_amdgcn_ubfe(bits, 13, 1) + 0xfff) & ~0x1fffu;
}

/* A part is two k of each lane. */
struct product {
    typedef block sums;
    enum { PARTS = 2 };

    static __attribute__((device, always_inline)) block add(chunk b, chunk a, block sum, int part)
    {
        typedef float floats __attribute__((ext_vector_type(2)));
        const half_chunk of_b = part ? b.zw : b.xy, of_a = part ? a.zw : a.xy;
        return __builtin_amdgcn_mfma_f32_16x16x8_xf32((floats)of_b, (floats)of_a, sum, 0, 0, 0);
    }

    /* One comparison finds a NaN among two elements; those that there are lose their low bits. */
    template <class Carrier>
    static __attribute__((device, always_inline)) void prepare(Carrier &carrier)
    {
        enum { COUNT = sizeof carrier.next / sizeof(chunk) };
        chunk *const brought = (chunk *)&carrier.next;
        bool nan = false;
        MMF_UNROLL
        for (int i = 0; i < COUNT; i++) {
            MMF_UNROLL
            for (int d = 0; d < 4; d += 2)
                nan |= __builtin_isunordered(float_of(brought[i][d]), float_of(brought[i][d + 1]));
        }
        if (__builtin_amdgcn_ballot_w64(nan)) {
            MMF_UNROLL
            for (int i = 0; i < COUNT; i++) {
                MMF_UNROLL
                for (int d = 0; d < 4; d++) {
                    const float value = float_of(brought[i][d]);
                    brought[i][d] = value == value ? brought[i][d] : 0x7fc00000;
                }
            }
        }
        MMF_UNROLL
        for (int i = 0; i < COUNT; i++) {
            MMF_UNROLL
            for (int d = 0; d < 4; d++)
                brought[i][d] = rounded(brought[i][d]);
        }
    }
};

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    wave_sums<row, BLOCKS, BLOCKS, false> sums = {};
    find_products<product>(args, shared, sums.sum);
    const tile t = tile_of_workgroup<row>(read_again(args), shared);
    sums.finish<1>(read_again(args), t, shared, (int)wave_m(), (int)wave_n());
}
