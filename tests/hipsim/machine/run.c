/* The loop that executes: workgroups over host threads, waves of a workgroup in turns that the seed
 * draws, one instruction after the other.
 * Path of a launch: hipsim_run (machine.h) -> run_groups -> run_group -> run_wave. */
#include "run.h"
#include "checks.h"

#include <stdio.h>
#include <stdlib.h>

void set_exec(struct wave *w, uint64_t exec)
{
    exec &= w->all;
    w->exec = exec;
    w->full = exec == w->all;
    w->s[SREG_EXEC] = (uint32_t)exec;
    w->s[SREG_EXEC + 1] = (uint32_t)(exec >> 32);
    spread_mask(exec, w->lane_mask);
}

void write_sreg(struct wave *w, unsigned reg, uint32_t value)
{
    if (reg == SREG_EXEC)
        set_exec(w, (w->exec & ~(uint64_t)UINT32_MAX) | value);
    else if (reg == SREG_EXEC + 1)
        set_exec(w, (w->exec & UINT32_MAX) | (uint64_t)value << 32);
    else if (reg != SREG_NULL)
        w->s[reg] = value;
}

static void run_wave(struct wave *w, int slice)
{
    struct thread *thread = w->thread;
    const struct op *o = w->next;
    int left = slice;
    thread->yield = false;
    while (left-- > 0) {
        w->op = o;
        w->next = o + 1;
        thread->classes[o->class]++;
        o->run(w, o);
        if (__builtin_expect(thread->yield, 0))
            break;
        o = w->next;
    }
    w->executed += (uint64_t)(slice - left);
}

static void run_wave_checked(struct wave *w, int slice)
{
    const struct op *first = w->thread->launch->program->ops;
    uint64_t *executed = w->thread->launch->sink->executed;
    const uint64_t waited = (UINT64_C(1) << 32) + 1;
    struct thread *thread = w->thread;
    const struct op *o = w->next;
    int left = slice;
    thread->yield = false;
    while (left-- > 0) {
        w->op = o;
        w->next = o + 1;
        thread->classes[o->class]++;
        check_before(w, o);
        o->run(w, o);
        check_after(w, o);
        if (executed)
            __atomic_fetch_add(&executed[o - first], check_waited(w) ? waited : 1,
                               __ATOMIC_RELAXED);
        if (__builtin_expect(thread->yield, 0))
            break;
        o = w->next;
    }
    w->executed += (uint64_t)(slice - left);
}

/* Every wave that is left waits: open the barrier. */
static void release(struct group *group)
{
    struct launch *launch = group->launch;
    if (launch->checks)
        check_barrier(group);
    group->epoch++;
    for (int i = 0; i < group->waves; i++)
        group->wave[i].at_barrier = false;
}

static void run_group(struct group *group)
{
    struct thread *thread = group->thread;
    struct launch *launch = group->launch;
    uint64_t limit = launch->request->instruction_limit;
    limit = limit ? limit : UINT64_C(1) << 40;
    memset(group->lds, 0x7f, group->lds_bytes);
    group->epoch = 1;
    if (launch->checks)
        check_group_start(group);
    for (int i = 0; i < group->waves; i++) {
        wave_start(&group->wave[i], group, i);
        if (launch->checks)
            check_wave_start(&group->wave[i]);
    }
    while (!atomic_load_explicit(&launch->stop, memory_order_relaxed)) {
        int ready[MAX_WAVES], count = 0, waiting = 0;
        for (int i = 0; i < group->waves; i++) {
            if (group->wave[i].at_barrier)
                waiting++;
            else if (!group->wave[i].done)
                ready[count++] = i;
        }
        if (count == 0 && waiting == 0)
            break;
        if (count == 0) {
            release(group);
            continue;
        }
        uint64_t random = next_random(&thread->random);
        struct wave *w = &group->wave[ready[(random & 0xffff) % (unsigned)count]];
        int slice = (int)(random >> 16 & 3) == 0 ? 1 << 20 : (int)(random >> 20 & 1023) + 1;
        if (launch->checks)
            run_wave_checked(w, slice);
        else
            run_wave(w, slice);
        if (w->executed > limit)
            fault(w, "the wave executed %llu instructions: it hangs", (unsigned long long)limit);
    }
    thread->counters.workgroups++;
    thread->counters.waves += (unsigned)group->waves;
}

static void free_thread(struct thread *thread)
{
    checks_free(thread);
    free(thread->group.lds);
    free(thread->group.wave);
    free(thread);
}

static struct thread *make_thread(struct launch *launch, int index)
{
    struct thread *thread = calloc(1, sizeof *thread);
    if (!thread)
        return NULL;
    struct group *group = &thread->group;
    thread->launch = group->launch = launch;
    thread->random = launch->request->seed ^ (uint64_t)index << 56;
    group->thread = thread;
    group->waves = launch->waves_per_group;
    group->lds_bytes = launch->lds_bytes;
    group->wave = aligned_alloc(64, (size_t)group->waves * sizeof *group->wave);
    group->lds = aligned_alloc(64, ((size_t)group->lds_bytes + 127) & ~(size_t)63);
    if (!group->wave || !group->lds || !checks_make(thread)) {
        free_thread(thread);
        return NULL;
    }
    return thread;
}

