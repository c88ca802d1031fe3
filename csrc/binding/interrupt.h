/* Long computations without the GIL, which a signal handler may end. Path of a call: around the
 * kernel's run() on the CPU, and around prepack and unpack. */
#ifndef MMF_BINDING_INTERRUPT_H
#define MMF_BINDING_INTERRUPT_H

#include "binding/state.h"
#include "problem/interrupt.h"
#include "problem/status.h"

typedef struct mmf_unlocked {
    mmf_interrupt interrupt; /* its first member: ask() finds the rest by it */
    PyThreadState *thread;
} mmf_unlocked;

/* Give up the GIL. On the main thread, whoever is given &unlocked->interrupt lets Python's signal
 * handlers run now and then, which may make calls of their own, and ends where one raises. */
void mmf_unlock(mmf_unlocked *unlocked);

/* Take the GIL back. Returns status, or PYTHON_ERROR if a handler raised: what the computation was
 * to write may then hold anything. */
mmf_status mmf_lock(mmf_unlocked *unlocked, mmf_status status);

#endif
