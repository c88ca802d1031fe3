/* Uninitialised registers: for every register the lanes that hold a value. Copying garbage is no
 * fault, so an instruction hands undefinedness on to its result; it is reported where it comes to
 * matter: in an address, in stored data, in a scalar that steers a branch. LDS is watched by
 * races.c. The registers a wave starts with are defined by the kernel descriptor. */
#include "shadow.h"

void defined_start(struct wave *w)
{
    struct wave_checks *c = w->checks;
    memset(c->defined, 0, sizeof c->defined);
    c->defined[0] = w->initial_exec; /* v0: the work item's id */
    for (unsigned i = 0; i < w->scalars_set; i++)
        c->defined[VGPRS + i] = UINT64_MAX;
    for (unsigned i = SREG_TTMP0; i < SREGS; i++)
        c->defined[VGPRS + i] = UINT64_MAX;
    c->defined[VGPRS + SREG_M0] = 0;
}

static void name_it(struct wave *w, unsigned reg, uint64_t lanes, const char *use)
{
    const char *kind = reg < AGPR0 ? "v" : reg < VGPRS ? "a" : "s";
    unsigned n = reg < AGPR0 ? reg : reg < VGPRS ? reg - AGPR0 : reg - VGPRS;
    report(w, HIPSIM_VIOLATION_UNINITIALISED, reg < VGPRS ? __builtin_ctzll(lanes) : -1,
           "%s comes from %s%u, which was never given a value", use, kind, n);
    w->checks->defined[reg] = UINT64_MAX; /* once is enough */
}

static void must(struct wave *w, const struct operand *s, const char *use)
{
    if (s->kind != OPERAND_VGPR && s->kind != OPERAND_SREG)
        return;
    if (s->scc || (s->kind == OPERAND_SREG && s->first == SREG_NULL))
        return;
    unsigned base = s->kind == OPERAND_SREG ? VGPRS : 0;
    uint64_t wanted = s->kind == OPERAND_SREG ? UINT64_MAX : w->exec;
    for (unsigned k = 0; k < s->registers; k++) {
        uint64_t missing = wanted & ~w->checks->defined[base + s->first + k];
        if (missing)
            name_it(w, base + s->first + k, missing, use);
    }
}

void defined_before(struct wave *w, const struct op *o)
{
    const uint64_t *defined = w->checks->defined;
    switch (o->class) {
    case CLASS_SMEM:
        for (int i = 0; i < o->sources; i++)
            must(w, &o->src[i], "the address");
        break;
    case CLASS_MEMORY:
    case CLASS_LDS:
        for (int i = 0; i < o->sources; i++)
            must(w, &o->src[i], o->destinations ? "the address" : "an address or stored data");
        break;
    case CLASS_BRANCH:
        for (int i = 0; i < o->range_count; i++)
            if (o->ranges[i].first == SCC_REGISTER && !defined[SCC_REGISTER])
                name_it(w, SCC_REGISTER, 1, "the branch");
        break;
    default:
        break;
    }
}

/* Lanes for which every source is defined. A scalar counts for all of them; an instruction that
 * looks across lanes, and one that only moves lanes aside by its mask, is taken as a whole. */
static uint64_t inputs(struct wave *w, const struct op *o)
{
    const uint64_t *defined = w->checks->defined;
    uint64_t good = UINT64_MAX;
    for (int i = 0; i < o->range_count; i++) {
        const struct register_range *r = &o->ranges[i];
        if (r->write)
            continue;
        for (unsigned k = 0; k < r->count; k++)
            good &= r->first < VGPRS        ? defined[r->first + k]
                    : defined[r->first + k] ? UINT64_MAX
                                            : 0;
    }
    return good;
}

/* Lanes for which register `word` of a source is defined; a single register serves both. */
static uint64_t word_of(struct wave *w, const struct operand *s, unsigned word)
{
    const uint64_t *defined = w->checks->defined;
    unsigned reg = s->first + (s->registers > 1 ? word : 0);
    if (s->kind == OPERAND_VGPR)
        return defined[reg];
    if (s->kind != OPERAND_SREG || s->first == SREG_NULL || s->scc)
        return UINT64_MAX;
    return defined[VGPRS + reg] ? UINT64_MAX : 0;
}

