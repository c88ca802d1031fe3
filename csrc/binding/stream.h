/* The stream that a GPU call runs on. Path of a call: during the import, where an operand needs it.
 */
#ifndef MMF_STREAM_H
#define MMF_STREAM_H

#include "binding/import.h"

/* One per call. The stream is that of A's library unless stream= was given; it is found when the
 * first operand on a GPU needs it. */
typedef struct mmf_stream {
    PyObject *given;     /* stream=, borrowed; NULL: not given */
    const mmf_import *a; /* whose library decides: of a call, the first operand */
    bool runs;           /* there will be a launch: producers are to be waited for */
    bool known;
    bool ran_python; /* finding it, or telling of it, did: borrowed operands may have changed */
    mmf_device device;
    void *handle; /* NULL: the default stream */
} mmf_stream;

/* Find the stream for stream->a on this device. */
mmf_status mmf_stream_find(mmf_state *state, mmf_stream *stream, mmf_device device);

/* New reference: what __dlpack__(stream=...) of an operand on this device is to be called with. The
 * producer makes our stream wait for its work; -1 (no wait) where it works on the stream itself,
 * the call will be refused, or nothing will run. NULL with an exception. */
PyObject *mmf_stream_argument(mmf_state *state, mmf_stream *stream, const mmf_import *import,
                              DLDevice given);

/* A producer's side: the handle that a consumer's __dlpack__(stream=object) means; *wait is false
 * for -1. */
mmf_status mmf_stream_of_consumer(PyObject *object, mmf_device device, void **handle, bool *wait);

#endif
