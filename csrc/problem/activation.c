/* Lookup of activations by name. Path of a call: asked by binding/scalars.c. */
#include "problem/activation.h"

#include <string.h>

const mmf_activation_row mmf_activations[] = {
#define MMF_ACTIVATION(id, name, parameters, default0, default1, f)                                \
    {name, MMF_ACT_##id, false, parameters, {default0, default1}},
#define MMF_GATED(id, name, parameters, default0, default1, f)                                     \
    {name, MMF_ACT_##id, true, parameters, {default0, default1}},
#define MMF_ALIAS(name, id) {name, MMF_ACT_##id, false, 0, {0, 0}},
#include "problem/activations.def"
#undef MMF_ACTIVATION
#undef MMF_GATED
#undef MMF_ALIAS
};

const int mmf_activation_rows = sizeof mmf_activations / sizeof mmf_activations[0];

const mmf_activation_row *mmf_activation_row_of(mmf_activation id)
{
    return &mmf_activations[id]; /* aliases stand last */
}

enum { LONGEST_NAME = 31 };

/* Levenshtein distance of the first LONGEST_NAME characters. */
static int edit_distance(const char *a, const char *b)
{
    int row[LONGEST_NAME + 1];
    int columns = (int)strnlen(b, LONGEST_NAME);
    for (int j = 0; j <= columns; j++)
        row[j] = j;
    for (int i = 0; i < LONGEST_NAME && a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 1; j <= columns; j++) {
            int best = diagonal + (a[i] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[columns];
}

const char *mmf_activation_nearest(const char *name)
{
    int best = 1; /* row 0 is no activation */
    for (int i = 2; i < mmf_activation_rows; i++)
        if (edit_distance(name, mmf_activations[i].name) <
            edit_distance(name, mmf_activations[best].name))
            best = i;
    return mmf_activations[best].name;
}
