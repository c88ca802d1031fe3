/* Outcome of every fallible function, and its text. The binding turns a status into a Python
 * exception in one place. Path of a call: every layer may fail through mmf_fail(); nobody prints or
 * aborts. */
#ifndef MMF_STATUS_H
#define MMF_STATUS_H

#include <stdlib.h> /* __GLIBC__ */

/* A thread-local of a few bytes. glibc ends the process if a new thread has no memory for those of
 * a library that was loaded at run time, unless they lie in its static block, which is small. */
#ifdef __GLIBC__
#define MMF_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define MMF_THREAD_LOCAL _Thread_local
#endif

typedef enum mmf_status {
    MMF_OK = 0,
    MMF_TYPE_ERROR,
    MMF_VALUE_ERROR,
    MMF_BUFFER_ERROR,
    MMF_NOT_IMPLEMENTED,
    MMF_NO_MEMORY,
    MMF_DEVICE_ERROR,
    MMF_GRADIENTS,    /* a ValueError: an operand wants gradients recorded */
    MMF_PYTHON_ERROR, /* a Python exception is already set */
} mmf_status;

/* Store the text of an error for this thread and return the status, so that callers write `return
 * mmf_fail(...)`. Without memory for the text it is MMF_NO_MEMORY. */
__attribute__((cold, format(printf, 2, 3))) mmf_status mmf_fail(mmf_status status,
                                                                const char *format, ...);

/* Text of this thread's latest mmf_fail(). Valid until the next one. */
const char *mmf_error_text(void);

#endif
