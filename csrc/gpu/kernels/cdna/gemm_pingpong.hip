/* Matrix cores of CDNA4 (gfx950), tiles of 64 to 256 rows and columns. float16 and bfloat16, float
 * sums; all lines are whole chunks of 16 bytes. pingpong_direct.h has the loop. Path of a call:
 * chosen where it is modelled as fastest; launched by gpu/launch_plan.c. */
enum { IN_PIECES = false }; /* all of k */
#include "gpu/kernels/cdna/pingpong_direct.h"
