/* The inner loop of a CPU kernel on operands in the first cache, beside a bare loop of the same
 * instruction on registers, and a loop that reads memory. bench_microkernel.py compiles this with
 * the flags of the row, once per row:
 *
 *     MICROKERNEL_SOURCE   the row's file below csrc, whose static functions are called here
 *
 *     microkernel FIRST_CACHE_BYTES READ_BYTES ROUNDS
 *
 * prints a line for each round: Gflop/s of the inner loop, Gflop/s of the bare loop, GB/s read. */
#include MICROKERNEL_SOURCE

#include <stdlib.h>
#include <time.h>

#ifdef MMF_PAIRS
#include "cpu/real_pairs.h"
#else
#include "cpu/real_float.h"
#endif

enum { SAMPLE_MS = 20, TURNS = 100, BARE_TURNS = 100 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* others may use the core meanwhile */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 10^9 of what one turn does, a second. The clock costs as much as a short turn: it is read after
 * many. */
#define RATE_OF(result, turns, each, ...)                                                          \
    do {                                                                                           \
        double from_ = now(), to_ = from_;                                                         \
        long done_ = 0;                                                                            \
        for (; to_ - from_ < SAMPLE_MS * 1e-3; to_ = now(), done_ += (turns))                      \
            for (int turn_ = 0; turn_ < (turns); turn_++)                                          \
                __VA_ARGS__;                                                                       \
        (result) = (double)done_ * (each) / (to_ - from_) * 1e-9;                                  \
    } while (0)

static void *aligned(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory)
        exit(1);
    memset(memory, 0x3f, bytes); /* 0.75, in pairs too: zeros would take less power */
    return memory;
}

#ifdef MMF_AMX

enum {
    ROWS = 32,
    COLUMNS = 2 * MMF_NR,
    BARE_FLOPS = 4 * 2 * 16 * 16 * 32,
#ifdef MMF_SPLIT
    PARTS = 4, /* products of bfloat16 for one of float16: all are counted */
#else
    PARTS = 1,
#endif
};

static void inner(const MMF_ELEMENT *a, const MMF_ELEMENT *b, float *to, int64_t depth)
{
    const int64_t tiles = depth / MMF_PAIR_LINE;
    const T(chain) all = {.tiles = tiles,
                          .a = a,
                          .low = a + tiles * 16 * MMF_PAIR_LINE,
                          .b = b,
                          .right = b + tiles * MMF_PAIR_TILE,
                          .a_pitch = 64,
                          .a_step = 16 * MMF_PAIR_LINE,
                          .low_step = 16 * MMF_PAIR_LINE,
                          .to = to,
                          .ld = COLUMNS};
    T(tile)(&all, true, true);
}

static void bare(void)
{
    for (int i = 0; i < BARE_TURNS; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

#else

/* The largest tile, and as many chains as the bare loop needs to hide the instruction's latency. */
enum {
    ROWS = MMF_MR,
    PANELS = MMF_ACCUMULATORS / (ROWS * MMF_VECTORS),
    COLUMNS = PANELS * MMF_NR,
    CHAINS = MMF_VECTOR_BYTES == 64 ? 24 : 12,
    PARTS = 1,
#ifdef MMF_PAIRS
    PRODUCTS = 2,
#else
    PRODUCTS = 1,
#endif
    BARE_FLOPS = CHAINS * MMF_LANES * 2 * PRODUCTS,
};

static void inner(const MMF_ELEMENT *a, const MMF_ELEMENT *b, float *to, int64_t depth)
{
    T(tile_row)
    row = {.depth = depth / PRODUCTS,
           .chain = choose_chain(MMF_DEPTH(sizeof(float)), 1) / PRODUCTS,
           .a = a,
           .b = b,
           .bks = MMF_NR,
           .bps = depth * MMF_NR,
           .to = to,
           .ld = COLUMNS,
           .result = (const char *)to};
    T(packed_tiles)[MMF_ELEMENTS][ROWS][PANELS >> 1](&row, 1);
}

static void bare(void)
{
    T(vector) sum[CHAINS] = {0};
#ifdef MMF_PAIRS
    const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f3f3f3f);
#else
    T(vector) x = (T(vector)){0} + 0.75f;
    __asm__ volatile("" : "+v"(x)); /* no constant */
#endif
    for (int i = 0; i < BARE_TURNS; i++) {
#pragma GCC unroll 32
        for (int c = 0; c < CHAINS; c++) {
#ifdef MMF_PAIRS
            sum[c] = (T(vector))_mm512_dpbf16_ps((__m512)sum[c], x, x);
#else
            sum[c] += x * x;
#endif
            __asm__ volatile("" : "+v"(sum[c]));
        }
    }
}

#endif

static void read_all(const char *memory, size_t bytes)
{
    typedef long long eight __attribute__((vector_size(MMF_VECTOR_BYTES)));
    eight sum[4] = {{0}};
    for (size_t i = 0; i < bytes; i += sizeof sum) {
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            sum[c] += *(const eight *)(memory + i + c * sizeof(eight));
    }
    __asm__ volatile("" ::"v"(sum[0] + sum[1] + sum[2] + sum[3]));
}

int main(int count, char **words)
{
    if (count != 4 || MMF_MISSING)
        return 2;
    const size_t cache = strtoull(words[1], NULL, 10),
                 bytes = strtoull(words[2], NULL, 10) & ~(size_t)255;
    const int64_t unit = 64, of_a_k = (ROWS + COLUMNS) * (int64_t)sizeof(MMF_ELEMENT);
    const int64_t units = (int64_t)cache * 3 / 4 / of_a_k / unit,
                  depth = unit * (units ? units : 1);
    MMF_ELEMENT *a = aligned((size_t)(ROWS * depth) * sizeof *a);
    MMF_ELEMENT *b = aligned((size_t)(COLUMNS * depth) * sizeof *b);
    float *to = aligned(ROWS * COLUMNS * sizeof *to);
    char *memory = aligned(bytes);
#ifdef MMF_AMX
    set_tiles(ROWS);
#endif
    for (long round = strtol(words[3], NULL, 10); round > 0; round--) {
        double products, most, read;
        RATE_OF(products, TURNS, 2.0 * PARTS * ROWS * COLUMNS * (double)depth,
                inner(a, b, to, depth));
        RATE_OF(most, TURNS, (double)BARE_FLOPS * BARE_TURNS, bare());
        RATE_OF(read, 1, (double)bytes, read_all(memory, bytes));
        printf("%g %g %g\n", products, most, read);
    }
    return 0;
}
