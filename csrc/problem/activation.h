/* Ids, names and parameters of the activations, generated from activations.def. Path of a call:
 * binding/ looks the name up, every layer below carries the id. */
#ifndef MMF_ACTIVATION_H
#define MMF_ACTIVATION_H

#include "problem/status.h"

#include <stdbool.h>

typedef enum mmf_activation {
#define MMF_ACTIVATION(id, name, formula, source, f) MMF_ACT_##id,
#define MMF_GATED(id, name, formula, source, f) MMF_ACT_##id,
#include "problem/activations.def"
    MMF_ACT_COUNT
} mmf_activation;

enum {
    MMF_ACTIVATION_NAMES = MMF_ACT_COUNT /* and the aliases */
#define MMF_ALIAS(name, id, layout) +1
#define MMF_PRESET(name, id, value0, value1) +1
#include "problem/activations.def"
};

/* Where the gate and up columns of a gated z lie. */
typedef enum mmf_gate_layout {
    MMF_GATE_NONE,            /* not gated */
    MMF_GATE_HALVES,          /* [gate | up]: vLLM, SGLang */
    MMF_GATE_HALVES_UP_FIRST, /* [up | gate]: torch's F.glu, diffusers */
    MMF_GATE_INTERLEAVED,     /* g0 u0 g1 u1 ...: gpt-oss */
    MMF_GATE_PAIR,            /* two weights: Hugging Face Llama */
} mmf_gate_layout;

/* As gate_layout= names it, up to INTERLEAVED. */
const char *mmf_gate_layout_name(mmf_gate_layout layout);

#define MMF_MAX_PARAMETERS 4         /* of an activation */
#define MMF_NEEDED __builtin_nan("") /* in place of a default: the parameter must be given */

typedef enum mmf_range {
    MMF_RANGE_ANY,
    MMF_RANGE_NOT_NEGATIVE,
    MMF_RANGE_POSITIVE,
    MMF_RANGE_NEGATIVE
} mmf_range;

typedef struct mmf_parameter {
    const char *name; /* NULL: there is none at this index */
    double value;     /* default, or MMF_NEEDED */
    mmf_range range;
} mmf_parameter;

/* What an activation is; its parameters begin at index 0 without a gap. */
typedef struct mmf_activation_row {
    const char *name, *formula, *source;
    bool gated;
    mmf_parameter parameter[MMF_MAX_PARAMETERS];
} mmf_activation_row;

const mmf_activation_row *mmf_activation_row_of(mmf_activation id);

/* How many parameters it has. */
int mmf_activation_parameters(mmf_activation id);

/* What a name says: an activation, and for some aliases its gate layout or its parameters. */
typedef struct mmf_activation_name {
    const char *name;
    mmf_activation id;
    mmf_gate_layout layout; /* MMF_GATE_NONE: not said */
    bool preset;            /* its parameters are these */
    double value[2];
} mmf_activation_name;

/* The names of the ids, then the aliases. */
extern const mmf_activation_name mmf_activation_names[MMF_ACTIVATION_NAMES];

/* Index of a name in letters of any case, or -1. */
int mmf_activation_find(const char *name);

/* What a name means if parameters follow it: ("swiglu", limit) is another activation. */
mmf_activation mmf_activation_with_parameters(mmf_activation id);

/* Check the parameters of an activation, of which a call gave the first `given`; the others become
 * their defaults. */
mmf_status mmf_activation_check(mmf_activation id, int given,
                                double parameters[MMF_MAX_PARAMETERS]);

/* The name that an unknown one is a misspelling of; NULL where none is near, or where names of
 * several activations are. */
const char *mmf_activation_nearest(const char *name);

#endif
