/* The text after the operands of an instruction: offsets, cache bits, clamp, op_sel, DPP, SDWA,
 * wait counts; and the last pass over an operation, which makes constants ready to read and lists
 * the registers that the checks look at. Path of a launch: decode.c -> parse.c -> here. */
#include "decode.h"
#include "lanes.h"

#include <stdio.h>
#include <stdlib.h>

/* Cache policy, which a machine without caches has no use for. glc and sc0 also make an atomic
 * return its old value: decode.c looks for that before the operands. */
static bool is_cache_policy(const char *token)
{
    static const char *const names[] = {"glc", "slc", "dlc", "sc0", "sc1", "nt", "scc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(token, names[i]) == 0)
            return true;
    return strncmp(token, "th:", 3) == 0 || strncmp(token, "scope:", 6) == 0;
}

static bool starts(const char *token, const char *with, const char **rest)
{
    size_t length = strlen(with);
    *rest = token + length;
    return strncmp(token, with, length) == 0;
}

/* [1,0,1] to bits, first element lowest. */
static bool parse_bits(const char *s, uint8_t *bits)
{
    *bits = 0;
    if (*s++ != '[')
        return false;
    for (int i = 0; i < 4; i++) {
        *bits |= (uint8_t)((*s++ == '1') << i);
        if (*s == ']')
            return true;
        if (*s++ != ',')
            return false;
    }
    return false;
}

static bool parse_list(const char *s, int *values, int count)
{
    if (*s++ != '[')
        return false;
    for (int i = 0; i < count; i++) {
        char *end;
        values[i] = (int)strtol(s, &end, 10);
        if (end == s || *end != (i + 1 < count ? ',' : ']'))
            return false;
        s = end + 1;
    }
    return true;
}

static int dpp_source(const char *name, int n, int i)
{
    int row = i & ~15, at = i & 15;
    if (strcmp(name, "row_shl") == 0)
        return at + n < 16 ? i + n : -1;
    if (strcmp(name, "row_shr") == 0)
        return at >= n ? i - n : -1;
    if (strcmp(name, "row_ror") == 0)
        return row + ((at - n) & 15);
    if (strcmp(name, "wave_shl") == 0)
        return i + 1 < 64 ? i + 1 : -1;
    if (strcmp(name, "wave_shr") == 0)
        return i - 1;
    if (strcmp(name, "wave_rol") == 0)
        return (i + 1) & 63;
    if (strcmp(name, "wave_ror") == 0)
        return (i - 1) & 63;
    if (strcmp(name, "row_mirror") == 0)
        return row + 15 - at;
    if (strcmp(name, "row_half_mirror") == 0)
        return (i & ~7) + 7 - (i & 7);
    if (strcmp(name, "row_bcast") == 0)
        return n == 15 ? (i >= 16 ? row - 1 : -1) : (i >= 32 ? 31 : -1);
    if (strcmp(name, "row_newbcast") == 0 || strcmp(name, "row_share") == 0)
        return row + n;
    if (strcmp(name, "row_xmask") == 0)
        return i ^ n;
    return -2;
}

static bool parse_dpp(struct dpp *dpp, const char *token)
{
    const char *rest;
    int list[8];
    char name[32];
    if (starts(token, "row_mask:", &rest)) {
        dpp->row_mask = (uint8_t)strtol(rest, NULL, 0);
    } else if (starts(token, "bank_mask:", &rest)) {
        dpp->bank_mask = (uint8_t)strtol(rest, NULL, 0);
    } else if (starts(token, "bound_ctrl:", &rest)) {
        dpp->bound_control = true; /* printed only where it is set, as 0 by old printers */
    } else if (starts(token, "fi:", &rest)) {
        dpp->fetch_inactive = *rest == '1';
    } else if (starts(token, "quad_perm:", &rest)) {
        if (!parse_list(rest, list, 4))
            return false;
        for (int i = 0; i < LANES; i++)
            dpp->from[i] = (int8_t)((i & ~3) + list[i & 3]);
    } else if (starts(token, "dpp8:", &rest)) {
        if (!parse_list(rest, list, 8))
            return false;
        for (int i = 0; i < LANES; i++)
            dpp->from[i] = (int8_t)((i & ~7) + list[i & 7]);
        dpp->row_mask = dpp->bank_mask = 15;
    } else {
        size_t length = strcspn(token, ":");
        if (length >= sizeof name)
            return false;
        memcpy(name, token, length);
        name[length] = '\0';
        int n = token[length] ? (int)strtol(token + length + 1, NULL, 0) : 0;
        for (int i = 0; i < LANES; i++) {
            int from = dpp_source(name, n, i);
            if (from == -2)
                return false;
            dpp->from[i] = (int8_t)from;
        }
    }
    return true;
}

static bool parse_select(const char *name, uint8_t *select)
{
    static const char *const names[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3",
                                        "WORD_0", "WORD_1", "DWORD"};
    for (uint8_t i = 0; i < 7; i++) {
        if (strcmp(name, names[i]) == 0) {
            *select = i;
            return true;
        }
    }
    return false;
}

static bool parse_sdwa(struct sdwa *sdwa, const char *token)
{
    const char *rest;
    if (starts(token, "dst_sel:", &rest))
        return parse_select(rest, &sdwa->destination);
    if (starts(token, "src0_sel:", &rest))
        return parse_select(rest, &sdwa->select[0]);
    if (starts(token, "src1_sel:", &rest))
        return parse_select(rest, &sdwa->select[1]);
    if (starts(token, "dst_unused:UNUSED_", &rest)) {
        sdwa->unused = strcmp(rest, "PAD") == 0 ? 0 : strcmp(rest, "SEXT") == 0 ? 1 : 2;
        return true;
    }
    return false;
}

/* vmcnt(3) and the like: a byte of op.parameter per counter, 255 where none is named. */
static bool parse_wait(struct op *o, const char *token)
{
    static const struct {
        const char *name;
        enum counter counter;
    } names[] = {{"vmcnt(", COUNTER_VM}, {"lgkmcnt(", COUNTER_LGKM}, {"expcnt(", COUNTER_EXP}};
    const char *rest;
    for (int i = 0; i < 3; i++) {
        if (starts(token, names[i].name, &rest)) {
            uint64_t shift = 8 * (uint64_t)names[i].counter;
            o->parameter &= (int64_t)~(UINT64_C(255) << shift);
            o->parameter |= (int64_t)(strtoull(rest, NULL, 10) << shift);
            return true;
        }
    }
    return false;
}

static bool parse_matrix(struct op *o, const char *token)
{
    const char *rest;
    if (starts(token, "cbsz:", &rest))
        o->offset = (int32_t)((o->offset & ~0xff) | strtol(rest, NULL, 0));
    else if (starts(token, "blgp:", &rest))
        o->offset = (int32_t)((o->offset & ~0xff00) | strtol(rest, NULL, 0) << 8);
    else if (starts(token, "abid:", &rest))
        o->offset = (int32_t)((o->offset & ~0xff0000) | strtol(rest, NULL, 0) << 16);
    else
        return false;
    return true;
}

static bool parse_flag(struct op *o, const char *token)
{
    static const struct {
        const char *name;
        uint32_t flag;
    } flags[] = {{"offen", FLAG_OFFEN}, {"lds", FLAG_LDS}};
    static const struct {
        const char *name;
        uint8_t omod;
    } omods[] = {{"mul:2", 1}, {"mul:4", 2}, {"div:2", 3}};
    for (int i = 0; i < 2; i++) {
        if (strcmp(token, flags[i].name) == 0) {
            o->flags |= flags[i].flag;
            return true;
        }
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(token, omods[i].name) == 0) {
            o->omod = omods[i].omod;
            return true;
        }
    }
    if (strcmp(token, "clamp") == 0) {
        o->clamp = 1;
        return true;
    }
    return false;
}

