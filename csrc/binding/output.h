/* The result object, by the library of A. */
#ifndef MMF_OUTPUT_H
#define MMF_OUTPUT_H

#include "binding/stream.h"

/* New memory for tensor (all but data is set): a NumPy array, a torch tensor, ... as A is; sets
 * data. NULL with an exception. */
PyObject *mmf_output_new(mmf_state *state, const mmf_import *a, mmf_tensor *tensor);

/* What is returned for that memory: itself, or for JAX an array made of it. Steals object. */
PyObject *mmf_output_finish(mmf_state *state, const mmf_import *a, const mmf_tensor *tensor,
                            PyObject *object);

#endif