static void *run_groups(void *argument)
{
    struct thread *thread = argument;
    struct launch *launch = thread->launch;
    const uint32_t *grid = launch->request->grid;
    /* Workgroups start in an order that the seed rotates and strides. */
    uint64_t start = launch->request->seed % launch->groups;
    while (!atomic_load_explicit(&launch->stop, memory_order_relaxed)) {
        uint64_t n = atomic_fetch_add_explicit(&launch->next_group, 1, memory_order_relaxed);
        if (n >= launch->groups)
            break;
        n = (n + start) % launch->groups;
        thread->group.id[0] = (uint32_t)(n % grid[0]);
        thread->group.id[1] = (uint32_t)(n / grid[0] % grid[1]);
        thread->group.id[2] = (uint32_t)(n / grid[0] / grid[1]);
        thread->random ^= n * UINT64_C(0xd1342543de82ef95);
        run_group(&thread->group);
    }
    return NULL;
}

static void add_counters(struct launch *launch, const struct thread *thread)
{
    struct hipsim_counters *to = launch->sink->counters;
    const struct hipsim_counters *from = &thread->counters;
    const uint64_t *classes = thread->classes;
    if (!to)
        return;
    for (int i = 0; i < CLASSES; i++)
        to->instructions += classes[i];
    to->salu += classes[CLASS_SALU];
    to->smem += classes[CLASS_SMEM];
    to->valu += classes[CLASS_VALU];
    to->lds += classes[CLASS_LDS];
    to->memory += classes[CLASS_MEMORY];
    to->matrix += classes[CLASS_MATRIX];
    to->branches += classes[CLASS_BRANCH];
    to->waits += classes[CLASS_WAIT];
    to->barriers += classes[CLASS_BARRIER];
    to->bytes_loaded += from->bytes_loaded;
    to->bytes_stored += from->bytes_stored;
    to->bytes_to_lds += from->bytes_to_lds;
    to->lds_bytes_read += from->lds_bytes_read;
    to->lds_bytes_written += from->lds_bytes_written;
    to->lds_conflict_cycles += from->lds_conflict_cycles;
    to->atomics += from->atomics;
    to->matrix_flops += from->matrix_flops;
    to->workgroups += from->workgroups;
    to->waves += from->waves;
}

static bool run_threads(struct launch *launch)
{
    struct thread *threads[64];
    pthread_t handles[64];
    int wanted = launch->request->threads, made = 0, started = 0;
    wanted = wanted < 1 ? 1 : wanted > 64 ? 64 : wanted;
    if ((uint64_t)wanted > launch->groups)
        wanted = (int)launch->groups;
    for (; made < wanted; made++)
        if (!(threads[made] = make_thread(launch, made)))
            break;
    if (made == 0)
        return false;
    for (int i = 1; i < made; i++, started++)
        if (pthread_create(&handles[i], NULL, run_groups, threads[i]) != 0)
            break;
    run_groups(threads[0]);
    for (int i = 1; i <= started; i++)
        pthread_join(handles[i], NULL);
    for (int i = 0; i < made; i++) {
        add_counters(launch, threads[i]);
        free_thread(threads[i]);
    }
    return true;
}

enum hipsim_status hipsim_run(struct hipsim_kernel *kernel, const struct hipsim_launch *request,
                              const struct hipsim_memory *memory, const struct hipsim_sink *sink,
                              char *sentence, size_t bytes)
{
    enum hipsim_status status = hipsim_prepare(kernel, sentence, bytes);
    if (status != HIPSIM_OK)
        return status;
    struct launch launch = {.kernel = kernel,
                            .arch = kernel->arch,
                            .request = request,
                            .memory = memory,
                            .sink = sink,
                            .program = kernel->program,
                            .checks = request->checks,
                            .truncate_xf32 = request->truncate_xf32,
                            .report = PTHREAD_MUTEX_INITIALIZER};
    if (!launch_prepare(&launch)) {
        snprintf(sentence, bytes, "%s", launch.sentence);
        return HIPSIM_BAD_LAUNCH;
    }
    launch.seen = calloc(kernel->program->count, sizeof *launch.seen);
    if (!launch.seen || !run_threads(&launch)) {
        snprintf(sentence, bytes, "kernel %s: no memory", kernel->name);
        status = HIPSIM_NO_MEMORY;
    } else if (launch.out_of_bounds && !launch.faulted) {
        snprintf(sentence, bytes, "kernel %s on %s accessed memory outside every allocation",
                 kernel->name, kernel->arch->name);
        status = HIPSIM_FAULT;
    } else if (launch.faulted) {
        snprintf(sentence, bytes, "%s", launch.sentence);
        status = HIPSIM_FAULT;
    }
    free(launch.seen);
    pthread_mutex_destroy(&launch.report);
    return status;
}
