/* Matrix cores of CDNA2 and CDNA3 (gfx90a, gfx942), tiles of 64 to 256 rows and columns. bfloat16,
 * on gfx942 float16, too; float sums; all lines are whole chunks of 16 bytes. pingpong_staged.h has
 * the loop. Path of a call: chosen where it is modelled as fastest; launched by
 * gpu/launch_plan.c. */
enum { IN_PIECES = false }; /* all of k */
#include "gpu/kernels/cdna/pingpong_staged.h"
