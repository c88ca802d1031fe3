/* The blocked kernel for AVX-512 (F, BW, DQ, VL): float32, float64, and 16-bit operands widened to
 * float32 when they are packed. Compiled with its own flags; nothing here may run before
 * supports(). A panel is one vector wide: 14 rows x 2 panels of accumulators leave 4 of the 32
 * registers for B and the broadcast of A. Path of a call: see blocked.inc. */
#define MMF_ROW mmf_cpu_blocked_avx512
#define MMF_ROW_NAME "cpu_blocked_avx512"
#define MMF_MISSING (mmf_cpu_has_avx512() ? NULL : "AVX-512 F, BW, DQ and VL, which this CPU lacks")
#define MMF_GFLOPS 175 /* of a thread, what is not packing, on a Xeon; mmf_cpu_avx512_gflops() */
#define MMF_RATE(problem) ((void)(problem), mmf_cpu_avx512_gflops())
#define MMF_VECTOR_BYTES 64
#define MMF_MR 14
#define MMF_PLACED_MR 6
#define MMF_STRIP_UNIT 2
#define MMF_CACHE_BLOCKS
#define MMF_NARROW_PIECES 2
#define MMF_BLOCK_N 1024
#define MMF_LOCAL_M 160
#define MMF_LOCAL_WIDE_M 384
#define MMF_LOCAL_WIDEST_M 768
#define MMF_SHARED_ROWS_THREADS 1
#define MMF_BLOCK_N_LOCAL 256
#define MMF_SMALL /* code: what is large is not inlined */
#define MMF_PLAIN_COLUMNS 256
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* blind to assembly */
#define MMF_LONG_ASSEMBLY
#endif
#define MMF_ACCUMULATORS 28
/* clang-format off */
#define MMF_PLACED_TILES                                                                           \
    MMF_TILE(1, 1) MMF_TILE(1, 2) MMF_TILE(1, 4) MMF_TILE(2, 1) MMF_TILE(2, 2) MMF_TILE(2, 4)      \
    MMF_TILE(3, 1) MMF_TILE(3, 2) MMF_TILE(3, 4) MMF_TILE(4, 1) MMF_TILE(4, 2) MMF_TILE(4, 4)      \
    MMF_TILE(5, 1) MMF_TILE(5, 2) MMF_TILE(5, 4) MMF_TILE(6, 1) MMF_TILE(6, 2) MMF_TILE(6, 4)
#define MMF_PACKED_TILES                                                                           \
    MMF_TILE(2, 1) MMF_TILE(2, 2) MMF_TILE(4, 1) MMF_TILE(4, 2) MMF_TILE(6, 1) MMF_TILE(6, 2)      \
    MMF_TILE(8, 1) MMF_TILE(8, 2) MMF_TILE(10, 1) MMF_TILE(10, 2) MMF_TILE(12, 1) MMF_TILE(12, 2)  \
    MMF_TILE(14, 1) MMF_TILE(14, 2)
/* clang-format on */
#define MMF_LINE_BYTES (INT64_C(2) << 20) /* lines that are asked for ahead win from L3 too */
#define MMF_LINE_MANY(size) ((size) == 2 ? 48 : 24)
#define MMF_LINE_LONGEST 65536
#define MMF_FORM_ROWS 384
#define MMF_DOT_ROWS 24
#define MMF_DOT_BLOCKS
#define MMF_DOT_GROUP_OF_1 4
#define MMF_DOT_GROUP_OF_2 4
#define MMF_DOT_GROUP_OF_3 4
#include "cpu/kernels/blocked.inc"
