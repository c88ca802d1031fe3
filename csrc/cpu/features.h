/* Instruction sets and caches of this processor that kernels ask for. Path of a call: read by
 * supports() and configure() of the rows. */
#ifndef MMF_CPU_FEATURES_H
#define MMF_CPU_FEATURES_H

#include <stdbool.h>
#include <stdint.h>

/* AVX2, FMA and F16C, all of them, with the upper halves of the registers saved by the operating
 * system. */
bool mmf_cpu_has_avx2(void);

/* AVX-512 F, BW, DQ and VL besides, with the 32 long registers and the masks saved. */
bool mmf_cpu_has_avx512(void);

/* NULL if this process may use the tiles of AMX for bfloat16, and AVX-512 beside; else what it
 * lacks. Asks the operating system for the tiles, once. */
const char *mmf_cpu_lacks_amx(void);

/* Bytes of the second cache of a core; where the system does not tell, 512 KiB. */
int64_t mmf_cpu_cache2(void);

#endif
