/* The threads of the CPU back end and the memory they work in.
 * Path of a call: run() of a blocked row cuts the result into tasks and hands them to
 * mmf_pool_run(). */
#ifndef MMF_CPU_POOL_H
#define MMF_CPU_POOL_H

#include <stddef.h>

#define MMF_MAX_THREADS 1024

/* Call task(context, index, thread) for every index in [0, tasks), on at most `threads` threads,
 * this one included; 0 <= thread < threads, and two calls that run at once get different numbers.
 * Returns when all are done. Every task runs in IEEE 754's default mode, whatever the caller's
 * (float_mode.h). While another thread is inside, the caller computes every task itself
 * (thread 0) and waits for nobody. */
void mmf_pool_run(int tasks, int threads, void (*task)(void *context, int index, int thread),
                  void *context);

/* At least `bytes` of 64-byte aligned memory that belongs to the calling thread until its next
 * request, or NULL. Kept between calls, given back when the thread ends. */
void *mmf_pool_workspace(size_t bytes);

/* The processors this process may use: the affinity mask, and a cgroup's CPU quota rounded up. */
int mmf_available_processors(void);

#endif
