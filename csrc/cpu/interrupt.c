/* Asking whether a call is to end, from the middle of its loops. Path of a call: beside the loops
 * of every CPU kernel, on the calling thread. */
#include "cpu/interrupt.h"

#include "cpu/pool.h"
#include "problem/float_mode.h"

#include <time.h>

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void mmf_look(mmf_interrupt *interrupt)
{
    const int64_t now = nanoseconds();
    const bool first = interrupt->due == 0, due = now >= interrupt->due;
    interrupt->work = 0;
    if (first || due)
        interrupt->due = now + MMF_ASK_NANOSECONDS;
    if (first || !due || mmf_cancelled(interrupt))
        return;
    /* what runs there may make calls of its own on this thread, and has its own float mode */
    const mmf_workspace workspace = mmf_pool_lay_aside();
    const uint64_t mode = mmf_float_mode_get();
    mmf_float_mode_set(interrupt->float_mode);
    if (interrupt->ask(interrupt))
        atomic_store(&interrupt->cancelled, true);
    mmf_float_mode_set(mode);
    mmf_pool_take_up(workspace);
}
