/* A bare loop that reads memory on some threads, which libgomp keeps: each reads one contiguous
 * part. bench_decode.py compiles it for the processor that it runs on and calls read_all. */
#include <stddef.h>

enum { BYTES = 64, LINES = 8 }; /* of a vector; vectors in flight */

typedef long long vector __attribute__((vector_size(BYTES)));

static void read_part(const char *memory, size_t bytes)
{
    vector sum[LINES] = {{0}};
    for (size_t i = 0; i + sizeof sum <= bytes; i += sizeof sum) {
#pragma GCC unroll 8
        for (size_t c = 0; c < LINES; c++)
            sum[c] += *(const vector *)(memory + i + c * BYTES);
    }
    for (size_t c = 0; c < LINES; c++)
        __asm__ volatile("" ::"m"(sum[c]));
}

/* memory: at a multiple of 64 bytes. */
void read_all(const char *memory, size_t bytes, int threads)
{
    const size_t part = (bytes + (size_t)threads - 1) / (size_t)threads / 4096 * 4096 + 4096;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        const size_t begin = (size_t)t * part;
        if (begin < bytes)
            read_part(memory + begin, bytes - begin < part ? bytes - begin : part);
    }
}
