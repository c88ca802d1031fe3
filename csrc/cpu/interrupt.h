/* Is the call to end? Asked by the loops of the CPU's kernels between blocks. Path of a call: in
 * the loops, where the call is long. */
#ifndef MMF_CPU_INTERRUPT_H
#define MMF_CPU_INTERRUPT_H

#include "problem/interrupt.h"

/* Multiply-adds between two looks at the clock, which costs less than 1 % of them, and the
 * nanoseconds between two calls of ask(). */
#define MMF_LOOK_WORK 1000000
#define MMF_ASK_NANOSECONDS 50000000

/* A look at the clock, and ask() if it is time. */
void mmf_look(mmf_interrupt *interrupt);

/* Before so many multiply-adds on a thread of the call, 0 the calling one: is it to end without
 * them? interrupt may be NULL: a short call, which nothing ends. */
static inline bool mmf_ends(mmf_interrupt *interrupt, int thread, int64_t work)
{
    if (!interrupt)
        return false;
    if (thread == 0 && (interrupt->work += work) >= MMF_LOOK_WORK)
        mmf_look(interrupt);
    return mmf_cancelled(interrupt);
}

#endif
