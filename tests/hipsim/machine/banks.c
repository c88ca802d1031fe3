/* LDS bank conflicts: the lanes of an access are served in groups; within a group each bank gives
 * one dword a cycle, equal dwords once. The groups and banks are a model made from published
 * measurements (docs/amd_gpus.md), never verified on hardware by this project. */
#include "shadow.h"

/* Groups in which n lanes in turn are served. */
#define FOUR(lane, n) (lane) / (n), ((lane) + 1) / (n), ((lane) + 2) / (n), ((lane) + 3) / (n)
#define SIXTEEN(lane, n)                                                                           \
    FOUR(lane, n), FOUR((lane) + 4, n), FOUR((lane) + 8, n), FOUR((lane) + 12, n)
#define IN_TURN(n) {SIXTEEN(0, n), SIXTEEN(16, n), SIXTEEN(32, n), SIXTEEN(48, n)}
/* Groups of 8 lanes, four of the first and four of the second. */
#define OCTET(first, second) first, first, first, first, second, second, second, second

/* The group of each lane: by dwords of a lane where there are 32 banks; of loads of 16 bytes. */
static const uint8_t in_turn[5][LANES] = {{0}, IN_TURN(32), IN_TURN(16), IN_TURN(10), IN_TURN(8)};
static const uint8_t read_128_cdna3[LANES] = {OCTET(0, 1), OCTET(2, 3), OCTET(1, 0), OCTET(3, 2),
                                              OCTET(4, 5), OCTET(6, 7), OCTET(5, 4), OCTET(7, 6)};
static const uint8_t read_128_cdna4[LANES] = {OCTET(0, 1), OCTET(1, 0), OCTET(1, 0), OCTET(0, 1),
                                              OCTET(2, 3), OCTET(3, 2), OCTET(3, 2), OCTET(2, 3)};

static const uint8_t *groups_of(const struct wave *w, unsigned bytes, bool write, unsigned *banks)
{
    bool wide = w->thread->launch->arch->family == HIPSIM_CDNA4;
    bool cdna = w->thread->launch->arch->family <= HIPSIM_CDNA4;
    unsigned words = (bytes + 3) / 4;
    *banks = wide && !write && bytes != 12 ? 64 : 32;
    if (cdna && !write && (bytes == 12 || (bytes == 16 && !wide)))
        return read_128_cdna3;
    if (wide && !write && bytes == 16)
        return read_128_cdna4;
    return in_turn[*banks == 64 ? (words + 1) / 2 : words];
}

enum { GROUPS = 8, BANKS = 64, DIFFERENT = 16 };

/* No bank serves two dwords of a group, nor one dword twice. */
static bool free_of_conflicts(const uint32_t *address, uint64_t lanes, unsigned words,
                              const uint8_t *groups, unsigned banks)
{
    uint64_t used[GROUPS] = {0};
    for (uint64_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        unsigned first = address[lane] / 4 % banks;
        uint64_t wanted = (UINT64_C(1) << words) - 1, *of_group = &used[groups[lane]];
        wanted = wanted << first | (first ? wanted >> (banks - first) : 0);
        wanted &= banks == 64 ? UINT64_MAX : UINT32_MAX;
        if (*of_group & wanted)
            return false;
        *of_group |= wanted;
    }
    return true;
}

unsigned bank_conflicts(const struct wave *w, const uint32_t *address, uint64_t lanes,
                        unsigned bytes, bool write)
{
    uint32_t seen[GROUPS][BANKS][DIFFERENT]; /* the first count[][] of each are set */
    uint8_t count[GROUPS][BANKS], most[GROUPS] = {0};
    unsigned extra = 0, words = (bytes + 3) / 4, banks;
    const uint8_t *groups = groups_of(w, bytes, write, &banks);
    if (free_of_conflicts(address, lanes, words, groups, banks))
        return 0;
    memset(count, 0, sizeof count);
    for (uint64_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        unsigned group = groups[lane];
        for (unsigned k = 0; k < words; k++) {
            uint32_t dword = address[lane] / 4 + k, bank = dword % banks, i = 0;
            uint8_t *n = &count[group][bank];
            while (i < *n && seen[group][bank][i] != dword)
                i++;
            if (i == *n && i < DIFFERENT)
                seen[group][bank][(*n)++] = dword;
            most[group] = *n > most[group] ? *n : most[group];
        }
    }
    for (int group = 0; group < GROUPS; group++)
        extra += most[group] > 1 ? most[group] - 1 : 0;
    return extra;
}
