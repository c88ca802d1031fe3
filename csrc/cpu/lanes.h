/* The first lanes of vectors, where a line ends within one: what lies behind it is not read. Path
 * of a call: under the packing of A and B and under dot products.
 *
 * A load of no lanes from a page that does not exist takes a microsecond: none is made. */
#ifndef MMF_CPU_LANES_H
#define MMF_CPU_LANES_H

#ifdef __AVX2__
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__

/* The first n of `most` lanes, as a mask. */
static inline uint32_t mmf_first_lanes(int64_t n, int most)
{
    return (uint32_t)((UINT64_C(1) << (n < 0 ? 0 : n < most ? n : most)) - 1);
}

/* to = the first n of 32 elements of 16 bits, and zeros. */
static inline void mmf_some_halves(int64_t n, const char *from, uint16_t to[32])
{
    const __m512i zeros = _mm512_setzero_si512();
    _mm512_store_si512(to, n > 0 ? _mm512_maskz_loadu_epi16(mmf_first_lanes(n, 32), from) : zeros);
}

#else

/* The first n of eight lanes of 32 bits, as a mask. */
static inline __m256i mmf_first_words(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n of eight elements of 16 bits, and zeros. */
static inline __m128i mmf_first_halves(const char *from, int64_t n)
{
    const __m128i lane = _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7);
    if (n <= 0)
        return _mm_setzero_si128();
    if (n >= 8)
        return _mm_loadu_si128((const __m128i *)from);
    const __m128i pairs =
        _mm_maskload_epi32((const int *)from, _mm256_castsi256_si128(mmf_first_words(n / 2)));
    if (n % 2 == 0)
        return pairs;
    int16_t last;
    memcpy(&last, from + 2 * (n - 1), 2);
    return _mm_or_si128(
        pairs,
        _mm_and_si128(_mm_set1_epi16(last), _mm_cmpeq_epi16(lane, _mm_set1_epi16((short)(n - 1)))));
}

/* to = the first n of 32 elements of 16 bits, and zeros. */
static inline void mmf_some_halves(int64_t n, const char *from, uint16_t to[32])
{
    for (int i = 0; i < 32; i += 8)
        _mm_store_si128((__m128i *)(to + i), mmf_first_halves(from + 2 * i, n - i));
}

#endif
#endif

#endif
