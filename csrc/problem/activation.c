/* Names and parameters of the activations. Path of a call: asked by binding/activations.c. */
#include "problem/activation.h"

#include "problem/problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const mmf_activation_row rows[MMF_ACT_COUNT] = {
#define ROW(id, of_name, of_formula, of_source, is_gated)                                          \
    [MMF_ACT_##id].name = of_name, [MMF_ACT_##id].formula = of_formula,                            \
    [MMF_ACT_##id].source = of_source, [MMF_ACT_##id].gated = is_gated,
#define MMF_ACTIVATION(id, name, formula, source, f) ROW(id, name, formula, source, false)
#define MMF_GATED(id, name, formula, source, f) ROW(id, name, formula, source, true)
#define MMF_PARAMETER(id, index, name, value, range)                                               \
    [MMF_ACT_##id].parameter[index] = {name, value, MMF_RANGE_##range},
#include "problem/activations.def"
#undef ROW
};

const mmf_activation_name mmf_activation_names[MMF_ACTIVATION_NAMES] = {
#define MMF_ACTIVATION(id, name, formula, source, f)                                               \
    {name, MMF_ACT_##id, MMF_GATE_NONE, false, {0}},
#define MMF_GATED(id, name, formula, source, f) {name, MMF_ACT_##id, MMF_GATE_NONE, false, {0}},
#define MMF_ALIAS(name, id, layout) {name, MMF_ACT_##id, MMF_GATE_##layout, false, {0}},
#define MMF_PRESET(name, id, value0, value1)                                                       \
    {name, MMF_ACT_##id, MMF_GATE_NONE, true, {value0, value1}},
#include "problem/activations.def"
};

const mmf_activation_row *mmf_activation_row_of(mmf_activation id)
{
    return &rows[id];
}

int mmf_activation_parameters(mmf_activation id)
{
    int count = 0;
    while (count < MMF_MAX_PARAMETERS && rows[id].parameter[count].name)
        count++;
    return count;
}

mmf_activation mmf_activation_with_parameters(mmf_activation id)
{
    switch (id) {
#define MMF_WITH_PARAMETERS(id, other)                                                             \
    case MMF_ACT_##id:                                                                             \
        return MMF_ACT_##other;
#include "problem/activations.def"
    default:
        return id;
    }
}

/* "limit" of one, "low and high" of two that must be given. */
static void needed_text(const mmf_activation_row *row, char text[128])
{
    int length = 0;
    text[0] = 0;
    for (int i = 0; i < MMF_MAX_PARAMETERS && row->parameter[i].name; i++)
        if (isnan(row->parameter[i].value))
            length += snprintf(text + length, 128 - (size_t)length, "%s%s", i ? ", " : "",
                               row->parameter[i].name);
}

mmf_status mmf_activation_check(mmf_activation id, int given, double parameters[MMF_MAX_PARAMETERS])
{
    static const char *const ranges[] = {[MMF_RANGE_NOT_NEGATIVE] = "must not be negative",
                                         [MMF_RANGE_POSITIVE] = "must be positive",
                                         [MMF_RANGE_NEGATIVE] = "must be negative"};
    const mmf_activation_row *row = &rows[id];
    char text[128];
    for (int i = given; i < MMF_MAX_PARAMETERS; i++)
        parameters[i] = row->parameter[i].value;
    for (int i = 0; i < MMF_MAX_PARAMETERS && row->parameter[i].name; i++) {
        const mmf_range range = row->parameter[i].range;
        if (isnan(parameters[i])) {
            needed_text(row, text);
            return mmf_fail(MMF_VALUE_ERROR, "activation %s needs its parameters: (\"%s\", %s)",
                            row->name, row->name, text);
        }
        /* by its bits: the thread may take subnormal numbers for 0 */
        const bool zero = mmf_is_zero(parameters[i]), negative = signbit(parameters[i]) && !zero;
        if ((range == MMF_RANGE_NOT_NEGATIVE && negative) ||
            (range == MMF_RANGE_POSITIVE && (negative || zero)) ||
            (range == MMF_RANGE_NEGATIVE && !negative))
            return mmf_fail(MMF_VALUE_ERROR, "activation %s: its %s %s, got %g", row->name,
                            row->parameter[i].name, ranges[range], parameters[i]);
    }
    return MMF_OK;
}

static const char *const gate_layouts[] = {
    [MMF_GATE_NONE] = NULL,
    [MMF_GATE_HALVES] = "halves",
    [MMF_GATE_HALVES_UP_FIRST] = "halves_up_first",
    [MMF_GATE_INTERLEAVED] = "interleaved",
};

const char *mmf_gate_layout_name(mmf_gate_layout layout)
{
    return gate_layouts[layout];
}

/* Of ASCII: names have no others, and a locale's rules must not count. */
static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

int mmf_activation_find(const char *name)
{
    for (int i = 0; i < MMF_ACTIVATION_NAMES; i++) {
        const char *known = mmf_activation_names[i].name;
        int at = 0;
        while (name[at] && lower(name[at]) == known[at])
            at++;
        if (!name[at] && !known[at])
            return i;
    }
    return -1;
}

enum { LONGEST_NAME = 31, DIGIT = 3 };

/* What it costs to lose, add or change a character: a digit makes another activation of a name. */
static int cost_of(char c)
{
    return c >= '0' && c <= '9' ? DIGIT : 1;
}

static int least(int x, int y)
{
    return x < y ? x : y;
}

/* Levenshtein distance of the first LONGEST_NAME characters. */
static int edit_distance(const char *a, const char *b)
{
    int row[LONGEST_NAME + 1] = {0};
    int columns = (int)strnlen(b, LONGEST_NAME);
    for (int j = 1; j <= columns; j++)
        row[j] = row[j - 1] + cost_of(b[j - 1]);
    for (int i = 0; i < LONGEST_NAME && a[i]; i++) {
        const char from = lower(a[i]);
        int diagonal = row[0];
        row[0] += cost_of(from);
        for (int j = 1; j <= columns; j++) {
            const char to = b[j - 1];
            const int change = from == to ? 0 : cost_of(from) > 1 || cost_of(to) > 1 ? DIGIT : 1;
            const int best =
                least(diagonal + change, least(row[j] + cost_of(from), row[j - 1] + cost_of(to)));
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[columns];
}

/* Functions of other libraries that matmul_fused does not have, though their names are near. */
static const char *const others[] = {"prelu", "rrelu", "crelu", "softmax", "softmin", "sparsemax"};

const char *mmf_activation_nearest(const char *name)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (edit_distance(name, others[i]) == 0)
            return NULL;
    const int most = strnlen(name, LONGEST_NAME) < 6 ? 1 : 2;
    int best = -1, distance = most + 1;
    bool several = false;
    for (int i = 0; i < MMF_ACTIVATION_NAMES; i++) {
        const int here = edit_distance(name, mmf_activation_names[i].name);
        if (here < distance) {
            best = i, distance = here, several = false;
        } else if (best >= 0 && here == distance) {
            several |= mmf_activation_names[i].id != mmf_activation_names[best].id ||
                       mmf_activation_names[i].preset || mmf_activation_names[best].preset ||
                       mmf_activation_names[i].layout != mmf_activation_names[best].layout;
        }
    }
    return best < 0 || several ? NULL : mmf_activation_names[best].name;
}
