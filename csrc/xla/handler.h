/* matmul_fused as XLA calls it: the second way in, beside binding/, for programs that jax.jit
 * compiled. Path of a call: under jax.jit its first stop; then problem/, plan/ and the kernel, as
 * for every other call. */
#ifndef MMF_XLA_HANDLER_H
#define MMF_XLA_HANDLER_H

#include "xla/ffi_abi.h"

/* Compute one call, of the platform that XLA calls it for. Runs on XLA's threads, any number of
 * them at a time, without the GIL; on a GPU it puts the call on XLA's stream and does not wait.
 * NULL, or XLA's error with our text. What the frame has to say:
 *   arguments    the operands, all with the same number of axes, matrix axes last
 *   results      out, then z where it is asked for
 *   attributes   operands: the names of the arguments as operands.def has them, separated by
 *                commas, "A.T" where the last two axes change places; activation: a name;
 *                gate_layout: a name or ""; alpha, beta, p0 ... p3: float64, the last ones the
 *                parameters of the activation */
mmf_ffi_error *mmf_xla_run(mmf_ffi_frame *frame);
mmf_ffi_error *mmf_xla_run_cuda(mmf_ffi_frame *frame);
mmf_ffi_error *mmf_xla_run_rocm(mmf_ffi_frame *frame);

#endif
