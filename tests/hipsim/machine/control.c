/* Branches, waits, barriers, the end of a wave, and the scalar instructions that look at the
 * machine instead of at numbers.
 * Path of a launch: the loop of run.c; a barrier and the end of a wave give the loop back. */
#include "lanes.h"
#include "run.h"

static inline void jump(struct wave *w, const struct op *o)
{
    w->next = w->thread->launch->program->ops + o->target;
}

void s_branch(struct wave *w, const struct op *o)
{
    jump(w, o);
}

#define BRANCH_IF(name, condition)                                                                 \
    void name(struct wave *w, const struct op *o)                                                  \
    {                                                                                              \
        if (condition)                                                                             \
            jump(w, o);                                                                            \
    }
BRANCH_IF(s_cbranch_scc0, !w->scc)
BRANCH_IF(s_cbranch_scc1, w->scc)
BRANCH_IF(s_cbranch_vccz, get_mask(w, SREG_VCC) == 0)
BRANCH_IF(s_cbranch_vccnz, get_mask(w, SREG_VCC) != 0)
BRANCH_IF(s_cbranch_execz, w->exec == 0)
BRANCH_IF(s_cbranch_execnz, w->exec != 0)

void s_endpgm(struct wave *w, const struct op *o)
{
    (void)o;
    w->done = true;
    w->thread->yield = true;
}

void s_barrier(struct wave *w, const struct op *o)
{
    (void)o;
    if (w->group->waves == 1) {
        w->group->epoch++;
        return;
    }
    w->at_barrier = true;
    w->thread->yield = true;
}

/* Hints, and waits that this machine's order of execution makes empty; the check of waits reads
 * the counts from op.parameter. */
void s_nop(struct wave *w, const struct op *o)
{
    (void)w, (void)o;
}

void v_nothing(struct wave *w, const struct op *o)
{
    (void)w, (void)o;
}

/* Invalidating or writing back caches: there are none. */
void cache_operation(struct wave *w, const struct op *o)
{
    (void)w, (void)o;
}

void s_getpc_b64(struct wave *w, const struct op *o)
{
    put_s64(w, o->dst[0].first, w->thread->launch->kernel->code_address + o->pc + o->bytes);
}

/* A clock that only has to move: instructions executed by the wave. */
void s_memtime(struct wave *w, const struct op *o)
{
    put_s64(w, o->dst[0].first, w->executed);
}

/* hwreg(HW_REG_MODE, ...) is kept though not obeyed: decode allows only writes that leave the modes
 * that this machine has, round to nearest and no flushing. */
void s_setreg(struct wave *w, const struct op *o)
{
    (void)w, (void)o;
}

void s_getreg_b32(struct wave *w, const struct op *o)
{
    put_s32(w, o->dst[0].first, 0);
}
