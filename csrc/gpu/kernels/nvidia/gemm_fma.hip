/* float32 on the fused multiply-adds of NVIDIA GPUs: exact products, any strides and alignment.
 * Path of a call: float32 without allow_tf32, where gemm_simt would do with smaller tiles and
 * single loads; launched by gpu/launch_plan.c. The sums go to shared memory, from where either
 * epilogue takes them. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/fma_products.h"

MMF_ENTRY MMF_THREADS_PAIRED(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    float *const lines = (float *)dynamic_shared;
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    sums sum = {};
    tile t = tile_of_workgroup<row>(args, shared);
    sum_products<loop>(args, t, 0, args.k, shared, sum);
    t = ((const kept *)shared)->t; /* sums had the registers */
    put_sums(general && args.k > 0 ? (float)args.alpha : 1, lines, sum);
    barrier();
    if (!general)
        return staged_runs<row, row::threads, PITCH>::finish(args, t, 0, row::tile_m, lines);
    const staged<float, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<float>(args, all);
}
