/* The result object, by the library of A. Path of a call: after the plan, before the run. */
#ifndef MMF_OUTPUT_H
#define MMF_OUTPUT_H

#include "binding/import.h"

/* A result while the kernel writes it: an object, or memory that A's library will make one of. */
typedef struct mmf_output {
    PyObject *object;                  /* owned, or NULL */
    DLManagedTensorVersioned *managed; /* owned, or NULL */
    bool ran_python;                   /* it may have: imports are to be rechecked */
} mmf_output;

/* New memory for tensor (all but data is set), as A's library will want it, on a GPU for work on
 * stream; sets data. */
mmf_status mmf_output_new(mmf_state *state, const mmf_import *a, mmf_tensor *tensor, void *stream,
                          mmf_output *output);

/* What is returned for that memory: a NumPy array, a torch tensor, ... as A is. Takes the memory
 * over. To make an object may run Python (a garbage collection), so it comes after the kernel.
 * NULL with an exception. */
PyObject *mmf_output_finish(mmf_state *state, const mmf_import *a, mmf_output *output);

/* Make that object before the kernel: its library is to hear of the kernel's stream. */
mmf_status mmf_output_make_object(mmf_state *state, const mmf_import *a, mmf_output *output);

/* Give up memory of which no object is to be made. */
void mmf_output_drop(mmf_output *output);

#endif
