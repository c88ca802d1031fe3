/* The blocked kernel for bfloat16 operands on VDPBF16PS of AVX512_BF16, in AVX-512. Sums are float.
 * Compiled with its own flags; nothing here may run before supports(). The cost model prefers it
 * where the instruction is as fast as an FMA; elsewhere it can be forced. Path of a call: see
 * blocked.inc.
 *
 * VDPBF16PS takes subnormal numbers as 0, rounds to nearest and to 0 where that is subnormal
 * (docs/bound.md). A pair counts as two additions of a chain. */
#define MMF_ROW mmf_cpu_blocked_avx512_bf16
#define MMF_ROW_NAME "cpu_blocked_avx512_bf16"
#define MMF_MISSING (mmf_cpu_has_avx512_bf16() ? NULL : "AVX512_BF16, which this CPU lacks")
#define MMF_PAIRS
#define MMF_OPERAND_DTYPES MMF_DTYPE_BIT(MMF_BFLOAT16)
#define MMF_GFLOPS 300 /* of a thread, 1024 x 1024 x 1024 on Zen 5; mmf_cpu_bf16_gflops() */
#define MMF_RATE(problem) ((void)(problem), mmf_cpu_bf16_gflops())
#define MMF_VECTOR_BYTES 64
#define MMF_MR 14
#define MMF_PLACED_MR 6
#define MMF_STRIP_UNIT 2
#define MMF_DEPTH_UNIT 32
#define MMF_TILE_UNIT 2
#define MMF_DEPTH(size) 1024
#define MMF_CACHE_BLOCKS
#define MMF_NARROW_PIECES 2
#define MMF_BLOCK_N 1024
#define MMF_LOCAL_M 160
#define MMF_BLOCK_N_LOCAL 256
#define MMF_GROUP_COLUMNS 512
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
#define MMF_FORM_ROWS 384
#define MMF_LINE_LEAST 3
#define MMF_LINE_MANY(size) 48
#define MMF_LINE_NARROW(m) ((m) < 6 ? 0 : (m) <= 8 ? 16 : 64)
#define MMF_LINE_LONGEST 65536
#define MMF_DOT_ROWS 24
#define MMF_DOT_BLOCKS
#define MMF_DOT_GROUP_OF_1 4
#define MMF_DOT_GROUP_OF_2 4
#define MMF_DOT_GROUP_OF_3 2 /* 4 need all registers */
#include "cpu/kernels/blocked.inc"
