/* Waits: a register that a load will write may be neither read nor written before the counter that
 * covers the load was waited for. Loads of one counter return in order, except scalar loads (and
 * flat ones), which make every count but 0 useless. Tokens are counted even where the check is off:
 * races.c asks whether an access to LDS was complete.
 * Rules: docs/simulator.md; the ISA documents' chapters on manually inserted wait states. */
#include "shadow.h"

static const char *const counter_names[COUNTERS] = {"vmcnt", "lgkmcnt", "expcnt", "vscnt", "kmcnt"};

void waits_start(struct wave *w)
{
    struct wave_checks *c = w->checks;
    memset(c->issued, 0, sizeof c->issued);
    memset(c->done, 0, sizeof c->done);
    memset(c->last_disordered, 0, sizeof c->last_disordered);
    memset(c->outstanding, 0, sizeof c->outstanding);
    c->entry_first = c->entry_count = 0;
}

/* Is a register among those that wait for the counter's accesses up to this one? Accesses to LDS
 * count without one. Stores to memory do not: nothing in a kernel depends on their end. */
static bool covers(const struct wave_checks *c, int counter, uint32_t upto)
{
    if (counter != COUNTER_VM && counter != COUNTER_VS)
        return true;
    for (unsigned i = 0; i < TRACKED_WORDS; i++) {
        for (uint64_t bits = c->outstanding[i]; bits; bits &= bits - 1) {
            const struct pending *p = &c->pending[64 * i + (unsigned)__builtin_ctzll(bits)];
            if (p->counter == counter && p->token > c->done[counter] && p->token <= upto)
                return true;
        }
    }
    return false;
}

static void wait_for(struct wave *w, int counter, uint32_t left)
{
    struct wave_checks *c = w->checks;
    if (left >= c->issued[counter] - c->done[counter])
        return;
    if (left > 0 && c->last_disordered[counter] > c->done[counter])
        return; /* any of them may be among those left */
    uint32_t upto = c->issued[counter] - left;
    if (w->thread->launch->sink->executed)
        c->waited |= covers(c, counter, upto);
    c->done[counter] = upto;
}

static bool complete(const struct wave_checks *c, const struct pending *p)
{
    return p->token <= c->done[p->counter] && p->also <= c->done[COUNTER_LGKM];
}

static void name_register(unsigned reg, char name[16])
{
    static const char *const special[] = {"m0", "null", "exec_lo", "exec_hi"};
    char *s = name;
    const char *kind = reg < AGPR0 ? "v" : reg < VGPRS ? "a" : "s";
    unsigned n = reg < AGPR0 ? reg : reg < VGPRS ? reg - AGPR0 : reg - VGPRS;
    if (reg == VGPRS + SREG_VCC || reg == VGPRS + SREG_VCC + 1) {
        strcpy(name, reg == VGPRS + SREG_VCC ? "vcc_lo" : "vcc_hi");
        return;
    }
    if (reg >= VGPRS + SREG_M0 && reg < VGPRS + SREGS) {
        strcpy(name, special[reg - VGPRS - SREG_M0]);
        return;
    }
    *s++ = *kind;
    if (n >= 100)
        *s++ = (char)('0' + n / 100);
    if (n >= 10)
        *s++ = (char)('0' + n / 10 % 10);
    *s++ = (char)('0' + n % 10);
    *s = '\0';
}

/* A load may overwrite the result of an earlier one of its counter: they return in order. */
static bool in_order(const struct pending *p, const struct op *o, bool write)
{
    return write && p->also == 0 && o->counters == 1u << p->counter && p->by->class == o->class &&
           o->class != CLASS_SMEM;
}

/* A register of a load that is not known to be complete. */
static void touch(struct wave *w, const struct op *o, unsigned reg, bool write)
{
    struct wave_checks *c = w->checks;
    struct pending *p = &c->pending[reg];
    uint64_t bit = UINT64_C(1) << reg % 64;
    if (complete(c, p)) {
        c->outstanding[reg / 64] &= ~bit;
        return;
    }
    if (in_order(p, o, write))
        return;
    c->outstanding[reg / 64] &= ~bit;
    char name[16];
    name_register(reg, name);
    if (w->thread->launch->checks & HIPSIM_CHECK_WAITS)
        report(w, HIPSIM_VIOLATION_WAIT, -1,
               "%s %s before \"%s\" at 0x%x has returned: %s was not waited for",
               write ? "overwrites" : "reads", name, p->by->text, p->by->pc,
               counter_names[p->counter]);
}

void waits_before(struct wave *w, const struct op *o)
{
    struct wave_checks *c = w->checks;
    c->waited = false;
    if (o->class == CLASS_WAIT) {
        for (int i = 0; i < COUNTERS; i++) {
            uint32_t left = (uint32_t)(o->parameter >> 8 * i & 255);
            if (left != 255)
                wait_for(w, i, left);
        }
        return;
    }
    for (int i = 0; i < o->range_count; i++) {
        const struct register_range *r = &o->ranges[i];
        unsigned word = r->first / 64, bit = r->first % 64;
        uint64_t waiting = c->outstanding[word] >> bit;
        if (bit + r->count > 64)
            waiting |= c->outstanding[word + 1] << (64 - bit);
        waiting &= UINT64_MAX >> (64 - r->count);
        for (; waiting; waiting &= waiting - 1)
            touch(w, o, r->first + (unsigned)__builtin_ctzll(waiting), r->write);
    }
}

void waits_after(struct wave *w, const struct op *o)
{
    struct wave_checks *c = w->checks;
    if (!o->counters)
        return;
    for (int i = 0; i < COUNTERS; i++) {
        if (!(o->counters >> i & 1))
            continue;
        c->issued[i]++;
        if (o->class == CLASS_SMEM || (o->flags & FLAG_FLAT))
            c->last_disordered[i] = c->issued[i];
    }
    int counter = __builtin_ctz(o->counters);
    bool both = o->counters & (o->counters - 1);
    for (int i = 0; i < o->range_count; i++) {
        if (!o->ranges[i].write)
            continue;
        for (unsigned k = 0; k < o->ranges[i].count; k++) {
            unsigned reg = o->ranges[i].first + k;
            c->outstanding[reg / 64] |= UINT64_C(1) << reg % 64;
            c->pending[reg] = (struct pending){
                o, c->issued[counter], both ? c->issued[COUNTER_LGKM] : 0, (uint8_t)counter};
        }
    }
}
