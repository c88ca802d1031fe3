/* Ids, names and parameters of the activations, generated from activations.def. Path of a call:
 * binding/ looks the name up, every layer below carries the id. */
#ifndef MMF_ACTIVATION_H
#define MMF_ACTIVATION_H

#include <stdbool.h>

typedef enum mmf_activation {
#define MMF_ACTIVATION(id, name, parameters, default0, default1, f) MMF_ACT_##id,
#define MMF_GATED(id, name, parameters, default0, default1, f) MMF_ACT_##id,
#define MMF_ALIAS(name, id)
#include "problem/activations.def"
#undef MMF_ACTIVATION
#undef MMF_GATED
#undef MMF_ALIAS
    MMF_ACT_COUNT
} mmf_activation;

#define MMF_MAX_PARAMETERS 4 /* of an activation */

typedef struct mmf_activation_row {
    const char *name;
    mmf_activation id;
    bool gated;
    int parameters;
    double defaults[MMF_MAX_PARAMETERS];
} mmf_activation_row;

extern const mmf_activation_row mmf_activations[]; /* aliases included */
extern const int mmf_activation_rows;

/* The row of an id (its first name). */
const mmf_activation_row *mmf_activation_row_of(mmf_activation id);

/* The known name nearest to a misspelt one by edit distance. */
const char *mmf_activation_nearest(const char *name);

/* Where the gate and up columns of a gated z lie. */
typedef enum mmf_gate_layout {
    MMF_GATE_NONE,            /* not gated */
    MMF_GATE_HALVES,          /* [gate | up]: vLLM, SGLang */
    MMF_GATE_HALVES_UP_FIRST, /* [up | gate]: torch's F.glu, diffusers */
    MMF_GATE_INTERLEAVED,     /* g0 u0 g1 u1 ...: gpt-oss */
    MMF_GATE_PAIR,            /* two weights: Hugging Face Llama */
} mmf_gate_layout;

#endif
