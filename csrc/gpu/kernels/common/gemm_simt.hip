/* The generic kernel: every dtype, layout, stride, epilogue, batch and gate, on every target, from
 * fused multiply-adds alone. float32 and float64 products are exact in the sum's type.
 * Path of a call: the family for every GPU; launched by gpu/launch_plan.c. */
#include "gpu/kernels/common/epilogue_general.h"
#include "gpu/kernels/common/epilogue_registers.h"
#include "gpu/kernels/common/simt_products.h"

static_assert(row::lds == row::tile_m * PITCH * sizeof(real) + TILE_BYTES, "kernels.def");
static_assert(PRODUCT_BYTES <= row::tile_m * PITCH * sizeof(real),
              "A and B fit where the sums come");

/* The sums times a factor into shared memory, seen by all threads. */
MMF_DEVICE void compute_tile(const mmf_gemm_args &args, const tile &t, real factor, real *lines)
{
    const int tx = thread_id() % 16, ty = thread_id() / 16;
    real4 sum[PER_THREAD] = {};
    if (args.k > 0)
        sum_products(args, t, 0, args.k, lines, ty, tx, sum);
    barrier();
    MMF_UNROLL
    for (int i = 0; i < PER_THREAD; i++)
        *(real4 *)(lines + (ty * PER_THREAD + i) * PITCH + tx * PER_THREAD) = sum[i] * factor;
    barrier();
}

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

MMF_ENTRY MMF_THREADS(row::threads) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    real *const lines = (real *)shared;
    const tile t = tile_of_workgroup<row>(args, shared);
    const bool general = args.epilogue == MMF_EPILOGUE_GENERAL;
    compute_tile(read_again(args), t, general && args.k > 0 ? (real)args.alpha : 1, lines);
    if (!general)
        return finish<real>::in_registers(read_again(args), t, lines);
    const staged<real, row::threads, row::tile_n, PITCH, all_rows> all = {lines, t, {t.rows}};
    finish_general<real>(read_again(args), all);
}
