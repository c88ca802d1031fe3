/* Arguments of a METH_FASTCALL|METH_KEYWORDS function into an array of borrowed references. Path of
 * a call: first stop. */
#ifndef MMF_ARGUMENTS_H
#define MMF_ARGUMENTS_H

#include "binding/state.h"

typedef struct mmf_signature {
    const char *function;
    int required, positional,
        count; /* the first `required` must be given, the first `positional` may be positional */
    const mmf_name *names; /* names of all `count` parameters */
} mmf_signature;

/* Fill values[count]; NULL where not given. Returns 0, or -1 with TypeError. */
int mmf_parse_arguments(const mmf_state *state, const mmf_signature *signature,
                        PyObject *const *arguments, Py_ssize_t count, PyObject *keywords,
                        PyObject **values);

#endif
