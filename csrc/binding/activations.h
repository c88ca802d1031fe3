/* The argument activation, and the gate layout. Path of a call: parsed first, before any operand is
 * imported. */
#ifndef MMF_BINDING_ACTIVATIONS_H
#define MMF_BINDING_ACTIVATIONS_H

#include "binding/state.h"
#include "problem/problem.h"

/* None, a name, a tuple (name, parameters...), or a function or module of another library into
 * terms->activation and terms->parameters; terms->gate_layout, where the name says it. */
mmf_status mmf_parse_activation(const mmf_state *state, PyObject *object, mmf_terms *terms);

/* None or the name of a gate layout. */
mmf_status mmf_parse_gate_layout(PyObject *object, mmf_gate_layout *layout);

/* An activation with its parameters, as a call may name it. */
typedef struct mmf_activation_call {
    int name; /* index in mmf_activation_names */
    mmf_gate_layout layout;
    int given;
    double parameters[MMF_MAX_PARAMETERS];
} mmf_activation_call;

/* A function such as torch.nn.functional.gelu, or an instance of a class such as torch.nn.SiLU,
 * known by identity. *known: whether it is. Imports nothing. */
mmf_status mmf_find_callable(PyObject *object, mmf_activation_call *call, bool *known);

#endif
