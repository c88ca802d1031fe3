/* The order of a grid on a GPU of several dies, which deals its workgroups out in turn. Written by
 * the host (C11), read by device code (C++ without any header). Path of a call: from gpu/gemm.c to
 * the first step of a kernel. */
#ifndef MMF_DEAL_H
#define MMF_DEAL_H

#ifdef __cplusplus
#define MMF_OF_BOTH __attribute__((device, always_inline)) inline
#else
#define MMF_OF_BOTH static inline
#endif

/* Rows of tiles of a group (tile.h), and consecutive tiles of a die: eight columns of a group. */
enum { MMF_DEAL_ROWS = 8, MMF_DEAL_RUN = 8 * MMF_DEAL_ROWS, MMF_DEAL_MOST_DIES = 8 };

/* As many tiles as one multiplication divides among that many dies. */
#define MMF_DEAL_MOST_TILES (1ll << 29)

/* All 0: tiles stay in the order of their workgroups. */
typedef struct mmf_deal {
    unsigned dies, inverse; /* 2^32 / dies, rounded up */
    unsigned rounds, rest;  /* rounds of a whole run for every die; the run of the round after */
} mmf_deal;

/* The tile of a workgroup: those that workgroup % dies puts on one die get runs of neighbours. The
 * last ones, fewer than dies, keep their number. */
MMF_OF_BOTH unsigned mmf_dealt(const mmf_deal *deal, unsigned workgroup)
{
    const unsigned turn = (unsigned)((unsigned long long)workgroup * deal->inverse >> 32);
    const unsigned die = workgroup - turn * deal->dies, within = turn % MMF_DEAL_RUN;
    const unsigned run = turn / MMF_DEAL_RUN < deal->rounds ? MMF_DEAL_RUN : deal->rest;
    return within < run ? (turn - within) * deal->dies + die * run + within : workgroup;
}

#ifndef __cplusplus
/* For that many dies, 2 to MMF_DEAL_MOST_DIES, and tiles, below MMF_DEAL_MOST_TILES. */
static inline void mmf_deal_out(unsigned dies, unsigned tiles, mmf_deal *deal)
{
    const unsigned round = dies * MMF_DEAL_RUN;
    deal->dies = dies;
    deal->inverse = (unsigned)(((1ull << 32) + dies - 1) / dies);
    deal->rounds = tiles / round;
    deal->rest = tiles % round / dies;
}
#endif

#endif
