/* The blocked kernel for the instruction set that every CPU of this architecture has: SSE2 or NEON,
 * 16-byte vectors. A panel is 4 vectors wide: 3 rows of accumulators leave 4 of the 16 registers of
 * SSE2. Path of a call: see blocked.inc. */
#define MMF_ROW mmf_cpu_blocked
#define MMF_ROW_NAME "cpu_blocked"
#define MMF_GFLOPS 22 /* of a thread, 512 x 512 x 512 on Zen 3 */
#define MMF_VECTOR_BYTES 16
#define MMF_MR 3
#define MMF_ACCUMULATORS 12
#define MMF_PLACED_TILES MMF_TILE(1, 1) MMF_TILE(1, 2) MMF_TILE(2, 1) MMF_TILE(3, 1)
#define MMF_PACKED_TILES MMF_PLACED_TILES
#define MMF_DOT_GROUP_OF_1 2
#define MMF_DOT_GROUP_OF_2 1
#define MMF_DOT_GROUP_OF_3 1
#include "cpu/kernels/blocked.inc"
