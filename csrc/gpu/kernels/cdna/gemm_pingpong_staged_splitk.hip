/* Split-K on gfx90a and gfx942, its first launch: gemm_pingpong_staged on a piece of K, without an
 * epilogue; the pieces of a tile are workgroups along y. Path of a call: chosen where tiles are few
 * and K is long; launched by gpu/launch_plan.c, before reduce_splitk. */
enum { IN_PIECES = true }; /* of k */
#include "gpu/kernels/cdna/pingpong_staged.h"
