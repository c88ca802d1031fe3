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

/* AVX512_BF16 besides. */
bool mmf_cpu_has_avx512_bf16(void);

/* What a thread sustains with AVX-512, 1e9 operations a second, for the cost model: measured on a
 * Xeon with AMX and on Zen 4. */
double mmf_cpu_avx512_gflops(void);

/* The same of AVX512_BF16, measured on Zen 4 and Zen 5. VDPBF16PS issues as often as an FMA on
 * AMD's CPUs (measured on Zen 5: 470 beside 236 from registers), half as often or less on Intel's
 * (83 beside 170 on a Xeon): there widening to float wins. */
double mmf_cpu_bf16_gflops(void);

/* What a thread reads from memory, for the cost model: measured on a Xeon with AMX and on Zen 4. */
double mmf_cpu_bytes_per_second(void);

/* NULL if this process may use the tiles of AMX for bfloat16, and AVX-512 beside; else what it
 * lacks. Asks the operating system for the tiles, once. */
const char *mmf_cpu_lacks_amx(void);

/* Bytes of the second cache of a core; where the system does not tell, 512 KiB. */
int64_t mmf_cpu_cache2(void);

/* Does the processor fetch what follows in memory, fast enough without being asked? Measured: Zen 4
 * does, a Xeon with AMX does not. */
bool mmf_cpu_fetches_ahead(void);

#endif
