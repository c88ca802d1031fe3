/* The pool: every task once, parts that threads keep, callers at the same time, fork, a thread
 * count that changes while running. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "cpu/pool.h"
#include "problem/float_mode.h"

#define TASKS 200

typedef struct counts {
    atomic_int task[TASKS], inside[64];
    atomic_bool clash;
} counts;

static void count_task(void *context, int index, int thread)
{
    counts *c = context;
    if (atomic_fetch_add(&c->inside[thread], 1) != 0)
        atomic_store(&c->clash, true);
    atomic_fetch_add(&c->task[index], 1);
    for (volatile int i = 0; i < 200; i++)
        ;
    atomic_fetch_sub(&c->inside[thread], 1);
}

static bool run_once(int tasks, int threads)
{
    bool once = true;
    for (int apart = 0; apart < 2; apart++) {
        counts c;
        memset(&c, 0, sizeof c);
        mmf_pool_run(tasks, threads, apart, count_task, &c, NULL);
        once = once && !atomic_load(&c.clash);
        for (int i = 0; i < TASKS; i++)
            once = once && atomic_load(&c.task[i]) == (i < tasks);
    }
    return once;
}

static atomic_bool all_right;

static void *caller(void *unused)
{
    (void)unused;
    for (int i = 0; i < 300; i++)
        if (!run_once(1 + i % TASKS, 1 + i % 5))
            atomic_store(&all_right, false);
    char *memory = mmf_pool_workspace(100000);
    memset(memory, 1, 100000);
    return NULL;
}

static void *change_threads(void *unused)
{
    (void)unused;
    for (int i = 0; i < 200; i++) {
        mmf_cpu_set_threads(1 + i % 4);
        usleep(100);
    }
    return NULL;
}

static bool small_product(int64_t size)
{
    float *memory = malloc((size_t)(3 * size * size) * sizeof(float));
    for (int64_t i = 0; i < 2 * size * size; i++)
        memory[i] = (float)(random_below(17) - 8);
    mmf_problem p = {.m = size, .n = size, .k = size, .alpha = 1};
    mmf_buffers buffers = {0};
    memset(p.dtype, MMF_ABSENT, sizeof p.dtype);
    for (int o = 0; o < 3; o++) {
        const int operand = o == 0 ? MMF_A : o == 1 ? MMF_B : MMF_OUT;
        p.dtype[operand] = MMF_FLOAT32;
        buffers.data[operand] = memory + o * size * size;
        p.strides[operand] = (mmf_strides){.row = size, .col = 1};
    }
    mmf_config config;
    set_features(&p);
    mmf_cpu_blocked.family->configure(&mmf_cpu_blocked, &p, &config);
    bool right = mmf_cpu_blocked.family->run(&p, &config, &buffers, NULL) == MMF_OK;
    for (int64_t i = 0; i < size; i++) {
        const int64_t j = (i * 7) % size;
        float sum = 0; /* small integers: exact in any order */
        for (int64_t k = 0; k < size; k++)
            sum += memory[i * size + k] * memory[size * size + k * size + j];
        right = right && memory[2 * size * size + i * size + j] == sum;
    }
    free(memory);
    return right;
}

static uint64_t mode_of[TASKS];

static void note_mode(void *context, int index, int thread)
{
    (void)thread;
    mode_of[index] = mmf_float_mode_get() & ~(uint64_t)MMF_FLOAT_FLAGS;
    for (volatile int i = 0; i < 20000; i++)
        ;
    atomic_fetch_add((atomic_int *)context, 1);
}

/* On a thread that flushes subnormals, and with workers that such a thread has started. */
static void test_float_mode(int threads)
{
    const uint64_t before = mmf_float_mode_get();
#if defined(__x86_64__)
    const uint64_t flushing = before | 0x8040; /* FTZ and DAZ */
#else
    const uint64_t flushing = before | 1u << 24; /* FZ */
#endif
    atomic_int done = 0;
    mmf_float_mode_set(flushing);
    for (int i = 0; i < 20; i++)
        mmf_pool_run(TASKS, threads, true, note_mode, &done, NULL);
    const uint64_t after = mmf_float_mode_get();
    mmf_float_mode_set(before);
    bool same = atomic_load(&done) == 20 * TASKS;
    for (int i = 0; i < TASKS; i++)
        same = same && mode_of[i] == MMF_FLOAT_MODE;
    check(same, "tasks run in the default floating-point mode");
    check(after == flushing, "the caller keeps its own mode");
}

#define APART_THREADS 6

typedef struct places {
    atomic_int begun;
    pthread_t of[APART_THREADS];
} places;

