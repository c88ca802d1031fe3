/* Races in LDS: between a write and any access of another wave lies a barrier, and an access was
 * complete (waited for) when its wave entered that barrier. Each dword remembers its last writer
 * and the readers since, with the epoch: the number of barriers passed. A dword that is written in
 * part is tracked by bytes from then on.
 *
 * An access that is still outstanding when its wave enters a barrier "leaks" through it: its cells
 * are marked until a later barrier finds it complete. */
#include "shadow.h"

void races_start(struct group *group)
{
    struct lds_shadow *s = group->shadow;
    if (!s->used)
        return;
    memset(s->cells, 0, s->dwords * sizeof *s->cells);
    memset(s->leaked_readers, 0, s->dwords * sizeof *s->leaked_readers);
    s->used = false;
}

static struct entry *entry_at(struct wave_checks *c, unsigned i)
{
    return &c->entries[(c->entry_first + i) % ENTRIES];
}

static bool is_done(const struct wave_checks *c, const struct entry *e)
{
    return e->token <= c->done[e->counter];
}

/* Called while the instruction runs: its token is the next one to be issued. */
static void remember(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes,
                     bool write)
{
    struct wave_checks *c = w->checks;
    while (c->entry_count && is_done(c, entry_at(c, 0)) && !entry_at(c, 0)->leaked) {
        c->entry_first++;
        c->entry_count--;
    }
    if (c->entry_count == ENTRIES) {
        c->entry_first++;
        c->entry_count--;
    }
    int counter = w->op->counters ? __builtin_ctz(w->op->counters) : COUNTER_LGKM;
    struct entry *e = entry_at(c, c->entry_count++);
    e->token = c->issued[counter] + 1;
    e->counter = (uint8_t)counter;
    e->write = write;
    e->leaked = false;
    e->bytes = (uint16_t)bytes;
    e->lanes = lanes;
    memcpy(e->address, address, sizeof e->address);
}

static void mark(struct group *group, const struct wave *w, const struct entry *e, bool leaked)
{
    struct lds_shadow *s = group->shadow;
    for (uint64_t left = e->lanes; left; left &= left - 1) {
        uint32_t at = e->address[__builtin_ctzll(left)], end = at + e->bytes;
        for (uint32_t dword = at / 4; 4 * dword < end; dword++) {
            if (!e->write) {
                uint32_t bit = 1u << w->index, *readers = &s->leaked_readers[dword];
                *readers = leaked ? *readers | bit : *readers & ~bit;
                continue;
            }
            if (s->cells[dword].writer == w->index)
                s->cells[dword].leaked = leaked;
            for (int k = 0; k < 4 && s->cells[dword].split; k++)
                if (s->bytes[4 * dword + k].writer == w->index)
                    s->bytes[4 * dword + k].leaked = leaked;
        }
    }
}

void races_barrier(struct group *group)
{
    for (int i = 0; i < group->waves; i++) {
        struct wave *w = &group->wave[i];
        struct wave_checks *c = w->checks;
        /* Complete ones first: an outstanding one may cover the same cells. */
        for (unsigned k = 0; k < c->entry_count; k++) {
            struct entry *e = entry_at(c, k);
            if (is_done(c, e) && e->leaked) {
                mark(group, w, e, false);
                e->leaked = false;
            }
        }
        for (unsigned k = 0; k < c->entry_count; k++) {
            struct entry *e = entry_at(c, k);
            if (!is_done(c, e)) {
                mark(group, w, e, true);
                e->leaked = true;
            }
        }
    }
}

struct access {
    struct wave *w;
    uint32_t at;
    int lane;
    uint32_t dma_token; /* of this access, 0 if it is none */
    uint32_t leaked_readers;
};

static bool wants(const struct wave *w, uint32_t check)
{
    return w->thread->launch->checks & check;
}

static void race(const struct access *a, const char *what, int other)
{
    if (wants(a->w, HIPSIM_CHECK_RACES))
        report(a->w, HIPSIM_VIOLATION_RACE, a->lane, "%s LDS %u, wave %d, with no barrier between",
               what, a->at, other);
}

static void incomplete(const struct access *a, const char *what, int other)
{
    if (wants(a->w, HIPSIM_CHECK_WAITS))
        report(a->w, HIPSIM_VIOLATION_WAIT, a->lane, "LDS %u: %s wave %d was not waited for", a->at,
               what, other);
}

static bool own_dma(const struct access *a, const struct cell *cell)
{
    return cell->dma_token && cell->writer == a->w->index &&
           cell->dma_token > a->w->checks->done[COUNTER_VM];
}

