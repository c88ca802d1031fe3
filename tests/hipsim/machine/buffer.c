/* Buffer loads and stores through a 128-bit descriptor: lanes outside num_records read zero and
 * store nothing, dword by dword; also the form that goes straight to LDS.
 * Path of a launch: the loop of run.c, class MEMORY. */
#include "memory.h"

struct buffer {
    uint64_t base;
    uint32_t records; /* bytes: only raw buffers, stride 0, are modelled */
    uint32_t scalar;
    uint32_t offset[LANES]; /* of the lane, scalar part excluded */
    uint64_t address[LANES];
};

/* Sources from `first`: vector offset or off, descriptor, scalar offset. */
static bool describe(struct wave *w, const struct op *o, int first, struct buffer *b)
{
    unsigned d = o->src[first + 1].first;
    uint32_t buffer[LANES];
    if (w->s[d + 1] >> 16 & 0x3fff) {
        fault(w, "a buffer descriptor with a stride is not modelled");
        return false;
    }
    b->base = get_s64(w, d) & ((UINT64_C(1) << 48) - 1);
    b->records = w->s[d + 2];
    b->scalar = scalar32(w, &o->src[first + 2]);
    const uint32_t *v = o->flags & FLAG_OFFEN ? lanes32(w, &o->src[first], 0, buffer) : NULL;
    for (int i = 0; i < LANES; i++) {
        b->offset[i] = (v ? v[i] : 0) + (uint32_t)o->offset;
        b->address[i] = b->base + b->scalar + b->offset[i];
    }
    return true;
}

/* Lanes whose bytes [at, at + bytes) are in range. Whether the scalar offset counts is not promised
 * (docs/amd_gpus.md), so a lane that depends on it is reported. */
static uint64_t in_range(struct wave *w, const struct buffer *b, unsigned at, unsigned bytes)
{
    uint32_t end = at + bytes, last = b->records - end;
    if (b->records < end)
        return 0;
    MASK_LANES(without, i, b->offset[i] <= last)
    uint64_t with = without;
    if (b->scalar) {
        uint32_t least = last - b->scalar;
        MASK_LANES(inside, i, b->offset[i] <= least)
        with = b->scalar <= last ? inside : 0;
    }
    uint64_t doubtful = (with ^ without) & w->exec;
    if (doubtful && (w->thread->launch->checks & HIPSIM_CHECK_BOUNDS))
        report(w, HIPSIM_VIOLATION_BOUNDS, __builtin_ctzll(doubtful),
               "offset %u of %u bytes is in range only if the scalar offset %u is not counted",
               b->offset[__builtin_ctzll(doubtful)], b->records, b->scalar);
    return with & w->exec;
}

/* One access of the whole value where no lane is cut by the end, else dword by dword. */
static unsigned part_of(struct wave *w, const struct buffer *b, unsigned bytes, uint64_t whole)
{
    return bytes <= 4 || in_range(w, b, 0, 4) == whole ? bytes : 4;
}

void buffer_load(struct wave *w, const struct op *o)
{
    struct buffer b;
    unsigned access = (unsigned)o->parameter, bytes = access & ACCESS_BYTES;
    if (!describe(w, o, 0, &b))
        return;
    access |= o->dst[0].half == HALF_HIGH ? ACCESS_D16 | ACCESS_HIGH : 0;
    uint64_t whole = in_range(w, &b, 0, bytes);
    unsigned part = part_of(w, &b, bytes, whole);
    for (unsigned at = 0; at < bytes; at += part) {
        uint64_t address[LANES], some = part == bytes ? whole : in_range(w, &b, at, part);
        for (int i = 0; i < LANES; i++)
            address[i] = b.address[i] + at;
        uint64_t good = reach_lanes(w, address, some, part, false);
        load_lanes(w, o->dst[0].first + at / 4, address, good, access - bytes + part);
    }
    w->thread->counters.bytes_loaded += bytes * (unsigned)__builtin_popcountll(whole);
}

/* Sources: data, then as a load. */
void buffer_store(struct wave *w, const struct op *o)
{
    struct buffer b;
    unsigned access = (unsigned)o->parameter, bytes = access & ACCESS_BYTES;
    if (!describe(w, o, 1, &b))
        return;
    access |= o->src[0].half == HALF_HIGH ? ACCESS_HIGH : 0;
    uint64_t whole = in_range(w, &b, 0, bytes);
    unsigned part = part_of(w, &b, bytes, whole);
    for (unsigned at = 0; at < bytes; at += part) {
        uint64_t address[LANES], some = part == bytes ? whole : in_range(w, &b, at, part);
        for (int i = 0; i < LANES; i++)
            address[i] = b.address[i] + at;
        uint64_t good = reach_lanes(w, address, some, part, true);
        store_lanes(w, o->src[0].first + at / 4, address, good, access - bytes + part);
        w->thread->counters.bytes_stored += part * (unsigned)__builtin_popcountll(good);
    }
}

/* No register: lane i writes LDS at M0 + offset + i * bytes; a lane out of range writes zero. */
void buffer_load_lds(struct wave *w, const struct op *o)
{
    struct buffer b;
    unsigned bytes = (unsigned)o->parameter & ACCESS_BYTES;
    uint32_t to[LANES];
    if (!describe(w, o, 0, &b))
        return;
    for (int i = 0; i < LANES; i++)
        to[i] = w->s[SREG_M0] + (uint32_t)o->offset + (uint32_t)i * bytes;
    uint64_t lanes = reach_lds_dma(w, to, w->exec, bytes);
    for (unsigned at = 0; at < bytes; at += 4) {
        uint64_t some = in_range(w, &b, at, 4) & lanes, address[LANES];
        for (int i = 0; i < LANES; i++)
            address[i] = b.address[i] + at;
        uint64_t good = reach_lanes(w, address, some, 4, false);
        static const uint32_t zero;
        for (uint64_t left = lanes; left; left &= left - 1) {
            int i = __builtin_ctzll(left);
            const void *from = good >> i & 1 ? (const void *)(uintptr_t)address[i] : &zero;
            memcpy(w->group->lds + to[i] + at, from, 4);
        }
        w->thread->counters.bytes_to_lds += 4u * (unsigned)__builtin_popcountll(lanes);
    }
}
