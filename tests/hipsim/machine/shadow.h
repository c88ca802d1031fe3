/* State of the checks beside the registers and LDS of a workgroup; only the checks' own files
 * look inside. */
#ifndef HIPSIM_SHADOW_H
#define HIPSIM_SHADOW_H

#include "checks.h"

#define TRACKED_WORDS ((TRACKED + 63) / 64)
#define ENTRIES 128 /* outstanding LDS accesses that a wave remembers */

/* waits.c: a register that waits for a load. A token is complete once `done` of its counter has
 * reached it. */
struct pending {
    const struct op *by;
    uint32_t token, also; /* also: of LGKM, for flat loads, which count in both; 0: none */
    uint8_t counter;
};

/* races.c: an access to LDS that has not been waited for. */
struct entry {
    uint32_t token;
    uint8_t counter;
    bool write, leaked; /* leaked: its wave went through a barrier before it was complete */
    uint16_t bytes;
    uint64_t lanes;
    uint32_t address[LANES];
};

/* hazards.c: who wrote a register last, and when, in wait states. */
struct definition {
    const struct op *by;
    uint64_t at;
};

struct wave_checks {
    uint32_t issued[COUNTERS], done[COUNTERS];
    bool waited;                         /* the running wait had something to wait for */
    uint32_t last_disordered[COUNTERS];  /* newest token that may complete out of order */
    uint64_t outstanding[TRACKED_WORDS]; /* a bit per register below */
    struct pending pending[TRACKED];
    struct entry entries[ENTRIES]; /* a ring */
    unsigned entry_first, entry_count;
    uint64_t now; /* wait states */
    struct definition valu[TRACKED], matrix[VGPRS], matrix_c[VGPRS], store[VGPRS];
    uint64_t m0_written, exec_written;
    uint64_t defined[TRACKED]; /* defined.c: lanes of a register that hold a value */
};

/* A dword of LDS, or a byte of one that was ever written in part. Epoch 0: never. */
struct cell {
    uint32_t write_epoch, read_epoch;
    uint32_t readers;   /* waves, in read_epoch */
    uint32_t dma_token; /* of a direct-to-LDS load; 0: an ordinary write */
    uint8_t writer;
    bool leaked; /* not complete when its wave entered the last barrier */
    bool split;  /* of a dword: its bytes are tracked one by one */
};

struct lds_shadow {
    struct cell *cells, *bytes; /* bytes: valid where the dword's cell is split */
    uint32_t *leaked_readers; /* per dword: waves whose read was outstanding at the last barrier */
    uint32_t dwords;
    bool used;
};

/* waits.c */
void waits_start(struct wave *w);
void waits_before(struct wave *w, const struct op *o);
void waits_after(struct wave *w, const struct op *o);
/* races.c */
void races_start(struct group *group);
void races_barrier(struct group *group);
void races_access(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes,
                  bool write, bool dma);
/* hazards.c */
void hazards_start(struct wave *w);
void hazards_before(struct wave *w, const struct op *o);
void hazards_after(struct wave *w, const struct op *o);
/* banks.c */
unsigned bank_conflicts(const struct wave *w, const uint32_t *address, uint64_t lanes,
                        unsigned bytes, bool write);
/* defined.c */
void defined_start(struct wave *w);
void defined_before(struct wave *w, const struct op *o);
void defined_after(struct wave *w, const struct op *o);

#endif
