/* LDS bank conflicts: the lanes of an access are served in groups; within a group each bank gives
 * one dword a cycle, equal dwords once. The groups and banks are a model made from published
 * measurements (amd_kernels.md section 1.3), never verified on hardware by this project. */
#include "shadow.h"

/* The group of each lane of the first 32 for 16-byte loads; lanes 32..63 repeat it further on. */
static const uint8_t read_128_cdna3[32] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,
                                           1, 1, 1, 1, 0, 0, 0, 0, 3, 3, 3, 3, 2, 2, 2, 2};
static const uint8_t read_128_cdna4[32] = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0,
                                           1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1};

static unsigned group_of(const struct wave *w, int lane, unsigned bytes, bool write,
                         unsigned *banks)
{
    bool wide = w->thread->launch->arch->family == HIPSIM_CDNA4;
    bool cdna = w->thread->launch->arch->family <= HIPSIM_CDNA4;
    unsigned i = (unsigned)lane;
    *banks = wide && !write && bytes != 12 ? 64 : 32;
    if (cdna && !write && (bytes == 12 || (bytes == 16 && !wide)))
        return read_128_cdna3[i % 32] + i / 32 * 4;
    if (wide && !write && bytes == 16)
        return read_128_cdna4[i % 32] + i / 32 * 2;
    unsigned per_group = *banks / ((bytes + 3) / 4 ? (bytes + 3) / 4 : 1);
    return i / (per_group > 32 ? 32 : per_group);
}

unsigned bank_conflicts(const struct wave *w, const uint32_t *address, uint64_t lanes,
                        unsigned bytes, bool write)
{
    enum { GROUPS = 8, BANKS = 64, DIFFERENT = 16 };
    uint32_t seen[GROUPS][BANKS][DIFFERENT]; /* the first count[][] of each are set */
    uint8_t count[GROUPS][BANKS] = {{0}}, most[GROUPS] = {0};
    unsigned extra = 0, words = (bytes + 3) / 4, banks;
    for (uint64_t left = lanes; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        unsigned group = group_of(w, lane, bytes, write, &banks) % GROUPS;
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
