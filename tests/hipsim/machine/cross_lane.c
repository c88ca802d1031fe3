/* Operations across lanes, or around another instruction: DPP, SDWA, the pair of a VOPD, lane reads
 * and writes, permutations.
 * Path of a launch: the loop of run.c, class VALU. */
#include "lanes.h"

/* Lanes that get no source: a zero with bound_ctrl, else they are left out. */
void run_dpp(struct wave *w, const struct op *o)
{
    const struct dpp *dpp = o->dpp;
    _Alignas(64) uint32_t lanes[2 * LANES];
    int words = o->src[0].registers < 1 ? 1 : o->src[0].registers;
    uint64_t enabled = 0, exec = w->exec;
    for (int i = 0; i < w->lanes; i++) {
        int from = dpp->from[i];
        bool valid = from >= 0 && from < w->lanes && (dpp->fetch_inactive || (exec >> from & 1));
        for (int k = 0; k < words; k++)
            lanes[LANES * k + i] = valid ? w->v[o->src[0].first + k][from] : 0;
        bool listed = (dpp->row_mask >> i / 16 & 1) && (dpp->bank_mask >> i / 4 % 4 & 1);
        enabled |= (uint64_t)(listed && (valid || dpp->bound_control)) << i;
    }
    struct op copy = *o;
    copy.src[0].kind = OPERAND_BUFFER;
    copy.src[0].splat = lanes;
    set_exec(w, exec & enabled);
    uint64_t during = w->exec;
    o->inner(w, &copy);
    if (w->exec == during) /* else a v_cmpx has written it */
        set_exec(w, exec);
}

/* Where BYTE_0..3, WORD_0..1 and DWORD lie in a register. */
struct part {
    int shift, bits;
};

static struct part part_of(uint8_t select)
{
    if (select < 4)
        return (struct part){8 * select, 8};
    return select < 6 ? (struct part){16 * (select - 4), 16} : (struct part){0, 32};
}

void run_sdwa(struct wave *w, const struct op *o)
{
    const struct sdwa *sdwa = o->sdwa;
    _Alignas(64) uint32_t lanes[2][LANES], buffer[LANES], old[LANES];
    struct op copy = *o;
    for (int k = 0; k < 2 && k < o->sources; k++) {
        const uint32_t *p = lanes32(w, &o->src[k], 0, buffer);
        struct part part = part_of(sdwa->select[k]);
        int left = 32 - part.bits - part.shift, right = 32 - part.bits;
        if (sdwa->sign_extend[k])
            FOR_LANES(i) lanes[k][i] = (uint32_t)((int32_t)(p[i] << left) >> right);
        else
            FOR_LANES(i) lanes[k][i] = p[i] << left >> right;
        copy.src[k].kind = OPERAND_BUFFER;
        copy.src[k].splat = lanes[k];
    }
    if (o->dst[0].kind != OPERAND_VGPR) {
        o->inner(w, &copy);
        return;
    }
    uint32_t *d = w->v[o->dst[0].first];
    memcpy(old, d, sizeof old);
    o->inner(w, &copy);
    struct part part = part_of(sdwa->destination);
    int left = 32 - part.bits, right = left - part.shift;
    uint32_t mask = sdwa->unused == 2 ? UINT32_MAX << left >> right : UINT32_MAX;
    FOR_LANES(i)
    {
        uint32_t x = d[i] << left, of_lane = mask & w->lane_mask[i];
        x = sdwa->unused == 1 ? (uint32_t)((int32_t)x >> right) : x >> right;
        d[i] = (x & of_lane) | (old[i] & ~of_lane);
    }
}

static bool reads(const struct op *o, unsigned reg)
{
    for (int i = 0; i < o->sources; i++)
        if (o->src[i].kind == OPERAND_VGPR && o->src[i].first == reg)
            return true;
    return false;
}

/* Both halves read before either writes. */
void run_dual(struct wave *w, const struct op *o)
{
    const struct op *x = &o->other[0], *y = &o->other[1];
    if (!reads(y, x->dst[0].first)) {
        x->run(w, x);
        y->run(w, y);
    } else if (!reads(x, y->dst[0].first)) {
        y->run(w, y);
        x->run(w, x);
    } else {
        _Alignas(64) uint32_t lanes[5][LANES];
        struct op copy = *y;
        for (int k = 0; k < y->sources; k++) {
            if (y->src[k].kind != OPERAND_VGPR)
                continue;
            memcpy(lanes[k], w->v[y->src[k].first], sizeof lanes[k]);
            copy.src[k].kind = OPERAND_BUFFER;
            copy.src[k].splat = lanes[k];
        }
        x->run(w, x);
        copy.run(w, &copy);
    }
}

