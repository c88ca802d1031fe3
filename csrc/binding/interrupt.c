/* Signals in the middle of a long computation. Path of a call: around the kernel's run() on the
 * CPU. */
#define _GNU_SOURCE
#include "binding/interrupt.h"

#include "problem/float_mode.h"

#include <unistd.h>

/* A handler may call, and its call asks in turn. Where a timer is faster than its handler, each
 * level would begin another until the stack ends. */
#define MOST_LEVELS 16

/* Python runs signal handlers on its main thread alone, which is the first one of its process, or
 * the one that forked. */
static bool ask(mmf_interrupt *interrupt)
{
    static int levels; /* of the main thread */
    mmf_unlocked *unlocked = (mmf_unlocked *)interrupt;
    if (gettid() != getpid() || levels == MOST_LEVELS) {
        interrupt->due = INT64_MAX;
        return false;
    }
    levels++;
    const pid_t process = getpid();
    PyEval_RestoreThread(unlocked->thread);
    bool raised = PyErr_CheckSignals() != 0;
    if (!raised && getpid() != process) { /* the threads that had tasks are gone */
        PyErr_SetString(PyExc_RuntimeError,
                        "a signal handler forked in the middle of this call, which ends in the "
                        "child without a result");
        raised = true;
    }
    levels--;
    unlocked->thread = PyEval_SaveThread();
    return raised;
}

void mmf_unlock(mmf_unlocked *unlocked)
{
    unlocked->interrupt = (mmf_interrupt){.ask = ask, .float_mode = mmf_float_mode_get()};
    unlocked->thread = PyEval_SaveThread();
}

mmf_status mmf_lock(mmf_unlocked *unlocked, mmf_status status)
{
    PyEval_RestoreThread(unlocked->thread);
    return mmf_cancelled(&unlocked->interrupt) ? MMF_PYTHON_ERROR : status;
}
