/* The order in which dies take tiles: a permutation for every count, runs of neighbours for a die.
 */
#include "gpu/kernels/common/deal.h"
#include "gpu/parts.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void check(bool ok, const char *what, unsigned dies, unsigned tiles)
{
    passed += ok;
    failed += !ok;
    if (!ok && failed < 20)
        printf("%s: %u tiles, %u dies\n", what, tiles, dies);
}

/* Every tile once, however the grid is cut into launches: the number of a workgroup is all that
 * counts. */
static void check_whole(unsigned dies, unsigned tiles, unsigned char *seen)
{
    mmf_deal deal = {0};
    bool once = true, near = true;
    memset(seen, 0, tiles);
    mmf_deal_out(dies, tiles, &deal);
    for (unsigned w = 0; w < tiles; w++) {
        const unsigned tile = mmf_dealt(&deal, w);
        once = once && tile < tiles && !seen[tile];
        if (tile < tiles)
            seen[tile] = 1;
        /* The next workgroup of the die has the next tile, within a run. */
        const unsigned turn = w / dies, whole = tiles / dies;
        if (turn + 1 < whole && (turn + 1) % MMF_DEAL_RUN)
            near = near && mmf_dealt(&deal, w + dies) == tile + 1;
    }
    check(once, "not every tile once", dies, tiles);
    check(near, "neighbours on two dies", dies, tiles);
}

/* Of a grid that is too long to walk: at places all over it, the way back leads to the workgroup.
 */
static void check_places(unsigned dies, unsigned tiles)
{
    mmf_deal deal = {0};
    bool back = true;
    mmf_deal_out(dies, tiles, &deal);
    const unsigned step = tiles / 4096 | 1, round = dies * MMF_DEAL_RUN;
    for (unsigned w = 0; w < tiles; w += step) {
        const unsigned tile = mmf_dealt(&deal, w), whole = tiles / round * round;
        const unsigned run = tile < whole ? MMF_DEAL_RUN : tiles % round / dies;
        const unsigned start = tile < whole ? tile / round * round : whole, at = tile - start;
        const unsigned from = at < run * dies ? start + at % run * dies + at / run : tile;
        back = back && tile < tiles && from == w;
    }
    check(back, "not the tile of one workgroup", dies, tiles);
}

/* Whole GPUs, those with fewer units, and their partitions; no die is told from a count that none
 * has. */
static void check_parts(void)
{
    static const struct {
        const char *arch;
        int units, dies;
    } known[] = {
        {"gfx942", 304, 8}, {"gfx942", 228, 6}, {"gfx942", 152, 4}, {"gfx942", 76, 2},
        {"gfx942", 38, 1},  {"gfx942", 80, 4},  {"gfx942", 20, 1},  {"gfx942", 303, 1},
        {"gfx950", 256, 8}, {"gfx950", 128, 4}, {"gfx950", 32, 1},  {"gfx90a", 110, 1},
        {"gfx1100", 48, 1}, {"gfx1201", 32, 1}, {"sm_90", 132, 1},  {"gfx000", 304, 1},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const int dies = mmf_gpu_dies_of(mmf_gpu_part_named(known[i].arch), known[i].units);
        check(dies == known[i].dies, known[i].arch, (unsigned)dies, (unsigned)known[i].units);
    }
}

int main(void)
{
    check_parts();
    enum { MOST = 4 * MMF_DEAL_RUN * MMF_DEAL_MOST_DIES };
    static unsigned char seen[MOST];
    const mmf_deal none = {0};
    for (unsigned dies = 2; dies <= MMF_DEAL_MOST_DIES; dies++) {
        for (unsigned tiles = 0; tiles < MOST; tiles += tiles < 600 ? 1 : 37)
            check_whole(dies, tiles, seen);
        for (unsigned tiles = MOST; tiles < MMF_DEAL_MOST_TILES; tiles = tiles * 3 + 1)
            check_places(dies, tiles);
        check_places(dies, (unsigned)MMF_DEAL_MOST_TILES - 1);
    }
    for (unsigned w = 0; w < 0xffff0000u; w += 0xfff1)
        check(mmf_dealt(&none, w) == w, "no dies, another order", 0, w);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
