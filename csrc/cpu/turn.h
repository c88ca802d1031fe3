/* Pieces of lines turned in registers: 16 lines by AVX-512, 8 by AVX2. Path of a call: packing
 * (pack.inc, pack_pairs.inc) turns operands that are contiguous in k; the AMX kernel turns sums.
 *
 * Lines a multiple of 4 KiB apart share the few places of one set of the first cache: 64 bytes of a
 * line are read at once, before another line takes its place. */
#ifndef MMF_CPU_TURN_H
#define MMF_CPU_TURN_H

#ifdef __AVX2__
#include <immintrin.h>
#include <stdint.h>

#ifdef __AVX512F__
#define MMF_TURNED 16    /* lines */
#define MMF_TURN_QUADS 4 /* at most: what registers have room for */
#define MMF_TURN_BY(operation) _mm512_##operation
typedef __m512i mmf_turned;
#else
#define MMF_TURNED 8
#define MMF_TURN_QUADS 1
#define MMF_TURN_BY(operation) _mm256_##operation
typedef __m256i mmf_turned;
#endif

/* lines[j]: 16 bytes of each of the lines j, j + 4, ...; turned[i]: their element i of four bytes,
 * of all lines. */
static inline __attribute__((always_inline)) void mmf_turn_quads(const mmf_turned *lines,
                                                                 mmf_turned *turned)
{
    const mmf_turned low01 = MMF_TURN_BY(unpacklo_epi32)(lines[0], lines[1]),
                     low23 = MMF_TURN_BY(unpacklo_epi32)(lines[2], lines[3]),
                     high01 = MMF_TURN_BY(unpackhi_epi32)(lines[0], lines[1]),
                     high23 = MMF_TURN_BY(unpackhi_epi32)(lines[2], lines[3]);
    turned[0] = MMF_TURN_BY(unpacklo_epi64)(low01, low23);
    turned[1] = MMF_TURN_BY(unpackhi_epi64)(low01, low23);
    turned[2] = MMF_TURN_BY(unpacklo_epi64)(high01, high23);
    turned[3] = MMF_TURN_BY(unpackhi_epi64)(high01, high23);
}

#ifdef __AVX512F__
/* 16 * quads bytes of 16 lines, at[line] bytes from `from`: turned[i] is element i of four bytes of
 * all lines. */
static inline __attribute__((always_inline)) void mmf_turn_lines(const int quads, const char *from,
                                                                 const int64_t *at, __m512i *turned)
{
    __m512i lines[4][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
#pragma GCC unroll 4
        for (int q = 0; q < quads; q++)
            lines[q][j] =
                _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(from + at[j]) + q));
#pragma GCC unroll 4
        for (int q = 0; q < quads; q++)
            lines[q][j] = _mm512_inserti32x4(
                lines[q][j], _mm_loadu_si128((const __m128i *)(from + at[j + 4]) + q), 1);
#pragma GCC unroll 4
        for (int q = 0; q < quads; q++)
            lines[q][j] = _mm512_inserti32x4(
                lines[q][j], _mm_loadu_si128((const __m128i *)(from + at[j + 8]) + q), 2);
#pragma GCC unroll 4
        for (int q = 0; q < quads; q++)
            lines[q][j] = _mm512_inserti32x4(
                lines[q][j], _mm_loadu_si128((const __m128i *)(from + at[j + 12]) + q), 3);
    }
#pragma GCC unroll 4
    for (int q = 0; q < quads; q++)
        mmf_turn_quads(lines[q], turned + 4 * q);
}
#else
/* The same of 8 lines, one quad of each. */
static inline __attribute__((always_inline)) void mmf_turn_lines(const int quads, const char *from,
                                                                 const int64_t *at, __m256i *turned)
{
    __m256i lines[4];
    (void)quads;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        lines[j] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(from + at[j]))),
            _mm_loadu_si128((const __m128i *)(from + at[j + 4])), 1);
    mmf_turn_quads(lines, turned);
}
#endif
#endif

#endif
