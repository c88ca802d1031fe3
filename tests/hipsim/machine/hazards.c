/* Hazards of CDNA that hardware does not interlock: how many wait states must lie between two
 * instructions. The numbers are those of LLVM's GCNHazardRecognizer (checkMAIHazards90A,
 * checkMAIVALUHazards, checkVALUHazards, checkVMEMHazards, checkDivFMasHazards, checkDPPHazards and
 * checkReadM0Hazards); every instruction is one wait state, s_nop N is N + 1. RDNA interlocks its
 * own.
 *
 * Not checked: the workarounds of RDNA, dot products, s_setreg, v_readlane's lane operand. */
#include "shadow.h"

#define FAR (UINT64_C(1) << 40)

void hazards_start(struct wave *w)
{
    struct wave_checks *c = w->checks;
    memset(c->valu, 0, sizeof c->valu);
    memset(c->matrix, 0, sizeof c->matrix);
    memset(c->matrix_c, 0, sizeof c->matrix_c);
    memset(c->store, 0, sizeof c->store);
    c->now = 1000;
    c->m0_written = c->exec_written = 0;
}

static bool is_double(const struct op *o)
{
    return o->traits & TRAIT_F64_MATRIX;
}

/* float32 products do not run on the fast matrix pipe of gfx940 and later. */
static bool is_xdl(const struct wave *w, const struct op *o)
{
    if (is_double(o))
        return false;
    if (w->thread->launch->arch->family == HIPSIM_CDNA2)
        return true;
    return !(o->traits & TRAIT_F32);
}

static int passes(const struct op *o)
{
    return (int)o->parameter;
}

static bool is_transcendental(const struct op *o)
{
    return o->traits & TRAIT_TRANSCENDENTAL;
}

/* Wait states between an instruction at `then` and the one that is about to issue. */
static uint64_t since(const struct wave_checks *c, const struct definition *d)
{
    return d->by ? c->now - d->at - 1 : FAR;
}

static void want(struct wave *w, const struct definition *d, uint64_t needed, const char *what)
{
    uint64_t have = since(w->checks, d);
    if (have < needed)
        report(w, HIPSIM_VIOLATION_HAZARD, -1, "%s \"%s\" at 0x%x: %llu wait states, %llu needed",
               what, d->by->text, d->by->pc, (unsigned long long)have, (unsigned long long)needed);
}

/* gfx950 adds one to what takes more than two passes. */
static uint64_t late(const struct wave *w, const struct op *matrix)
{
    bool cdna4 = w->thread->launch->arch->family == HIPSIM_CDNA4;
    return cdna4 && passes(matrix) != 2 ? 1 : 0;
}

static uint64_t matrix_to_valu(const struct wave *w, const struct op *m, bool memory, bool write)
{
    if (is_double(m)) {
        if (write)
            return 11;
        return memory ? 18 : 11;
    }
    if (w->thread->launch->arch->family == HIPSIM_CDNA2)
        return passes(m) <= 2 ? 5 : passes(m) <= 8 ? 11 : 19;
    return (uint64_t)passes(m) + (is_xdl(w, m) ? 3 + late(w, m) : 2);
}

/* A matrix instruction reads in operand `which` (0 A, 1 B, 2 C) a result of another. */
static uint64_t matrix_to_matrix(const struct wave *w, const struct op *m, const struct op *o,
                                 int which)
{
    bool cdna2 = w->thread->launch->arch->family == HIPSIM_CDNA2;
    bool whole = m->dst[0].first == o->src[2].first;
    if (which != 2) {
        if (is_double(m))
            return 11;
        if (cdna2)
            return passes(m) <= 2 ? 5 : passes(m) <= 8 ? 11 : 19;
        return (uint64_t)passes(m) + (is_xdl(w, m) ? 3 + late(w, m) : 2);
    }
    if (whole)
        return !cdna2 && passes(m) == 2 ? 2 : 0;
    if (is_double(m))
        return is_xdl(w, o) ? 0 : 9;
    if (cdna2) {
        uint64_t n = passes(m) <= 2 ? 2 : passes(m) <= 8 ? 8 : 16;
        return is_double(o) ? n + 1 : n;
    }
    if (is_xdl(w, o) && !is_xdl(w, m))
        return 0;
    return (uint64_t)passes(m) + (is_xdl(w, m) ? 1 + late(w, m) : 0);
}

static void before_matrix(struct wave *w, const struct op *o)
{
    struct wave_checks *c = w->checks;
    if (c->now - c->exec_written - 1 < 4 && c->exec_written)
        report(w, HIPSIM_VIOLATION_HAZARD, -1,
               "a vector instruction wrote EXEC less than 4 wait states before");
    for (int i = 0; i < o->sources; i++) {
        if (o->src[i].kind != OPERAND_VGPR)
            continue;
        for (unsigned k = 0; k < o->src[i].registers; k++) {
            unsigned reg = o->src[i].first + k;
            if (since(c, &c->valu[reg]) < 2)
                want(w, &c->valu[reg], 2, "a matrix operand was just written by");
            struct definition *m = &c->matrix[reg];
            if (since(c, m) < 20)
                want(w, m, matrix_to_matrix(w, m->by, o, i), "a matrix operand is the result of");
        }
    }
}

static uint64_t c_read_then_written(const struct op *m)
{
    return passes(m) <= 2 ? 1 : passes(m) <= 4 ? 3 : passes(m) <= 8 ? 7 : 15;
}

