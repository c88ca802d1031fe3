/* The blocked kernel for bfloat16 operands on the tile registers of AMX, everything else in
 * AVX-512. Sums are float. Compiled with its own flags; nothing here may run before supports().
 * Path of a call: see blocked.inc. */
#include "cpu/kernels/amx.h"

#define MMF_ROW mmf_cpu_blocked_amx
#define MMF_ROW_NAME "cpu_blocked_amx"
#define MMF_OPERAND_DTYPES MMF_DTYPE_BIT(MMF_BFLOAT16)
#define MMF_GFLOPS 1000 /* of a thread, what is not packing, on a Xeon */
#define MMF_CHAIN_UNIT 32
#define MMF_DEPTH(size) 4096
/* Up to six rows are left to AVX-512 where B is contiguous in n and comes from memory: it reads B
 * in place, AMX would pack it. */
#define MMF_LINE_MANY(size) 6
#define MMF_LINE_WIDENED MMF_LINE_ROWS
#define MMF_LINE_ROW_BYTES(size) 524288
#define MMF_PIECE 8 /* tiles of k: those of a strip of A stay in the first cache */
#include "cpu/kernels/blocked.inc"
