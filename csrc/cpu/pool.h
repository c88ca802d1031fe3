/* The threads of the CPU back end and the memory they work in.
 * Path of a call: run() of a blocked kernel cuts the result into tasks and hands them to
 * mmf_pool_run(). */
#ifndef MMF_CPU_POOL_H
#define MMF_CPU_POOL_H

#include "problem/interrupt.h"

#include <stdbool.h>
#include <stddef.h>

#define MMF_MAX_THREADS 1024

/* Call task(context, index, thread) for every index in [0, tasks), of at most
 * INT_MAX - MMF_MAX_THREADS, on at most `threads` threads, this one included; 0 <= thread <
 * threads, and two calls that run at once get different numbers. apart: a thread begins with its
 * own part of the tasks, the same one in the next job of as many tasks and the same threads, and
 * then steals from others: for tasks that read data of their own, which that thread's caches may
 * still have. Else the tasks begin in their order. Returns when all are done. Every task runs in
 * IEEE 754's default mode, whatever the caller's (problem/float_mode.h). While another thread is
 * inside, the caller computes every task itself (thread 0) and waits for nobody. interrupt, or
 * NULL: of the call; tasks look at it themselves. */
void mmf_pool_run(int tasks, int threads, bool apart,
                  void (*task)(void *context, int index, int thread), void *context,
                  mmf_interrupt *interrupt);

/* At least `bytes` of 64-byte aligned memory that belongs to the calling thread until its next
 * request, or NULL. Kept between calls, given back when the thread ends. */
void *mmf_pool_workspace(size_t bytes);

/* The calling thread's workspace while it does something else in the middle of a call, which may
 * ask for one: lay it aside, so that it stays as it is, and take it up again. */
typedef struct mmf_workspace {
    void *memory;
    size_t size;
} mmf_workspace;

mmf_workspace mmf_pool_lay_aside(void);
void mmf_pool_take_up(mmf_workspace workspace);

/* The processors this process may use: the affinity mask, and a cgroup's CPU quota rounded up. */
int mmf_available_processors(void);

#endif
