/* LDS: loads and stores of every width, pairs of them, and the permutations that go through it.
 * Path of a launch: the loop of run.c, class LDS. */
#include "checks.h"
#include "memory.h"

static uint64_t lds_lanes(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes,
                          bool write)
{
    uint32_t size = w->group->lds_bytes, last = size - bytes;
    MASK_LANES(inside, i, address[i] <= last)
    uint64_t good = size >= bytes ? inside : 0, bad = lanes & ~good;
    if (bad) {
        int i = __builtin_ctzll(bad);
        report(w, HIPSIM_VIOLATION_BOUNDS, i,
               "LDS %s of %u bytes at %u: the workgroup has %u bytes", write ? "store" : "load",
               bytes, address[i], size);
    }
    return lanes & good;
}

uint64_t reach_lds(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes,
                   bool write)
{
    uint64_t good = lds_lanes(w, address, lanes, bytes, write);
    unsigned total = bytes * (unsigned)__builtin_popcountll(good);
    *(write ? &w->thread->counters.lds_bytes_written : &w->thread->counters.lds_bytes_read) +=
        total;
    if (w->thread->launch->checks)
        check_lds(w, address, good, bytes, write);
    return good;
}

/* Atomics of one workgroup do not race with each other, so only bounds are looked at. */
uint64_t reach_lds_atomic(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes)
{
    w->thread->counters.atomics += (unsigned)__builtin_popcountll(lanes);
    return lds_lanes(w, address, lanes, bytes, true);
}

uint64_t reach_lds_dma(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes)
{
    uint64_t good = lds_lanes(w, address, lanes, bytes, true);
    if (w->thread->launch->checks)
        check_lds_dma(w, address, good, bytes);
    return good;
}

static void addresses(struct wave *w, const struct op *o, uint32_t offset, uint32_t *address)
{
    uint32_t buffer[LANES];
    const uint32_t *base = lanes32(w, &o->src[0], 0, buffer);
    for (int i = 0; i < LANES; i++)
        address[i] = base[i] + offset;
}

/* LDS addresses to host addresses. */
static void places(struct wave *w, const uint32_t *address, uint64_t *place)
{
    uint64_t base = (uintptr_t)w->group->lds;
    for (int i = 0; i < LANES; i++)
        place[i] = base + address[i];
}

static void load_at(struct wave *w, const uint32_t *address, unsigned reg, unsigned access)
{
    uint64_t place[LANES], good = reach_lds(w, address, w->exec, access & ACCESS_BYTES, false);
    places(w, address, place);
    load_lanes(w, reg, place, good, access);
}

static void store_at(struct wave *w, const uint32_t *address, unsigned reg, unsigned access)
{
    uint64_t place[LANES], good = reach_lds(w, address, w->exec, access & ACCESS_BYTES, true);
    places(w, address, place);
    store_lanes(w, reg, place, good, access);
}

void ds_load(struct wave *w, const struct op *o)
{
    uint32_t address[LANES];
    unsigned access = (unsigned)o->parameter;
    access |= o->dst[0].half == HALF_HIGH ? ACCESS_D16 | ACCESS_HIGH : 0;
    addresses(w, o, (uint32_t)o->offset, address);
    load_at(w, address, o->dst[0].first, access);
}

void ds_store(struct wave *w, const struct op *o)
{
    uint32_t address[LANES];
    unsigned access = (unsigned)o->parameter;
    access |= o->src[1].half == HALF_HIGH ? ACCESS_HIGH : 0;
    addresses(w, o, (uint32_t)o->offset, address);
    store_at(w, address, o->src[1].first, access);
}

/* Two addresses: offsets count in elements, or in 64 elements (ACCESS_HIGH marks st64). */
static uint32_t unit(const struct op *o)
{
    return ((uint32_t)o->parameter & ACCESS_BYTES) * (o->parameter & ACCESS_HIGH ? 64 : 1);
}

void ds_load2(struct wave *w, const struct op *o)
{
    uint32_t first[LANES], second[LANES];
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES, reg = o->dst[0].first;
    addresses(w, o, (uint32_t)o->offset * unit(o), first);
    addresses(w, o, (uint32_t)o->offset1 * unit(o), second);
    load_at(w, first, reg, bytes);
    load_at(w, second, reg + bytes / 4, bytes);
}

void ds_store2(struct wave *w, const struct op *o)
{
    uint32_t address[LANES];
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES;
    addresses(w, o, (uint32_t)o->offset * unit(o), address);
    store_at(w, address, o->src[1].first, bytes);
    addresses(w, o, (uint32_t)o->offset1 * unit(o), address);
    store_at(w, address, o->src[2].first, bytes);
}

/* gfx950: 16 lanes read 4 rows of 16 elements of 16 bits, 4 lanes a row, and get a column each. */
void ds_load_transposed_16(struct wave *w, const struct op *o)
{
    uint32_t address[LANES], buffer[2][LANES];
    addresses(w, o, (uint32_t)o->offset, address);
    uint64_t good = reach_lds(w, address, w->exec, 8, false);
    for (int i = 0; i < LANES; i++) {
        uint16_t column[4];
        for (int row = 0; row < 4; row++) {
            int from = (i & ~15) + 4 * row + (i & 15) / 4;
            uint16_t elements[4] = {0};
            if (good >> from & 1)
                memcpy(elements, w->group->lds + address[from], 8);
            column[row] = elements[i & 3];
        }
        buffer[0][i] = column[0] | (uint32_t)column[1] << 16;
        buffer[1][i] = column[2] | (uint32_t)column[3] << 16;
    }
    merge32(w, o->dst[0].first, buffer[0]);
    merge32(w, o->dst[0].first + 1u, buffer[1]);
}

/* Read lane (address / 4) % lanes of the data. */
void ds_bpermute_b32(struct wave *w, const struct op *o)
{
    uint32_t address[LANES], data[LANES];
    addresses(w, o, (uint32_t)o->offset, address);
    memcpy(data, w->v[o->src[1].first], sizeof data);
    FOR_ACTIVE(i)
    {
        unsigned from = address[i] / 4 % (unsigned)w->lanes;
        w->v[o->dst[0].first][i] = w->exec >> from & 1 ? data[from] : 0;
    }
}

void ds_permute_b32(struct wave *w, const struct op *o)
{
    uint32_t address[LANES], data[LANES] = {0};
    addresses(w, o, (uint32_t)o->offset, address);
    FOR_ACTIVE(i) data[address[i] / 4 % (unsigned)w->lanes] = w->v[o->src[1].first][i];
    FOR_ACTIVE(i) w->v[o->dst[0].first][i] = data[i];
}

/* offset: bit 15 set, a quad permutation; else and, or, xor masks of the lane within 32. */
void ds_swizzle_b32(struct wave *w, const struct op *o)
{
    uint32_t data[LANES], pattern = (uint32_t)o->offset;
    memcpy(data, w->v[o->src[0].first], sizeof data);
    FOR_ACTIVE(i)
    {
        int from;
        if (pattern >> 15)
            from = (i & ~3) | (int)(pattern >> 2 * (i & 3) & 3);
        else
            from = (i & 32) | (((i & (int)(pattern & 31)) | (int)(pattern >> 5 & 31)) ^
                               (int)(pattern >> 10 & 31));
        w->v[o->dst[0].first][i] = w->exec >> from & 1 ? data[from] : 0;
    }
}

void lds_nothing(struct wave *w, const struct op *o)
{
    (void)w, (void)o;
}
