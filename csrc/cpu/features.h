/* Instruction sets of this processor that kernels ask for. Path of a call: read by supports() of
 * the rows. */
#ifndef MMF_CPU_FEATURES_H
#define MMF_CPU_FEATURES_H

#include <stdbool.h>

/* AVX2, FMA and F16C, all of them, with the upper halves of the registers saved by the operating
 * system. */
bool mmf_cpu_has_avx2(void);

#endif
