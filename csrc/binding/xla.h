/* What matmul_fused.jax asks of the extension. Not on the path of a call: asked while jax traces.
 */
#ifndef MMF_BINDING_XLA_H
#define MMF_BINDING_XLA_H

#include "binding/state.h"

/* What the argument activation means: (name, (parameter, ...), gate layout by its name or None). */
PyObject *mmf_activation_call_of(PyObject *module, PyObject *activation);

/* ((platform of XLA, capsule of its handler), ...), as jax.ffi.register_ffi_target takes them. */
PyObject *mmf_xla_handlers(PyObject *module, PyObject *unused);

#endif
