/* The checks, called in turn; which ones a launch asked for is decided here only. */
#include "shadow.h"

#include <stdlib.h>

/* Races and waits ask each other: was the access complete? */
#define COUNTS_WAITS (HIPSIM_CHECK_WAITS | HIPSIM_CHECK_RACES)
#define WATCHES_LDS (COUNTS_WAITS | HIPSIM_CHECK_UNINITIALISED)

uint16_t traits_of(const char *name)
{
    static const struct {
        const char *start;
        uint16_t trait;
    } starts[] = {
        {"v_mfma_f64", TRAIT_F64_MATRIX},    {"v_exp_", TRAIT_TRANSCENDENTAL},
        {"v_log_", TRAIT_TRANSCENDENTAL},    {"v_rcp_", TRAIT_TRANSCENDENTAL},
        {"v_rsq_", TRAIT_TRANSCENDENTAL},    {"v_sqrt_", TRAIT_TRANSCENDENTAL},
        {"v_sin_", TRAIT_TRANSCENDENTAL},    {"v_cos_", TRAIT_TRANSCENDENTAL},
        {"v_read", TRAIT_READS_LANE},        {"v_writelane", TRAIT_WRITES_LANE},
        {"v_div_fmas", TRAIT_DIV_FMAS},      {"v_cmpx", TRAIT_CMPX},
        {"buffer_", TRAIT_BUFFER},           {"s_nop", TRAIT_NOP},
        {"v_mad_u64_u32", TRAIT_LOW_WORD},   {"v_mad_co_u64_u32", TRAIT_LOW_WORD},
        {"v_lshl_add_u64", TRAIT_LOW_WORD},  {"v_lshlrev_b64", TRAIT_LOW_WORD},
        {"v_mov_b64", TRAIT_SAME_WORD},      {"s_mov_b64", TRAIT_SAME_WORD},
        {"v_pk_add_f32", TRAIT_OP_SEL_WORD}, {"v_pk_mul_f32", TRAIT_OP_SEL_WORD},
        {"v_pk_fma_f32", TRAIT_OP_SEL_WORD}, {"v_pk_mov_b32", TRAIT_WORD_OF_EACH},
    };
    size_t length = strlen(name);
    uint16_t traits = length >= 4 && strcmp(name + length - 4, "_f32") == 0 ? TRAIT_F32 : 0;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strncmp(name, starts[i].start, strlen(starts[i].start)) == 0)
            traits |= starts[i].trait;
    return traits;
}

static bool wants(const struct launch *launch, uint32_t check)
{
    return launch->checks & check;
}

bool checks_make(struct thread *thread)
{
    struct launch *launch = thread->launch;
    struct group *group = &thread->group;
    for (int i = 0; i < group->waves; i++)
        group->wave[i].checks = NULL;
    if (!launch->checks)
        return true;
    for (int i = 0; i < group->waves; i++) {
        struct wave_checks *checks = calloc(1, sizeof *checks);
        group->wave[i].checks = checks;
        if (!checks)
            return false;
    }
    struct lds_shadow *shadow = calloc(1, sizeof *shadow);
    group->shadow = shadow;
    if (!shadow)
        return false;
    shadow->dwords = (group->lds_bytes + 3) / 4 + 1;
    shadow->cells = calloc(shadow->dwords, sizeof *shadow->cells);
    shadow->bytes = calloc(shadow->dwords, 4 * sizeof *shadow->bytes);
    shadow->leaked_readers = calloc(shadow->dwords, sizeof *shadow->leaked_readers);
    return shadow->cells && shadow->bytes && shadow->leaked_readers;
}

void checks_free(struct thread *thread)
{
    struct group *group = &thread->group;
    for (int i = 0; i < group->waves && group->wave; i++)
        free(group->wave[i].checks);
    if (!group->shadow)
        return;
    free(group->shadow->cells);
    free(group->shadow->bytes);
    free(group->shadow->leaked_readers);
    free(group->shadow);
}

void check_group_start(struct group *group)
{
    races_start(group);
}

void check_wave_start(struct wave *w)
{
    waits_start(w);
    hazards_start(w);
    defined_start(w);
}

void check_before(struct wave *w, const struct op *o)
{
    const struct launch *launch = w->thread->launch;
    if (wants(launch, COUNTS_WAITS))
        waits_before(w, o);
    if (wants(launch, HIPSIM_CHECK_HAZARDS))
        hazards_before(w, o);
    if (wants(launch, HIPSIM_CHECK_UNINITIALISED))
        defined_before(w, o);
    if (o->class != CLASS_BARRIER || !wants(launch, HIPSIM_CHECK_BARRIERS))
        return;
    if (w->exec != w->initial_exec)
        report(w, HIPSIM_VIOLATION_BARRIER, -1,
               "a barrier in divergent code: EXEC is 0x%llx of 0x%llx", (unsigned long long)w->exec,
               (unsigned long long)w->initial_exec);
}

void check_after(struct wave *w, const struct op *o)
{
    const struct launch *launch = w->thread->launch;
    if (wants(launch, COUNTS_WAITS))
        waits_after(w, o);
    if (wants(launch, HIPSIM_CHECK_HAZARDS))
        hazards_after(w, o);
    if (wants(launch, HIPSIM_CHECK_UNINITIALISED))
        defined_after(w, o);
}

bool check_waited(const struct wave *w)
{
    return w->checks->waited;
}

void check_barrier(struct group *group)
{
    if (wants(group->launch, HIPSIM_CHECK_BARRIERS)) {
        const struct wave *ended = NULL;
        struct wave *waiting = NULL;
        for (int i = 0; i < group->waves; i++) {
            if (group->wave[i].done)
                ended = &group->wave[i];
            else
                waiting = &group->wave[i];
        }
        if (ended && waiting)
            report(waiting, HIPSIM_VIOLATION_BARRIER, -1,
                   "wave %d has ended while this wave waits at a barrier", ended->index);
    }
    if (wants(group->launch, COUNTS_WAITS))
        races_barrier(group);
}

void check_lds(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes, bool write)
{
    const struct launch *launch = w->thread->launch;
    if (wants(launch, WATCHES_LDS))
        races_access(w, address, lanes, bytes, write, false);
    if (wants(launch, HIPSIM_CHECK_BANKS))
        w->thread->counters.lds_conflict_cycles += bank_conflicts(w, address, lanes, bytes, write);
}

void check_lds_dma(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes)
{
    if (wants(w->thread->launch, WATCHES_LDS))
        races_access(w, address, lanes, bytes, true, true);
}
