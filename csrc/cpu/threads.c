/* How many threads a problem may use. Path of a call: read by configure() of the blocked kernels.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/pool.h"
#include "cpu/rows.h"
#include "problem/environment.h"
#include "problem/status.h"

static int affinity(void)
{
    for (int cpus = 1024; cpus <= 1024 * 64; cpus *= 4) { /* EINVAL: the kernel's mask is longer */
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set)
            break;
        size_t size = CPU_ALLOC_SIZE(cpus);
        int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT_MAX ? (int)online : 1;
}

/* The first two numbers of a small file; how many there were ("max" is none). */
static int read_numbers(const char *path, long long *first, long long *second)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    int count = fscanf(file, "%lld %lld", first, second);
    fclose(file);
    return count;
}

/* Processors that the quota files of one folder allow, rounded up, or INT_MAX. */
static int quota_of(const char *folder)
{
    char path[PATH_MAX + 32];
    long long quota = 0, period = 0, unused;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_numbers(path, &quota, &period) != 2) {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (read_numbers(path, &quota, &unused) < 1)
            return INT_MAX;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (read_numbers(path, &period, &unused) < 1)
            return INT_MAX;
    }
    if (quota <= 0 || period <= 0 || quota / period >= INT_MAX)
        return INT_MAX;
    return (int)((quota + period - 1) / period);
}

/* The least quota of a group and of its parents; `group` is cut on the way up. */
static int least_quota(const char *root, char *group)
{
    int least = INT_MAX;
    for (;;) {
        char folder[PATH_MAX];
        if (snprintf(folder, sizeof folder, "%s%s", root, group) < (int)sizeof folder) {
            int quota = quota_of(folder);
            least = quota < least ? quota : least;
        }
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

/* Is it in a list of controllers, "cpu,cpuacct"? */
static bool names_cpu(const char *list)
{
    for (;; list++) {
        const size_t length = strcspn(list, ",");
        if (length == 3 && memcmp(list, "cpu", 3) == 0)
            return true;
        list += length;
        if (!*list)
            return false;
    }
}

/* Lines of /proc/self/cgroup: "0::/path" (version 2) or "4:cpu,cpuacct:/path" (version 1). */
static int cgroup_quota(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return INT_MAX;
    int least = INT_MAX;
    char line[PATH_MAX];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        const char *root = *controllers == 0 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
        if (*controllers == 0 || names_cpu(controllers)) {
            int quota = least_quota(root, group);
            least = quota < least ? quota : least;
        }
    }
    fclose(file);
    return least;
}

int mmf_available_processors(void)
{
    int processors = affinity(), quota = cgroup_quota();
    return quota < processors ? quota : processors;
}

/* A count that ends with the text or before `end`, or 0. */
static long count_from(const char *text, char end)
{
    char *rest;
    long count = text ? strtol(text, &rest, 10) : 0;
    if (count < 1)
        return 0;
    rest += strspn(rest, " ");
    return *rest == 0 || *rest == end ? count : 0;
}

static int count_given(void)
{
    long count = count_from(mmf_environment(MMF_ENV_NUM_THREADS), 0);
    return count <= MMF_MAX_THREADS ? (int)count : 0;
}

void mmf_cpu_read_environment(void)
{
    if (mmf_environment(MMF_ENV_NUM_THREADS) && count_given() == 0)
        mmf_environment_complain(MMF_ENV_NUM_THREADS,
                                 "ignored, it must be a whole number from 1 to %d",
                                 MMF_MAX_THREADS);
}

static int default_threads;

static void load_default(void)
{
    long count = count_given();
    if (count == 0) /* a list, "4,2", has a count for each level of nesting */
        count = count_from(getenv("OMP_NUM_THREADS"), ',');
    if (count == 0)
        count = mmf_available_processors();
    default_threads = count < MMF_MAX_THREADS ? (int)count : MMF_MAX_THREADS;
}

static atomic_int chosen;             /* by set_num_threads; 0: the default */
static MMF_THREAD_LOCAL int for_here; /* by num_threads; 0: as all threads */

int mmf_cpu_get_threads(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int threads = for_here > 0 ? for_here : atomic_load_explicit(&chosen, memory_order_relaxed);
    if (threads > 0)
        return threads;
    pthread_once(&once, load_default);
    return default_threads;
}

void mmf_cpu_set_threads(int threads)
{
    threads = threads < 0 ? 0 : threads < MMF_MAX_THREADS ? threads : MMF_MAX_THREADS;
    atomic_store_explicit(&chosen, threads, memory_order_relaxed);
}

int mmf_cpu_use_threads(int threads)
{
    const int before = for_here;
    for_here = threads;
    return before;
}
