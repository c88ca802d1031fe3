/* The blocked kernel for float16 operands on the tile registers of AMX, which take bfloat16: each
 * element is split into two bfloat16s whose sum it is, and their four products are summed in float.
 * The products are exact, as those of the other kernels are. Both operands are split when they are
 * packed, prepacked weights in each call. Compiled with its own flags; nothing here may run before
 * supports(). Path of a call: see blocked.inc. */
#include "cpu/kernels/amx.h"

#define MMF_ROW mmf_cpu_blocked_amx_split
#define MMF_ROW_NAME "cpu_blocked_amx_split"
#define MMF_SPLIT
#define MMF_OPERAND_DTYPES MMF_DTYPE_BIT(MMF_FLOAT16)
#define MMF_GFLOPS 250 /* of a thread, what is not packing, on a Xeon; see MMF_RATE */
#define MMF_RATE(problem) (is_small(problem) ? 100 : MMF_GFLOPS)
#define MMF_CHAIN_UNIT 8     /* four additions for 32 k */
#define MMF_LEAST_PRODUCTS 6 /* that take no more additions: docs/bound.md */
#define MMF_DEPTH(size) 2048
#define MMF_UNEVEN_TASKS 2
#define MMF_TURNED_LEAST 524288
#define MMF_TURNED_PACKED_LEAST 1048576
#define MMF_TURNED_PACKED_LARGE 4194304
#define MMF_PIECE 4 /* tiles of k: those of a strip of A stay in the first cache */

#include "problem/problem.h"

/* Does splitting cost more than the products save? AVX-512, which widens in registers, is then
 * faster: measured on a Xeon with AMX. */
static bool is_small(const mmf_problem *problem)
{
    const bool large = (double)problem->n * (double)problem->k >= 1 << 21;
    int64_t rows = 48; /* at least, for tiles */
    if (problem->packed)
        rows = large ? 28 : 32;
    else if (problem->strides[MMF_B].row == 1)
        rows = large ? 16 : 32; /* a large B is split as it is read */
    return problem->m < rows || problem->n < 32 || problem->k < 64;
}

#include "cpu/kernels/blocked.inc"
