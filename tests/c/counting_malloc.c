/* Allocators that know how many bytes are alive, and the most that were: built and preloaded by
 * test_memory.py, read by isolated/workspace.py. glibc only: the real ones are reached by its own
 * names for them. Memory that calls mmap itself is counted while it is mapped. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static atomic_long alive, most;

long counting_malloc_alive(void)
{
    return alive;
}

long counting_malloc_most(void)
{
    return most;
}

/* From now on. */
void counting_malloc_forget(void)
{
    most = alive;
}

static void add(long bytes)
{
    const long now = atomic_fetch_add(&alive, bytes) + bytes;
    long before = most;
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now))
        ;
}

static void *counted(void *memory)
{
    if (memory)
        add((long)malloc_usable_size(memory));
    return memory;
}

void *malloc(size_t size)
{
    return counted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return counted(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
    const long before = memory ? (long)malloc_usable_size(memory) : 0;
    void *result = __libc_realloc(memory, size);
    if (result)
        add((long)malloc_usable_size(result) - before);
    else if (size == 0)
        add(-before);
    return result;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return counted(__libc_memalign(alignment, size));
}

void *memalign(size_t alignment, size_t size)
{
    return counted(__libc_memalign(alignment, size));
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    *memory = counted(__libc_memalign(alignment, size));
    return *memory ? 0 : ENOMEM;
}

void free(void *memory)
{
    if (memory)
        add(-(long)malloc_usable_size(memory));
    __libc_free(memory);
}

void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset)
{
    void *memory = (void *)syscall(SYS_mmap, at, length, protection, flags, file, offset);
    if (memory != MAP_FAILED)
        add((long)length);
    return memory;
}

int munmap(void *memory, size_t length)
{
    const int failed = (int)syscall(SYS_munmap, memory, length);
    if (!failed)
        add(-(long)length);
    return failed;
}
