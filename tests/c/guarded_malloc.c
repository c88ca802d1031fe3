/* An aligned_alloc whose memory ends at a page that cannot be touched and is full of 0xff (NaN, in
 * every dtype): one byte too far is a SIGSEGV. Built and preloaded by test_memory.py, used by
 * isolated/guarded.py. glibc only: the real free is reached by its own name for it. */
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

void __libc_free(void *memory);

enum { PAGE = 4096, MOST = 256 };

static _Atomic(void *) guarded[MOST]; /* what is alive */
static size_t lengths[MOST];          /* of the mappings */

static void *start_of_mapping(void *memory)
{
    return (void *)((uintptr_t)memory / PAGE * PAGE);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    const size_t used = (size + PAGE - 1) / PAGE * PAGE;
    char *pages =
        mmap(NULL, used + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    memset(pages, 0xff, used);
    char *memory = pages + (used - size) / alignment * alignment;
    for (int i = 0; i < MOST; i++) {
        void *none = NULL;
        if (!atomic_compare_exchange_strong(&guarded[i], &none, memory))
            continue;
        lengths[i] = used + PAGE;
        return mprotect(pages + used, PAGE, PROT_NONE) == 0 ? memory : NULL;
    }
    return NULL;
}

/* How many are alive: 0 if nobody allocates by it. */
int guarded_malloc_alive(void)
{
    int alive = 0;
    for (int i = 0; i < MOST; i++)
        alive += guarded[i] != NULL;
    return alive;
}

void free(void *memory)
{
    for (int i = 0; memory && i < MOST; i++)
        if (atomic_load_explicit(&guarded[i], memory_order_relaxed) == memory) {
            const size_t length = lengths[i];
            guarded[i] = NULL; /* first: another thread may be given the same pages */
            munmap(start_of_mapping(memory), length);
            return;
        }
    __libc_free(memory);
}
