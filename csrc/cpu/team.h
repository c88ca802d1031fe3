/* The threads of the process's OpenMP runtime, lent for a job of the pool. They wait actively
 * between two parallel regions: beside them, threads of our own would share their processors.
 * Path of a call: under mmf_pool_run(). */
#ifndef MMF_CPU_TEAM_H
#define MMF_CPU_TEAM_H

#include <stdbool.h>

/* Look for an OpenMP runtime among the process's global symbols, once. For a program that computes
 * with torch, which makes its runtime global. Not used in a process that was forked without an
 * exec: there its threads are gone, and it waits for them. */
void mmf_team_find(void);

/* Is there a team of `threads` or more for the calling thread? There is none where no runtime was
 * found, where it was told to use fewer, and inside one of its parallel regions. */
bool mmf_team_has(int threads);

/* Call part(context, thread) on every thread of the team, as 0 on the calling one; returns when all
 * are done. */
void mmf_team_run(void (*part)(void *context, int thread), void *context);

#endif
