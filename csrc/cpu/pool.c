/* Owner of the worker threads: one job at a time, tasks handed out by atomic counters.
 * Path of a call: under run() of the blocked kernels. Nothing starts before the first parallel job,
 * so import is cheap and a fork before it harmless; a fork after it leaves a pool without threads,
 * which starts its own.
 *
 * The job is described by one word, `state`: a ticket count of the workers inside, how many may
 * enter, and whether it is open. A worker enters by a compare-and-swap and leaves by a decrement;
 * the caller closes the job when the tasks are gone and waits for those inside only. A worker that
 * wakes late finds the job closed and costs nothing. In a program that computes with torch, the
 * threads of torch's OpenMP runtime take its tasks instead, which begin and end together (team.h):
 * such a job is never open. */
#define _GNU_SOURCE
#include "cpu/pool.h"

#include "cpu/interrupt.h"
#include "cpu/team.h"
#include "problem/float_mode.h"
#include "problem/status.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_NANOSECONDS 50000
#define OPEN (UINT64_C(1) << 63)
#define LIMIT_SHIFT 16
#define INSIDE_MASK UINT64_C(0xffff)

static struct {
    pthread_mutex_t mutex; /* of wake */
    pthread_cond_t wake;
    atomic_int sleepers;
    atomic_bool busy; /* a caller owns the job below */
    _Atomic uint64_t state;
    atomic_bool exhausted; /* some thread found no task left */
    int tasks, parts, threads, started;
    void (*task)(void *context, int index, int thread);
    void *context;
    atomic_int cpu; /* where the last caller began; below zero if unknown */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .cpu = -1};

/* Of each part of the tasks, how many are handed out, and one more for each thread that found none.
 */
static struct {
    _Alignas(64) atomic_int taken;
} parts[MMF_MAX_THREADS];

typedef struct worker {
    pthread_t thread;
    pthread_mutex_t mutex; /* of what follows */
    atomic_bool kept_off;  /* the caller's CPU */
    cpu_set_t found, kept; /* its affinity before that, and since */
} worker;

static worker workers[MMF_MAX_THREADS];

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool may_enter(uint64_t state)
{
    return (state & OPEN) != 0 && (state & INSIDE_MASK) < (state >> LIMIT_SHIFT & INSIDE_MASK);
}

static bool is_exhausted(void)
{
    return atomic_load_explicit(&pool.exhausted, memory_order_relaxed);
}

static int first_of(int part)
{
    return (int)((int64_t)pool.tasks * part / pool.parts);
}

/* What is left of a part. looks: first see whether anything is, for its line is another thread's.
 */
static void work_on(int part, bool looks, int thread)
{
    const int first = first_of(part), count = first_of(part + 1) - first;
    if (looks && atomic_load_explicit(&parts[part].taken, memory_order_relaxed) >= count)
        return;
    for (;;) {
        const int taken = atomic_fetch_add_explicit(&parts[part].taken, 1, memory_order_relaxed);
        if (taken >= count)
            return;
        pool.task(pool.context, first + taken, thread);
    }
}

/* home, modulo the parts: the part to begin with; thread: the number that tasks get. */
static void work(int home, int thread)
{
    for (int i = 0; i < pool.parts && !is_exhausted(); i++)
        work_on((home + i) % pool.parts, i > 0, thread);
    atomic_store_explicit(&pool.exhausted, true, memory_order_relaxed);
}

/* A hint, read without being inside: an exhausted job is not worth entering. */
static bool job_waits(void)
{
    return may_enter(atomic_load(&pool.state)) && !is_exhausted();
}

/* Enter the open job, if any, and work; true if this worker was inside. A number can be given a
 * second time only after a worker left, which it does when no task is left to do under that number.
 */
static bool take_part(int home)
{
    if (!job_waits())
        return false;
    uint64_t state = atomic_load(&pool.state);
    while (may_enter(state)) {
        if (atomic_compare_exchange_weak(&pool.state, &state, state + 1)) {
            work(home, (int)(state & INSIDE_MASK) + 1);
            atomic_fetch_sub(&pool.state, 1);
            return true;
        }
    }
    return false;
}

static void sleep_until_job(void)
{
    pthread_mutex_lock(&pool.mutex);
    atomic_fetch_add(&pool.sleepers,
                     1); /* before the test: a caller opens the job first and then looks here */
    while (!job_waits())
        pthread_cond_wait(&pool.wake, &pool.mutex);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.mutex);
}

static bool affinity_of(const worker *worker, cpu_set_t *set)
{
    return pthread_getaffinity_np(worker->thread, sizeof *set, set) == 0;
}

/* Has nobody else set its affinity since it was kept off? */
static bool still_kept(const worker *worker)
{
    cpu_set_t present;
    return atomic_load(&worker->kept_off) && affinity_of(worker, &present) &&
           CPU_EQUAL(&present, &worker->kept);
}

