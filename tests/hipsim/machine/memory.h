/* Shared by the memory instructions: access to device memory and LDS, every one checked. */
#ifndef HIPSIM_MEMORY_H
#define HIPSIM_MEMORY_H

#include "lanes.h"

/* row.parameter of a load or store: bytes of a lane, how a narrow value lands, op.flags << 16. */
enum {
    ACCESS_BYTES = 0xff,
    ACCESS_SIGN = 1 << 8,  /* extend the sign */
    ACCESS_D16 = 1 << 9,   /* 16 bits that leave the other half of the register alone */
    ACCESS_HIGH = 1 << 10, /* the upper half of the register */
};
#define WITH(flag) ((flag) << 16)

/* The addresses of the active lanes, checked against the allocations: `good` gets the lanes that
 * may go on; the others are reported. */
uint64_t reach_lanes(struct wave *w, const uint64_t *address, uint64_t lanes, unsigned bytes,
                     bool write);
/* One access of the whole wave; NULL after a report. */
const void *reach_scalar(struct wave *w, uint64_t address, unsigned bytes);

/* The same for LDS: lanes inside it; races and banks are looked at too. */
uint64_t reach_lds(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes,
                   bool write);
uint64_t reach_lds_atomic(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes);
/* Direct to LDS: reported as outstanding until vmcnt was waited for. */
uint64_t reach_lds_dma(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes);

/* What is at the host addresses to registers, and back; only `good` lanes are touched, of a load
 * the other active lanes become zero. Writes over `address`. */
void load_lanes(struct wave *w, unsigned reg, uint64_t *address, uint64_t good, unsigned access);
void store_lanes(struct wave *w, unsigned reg, uint64_t *address, uint64_t good, unsigned access);

#endif
