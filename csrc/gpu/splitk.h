/* Split-K across workgroups, on the host: how K is cut, where the partial sums lie, and the launch
 * that adds them. Path of a call: under supports(), work() and configure() of the families
 * *_splitk, which bring the first launch. */
#ifndef MMF_GPU_SPLITK_H
#define MMF_GPU_SPLITK_H

#include "gpu/gemm.h"

/* K in pieces of so many products, and the partial sums in the workspace, in elements: [piece,
 * batch, m, pitch]. A line is the columns of z in whole fours, those of a gate behind each other.
 */
typedef struct mmf_splitk {
    int64_t piece, pieces, pitch, matrix, plane, bytes;
    mmf_dtype dtype;
} mmf_splitk;

/* False: too many bytes to count. */
bool mmf_splitk_lay_out(const mmf_problem *problem, int64_t piece, mmf_splitk *l);

/* Is there something to cut, code of the second launch, and a workspace of so many bytes? False
 * with the reason. */
bool mmf_splitk_supports(const mmf_problem *problem, int64_t bytes, char *reason);

/* Add to *work what the sums and the second launch take, besides the first one. */
void mmf_splitk_work(const mmf_splitk *l, mmf_work *work);

/* A plan of two launches: the kernel's, a workgroup for each piece of each tile, and reduce_splitk,
 * which has the epilogue. */
void mmf_splitk_configure(const mmf_kernel *kernel, const mmf_problem *problem, int64_t piece,
                          mmf_config *config);

/* The same as the last two launches of a plan, and what its bind() does for them. */
void mmf_splitk_add(mmf_launch_plan *plan, const mmf_kernel *kernel, const mmf_problem *problem,
                    const mmf_splitk *l, mmf_config *config);
mmf_status mmf_splitk_bind(const mmf_launch_plan *plan, const mmf_problem *problem,
                           const mmf_buffers *buffers, unsigned char *arguments);

#endif
