/* Device memory. Addresses come from one reserved range that is never accessible, so host code that
 * dereferences a device pointer faults as it would on a GPU; the bytes lie in a second range at a
 * constant distance. Nothing is committed before it is touched, so tensors larger than the
 * machine's memory can exist. Addresses are not used twice: a stale pointer stays stale. Pinned and
 * managed memory is ordinary host memory, one address for both sides. */
#include "rt.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };
static const size_t POISON_LIMIT = (size_t)256 << 20; /* larger allocations stay sparse: zeros */

static struct {
    unsigned char *devices, *bytes; /* the two ranges */
    size_t size, top;
    struct rt_allocation **items; /* sorted by base */
    size_t count, capacity;
} map;

static void *reserve(size_t size)
{
    void *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return range == MAP_FAILED ? NULL : range;
}

bool rt_memory_init(void)
{
    for (size_t size = (size_t)8 << 40; size >= (size_t)1 << 34; size /= 2) {
        map.devices = reserve(size);
#ifdef HIPSIM_ALLOCATION_HOST
        map.bytes = map.devices ? reserve(size) : NULL;
#else
        map.bytes = map.devices;
#endif
        if (map.bytes) {
            map.size = size;
            return true;
        }
        if (map.devices)
            munmap(map.devices, size);
    }
    return false;
}

bool rt_in_device_range(uint64_t address)
{
    return address >= (uintptr_t)map.devices && address - (uintptr_t)map.devices < map.size;
}

/* The index of the first allocation whose base lies beyond the address. */
static size_t index_after(uint64_t address)
{
    size_t low = 0, high = map.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (map.items[middle]->base > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct rt_allocation *rt_find(uint64_t address)
{
    size_t after = index_after(address);
    struct rt_allocation *found = after ? map.items[after - 1] : NULL;
    return found && address - found->base < found->size ? found : NULL;
}

static bool insert(struct rt_allocation *allocation)
{
    if (map.count == map.capacity) {
        size_t capacity = map.capacity ? 2 * map.capacity : 256;
        void *items = realloc(map.items, capacity * sizeof *map.items);
        if (!items)
            return false;
        map.items = items;
        map.capacity = capacity;
    }
    size_t at = index_after(allocation->base);
    memmove(map.items + at + 1, map.items + at, (map.count - at) * sizeof *map.items);
    map.items[at] = allocation;
    map.count++;
    return true;
}

/* Pages for the bytes: of the device range with a guard page behind, or anywhere with one on either
 * side. */
static bool map_pages(struct rt_allocation *allocation)
{
    if (allocation->type == hipMemoryTypeDevice) {
        if (map.size - map.top < allocation->mapped + PAGE)
            return false;
        unsigned char *host = map.bytes + map.top;
        if (mprotect(host, allocation->mapped, PROT_READ | PROT_WRITE) != 0)
            return false;
        allocation->host = host;
        allocation->base = (uintptr_t)map.devices + map.top;
        map.top += allocation->mapped + PAGE;
        return true;
    }
    unsigned char *pages = reserve(allocation->mapped + 2 * PAGE);
    if (!pages)
        return false;
    allocation->host = pages + PAGE;
    allocation->base = (uintptr_t)allocation->host;
    return mprotect(allocation->host, allocation->mapped, PROT_READ | PROT_WRITE) == 0;
}

static void unmap_pages(const struct rt_allocation *allocation)
{
    if (allocation->type != hipMemoryTypeDevice) {
        munmap(allocation->host - PAGE, allocation->mapped + 2 * PAGE);
        return;
    }
    madvise(allocation->host, allocation->mapped, MADV_DONTNEED);
    mprotect(allocation->host, allocation->mapped, PROT_NONE);
}

struct rt_allocation *rt_allocate(int device, int type, size_t size, enum rt_owner owner)
{
    struct rt_device *on = &rt.devices[device];
    bool counted = type == hipMemoryTypeDevice;
    if (size == 0 || size > ((size_t)1 << 46) ||
        (counted && size > on->arch->memory_bytes - on->used))
        return NULL;
    struct rt_allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation)
        return NULL;
    *allocation = (struct rt_allocation){.size = size,
                                         .mapped = (size + PAGE - 1) / PAGE * PAGE,
                                         .device = device,
                                         .type = type,
                                         .owner = owner,
                                         .writable = true,
                                         .live = true};
    if (!map_pages(allocation)) {
        free(allocation);
        return NULL;
    }
    if (!insert(allocation)) {
        unmap_pages(allocation);
        free(allocation);
        return NULL;
    }
    /* All bits set is a NaN in every floating type and -1 in every integer. */
    if (allocation->mapped <= POISON_LIMIT)
        memset(allocation->host, 0xff, allocation->mapped);
    if (counted)
        on->used += size;
    return allocation;
}

struct rt_allocation *rt_carve(struct rt_allocation *whole, size_t offset, size_t size,
                               bool writable)
{
    struct rt_allocation *part = calloc(1, sizeof *part);
    if (!part)
        return NULL;
    *part = *whole;
    part->base += offset;
    part->host += offset;
    part->size = size;
    part->mapped = 0;
    part->writable = writable;
    if (!insert(part)) {
        free(part);
        return NULL;
    }
    rt.devices[whole->device].used -= whole->size;
    whole->size = 0;
    return part;
}

void rt_release(struct rt_allocation *allocation)
{
    size_t at = index_after(allocation->base) - 1;
    while (map.items[at] != allocation) /* parts may begin where their whole does */
        at--;
    memmove(map.items + at, map.items + at + 1, (map.count - at - 1) * sizeof *map.items);
    map.count--;
    if (allocation->mapped) {
        if (allocation->type == hipMemoryTypeDevice)
            rt.devices[allocation->device].used -= allocation->size;
        unmap_pages(allocation);
    }
    free(allocation);
}

unsigned char *rt_host_bytes(const void *address, size_t bytes, const char *what)
{
    struct rt_allocation *found = rt_find((uintptr_t)address);
    size_t offset = found ? (uintptr_t)address - found->base : 0;
    if (found && found->live && bytes <= found->size - offset)
        return found->host + offset;
    if (!found && !rt_in_device_range((uintptr_t)address))
        return (unsigned char *)address;
    rt_violation(found ? found->device : 0, "memory", "%s touches %zu bytes at %p: %s", what, bytes,
                 address,
                 !found         ? "no allocation has this address; it may have been freed"
                 : !found->live ? "the stream has not reached the hipMallocAsync that made it"
                                : "they reach beyond the allocation");
    return NULL;
}

bool rt_machine_find(void *context, uint64_t address, struct hipsim_allocation *found)
{
    const struct rt_device *device = context;
    const struct rt_allocation *allocation = rt_find(address);
    if (!allocation || !allocation->live)
        return false;
    if (allocation->type == hipMemoryTypeDevice && allocation->device != device->ordinal &&
        !device->peer[allocation->device])
        return false;
    *found = (struct hipsim_allocation){
#ifdef HIPSIM_ALLOCATION_HOST
        .host = allocation->host,
#endif
        .base = allocation->base,
        .size = allocation->size,
        .writable = allocation->writable};
    return true;
}

size_t rt_live_allocations(int device, size_t *bytes)
{
    size_t count = 0;
    *bytes = 0;
    for (size_t i = 0; i < map.count; i++) {
        const struct rt_allocation *allocation = map.items[i];
        if (allocation->owner == RT_USER && allocation->device == device) {
            count++;
            *bytes += allocation->size;
        }
    }
    return count;
}
