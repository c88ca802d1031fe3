/* The blocked kernel for AVX2 + FMA + F16C. Compiled with -mavx2 -mfma -mf16c; nothing here may run
 * before supports(). 6 rows x 2 vectors of accumulators leave 4 of the 16 registers for B and the
 * broadcast of A. Path of a call: see blocked.inc. */
#define MMF_ROW mmf_cpu_blocked_avx2
#define MMF_ROW_NAME "cpu_blocked_avx2"
#define MMF_MISSING (mmf_cpu_has_avx2() ? NULL : "AVX2, FMA and F16C, which this CPU lacks")
#define MMF_GFLOPS 78 /* of a thread, 512 x 512 x 512 on Zen 3 */
#define MMF_VECTOR_BYTES 32
#define MMF_MR 6
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* blind to assembly */
#define MMF_SIX_ROW_ASSEMBLY
#endif
#define MMF_PACKS_GROUPS true
#define MMF_LOCAL_WIDE_M 256
#define MMF_ACCUMULATORS 12
#define MMF_FORM_ROWS 384
#define MMF_SHORTS_ROWS 18 /* of two instructions each: more are slow on a shared core */
/* clang-format off */
#define MMF_PLACED_TILES                                                                                  \
    MMF_TILE(1, 1) MMF_TILE(1, 2) MMF_TILE(1, 4) MMF_TILE(2, 1) MMF_TILE(2, 2) MMF_TILE(3, 1)      \
    MMF_TILE(3, 2) MMF_TILE(4, 1) MMF_TILE(5, 1) MMF_TILE(6, 1)
/* clang-format on */
#define MMF_PACKED_TILES MMF_PLACED_TILES
#define MMF_DOT_GROUP_OF_1 4
#define MMF_DOT_GROUP_OF_2 2
#define MMF_DOT_GROUP_OF_3 2
#include "cpu/kernels/blocked.inc"