/* Pairs of results that do not both look at both words of every source: compilers leave the word
 * that is not looked at undefined. False for every other instruction. */
static bool results_apart(struct wave *w, const struct op *o, uint64_t good[2])
{
    if (!(o->traits & TRAIT_WORDS) || !o->destinations || o->dst[0].registers != 2)
        return false;
    good[0] = good[1] = UINT64_MAX;
    switch (o->traits & TRAIT_WORDS) {
    case TRAIT_LOW_WORD:
        for (int i = 0; i < o->sources; i++)
            good[0] &= word_of(w, &o->src[i], 0);
        good[1] = inputs(w, o);
        break;
    case TRAIT_SAME_WORD:
        for (int i = 0; i < 2; i++)
            good[i] = word_of(w, &o->src[0], i);
        break;
    case TRAIT_OP_SEL_WORD:
        for (int i = 0; i < o->sources; i++) {
            good[0] &= word_of(w, &o->src[i], o->op_sel >> i & 1);
            good[1] &= word_of(w, &o->src[i], o->op_sel_hi >> i & 1);
        }
        break;
    case TRAIT_WORD_OF_EACH:
        for (int i = 0; i < 2; i++)
            good[i] = word_of(w, &o->src[i], o->op_sel >> i & 1);
        break;
    }
    return true;
}

/* The halves of a VOPD are two instructions: what one reads does not matter to the other's result.
 */
static void after_dual(struct wave *w, const struct op *o)
{
    uint64_t good[2];
    for (int half = 0; half < 2; half++)
        good[half] = inputs(w, &o->other[half]);
    for (int half = 0; half < 2; half++) {
        uint64_t *result = &w->checks->defined[o->other[half].dst[0].first];
        *result = (*result & ~w->exec) | (good[half] & w->exec);
    }
}

void defined_after(struct wave *w, const struct op *o)
{
    if (o->other) {
        after_dual(w, o);
        return;
    }
    uint64_t *defined = w->checks->defined;
    bool load = o->class == CLASS_SMEM || o->class == CLASS_MEMORY || o->class == CLASS_LDS;
    bool whole = o->class == CLASS_MATRIX || o->dpp || (o->traits & TRAIT_READS_LANE);
    /* x - x, x ^ x and the like give a value whatever x is. */
    bool same = o->sources == 2 && o->src[0].kind == OPERAND_VGPR &&
                o->src[0].kind == o->src[1].kind && o->src[0].first == o->src[1].first;
    uint64_t good = load || same ? UINT64_MAX : inputs(w, o), words[2];
    bool apart = results_apart(w, o, words);
    if (whole && o->class != CLASS_MATRIX && (good & w->exec))
        good = UINT64_MAX;
    for (int i = 0; i < o->range_count; i++) {
        const struct register_range *r = &o->ranges[i];
        if (!r->write)
            continue;
        for (unsigned k = 0; k < r->count; k++) {
            unsigned reg = r->first + k;
            if (reg < VGPRS && o->class != CLASS_MATRIX)
                defined[reg] = (defined[reg] & ~w->exec) | (good & w->exec);
            else if (reg < VGPRS)
                defined[reg] = good;
            else
                defined[reg] = (good & w->exec) == w->exec || o->class == CLASS_SALU
                                   ? (good ? UINT64_MAX : 0)
                                   : 0;
        }
    }
    for (unsigned k = 0; apart && k < 2; k++) {
        bool scalar = o->dst[0].kind == OPERAND_SREG;
        uint64_t *result = &defined[(scalar ? VGPRS : 0) + o->dst[0].first + k];
        *result = scalar ? words[k] : (*result & ~w->exec) | (words[k] & w->exec);
    }
    if (o->traits & TRAIT_WRITES_LANE)
        defined[o->dst[0].first] = UINT64_MAX; /* one lane; the others are read by v_readlane */
    defined[VGPRS + SREG_EXEC] = defined[VGPRS + SREG_EXEC + 1] = UINT64_MAX;
}