/* Give it back the CPUs that it had. */
static void let_return(worker *worker)
{
    atomic_store(&worker->kept_off, false);
    (void)pthread_setaffinity_np(worker->thread, sizeof worker->found, &worker->found);
}

/* All its CPUs but one, if another is left; refused, it stays where it is. */
static void keep_off(worker *worker, int cpu)
{
    atomic_store(&worker->kept_off, false);
    if (!affinity_of(worker, &worker->found)) /* more CPUs than a set holds */
        return;
    worker->kept = worker->found;
    CPU_CLR(cpu, &worker->kept);
    if (CPU_COUNT(&worker->kept) == 0 ||
        pthread_setaffinity_np(worker->thread, sizeof worker->kept, &worker->kept) != 0)
        return;
    /* read again: a cpuset may have taken some away */
    atomic_store(&worker->kept_off, affinity_of(worker, &worker->kept));
}

/* A worker on the caller's CPU waits for it instead of helping. The scheduler puts it there where
 * threads of another library spin on the other CPUs; it is kept off until the caller moves. */
static void leave_caller(worker *worker)
{
    int cpu = atomic_load(&pool.cpu);
    if (cpu < 0 || sched_getcpu() != cpu)
        return;
    sched_yield(); /* a new slice: an affinity set between reading ours and writing would be lost */
    cpu = atomic_load(&pool.cpu);
    if (sched_getcpu() != cpu)
        return;
    pthread_mutex_lock(&worker->mutex);
    if (!still_kept(worker)) /* else the caller came here, and is about to let it return */
        keep_off(worker, cpu);
    if (atomic_load(&pool.cpu) != cpu && still_kept(worker)) /* it moved meanwhile */
        let_return(worker);
    pthread_mutex_unlock(&worker->mutex);
}

static void follow_caller(void)
{
    const int cpu = sched_getcpu();
    if (cpu == atomic_load(&pool.cpu))
        return;
    atomic_store(&pool.cpu, cpu);
    for (worker *worker = workers; worker < workers + pool.started; worker++) {
        cpu_set_t own;
        if (!atomic_load(&worker->kept_off)) /* or it is about to be, and looks at the CPU again */
            continue;
        pthread_mutex_lock(&worker->mutex);
        /* where the caller has that affinity too, it was set for the whole process */
        if (still_kept(worker) &&
            !(sched_getaffinity(0, sizeof own, &own) == 0 && CPU_EQUAL(&own, &worker->kept)))
            let_return(worker);
        atomic_store(&worker->kept_off, false);
        pthread_mutex_unlock(&worker->mutex);
    }
}

static void *serve(void *own)
{
    worker *worker = own;
    worker->thread = pthread_self();
    mmf_float_mode_enter(); /* a thread begins in the mode of its maker */
    for (;;) {
        leave_caller(worker);
        int64_t start = nanoseconds();
        bool idle = true;
        while (idle && nanoseconds() - start < SPIN_NANOSECONDS) {
            for (int i = 0; i < 32 && !job_waits(); i++)
                relax();
            idle = !take_part((int)(worker - workers) + 1);
        }
        if (idle)
            sleep_until_job();
    }
    return NULL;
}

static MMF_THREAD_LOCAL bool leading; /* does this thread own the job? */

/* In the child of a fork: the workers are gone, and locks may be held by threads that no longer
 * exist. A job that this thread is in the middle of goes on, without the help of others. */
static void forget_threads(void)
{
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.wake, NULL);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.state, 0);
    pool.started = 0;
    atomic_store(&pool.busy, leading);
}

static bool watched;

static void watch_forks(void)
{
    watched = pthread_atfork(NULL, NULL, forget_threads) == 0;
}

/* Else the child of a fork would wait for threads that it does not have. */
static bool watches_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    return watched;
}

/* Start workers up to `count`. One that cannot be started is not missed: the others do its tasks.
 * They may run where the calling thread may now (they inherit its affinity). */