static void read_cell(const struct access *a, struct cell *cell)
{
    uint32_t epoch = a->w->group->epoch;
    int me = a->w->index;
    if (cell->write_epoch == 0) {
        if (wants(a->w, HIPSIM_CHECK_UNINITIALISED))
            report(a->w, HIPSIM_VIOLATION_UNINITIALISED, a->lane, "LDS %u was never written",
                   a->at);
    } else if (cell->writer != me && cell->write_epoch == epoch) {
        race(a, "reads what is written in the same phase:", cell->writer);
    } else if (cell->leaked && cell->writer != me) {
        incomplete(a, "before the barrier, the write of", cell->writer);
    } else if (own_dma(a, cell)) {
        incomplete(a, "the load straight to LDS of", me);
    }
    if (cell->read_epoch != epoch) {
        cell->read_epoch = epoch;
        cell->readers = 0;
    }
    cell->readers |= 1u << me;
}

static void write_cell(const struct access *a, struct cell *cell)
{
    uint32_t epoch = a->w->group->epoch, others = ~(1u << a->w->index);
    int me = a->w->index;
    if (cell->write_epoch == epoch && cell->writer != me)
        race(a, "writes what is written in the same phase:", cell->writer);
    else if (cell->read_epoch == epoch && (cell->readers & others))
        race(a, "writes what is read in the same phase:", __builtin_ctz(cell->readers & others));
    else if (cell->write_epoch && cell->leaked && cell->writer != me)
        incomplete(a, "before the barrier, the write of", cell->writer);
    else if (a->leaked_readers & others)
        incomplete(a, "before the barrier, the read of", __builtin_ctz(a->leaked_readers & others));
    else if (own_dma(a, cell) && !a->dma_token)
        incomplete(a, "the load straight to LDS of", me);
    cell->write_epoch = epoch;
    cell->writer = (uint8_t)me;
    cell->dma_token = a->dma_token;
    cell->leaked = false;
}

/* The usual cell: nothing to report, no partial writes, no load straight to LDS. Conditions are
 * joined by bits: one branch a cell. */
static inline bool read_plainly(struct cell *cell, uint32_t epoch, int me)
{
    bool raced = (cell->writer != me) & (cell->write_epoch == epoch);
    bool special = cell->leaked | cell->split | (cell->dma_token != 0);
    if (raced | special | (cell->write_epoch == 0))
        return false;
    cell->readers = (cell->read_epoch == epoch ? cell->readers : 0) | 1u << me;
    cell->read_epoch = epoch;
    return true;
}

static inline bool write_plainly(struct cell *cell, uint32_t epoch, int me, uint32_t leaked_readers)
{
    uint32_t readers = (cell->read_epoch == epoch ? cell->readers : 0) | leaked_readers;
    bool raced = (cell->writer != me) & (cell->write_epoch == epoch);
    bool special = cell->leaked | cell->split | (cell->dma_token != 0);
    if (raced | special | ((readers & ~(1u << me)) != 0))
        return false;
    cell->write_epoch = epoch;
    cell->writer = (uint8_t)me;
    return true;
}

static void access_dword(struct access *a, uint32_t dword, uint32_t first, uint32_t last,
                         bool write)
{
    struct lds_shadow *s = a->w->group->shadow;
    void (*act)(const struct access *, struct cell *) = write ? write_cell : read_cell;
    a->leaked_readers = s->leaked_readers[dword];
    if (last - first < 4 && write && !s->cells[dword].split) {
        for (int k = 0; k < 4; k++)
            s->bytes[4 * dword + k] = s->cells[dword];
        s->cells[dword].split = true;
    }
    if (!s->cells[dword].split) {
        a->at = 4 * dword;
        act(a, &s->cells[dword]);
        return;
    }
    for (uint32_t byte = first; byte < last; byte++) {
        a->at = byte;
        act(a, &s->bytes[byte]);
    }
}

static inline void access_lanes(struct access *a, const uint32_t *address, uint64_t lanes,
                                unsigned bytes, bool write)
{
    struct lds_shadow *s = a->w->group->shadow;
    struct cell *cells = s->cells;
    const uint32_t *leaked_readers = s->leaked_readers;
    uint32_t epoch = a->w->group->epoch;
    int me = a->w->index;
    for (uint64_t left = lanes; left; left &= left - 1) {
        a->lane = __builtin_ctzll(left);
        uint32_t at = address[a->lane], end = at + bytes, dword = at / 4;
        if (((at | bytes) & 3) == 0 && a->dma_token == 0)
            while (4 * dword < end &&
                   (write ? write_plainly(&cells[dword], epoch, me, leaked_readers[dword])
                          : read_plainly(&cells[dword], epoch, me)))
                dword++;
        for (; 4 * dword < end; dword++) {
            uint32_t first = 4 * dword > at ? 4 * dword : at;
            uint32_t last = 4 * dword + 4 < end ? 4 * dword + 4 : end;
            access_dword(a, dword, first, last, write);
        }
    }
}

void races_access(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes,
                  bool write, bool dma)
{
    struct access a = {.w = w};
    w->group->shadow->used = true;
    if (dma)
        a.dma_token = w->checks->issued[COUNTER_VM] + 1;
    if (write)
        access_lanes(&a, address, lanes, bytes, true);
    else
        access_lanes(&a, address, lanes, bytes, false);
    if (wants(w, HIPSIM_CHECK_WAITS | HIPSIM_CHECK_RACES))
        remember(w, address, lanes, bytes, write);
}
