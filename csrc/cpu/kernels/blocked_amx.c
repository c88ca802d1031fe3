/* The blocked kernel for bfloat16 operands on the tile registers of AMX, everything else in
 * AVX-512. Sums are float. Compiled with its own flags; nothing here may run before supports().
 * Path of a call: see blocked.inc. */
#define MMF_ROW mmf_cpu_blocked_amx
#define MMF_ROW_NAME "cpu_blocked_amx"
#define MMF_MISSING mmf_cpu_lacks_amx()
#define MMF_PAIRS
#define MMF_AMX
#define MMF_OPERAND_DTYPES MMF_DTYPE_BIT(MMF_BFLOAT16)
#define MMF_GFLOPS 1000 /* of a thread, what is not packing, on a Xeon */
#define MMF_VECTOR_BYTES 64
#define MMF_MR 32
#define MMF_PLACED_MR 0 /* every strip is as high as a packed one */
#define MMF_ROW_UNIT 16
#define MMF_DEPTH_UNIT 32
#define MMF_CHAIN_UNIT 32
#define MMF_DEPTH(size) 4096
#define MMF_CACHE_BLOCKS
#define MMF_NARROW_PIECES 4
#define MMF_NARROW_LEAST(packed) ((packed) ? 2048 : 512) /* less is done before others wake */
#define MMF_BLOCK_N 1024
#define MMF_LOCAL_M 160
#define MMF_LOCAL_MOST_M 384
#define MMF_SHARED_ROWS_THREADS 1
#define MMF_BLOCK_N_LOCAL 256
#define MMF_GROUP_COLUMNS 64
#define MMF_PACKS_GROUPS true
#define MMF_LOOKS_AHEAD false
/* Up to six rows are left to AVX-512 where B is contiguous in n and comes from memory: it reads B
 * in place, AMX would pack it. */
#define MMF_LINE_MANY(size) 6
#define MMF_LINE_WIDENED MMF_LINE_ROWS
#define MMF_LINE_ROW_BYTES(size) 524288
#define MMF_PIECE 8 /* tiles of k: those of a strip of A stay in the first cache */
#define MMF_STRIPS_SHARE 2
#define MMF_SMALL /* code: what is large is not inlined */
#define MMF_PLAIN_COLUMNS 128
#include "cpu/kernels/blocked.inc"