bool parse_modifier(struct hipsim_program *program, struct op *o, const char *token)
{
    const char *rest;
    (void)program;
    if (o->row->class == CLASS_WAIT)
        return parse_wait(o, token);
    if (o->row->run == cache_operation)
        return is_cache_policy(token);
    if (o->row->class == CLASS_OTHER) /* s_delay_alu instid0(VALU_DEP_1) | instskip(SKIP_1) */
        return strcmp(o->row->name, "s_delay_alu") == 0 ||
               ((strcmp(o->row->name, "s_waitcnt_depctr") == 0 ||
                 strcmp(o->row->name, "s_wait_alu") == 0) &&
                starts(token, "depctr_", &rest));
    if (starts(token, "offset:", &rest) || starts(token, "offset0:", &rest)) {
        o->offset = (int32_t)strtol(rest, NULL, 0);
        return true;
    }
    if (starts(token, "byte_sel:", &rest) && o->row->class == CLASS_VALU) {
        o->offset1 = (int32_t)strtol(rest, NULL, 0);
        return true;
    }
    if (starts(token, "offset1:", &rest)) {
        o->offset1 = (int32_t)strtol(rest, NULL, 0);
        return true;
    }
    if (starts(token, "op_sel:", &rest))
        return parse_bits(rest, &o->op_sel);
    if (starts(token, "op_sel_hi:", &rest))
        return parse_bits(rest, &o->op_sel_hi);
    if (starts(token, "neg_lo:", &rest))
        return parse_bits(rest, &o->neg_lo);
    if (starts(token, "neg_hi:", &rest))
        return parse_bits(rest, &o->neg_hi);
    if (parse_flag(o, token))
        return true;
    if (o->row->class == CLASS_MATRIX && parse_matrix(o, token))
        return true;
    if (o->row->class == CLASS_MEMORY || o->row->class == CLASS_SMEM)
        return is_cache_policy(token);
    if (o->row->class == CLASS_LDS && strcmp(token, "gds") == 0)
        return false;
    if (starts(token, "bitop3:", &rest)) {
        o->parameter = strtol(rest, NULL, 0);
        return true;
    }
    if (o->sdwa)
        return parse_sdwa(o->sdwa, token);
    return o->dpp && parse_dpp(o->dpp, token);
}

