/* Shared by run.c and the checks of checks.h. */
#ifndef HIPSIM_RUN_H
#define HIPSIM_RUN_H

#include "internal.h"

/* A deterministic stream (splitmix64). */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* launch.c: everything checked, the descriptor read; false with launch->sentence. */
bool launch_prepare(struct launch *launch);
/* The registers of a wave as the hardware hands them over. */
void wave_start(struct wave *w, struct group *group, int index);

#endif
