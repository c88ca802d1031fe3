/* How a long call on the CPU is told to end: the calling thread is asked now and then, all threads
 * read the answer. Path of a call: made by the binding around a call that gives up the GIL, passed
 * down to the loops of every CPU kernel, which ask mmf_ends() of cpu/interrupt.h between blocks. */
#ifndef MMF_INTERRUPT_H
#define MMF_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mmf_interrupt {
    _Alignas(64) atomic_bool cancelled; /* outputs may hold anything from then on */
    /* Is the call to end? On the calling thread; may run any code, calls of matmul_fused too. */
    _Alignas(64) bool (*ask)(struct mmf_interrupt *interrupt);
    uint64_t float_mode; /* of the calling thread outside of the call, for ask() */
    int64_t work;        /* multiply-adds since the latest look at the clock */
    int64_t due;         /* when to call ask() next; 0: not one look at the clock yet */
} mmf_interrupt;

static inline bool mmf_cancelled(const mmf_interrupt *interrupt)
{
    return interrupt && atomic_load_explicit(&interrupt->cancelled, memory_order_relaxed);
}

#endif
