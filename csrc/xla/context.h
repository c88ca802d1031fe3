/* Where XLA wants a call to run: the device, and of a GPU the stream and memory beside the
 * operands. Path of a call: under jax.jit, around all that handler.c does. */
#ifndef MMF_XLA_CONTEXT_H
#define MMF_XLA_CONTEXT_H

#include "problem/status.h"
#include "problem/tensor.h"
#include "xla/ffi_abi.h"

typedef struct mmf_xla_context {
    const mmf_ffi_frame *frame;
    mmf_device device;
    void *stream;         /* of a GPU */
    void *memory;         /* XLA's, to be given back, or NULL */
    size_t bytes;         /* of it */
    mmf_ffi_error *error; /* of one of XLA's functions, which goes back to XLA as it is, or NULL */
} mmf_xla_context;

/* Find device and stream; mmf_xla_context_end() is due after a failure, too. Where *error is set
 * there is no text of ours. */
mmf_status mmf_xla_context_begin(const mmf_ffi_frame *frame, mmf_device_type type,
                                 mmf_xla_context *context);

/* A workspace of so many bytes, once for a call; *data is NULL if that is 0. */
mmf_status mmf_xla_context_allocate(mmf_xla_context *context, int64_t bytes, void **data);

/* After the launches: gives the workspace back. Returns what the call has to return, where error
 * is that of the call or NULL. */
mmf_ffi_error *mmf_xla_context_end(mmf_xla_context *context, mmf_ffi_error *error);

#endif