static void one_register(struct wave *w, const struct op *o, unsigned reg, bool write)
{
    struct wave_checks *c = w->checks;
    bool memory = o->class != CLASS_VALU;
    struct definition *m = &c->matrix[reg];
    if (since(c, m) < 20)
        want(w, m, matrix_to_valu(w, m->by, memory, write), write ? "overwrites" : "reads");
    if (write && since(c, &c->matrix_c[reg]) < 15 && is_xdl(w, c->matrix_c[reg].by) && !memory)
        want(w, &c->matrix_c[reg], c_read_then_written(c->matrix_c[reg].by),
             "overwrites operand C of");
    bool cdna2 = w->thread->launch->arch->family == HIPSIM_CDNA2;
    if (write && !memory)
        want(w, &c->store[reg], cdna2 ? 1 : 2, "overwrites the data of");
    struct definition *v = &c->valu[reg];
    if (write || memory || since(c, v) >= 2 || cdna2)
        return;
    if (is_transcendental(v->by) && !is_transcendental(o))
        want(w, v, 1, "reads the result of");
    else if (v->by->sdwa || v->by->dst[0].half == HALF_HIGH)
        want(w, v, 1, "reads the partly written result of");
    if (o->traits & TRAIT_READS_LANE)
        want(w, v, 1, "reads across lanes the result of");
    if (o->dpp && reg == o->src[0].first)
        want(w, v, 2, "reads by DPP the result of");
}

static void scalar_register(struct wave *w, const struct op *o, unsigned reg)
{
    struct wave_checks *c = w->checks;
    struct definition *v = &c->valu[reg];
    if (since(c, v) >= 5)
        return;
    bool cdna2 = w->thread->launch->arch->family == HIPSIM_CDNA2;
    bool vcc = reg == VGPRS + SREG_VCC || reg == VGPRS + SREG_VCC + 1;
    if (o->class == CLASS_MEMORY)
        want(w, v, 5, "memory reads the scalar result of");
    else if (o->class == CLASS_VALU && vcc && (o->traits & TRAIT_DIV_FMAS))
        want(w, v, 4, "v_div_fmas reads VCC of");
    else if (o->class == CLASS_VALU && !cdna2)
        want(w, v, 2, "reads the scalar result of");
}

void hazards_before(struct wave *w, const struct op *o)
{
    struct wave_checks *c = w->checks;
    if (w->thread->launch->arch->family > HIPSIM_CDNA4)
        return;
    if (o->class == CLASS_MATRIX) {
        before_matrix(w, o);
        return;
    }
    if (o->class != CLASS_VALU && o->class != CLASS_MEMORY && o->class != CLASS_LDS)
        return;
    if (o->class == CLASS_MEMORY && (o->flags & FLAG_LDS) && c->now - c->m0_written - 1 < 1)
        report(w, HIPSIM_VIOLATION_HAZARD, -1, "M0 was written by the instruction before");
    if (o->dpp && c->exec_written && c->now - c->exec_written - 1 < 5)
        report(w, HIPSIM_VIOLATION_HAZARD, -1,
               "a vector instruction wrote EXEC less than 5 wait states before this DPP");
    for (int i = 0; i < o->range_count; i++) {
        const struct register_range *r = &o->ranges[i];
        for (unsigned k = 0; k < r->count; k++) {
            if (r->first + k < VGPRS)
                one_register(w, o, r->first + k, r->write);
            else if (!r->write)
                scalar_register(w, o, r->first + k);
        }
    }
}

/* Stores of more than 64 bits read their data late; with a scalar offset a buffer store does not.
 */
static void after_store(struct wave_checks *c, const struct op *o)
{
    bool buffer = o->traits & TRAIT_BUFFER;
    const struct operand *data = &o->src[buffer ? 0 : 1];
    if (buffer && o->src[3].kind == OPERAND_SREG)
        return;
    for (unsigned k = 0; k < data->registers && data->registers > 2; k++)
        c->store[data->first + k] = (struct definition){o, c->now};
}

void hazards_after(struct wave *w, const struct op *o)
{
    struct wave_checks *c = w->checks;
    struct definition here = {o, c->now};
    if (w->thread->launch->arch->family > HIPSIM_CDNA4)
        return;
    if (o->class == CLASS_MEMORY && (o->flags & FLAG_STORE))
        after_store(c, o);
    for (int i = 0; i < o->range_count; i++) {
        const struct register_range *r = &o->ranges[i];
        for (unsigned k = 0; k < r->count && r->write; k++) {
            unsigned reg = r->first + k;
            c->valu[reg].by = NULL;
            if (reg < VGPRS)
                c->matrix[reg] = o->class == CLASS_MATRIX ? here : (struct definition){NULL, 0};
            if (o->class == CLASS_VALU)
                c->valu[reg] = here;
            if (reg == VGPRS + SREG_M0 && o->class == CLASS_SALU)
                c->m0_written = c->now;
        }
    }
    if (o->class == CLASS_MATRIX && o->src[2].kind == OPERAND_VGPR)
        for (unsigned k = 0; k < o->src[2].registers; k++)
            c->matrix_c[o->src[2].first + k] = here;
    if (o->class == CLASS_VALU && (o->traits & TRAIT_CMPX))
        c->exec_written = c->now;
    c->now += o->traits & TRAIT_NOP ? (uint64_t)o->parameter + 1 : 1;
}
