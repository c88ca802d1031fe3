/* Lines of B along n that are packed next: a processor does not foresee them, for they lie apart.
 * Path of a call: under the packing of B. */
#ifndef MMF_CPU_ASK_H
#define MMF_CPU_ASK_H

#include <stdint.h>

/* `bytes` of the line eight lines further on, for the first cache, and of that 32 lines further on,
 * for the second; lines are `pitch` bytes apart. Inlined, for GCC drops calls that only ask. */
static inline __attribute__((always_inline)) void mmf_ask_lines(const char *line, int64_t pitch,
                                                                int64_t bytes)
{
    for (int64_t b = 0; b < bytes; b += 64) {
        __builtin_prefetch(line + 8 * pitch + b);
        __builtin_prefetch(line + 32 * pitch + b, 0, 2);
    }
}

#endif
