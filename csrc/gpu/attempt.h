/* Calls of a driver on one device, with the first error kept. Path of a call: under preflight.c and
 * memory.c. */
#ifndef MMF_GPU_ATTEMPT_H
#define MMF_GPU_ATTEMPT_H

#include "gpu/driver.h"

/* The code of the first call that failed, and which one it was. */
typedef struct mmf_attempt {
    const mmf_driver *driver;
    mmf_device_scope scope;
    int ordinal, code;
    mmf_driver_call call;
} mmf_attempt;

/* Make the device current until mmf_attempt_end(). */
mmf_status mmf_attempt_begin(mmf_device device, mmf_attempt *attempt);

/* Note the result of a call; true if it and all before it succeeded. */
bool mmf_attempt_note(mmf_attempt *attempt, int code, mmf_driver_call call);

/* The first error, if there was one. */
mmf_status mmf_attempt_end(mmf_attempt *attempt);

/* May nothing be put on the stream because of a capture? Of the default stream that cannot be asked
 * while a blocking stream is being captured: then nothing may. */
bool mmf_attempt_in_capture(mmf_attempt *attempt, void *stream);

/* Is work on the stream being recorded into a graph? */
mmf_status mmf_driver_is_capturing(mmf_device device, void *stream, bool *capturing);

#endif
