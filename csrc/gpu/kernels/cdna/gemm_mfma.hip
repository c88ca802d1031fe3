/* Matrix cores of CDNA: float16 and bfloat16 inputs, exact products, float sums. Only float16 on
 * gfx90a, which fragment.h multiplies as float32, has tiles of 64 x 64: others take so little time
 * that gemm_pingpong* and gemm_thin have the small ones.
 * Path of a call: chosen before gemm_simt on these GPUs; launched by gpu/launch_plan.c. */
#include "gpu/kernels/cdna/finish.h"
#include "gpu/kernels/cdna/mfma_loop.h"

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    wave_sums<row, BLOCKS, BLOCKS, false> sums = {};
    find_products<products<row::operands>>(args, shared, sums.sum);
    const tile t = tile_of_workgroup<row>(read_again(args), shared);
    /* Half of the rows at a time: half of the code, for one more instruction in a run. */
    sums.finish<2>(read_again(args), t, shared, (int)wave_m(), (int)wave_n());
}