static void start_workers(int count)
{
    sigset_t others, before;
    sigfillset(&others);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&others, faults[i]); /* blocked, they would end the process past its handlers */
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &others,
                    &before); /* inherited: signals stay with the program's own threads */
    pthread_t thread;
    for (; pool.started < count; pool.started++) {
        worker *next = &workers[pool.started];
        atomic_store(&next->kept_off, false);
        if (pthread_mutex_init(&next->mutex, NULL) != 0 ||
            pthread_create(&thread, &attributes, serve, next) != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static void wake_workers(int count)
{
    if (atomic_load(&pool.sleepers) == 0)
        return;
    pthread_mutex_lock(&pool.mutex);
    if (count >= atomic_load(&pool.sleepers))
        pthread_cond_broadcast(&pool.wake);
    else
        for (int i = 0; i < count; i++)
            pthread_cond_signal(&pool.wake);
    pthread_mutex_unlock(&pool.mutex);
}

static void wait_until_left(mmf_interrupt *interrupt)
{
    for (int spins = 0; (atomic_load(&pool.state) & INSIDE_MASK) != 0; spins++) {
        if (spins < 4096) {
            relax();
        } else {
            (void)mmf_ends(interrupt, 0, MMF_LOOK_WORK / 64); /* workers see the answer, too */
            sched_yield();
        }
    }
}

/* The caller's part of the job. */
static void lead(mmf_interrupt *interrupt)
{
    work(0, 0);
    atomic_fetch_and(&pool.state, ~OPEN);
    wait_until_left(interrupt);
}

/* The part of a thread of an OpenMP runtime, which gets its float mode back. The runtime ends the
 * job with a barrier, in which the caller cannot look at its interrupt: before that, it waits for
 * those who help in a long job, which `state` counts. */
static void lead_or_help(void *interrupt, int thread)
{
    if (thread == 0) {
        lead(interrupt);
    } else if (thread < pool.threads) {
        const uint64_t mode = mmf_float_mode_enter();
        if (interrupt)
            atomic_fetch_add(&pool.state, 1);
        work(thread, thread);
        if (interrupt)
            atomic_fetch_sub(&pool.state, 1);
        mmf_float_mode_leave(mode);
    }
}

static void gather_workers(int count)
{
    if (pool.started < count)
        start_workers(count);
    follow_caller();
}

/* With the help of others. Owns pool.busy. */
static void run_job(mmf_interrupt *interrupt)
{
    leading = true;
    for (int part = 0; part < pool.parts; part++)
        atomic_store_explicit(&parts[part].taken, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.exhausted, false, memory_order_relaxed);
    if (mmf_team_has(pool.threads)) {
        atomic_store(&pool.state, 0);
        mmf_team_run(lead_or_help, interrupt);
    } else {
        gather_workers(pool.threads - 1);
        atomic_store(&pool.state, OPEN | (uint64_t)(pool.threads - 1) << LIMIT_SHIFT);
        wake_workers(pool.threads - 1);
        lead(interrupt);
    }
    leading = false;
    atomic_store(&pool.busy, false);
}

void mmf_pool_run(int tasks, int threads, bool apart,
                  void (*task)(void *context, int index, int thread), void *context,
                  mmf_interrupt *interrupt)
{
    uint64_t mode = mmf_float_mode_enter();
    threads = threads < tasks ? threads : tasks;
    threads = threads < MMF_MAX_THREADS ? threads : MMF_MAX_THREADS;
    if (threads <= 1 || !watches_forks() || atomic_exchange(&pool.busy, true)) {
        for (int i = 0; i < tasks; i++)
            task(context, i, 0);
    } else {
        pool.task = task, pool.context = context;
        pool.tasks = tasks, pool.threads = threads, pool.parts = apart ? threads : 1;
        run_job(interrupt);
    }
    mmf_float_mode_leave(mode);
}

static pthread_key_t workspace_key;
static bool has_workspace_key;

static void make_workspace_key(void)
{
    has_workspace_key = pthread_key_create(&workspace_key, free) == 0;
}

static MMF_THREAD_LOCAL mmf_workspace own; /* its memory is the value of workspace_key, too */

/* No memory for the value: nobody would free the workspace. */
static bool set_own(mmf_workspace workspace)
{
    const bool kept = pthread_setspecific(workspace_key, workspace.memory) == 0;
    if (!kept)
        free(workspace.memory);
    own = kept ? workspace : (mmf_workspace){NULL, 0};
    return kept;
}

void *mmf_pool_workspace(size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (own.size >= bytes)
        return own.memory;
    pthread_once(&once, make_workspace_key);
    if (!has_workspace_key)
        return NULL;
    free(own.memory);
    mmf_workspace larger = {NULL, (bytes + 4095) / 4096 * 4096};
    (void)set_own((mmf_workspace){NULL, 0});
    larger.memory = aligned_alloc(64, larger.size);
    return larger.memory && set_own(larger) ? larger.memory : NULL;
}

mmf_workspace mmf_pool_lay_aside(void)
{
    const mmf_workspace workspace = own;
    if (workspace.memory)
        (void)set_own((mmf_workspace){NULL, 0});
    return workspace;
}

void mmf_pool_take_up(mmf_workspace workspace)
{
    free(own.memory);
    own = workspace;
    if (workspace.memory) /* the thread has had a value for the key: there is memory for it */
        (void)pthread_setspecific(workspace_key, workspace.memory);
    else if (has_workspace_key)
        (void)pthread_setspecific(workspace_key, NULL);
}
