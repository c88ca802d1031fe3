/* Matrix instructions of NVIDIA GPUs from sm_80 on, fed by cp.async: float16 and bfloat16, float32
 * rounded to 11 bits (tf32), float64; any strides and alignment. Path of a call: what gemm_wgmma
 * refuses, and everything on other GPUs; launched by gpu/launch_plan.c.
 * The sums go to shared memory, from where either epilogue takes them. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/nvidia/mma_products.h"

template <class Real> struct finish {
    static __attribute__((device, always_inline)) void
    in_registers(const mmf_gemm_args &args, const tile &t, const float *lines)
    {
        staged_runs<row, row::threads, PITCH>::finish(args, t, 0, row::tile_m, lines);
    }
};

/* The host chooses the general epilogue. */
template <> struct finish<double> {
    static __attribute__((device, always_inline)) void in_registers(const mmf_gemm_args &,
                                                                    const tile &, const double *)
    {
    }
};

MMF_ENTRY MMF_THREADS_AT_ONCE(row::threads,
                              AT_ONCE) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    real *const lines = (real *)dynamic_shared;
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    sums sum = {};
    tile t = tile_of_workgroup<row>(args, shared);
    sum_products<loop>(args, t, 0, args.k, shared, sum);
    t = ((const kept *)shared)->t; /* sums had the registers */
    put_sums(general && args.k > 0 ? (real)args.alpha : 1, lines, sum);
    barrier();
    if (!general)
        return finish<real>::in_registers(args, t, lines);
    const staged<real, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<real>(args, all);
}