static void add_range(struct op *o, unsigned first, unsigned count, bool write)
{
    if (count == 0 || o->range_count == MAX_RANGES)
        return;
    o->ranges[o->range_count++] = (struct register_range){(uint16_t)first, (uint8_t)count, write};
}

static void add_operand(struct op *o, const struct operand *it, bool write)
{
    if (it->kind == OPERAND_VGPR)
        add_range(o, it->first, it->registers, write);
    else if (it->kind == OPERAND_SREG && it->scc)
        add_range(o, SCC_REGISTER, 1, write);
    else if (it->kind == OPERAND_SREG && it->first != SREG_NULL)
        add_range(o, VGPRS + it->first, it->registers, write);
}

void add_ranges(struct op *o)
{
    for (int i = 0; i < o->sources; i++)
        add_operand(o, &o->src[i], false);
    for (int i = 0; i < o->destinations; i++)
        add_operand(o, &o->dst[i], true);
    for (const char *s = o->row->signature; *s; s++)
        if ((*s == '<' || *s == '>') && s[1] == 'c')
            add_range(o, SCC_REGISTER, 1, *s == '>');
}

/* Waits that name their counter in the mnemonic carry the count as the operand: put it where
 * s_waitcnt has it. */
static void name_wait(struct op *o)
{
    static const struct {
        const char *ending;
        uint8_t counters;
    } table[] = {{"_vscnt", 1 << COUNTER_VS},
                 {"_vmcnt", 1 << COUNTER_VM},
                 {"_lgkmcnt", 1 << COUNTER_LGKM},
                 {"_loadcnt", 1 << COUNTER_VM},
                 {"_storecnt", 1 << COUNTER_VS},
                 {"_dscnt", 1 << COUNTER_LGKM},
                 {"_kmcnt", 1 << COUNTER_KM},
                 {"_loadcnt_dscnt", 1 << COUNTER_VM | 1 << COUNTER_LGKM},
                 {"_storecnt_dscnt", 1 << COUNTER_VS | 1 << COUNTER_LGKM}};
    const char *name = o->row->name, *ending = NULL;
    uint64_t given = (uint64_t)o->parameter, counts = UINT64_MAX;
    if (strcmp(name, "s_waitcnt") == 0)
        return;
    ending = name + (strncmp(name, "s_waitcnt", 9) == 0 ? 9 : 6);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].ending, ending) != 0)
            continue;
        bool pair = strchr(ending + 1, '_') != NULL;
        for (int k = 0; k < COUNTERS; k++) {
            uint64_t count = pair && k != COUNTER_LGKM ? given >> 8 : given;
            if (table[i].counters >> k & 1)
                counts = (counts & ~(UINT64_C(255) << 8 * k)) | (count & 63) << 8 * k;
        }
    }
    o->parameter = (int64_t)counts;
}

