/* Matrix cores of CDNA: float32 inputs, exact products, float sums; subnormals count (MI200's
 * matrix cores read those of 16 bits alone as 0).
 * Path of a call: chosen before gemm_simt on these GPUs; launched by gpu/launch_plan.c. */
#include "gpu/kernels/cdna/finish.h"
#include "gpu/kernels/cdna/mfma_loop.h"

/* A part is one k of each lane. */
struct product {
    typedef block sums;
    enum { PARTS = CHUNK_K };

    static __attribute__((device, always_inline)) block add(chunk b, chunk a, block sum, int part)
    {
        return __builtin_amdgcn_mfma_f32_16x16x4f32(float_of(b[part]), float_of(a[part]), sum, 0, 0,
                                                    0);
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