/* Ends when every thread has a task, or after ten seconds. */
static void note_thread(void *context, int index, int thread)
{
    places *places = context;
    (void)thread;
    places->of[index] = pthread_self();
    atomic_fetch_add(&places->begun, 1);
    for (int i = 0; i < 10000 && atomic_load(&places->begun) < APART_THREADS; i++)
        usleep(1000);
}

/* Among workers that began with it: those of a larger job would take turns. */
static bool keeps_parts(void)
{
    places first = {0}, again;
    mmf_pool_run(APART_THREADS, APART_THREADS, true, note_thread, &first, NULL);
    bool same = pthread_equal(first.of[0], pthread_self()) != 0;
    for (int i = 0; i < 20; i++) {
        memset(&again, 0, sizeof again);
        same = run_once(TASKS, 3) && same; /* the others come in another order then */
        usleep(200);
        mmf_pool_run(APART_THREADS, APART_THREADS, true, note_thread, &again, NULL);
        for (int t = 0; t < APART_THREADS; t++)
            same = same && pthread_equal(first.of[t], again.of[t]) != 0;
    }
    return same;
}

static bool computes(void)
{
    bool right = true;
    for (int i = 0; i < 50; i++)
        right = right && run_once(TASKS, 4);
    return right && small_product(200);
}

