/* The arguments that are no arrays: scale factors, dtype, flags; activations.h has the others. Path
 * of a call: parsed first, before any operand is imported. */
#ifndef MMF_SCALARS_H
#define MMF_SCALARS_H

#include "binding/state.h"
#include "problem/problem.h"

/* A Python or NumPy real scalar. TypeError for arrays and everything else. */
mmf_status mmf_parse_scalar(PyObject *object, const char *name, double *value);

/* None, a name, a NumPy, torch or jax dtype. */
mmf_status mmf_parse_dtype(mmf_state *state, PyObject *object, const char *name, mmf_dtype *dtype);

/* True or False. */
mmf_status mmf_parse_flag(PyObject *object, const char *name, bool *flag);

#endif
