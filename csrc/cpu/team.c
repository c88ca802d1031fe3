/* Owner of the functions of the OpenMP runtime that torch brought, by the names that GCC's, LLVM's
 * and Intel's have in common. Path of a call: under mmf_pool_run(). */
#define _GNU_SOURCE
#include "cpu/team.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define FORKED_WITHOUT_EXEC 0x40 /* PF_FORKNOEXEC of Linux */

static struct {
    void (*parallel)(void (*part)(void *), void *data, unsigned threads, unsigned flags);
    int (*in_parallel)(void), (*max_threads)(void), (*thread_number)(void);
    atomic_bool found;
} runtime;

/* Field 9 of /proc/self/stat; what cannot be read counts as forked. */
static bool was_forked(void)
{
    char text[1024] = "";
    unsigned flags = FORKED_WITHOUT_EXEC;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file)
        return true;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *end = strrchr(text, ')'); /* of the program's name, which may hold anything */
    if (!end || sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1)
        return true;
    return (flags & FORKED_WITHOUT_EXEC) != 0;
}

static void forget(void)
{
    atomic_store(&runtime.found, false);
}

static void find(void)
{
    struct {
        const char *name;
        void *function; /* where the pointer to it lies */
    } const functions[] = {
        {"GOMP_parallel", &runtime.parallel},
        {"omp_in_parallel", &runtime.in_parallel},
        {"omp_get_max_threads", &runtime.max_threads},
        {"omp_get_thread_num", &runtime.thread_number},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(RTLD_DEFAULT, functions[i].name);
        if (!address)
            return;
        memcpy(functions[i].function, &address, sizeof address);
    }
    const bool watched = pthread_atfork(NULL, NULL, forget) == 0;
    atomic_store(&runtime.found, watched && !was_forked());
}

void mmf_team_find(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
}

typedef struct job {
    void (*part)(void *context, int thread);
    void *context;
    jmp_buf end;
} job;

/* The child of a fork in the middle of the caller's part does not go back to the runtime, which
 * would wait for threads that are gone. It does not use the runtime again; for torch, whose own
 * regions would wait for them, too, it stays in a parallel region, in which torch is serial. */
static void run_part(void *data)
{
    job *job = data;
    const int thread = runtime.thread_number();
    job->part(job->context, thread);
    if (thread == 0 && !atomic_load(&runtime.found))
        longjmp(job->end, 1);
}

bool mmf_team_has(int threads)
{
    return atomic_load_explicit(&runtime.found, memory_order_acquire) && !runtime.in_parallel() &&
           runtime.max_threads() >= threads;
}

void mmf_team_run(void (*part)(void *context, int thread), void *context)
{
    job job = {.part = part, .context = context};
    if (setjmp(job.end) != 0)
        return;
    /* 0: as many as it has for others. Of fewer, GCC's runtime would end the rest, and torch's next
     * operator would start them again. */
    runtime.parallel(run_part, &job, 0, 0);
}