/* The child of a fork has threads of its own, which it starts. */
static bool in_child(bool (*function)(void))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(function() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_fork(void)
{
    check(in_child(computes), "the child of a fork computes on threads of its own");
    check(in_child(keeps_parts), "a part of the tasks that a thread has in every job");
    check(run_once(TASKS, 4), "the parent goes on");
}

static atomic_int inner_calls;

static void count_inner(void *context, int index, int thread)
{
    (void)context, (void)index, (void)thread;
    atomic_fetch_add(&inner_calls, 1);
}

/* The caller forks once, as a signal handler may in the middle of a call, and the child makes a
 * call of its own. Others wait for the fork: the caller has a task then. */
static void fork_once(void *context, int index, int thread)
{
    atomic_int *child = context;
    (void)index;
    while (thread != 0 && atomic_load(child) < 0)
        usleep(100);
    if (thread != 0 || atomic_load(child) >= 0)
        return;
    atomic_store(child, fork());
    if (atomic_load(child) == 0) {
        alarm(60);
        mmf_pool_run(4, 4, true, count_inner, NULL, NULL);
    }
}

static void test_fork_inside(bool apart)
{
    fflush(stdout);
    atomic_int child = -1;
    int status = -1;
    mmf_pool_run(TASKS, 4, apart, fork_once, &child, NULL);
    if (atomic_load(&child) == 0)
        _exit(atomic_load(&inner_calls) == 4 && run_once(TASKS, 4) ? 0 : 1);
    waitpid(atomic_load(&child), &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "the child of a fork in the middle of a job");
    check(run_once(TASKS, 4), "the parent's next job");
}

void test_pool(void)
{
    check(mmf_available_processors() >= 1, "processors");
    test_float_mode(1);
    test_float_mode(3); /* starts the workers */
    for (int tasks = 0; tasks <= TASKS; tasks += 7)
        for (int threads = 0; threads < 6; threads++)
            check(run_once(tasks, threads), "%d tasks on %d threads", tasks, threads);
    pthread_t threads[4];
    atomic_store(&all_right, true);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, caller, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    check(atomic_load(&all_right), "concurrent callers");
    usleep(2000); /* the workers fall asleep */
    check(run_once(TASKS, 3), "woken workers");
    test_fork();
    test_fork_inside(false);
    test_fork_inside(true);
    pthread_create(&threads[0], NULL, change_threads, NULL);
    bool right = true;
    for (int i = 0; i < 30; i++)
        right = small_product(100 + i) && right;
    pthread_join(threads[0], NULL);
    check(right, "set_threads while running");
    mmf_cpu_set_threads(3);
    check(mmf_cpu_get_threads() == 3, "set_threads");
    mmf_cpu_set_threads(0);
    check(mmf_cpu_get_threads() >= 1, "the default again");
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void time_one(const mmf_kernel *row, int dtype, int64_t m, int64_t n, int64_t k, bool turned,
                     int packed, int activation, int threads)
{
    const size_t size = (size_t)element_size(dtype);
    char *a = aligned_alloc(64, (size_t)(m * k + 64) * size / 64 * 64 + 64),
         *out = aligned_alloc(64, (size_t)(m * n) * 8 / 64 * 64 + 64);
    char *b = aligned_alloc(64, (size_t)(n * k + 64) * size / 64 * 64 + 64),
         *bias = aligned_alloc(64, (size_t)n * 8 / 64 * 64 + 64);
    for (int64_t i = 0; i < m * k; i++)
        store_random(dtype, a + (size_t)i * size);
    for (int64_t i = 0; i < n * k; i++)
        store_random(dtype, b + (size_t)i * size);
    for (int64_t i = 0; i < n; i++)
        store_random(dtype, bias + (size_t)i * size);
    mmf_problem p = {.m = m, .n = n, .k = k, .alpha = 1, .activation = (uint8_t)activation};
    mmf_buffers buffers = {0};
    memset(p.dtype, MMF_ABSENT, sizeof p.dtype);
    p.dtype[MMF_A] = p.dtype[MMF_B] = p.dtype[MMF_OUT] = p.dtype[MMF_BIAS] = (uint8_t)dtype;
    buffers.data[MMF_A] = a, buffers.data[MMF_B] = b, buffers.data[MMF_OUT] = out,
    buffers.data[MMF_BIAS] = bias;
    p.strides[MMF_A] = (mmf_strides){.row = k, .col = 1};
    p.strides[MMF_B] =
        turned ? (mmf_strides){.row = 1, .col = k} : (mmf_strides){.row = n, .col = 1};
    p.strides[MMF_OUT] = (mmf_strides){.row = n, .col = 1};
    p.strides[MMF_BIAS] = (mmf_strides){.col = 1};
    void *panels = NULL;
    if (packed) {
        panels = aligned_alloc(64, (size_t)mmf_cpu_panels_bytes((mmf_dtype)dtype, k, n));
        mmf_cpu_pack_panels((mmf_dtype)dtype, k, n, b, p.strides[MMF_B].row, p.strides[MMF_B].col,
                            panels, NULL);
        buffers.data[MMF_B] = panels, p.packed = MMF_CPU_PANELS64;
    }
    mmf_config config;
    mmf_cpu_set_threads(threads);
    set_features(&p);
    row->family->configure(row, &p, &config);
    const double flops = 2.0 * (double)m * (double)n * (double)k;
    const int repeats = flops < 1e6 ? 20000 : flops < 1e8 ? 50 : 1;
    double best = 1e9;
    for (int sample = 0; sample < 15; sample++) {
        double start = seconds();
        for (int i = 0; i < repeats; i++)
            row->family->run(&p, &config, &buffers, NULL);
        double time = (seconds() - start) / repeats;
        best = time < best ? time : best;
    }
    printf("%-17s %-8s %5d x %5d x %5d %s%s act %d threads %d: %9.3f us %7.1f GFLOP/s\n", row->name,
           mmf_dtypes[dtype].name, (int)m, (int)n, (int)k, turned ? "NT" : "NN",
           packed ? " packed" : "", activation, config.threads, best * 1e6, flops / best * 1e-9);
    free(a), free(b), free(out), free(bias), free(panels);
}

void time_rows(void)
{
    const mmf_kernel *rows[] = {VECTOR_ROWS};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        time_one(rows[r], MMF_FLOAT32, 1, 64, 64, false, 0, MMF_ACT_RELU, 1);
        time_one(rows[r], MMF_FLOAT32, 1, 64, 64, true, 0, MMF_ACT_RELU, 1);
        time_one(rows[r], MMF_FLOAT32, 8, 64, 64, false, 0, MMF_ACT_RELU, 1);
        time_one(rows[r], MMF_FLOAT32, 64, 64, 64, false, 0, MMF_ACT_RELU, 1);
        for (int threads = 1; threads <= 2; threads++) {
            time_one(rows[r], MMF_FLOAT32, 1024, 1024, 1024, false, 0, MMF_ACT_SILU, threads);
            time_one(rows[r], MMF_FLOAT32, 1024, 1024, 1024, true, 0, MMF_ACT_SILU, threads);
            time_one(rows[r], MMF_FLOAT32, 1024, 1024, 1024, false, 1, MMF_ACT_SILU, threads);
            time_one(rows[r], MMF_FLOAT64, 1024, 1024, 1024, false, 0, MMF_ACT_RELU, threads);
            time_one(rows[r], MMF_BFLOAT16, 1024, 1024, 1024, true, 0, MMF_ACT_RELU, threads);
            time_one(rows[r], MMF_FLOAT16, 1024, 1024, 1024, true, 0, MMF_ACT_RELU, threads);
            time_one(rows[r], MMF_FLOAT32, 1, 4096, 4096, true, 0, MMF_ACT_RELU, threads);
            time_one(rows[r], MMF_FLOAT32, 1, 4096, 4096, false, 0, MMF_ACT_RELU, threads);
            time_one(rows[r], MMF_BFLOAT16, 1, 4096, 4096, true, 0, MMF_ACT_RELU, threads);
            time_one(rows[r], MMF_FLOAT16, 4, 4096, 4096, true, 0, MMF_ACT_RELU, threads);
        }
    }
}
