/* Device memory: a reserved range of addresses, each allocation accessible only while a call of
 * this library works with it, so that host code that dereferences a device pointer faults as it
 * would on a GPU. Nothing is committed before it is touched, so tensors larger than the machine's
 * memory can exist. Addresses are not used twice: a stale pointer stays stale. Pinned and managed
 * memory is ordinary memory, one address for both sides. */
#include "rt.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, NEAR = 1 << 20 };
static const size_t POISON_LIMIT = (size_t)256 << 20; /* larger allocations stay sparse: zeros */

struct range {
    uint64_t base;
    size_t size;
};

static struct {
    unsigned char *range;
    size_t size, top;             /* what was handed out */
    struct rt_allocation **items; /* sorted by base */
    size_t count, capacity;
    struct range *opened; /* accessible to the end of this call */
    size_t open, open_capacity;
    uint64_t call;
} map = {.call = 1};

static void *reserve(size_t size)
{
    void *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return range == MAP_FAILED ? NULL : range;
}

bool rt_memory_init(void)
{
    for (map.size = (size_t)8 << 40; map.size >= (size_t)1 << 34; map.size /= 2) {
        map.range = reserve(map.size);
        if (map.range)
            return true;
    }
    return false;
}

static unsigned char *address_of(const struct rt_allocation *allocation)
{
    return (unsigned char *)(uintptr_t)allocation->base;
}

static bool open_range(uint64_t base, size_t size)
{
    if (map.open == map.open_capacity) {
        size_t capacity = map.open_capacity ? 2 * map.open_capacity : 64;
        void *ranges = realloc(map.opened, capacity * sizeof *map.opened);
        if (!ranges)
            return false;
        map.opened = ranges;
        map.open_capacity = capacity;
    }
    if (mprotect((void *)(uintptr_t)base, size, PROT_READ | PROT_WRITE) != 0)
        return false;
    map.opened[map.open++] = (struct range){base, size};
    return true;
}

/* Neighbours are opened in one go, with the freed memory between them: bounds are the map's
 * business. */
bool rt_memory_open(void)
{
    uint64_t first = 0, end = 0;
    for (size_t i = 0; i < map.count; i++) {
        struct rt_allocation *allocation = map.items[i];
        if (allocation->type != hipMemoryTypeDevice || !allocation->mapped)
            continue;
        if (end && allocation->base - end > NEAR) {
            if (!open_range(first, end - first))
                return false;
            end = 0;
        }
        if (!end)
            first = allocation->base;
        end = allocation->base + allocation->mapped;
        allocation->opened = map.call;
    }
    return !end || open_range(first, end - first);
}

void rt_memory_close(void)
{
    for (size_t i = 0; i < map.open; i++)
        mprotect((void *)(uintptr_t)map.opened[i].base, map.opened[i].size, PROT_NONE);
    map.open = 0;
    map.call++;
}

/* A part has its whole's pages; what lies outside the range is always accessible. */
unsigned char *rt_bytes(struct rt_allocation *allocation)
{
    struct rt_allocation *owner = allocation->whole ? allocation->whole : allocation;
    if (owner->type == hipMemoryTypeDevice && owner->opened != map.call) {
        if (!open_range(owner->base, owner->mapped))
            return NULL;
        owner->opened = map.call;
    }
    return address_of(allocation);
}

bool rt_in_device_range(uint64_t address)
{
    return address >= (uintptr_t)map.range && address - (uintptr_t)map.range < map.size;
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

/* Pages for the bytes: of the device range with a gap behind, or anywhere with guard pages. */
static bool map_pages(struct rt_allocation *allocation)
{
    if (allocation->type == hipMemoryTypeDevice) {
        if (map.size - map.top < allocation->mapped + PAGE)
            return false;
        allocation->base = (uintptr_t)map.range + map.top;
        map.top += allocation->mapped + PAGE;
        return true;
    }
    unsigned char *pages = reserve(allocation->mapped + 2 * PAGE);
    if (!pages)
        return false;
    if (mprotect(pages + PAGE, allocation->mapped, PROT_READ | PROT_WRITE) != 0) {
        munmap(pages, allocation->mapped + 2 * PAGE);
        return false;
    }
    allocation->base = (uintptr_t)pages + PAGE;
    return true;
}

static void unmap_pages(const struct rt_allocation *allocation)
{
    if (allocation->type == hipMemoryTypeDevice)
        madvise(address_of(allocation), allocation->mapped, MADV_DONTNEED);
    else
        munmap(address_of(allocation) - PAGE, allocation->mapped + 2 * PAGE);
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
    unsigned char *bytes = rt_bytes(allocation);
    if (!bytes || !insert(allocation)) {
        unmap_pages(allocation);
        free(allocation);
        return NULL;
    }
    /* All bits set is a NaN in every floating type and -1 in every integer. */
    if (allocation->mapped <= POISON_LIMIT)
        memset(bytes, 0xff, allocation->mapped);
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
    part->whole = whole;
    part->opened = 0;
    part->base += offset;
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
    if (found && found->live && bytes <= found->size - offset) {
        unsigned char *first = rt_bytes(found);
        return first ? first + offset : NULL;
    }
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
        .base = allocation->base, .size = allocation->size, .writable = allocation->writable};
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