static void count_with(struct op *o, const struct hipsim_arch *arch)
{
    bool split = arch->family >= HIPSIM_RDNA3; /* stores have a counter of their own */
    switch (o->row->class) {
    case CLASS_WAIT:
        name_wait(o);
        break;
    case CLASS_SMEM:
        o->counters = arch->family == HIPSIM_RDNA4 ? 1 << COUNTER_KM : 1 << COUNTER_LGKM;
        break;
    case CLASS_LDS:
        o->counters = o->row->run == lds_nothing ? 0 : 1 << COUNTER_LGKM;
        break;
    case CLASS_MEMORY:
        if ((o->flags & FLAG_STORE) && split)
            o->counters = 1 << COUNTER_VS;
        else
            o->counters = 1 << COUNTER_VM;
        if (o->flags & FLAG_FLAT) /* may turn out to be LDS */
            o->counters |= 1 << COUNTER_LGKM;
        break;
    default:
        break;
    }
}

static bool sixteen_bits(char type)
{
    return type == 'h' || type == 'w' || type == 'b';
}

/* op_sel of a 16-bit instruction that is not packed names the half of each operand. */
static void select_halves(struct op *o)
{
    for (int i = 0; i < o->sources; i++)
        if (sixteen_bits(o->src[i].type) && (o->op_sel >> i & 1))
            o->src[i].half = HALF_HIGH;
    char type = o->row->signature[1];
    if (o->destinations && sixteen_bits(type) && o->op_sel) {
        int texts = (int)(strlen(o->row->signature) + 1) / 3;
        o->dst[0].half = o->op_sel >> (texts - 1) & 1 ? HALF_HIGH : HALF_LOW;
    }
}

/* Modifiers that an instruction of this type would not obey; nothing is ignored in silence. */
static const char *misplaced(const struct op *o)
{
    bool vector = o->class == CLASS_VALU || o->class == CLASS_SALU;
    const char *signature = o->row->signature;
    if ((o->clamp || o->omod) && (!vector || !strchr("fFhpP", signature[1])))
        return "clamp or output scaling of a result that is no float";
    bool halves = o->class == CLASS_MATRIX || o->row->parameter == OWN_OP_SEL;
    for (int i = 0; i < o->sources; i++) {
        const struct operand *s = &o->src[i];
        halves |= s->type && strchr("hwbpPq", s->type) != NULL;
        if ((s->negate || s->absolute) && (!vector || !strchr("fFhbpP", s->type)))
            return "a sign modifier of a source that is no float";
    }
    if (o->op_sel && !halves && !(signature[1] && strchr("hwb", signature[1])))
        return "op_sel of 32-bit operands";
    if ((o->neg_lo || o->neg_hi) && !strchr("pP", signature[1]) && o->class != CLASS_MATRIX &&
        o->row->parameter != OWN_OP_SEL)
        return "neg_lo or neg_hi of an instruction that is not packed";
    return NULL;
}

/* cbsz and blgp 0 and 1 are floats of 8 bits, which take twice the passes of smaller ones. */
static bool has_bytes(const struct op *o)
{
    return (o->offset & 0xff) < 2 || (o->offset >> 8 & 0xff) < 2;
}

bool finish_instruction(struct hipsim_program *program, struct op *o, char *reason, size_t bytes)
{
    for (int i = 0; i < o->sources; i++) {
        if (o->src[i].kind == OPERAND_SREG && o->src[i].type == 'm')
            o->src[i].registers = (uint8_t)(program->arch->wavefront_size / 32);
        if (o->src[i].kind != OPERAND_CONSTANT)
            continue;
        o->src[i].splat = program_splat(program, o->src[i].value);
        if (!o->src[i].splat) {
            snprintf(reason, bytes, "no memory");
            return false;
        }
    }
    const char *wrong = misplaced(o);
    if (wrong) {
        snprintf(reason, bytes, "%s", wrong);
        return false;
    }
    if (o->op_sel)
        select_halves(o);
    if (o->row->class == CLASS_MEMORY)
        o->flags |= (uint32_t)(o->row->parameter >> 16);
    if (o->row->class == CLASS_MEMORY || o->row->class == CLASS_LDS ||
        o->row->class == CLASS_MATRIX || o->row->class == CLASS_SMEM)
        o->parameter = o->row->parameter;
    if (o->row->class == CLASS_MATRIX && strstr(o->row->name, "_f8f6f4") && has_bytes(o))
        o->parameter *= 2;
    add_ranges(o);
    count_with(o, program->arch);
    if (o->dpp || o->sdwa) {
        if (o->src[0].kind != OPERAND_VGPR && o->dpp) {
            snprintf(reason, bytes, "DPP of an operand that is no vector register");
            return false;
        }
        o->inner = o->run;
        o->run = o->dpp ? run_dpp : run_sdwa;
    }
    return true;
}
