/* The memory of the stand-in driver's devices: the host's, in a table, so that an address tells its
 * device. */
#include "stub_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MEMORY = 4096 };

typedef struct memory {
    char *begin;
    size_t size;
    int device;
} memory;

static memory memories[MAX_MEMORY];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int add_memory(size_t size, int device, void **out)
{
    for (int i = 0; i < MAX_MEMORY; i++)
        if (!memories[i].begin) {
            char *begin = aligned_alloc(256, (size / 256 + 1) * 256);
            if (!begin)
                return STUB_OUT_OF_MEMORY;
            memset(begin, 0xff, size); /* NaN in every dtype */
            memories[i] = (memory){begin, size, device};
            *out = begin;
            return 0;
        }
    return STUB_OUT_OF_MEMORY;
}

static int drop_memory(const void *begin)
{
    for (int i = 0; i < MAX_MEMORY; i++)
        if (begin && memories[i].begin == begin) {
            memset(memories[i].begin, 0xff, memories[i].size);
            free(memories[i].begin);
            memories[i].begin = NULL;
            return 0;
        }
    return STUB_INVALID_VALUE;
}

void *stub_alloc(int device, size_t size)
{
    void *begin = NULL;
    pthread_mutex_lock(&mutex);
    add_memory(size, device, &begin);
    pthread_mutex_unlock(&mutex);
    return begin;
}

int stub_free(void *begin)
{
    pthread_mutex_lock(&mutex);
    int code = drop_memory(begin);
    pthread_mutex_unlock(&mutex);
    return code;
}

int stub_live_memory(void)
{
    int live = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAX_MEMORY; i++)
        live += memories[i].begin != NULL;
    pthread_mutex_unlock(&mutex);
    return live;
}

int stub_device_of(const void *address)
{
    for (int i = 0; i < MAX_MEMORY; i++)
        if (memories[i].begin && (const char *)address >= memories[i].begin &&
            (const char *)address < memories[i].begin + memories[i].size)
            return memories[i].device;
    return -1;
}

int cuMemAlloc_v2(void **out, size_t size)
{
    pthread_mutex_lock(&mutex);
    int code = add_memory(size, stub_current()->device, out);
    pthread_mutex_unlock(&mutex);
    return code;
}

int cuMemFree_v2(void *begin)
{
    return stub_free(begin);
}

int cuMemcpyHtoD_v2(void *to, const void *from, size_t size)
{
    memcpy(to, from, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, const void *from, size_t size)
{
    memcpy(to, from, size);
    return 0;
}

int cuPointerGetAttribute(void *value, int attribute, uintptr_t pointer)
{
    int code = stub_enter("cuPointerGetAttribute", "(%d)", attribute);
    int device = stub_device_of((const void *)pointer);
    if (code || device < 0)
        return code ? code : STUB_INVALID_VALUE;
    if (attribute == 8) /* is managed */
        *(unsigned *)value = 0;
    else if (attribute == 9)
        *(int *)value = device;
    else
        return STUB_INVALID_VALUE;
    return 0;
}

int cuMemAllocAsync(void **out, size_t size, void *s)
{
    int code = stub_enter("cuMemAllocAsync", "(%zu, %p)", size, s);
    if (!code)
        code = stub_uncaptured(s);
    pthread_mutex_lock(&mutex);
    if (!code)
        code = add_memory(size, stub_current()->device, out);
    pthread_mutex_unlock(&mutex);
    return code;
}

int cuMemFreeAsync(void *begin, void *s)
{
    int code = stub_enter("cuMemFreeAsync", "(%p)", s);
    if (!code)
        code = stub_uncaptured(s);
    return code ? code : stub_free(begin);
}

int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t size, void *s)
{
    int code = stub_enter("cuMemcpyDtoDAsync", "(%zu, %p)", size, s);
    if (!code)
        code = stub_check_stream(s);
    if (!code)
        memcpy(to, from, size);
    return code;
}