void v_readfirstlane_b32(struct wave *w, const struct op *o)
{
    uint32_t buffer[LANES];
    const uint32_t *a = lanes32(w, &o->src[0], 0, buffer);
    put_s32(w, o->dst[0].first, a[w->exec ? __builtin_ctzll(w->exec) : 0]);
}

void v_readlane_b32(struct wave *w, const struct op *o)
{
    uint32_t lane = scalar32(w, &o->src[1]) & (uint32_t)(w->lanes - 1);
    put_s32(w, o->dst[0].first, w->v[o->src[0].first][lane]);
}

void v_writelane_b32(struct wave *w, const struct op *o)
{
    uint32_t lane = scalar32(w, &o->src[1]) & (uint32_t)(w->lanes - 1);
    w->v[o->dst[0].first][lane] = scalar32(w, &o->src[0]);
}

static void count_below(struct wave *w, const struct op *o, int base)
{
    SOURCE(u32, a, 0) SOURCE(u32, b, 1) RESULT_u32 for (int i = 0; i < w->lanes; i++)
    {
        int n = i - base;
        uint32_t below = n <= 0 ? 0 : n >= 32 ? UINT32_MAX : (1u << n) - 1;
        d_[i] = (uint32_t)__builtin_popcount(a_[i] & below) + b_[i];
    }
    FINISH_u32(d_)
}

void v_mbcnt_lo_u32_b32(struct wave *w, const struct op *o)
{
    count_below(w, o, 0);
}

void v_mbcnt_hi_u32_b32(struct wave *w, const struct op *o)
{
    count_below(w, o, 32);
}

void v_swap_b32(struct wave *w, const struct op *o)
{
    uint32_t *a = w->v[o->dst[0].first], *b = w->v[o->dst[1].first];
    FOR_ACTIVE(i)
    {
        uint32_t x = a[i];
        a[i] = b[i];
        b[i] = x;
    }
}

/* Rows of 16 lanes of the first register's odd rows trade places with the second's even rows. */
static void swap_rows(struct wave *w, const struct op *o, int row)
{
    uint32_t *a = w->v[o->dst[0].first], *b = w->v[o->dst[1].first];
    for (int i = 0; i < LANES; i++) {
        if (!(i & row) || !(w->exec >> i & 1) || !(w->exec >> (i ^ row) & 1))
            continue;
        uint32_t x = a[i];
        a[i] = b[i ^ row];
        b[i ^ row] = x;
    }
}

void v_permlane16_swap_b32(struct wave *w, const struct op *o)
{
    swap_rows(w, o, 16);
}

void v_permlane32_swap_b32(struct wave *w, const struct op *o)
{
    swap_rows(w, o, 32);
}

/* Lane selectors are 16 nibbles in two scalars; op_sel 1 fetches inactive lanes too, op_sel 2 gives
 * 0 instead of the old value where nothing is fetched. */
static void permute_rows(struct wave *w, const struct op *o, bool other_row)
{
    uint32_t source[LANES];
    uint64_t select = scalar32(w, &o->src[1]) | (uint64_t)scalar32(w, &o->src[2]) << 32;
    memcpy(source, w->v[o->src[0].first], sizeof source);
    uint32_t *d = w->v[o->dst[0].first];
    FOR_ACTIVE(i)
    {
        int row = (i & ~15) ^ (other_row ? 16 : 0);
        int from = row + (int)(select >> 4 * (i & 15) & 15);
        bool valid = (o->op_sel & 1) || (w->exec >> from & 1);
        if (valid || (o->op_sel & 2))
            d[i] = valid ? source[from] : 0;
    }
}

void v_permlane16_b32(struct wave *w, const struct op *o)
{
    permute_rows(w, o, false);
}

void v_permlanex16_b32(struct wave *w, const struct op *o)
{
    permute_rows(w, o, true);
}
