/* Allocators that fail on demand and count what is alive: built and preloaded by test_memory.py,
 * driven by isolated/no_memory.py. glibc only: the real ones are reached by its own names for them.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

#define LOCAL static _Thread_local __attribute__((tls_model("initial-exec")))

LOCAL long countdown;    /* the allocation of this thread that fails, counted from 1; 0: none */
LOCAL bool aligned_only; /* only aligned ones are counted */
static atomic_long alive;
static atomic_size_t limit; /* aligned ones of so many bytes fail on every thread; 0: none */

void failing_malloc_arm(long nth, int only_aligned)
{
    countdown = nth;
    aligned_only = only_aligned;
}

/* Ends it; true if the failure was due. */
int failing_malloc_disarm(void)
{
    bool failed = countdown == -1;
    countdown = 0;
    return failed;
}

void failing_malloc_limit(size_t bytes)
{
    limit = bytes;
}

long failing_malloc_alive(void)
{
    return alive;
}

static bool fails(bool aligned)
{
    if (countdown <= 0 || (aligned_only && !aligned) || --countdown > 0)
        return false;
    countdown = -1;
    errno = ENOMEM;
    return true;
}

static void *counted(void *memory)
{
    alive += memory != NULL;
    return memory;
}

void *malloc(size_t size)
{
    return fails(false) ? NULL : counted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return fails(false) ? NULL : counted(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
    if (fails(false))
        return NULL;
    void *result = __libc_realloc(memory, size);
    alive += (result && !memory) - (memory && !result && size == 0);
    return result;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    if (limit && size >= limit) {
        usleep(100); /* another thread takes the GIL meanwhile */
        errno = ENOMEM;
        return NULL;
    }
    return fails(true) ? NULL : counted(__libc_memalign(alignment, size));
}

void *memalign(size_t alignment, size_t size)
{
    return fails(false) ? NULL : counted(__libc_memalign(alignment, size));
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    *memory = fails(false) ? NULL : counted(__libc_memalign(alignment, size));
    return *memory ? 0 : ENOMEM;
}

void free(void *memory)
{
    alive -= memory != NULL;
    __libc_free(memory);
}
