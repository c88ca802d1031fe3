/* The text of one instruction to its operands. LLVM's printer is the grammar: a mnemonic, operands
 * separated by commas, modifiers separated by blanks. Whatever is not understood fails the decode:
 * nothing is skipped.
 * Path of a launch: decode.c -> here, once per instruction of a kernel.
 *
 * A row of opcodes.def describes the operands of its text by two characters each, role and type:
 *   role  d written, D written and read (read as the last source), s read, o offset or "off",
 *         i immediate kept in op.parameter, t branch target, h hwreg, x message, < read though not
 * in the text (vcc, m0, scc), > written though not in the text type  f float32, F float64, h
 * float16, p packed float16, P packed float32, u any 32 bits, U any 64 bits, w 16-bit integer, q
 * packed 16-bit integers, m lane mask, v any width, and for < and >: v vcc, m m0, c scc, e exec */
#include "decode.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_end(char c)
{
    return c == '\0' || c == ',' || c == ' ';
}

static const struct {
    const char *name;
    uint16_t reg;
    uint8_t count; /* 0: a lane mask, 2 in wave64 and 1 in wave32 */
} scalars[] = {
    {"vcc_lo", SREG_VCC, 1},     {"vcc_hi", SREG_VCC + 1, 1},   {"vcc", SREG_VCC, 2},
    {"exec_lo", SREG_EXEC, 1},   {"exec_hi", SREG_EXEC + 1, 1}, {"exec", SREG_EXEC, 2},
    {"m0", SREG_M0, 1},          {"null", SREG_NULL, 1},        {"flat_scratch_lo", 102, 1},
    {"flat_scratch_hi", 103, 1}, {"flat_scratch", 102, 2},      {"xnack_mask_lo", 104, 1},
    {"xnack_mask_hi", 105, 1},   {"xnack_mask", 104, 2},
};

/* s7, s[4:7], v0.l, ttmp9, a[0:3]: the part after the letters. */
static bool parse_index(const char *s, struct operand *out, const char **end)
{
    char *after;
    if (*s == '[') {
        long first = strtol(s + 1, &after, 10), last = first;
        if (*after == ':')
            last = strtol(after + 1, &after, 10);
        if (*after != ']' || last < first || last - first > 63)
            return false;
        out->first = (uint16_t)first;
        out->registers = (uint8_t)(last - first + 1);
        *end = after + 1;
        return true;
    }
    if (!isdigit((unsigned char)*s))
        return false;
    out->first = (uint16_t)strtol(s, &after, 10);
    out->registers = 1;
    *end = after;
    return true;
}

static bool parse_register(const char *s, struct operand *out, const char **end)
{
    if ((*s == 'v' || *s == 'a') && parse_index(s + 1, out, end)) {
        if (out->first + out->registers > 256)
            return false;
        out->kind = OPERAND_VGPR;
        out->first += *s == 'a' ? AGPR0 : 0;
        if (**end == '.') {
            out->half = (*end)[1] == 'h' ? HALF_HIGH : HALF_LOW;
            *end += 2;
        }
        return true;
    }
    if (*s == 's' && parse_index(s + 1, out, end)) {
        out->kind = OPERAND_SREG;
        return out->first + out->registers <= 106;
    }
    if (strncmp(s, "ttmp", 4) == 0 && parse_index(s + 4, out, end)) {
        out->kind = OPERAND_SREG;
        out->first += SREG_TTMP0;
        return out->first + out->registers <= SREG_M0;
    }
    if (strncmp(s, "src_scc", 7) == 0 || strncmp(s, "scc", 3) == 0) {
        *end = s + (*s == 's' && s[1] == 'r' ? 7 : 3);
        out->kind = OPERAND_SREG;
        out->first = SREG_NULL;
        out->registers = 1;
        out->scc = true;
        return true;
    }
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        size_t length = strlen(scalars[i].name);
        if (strncmp(s, scalars[i].name, length) == 0 && !isalnum((unsigned char)s[length]) &&
            s[length] != '_') {
            out->kind = OPERAND_SREG;
            out->first = scalars[i].reg;
            out->registers = scalars[i].count;
            *end = s + length;
            return true;
        }
    }
    return false;
}

/* The bits of a float16 that is one of the inline constants. */
static uint64_t half_constant(double x)
{
    static const struct {
        double value;
        uint16_t bits;
    } table[] = {{0.5, 0x3800}, {1, 0x3c00}, {2, 0x4000}, {4, 0x4400}, {0, 0}};
    double size = x < 0 ? -x : x;
    for (int i = 0; i < 5; i++)
        if (table[i].value == size)
            return table[i].bits | (x < 0 ? 0x8000u : 0u);
    return 0x3118; /* 1 / (2 pi) */
}

static uint64_t float_constant(double x, char type)
{
    switch (type) {
    case 'h':
    case 'p':
        return half_constant(x);
    case 'F':
    case 'U':
        /* The printer shortens 1 / (2 pi) to eight digits. */
        return x > 0.159 && x < 0.16 ? UINT64_C(0x3fc45f306dc9c882) : as_u64(x);
    default:
        return x > 0.159 && x < 0.16 ? 0x3e22f983u : as_u32((float)x);
    }
}

static bool parse_constant(const char *s, struct operand *out, const char **end)
{
    bool hexadecimal = strncmp(s, "0x", 2) == 0 || strncmp(s, "-0x", 3) == 0;
    size_t length = strcspn(s, ", |)");
    char *after;
    out->kind = OPERAND_CONSTANT;
    out->registers = 0;
    if (strncmp(s, "lit64(", 6) == 0) {
        out->value = strtoull(s + 6, &after, 0);
        *end = after + 1;
        return *after == ')';
    }
    if (strncmp(s, "lit(", 4) == 0) {
        out->value = strtoull(s + 4, &after, 0);
        *end = after + 1;
        return *after == ')';
    }
    if (!hexadecimal && memchr(s, '.', length)) {
        if (out->type == 'w' || out->type == 'q')
            return false; /* a 32-bit float in a 16-bit integer operand: no case seen */
        out->value = float_constant(strtod(s, &after), out->type);
    } else {
        long long number = strtoll(s, &after, 0);
        out->value = (uint64_t)number;
        if (hexadecimal && out->type == 'F')
            out->value = (uint64_t)number << 32; /* a literal is the high half of a double */
        else if (out->type != 'U' && out->type != 'F' && out->type != 'm')
            out->value &= 0xffffffff;
    }
    *end = after;
    return after > s;
}

static bool parse_operand(const char *s, struct operand *out)
{
    const char *end = s;
    bool bar = false, wrapped = false;
    if (strncmp(s, "sext(", 5) == 0)
        return false; /* parse_sources strips it */
    if (*s == '-' && !isdigit((unsigned char)s[1])) {
        out->negate = true;
        s++;
    } else if (strncmp(s, "neg(", 4) == 0) {
        out->negate = wrapped = true;
        s += 4;
    }
    if (*s == '|') {
        out->absolute = bar = true;
        s++;
    } else if (strncmp(s, "abs(", 4) == 0) {
        out->absolute = wrapped = true;
        s += 4;
    }
    if (!parse_register(s, out, &end) && !parse_constant(s, out, &end))
        return false;
    if (bar && *end++ != '|')
        return false;
    if (wrapped && *end++ != ')')
        return false;
    return *end == '\0';
}

/* Cut the next operand out of *text: up to a comma outside brackets, or a blank. */
static bool next_operand(const char **text, char *operand, size_t bytes)
{
    const char *s = *text;
    while (*s == ' ' || *s == ',')
        s++;
    size_t n = 0;
    int depth = 0;
    while (*s && !(depth == 0 && is_end(*s))) {
        depth += (*s == '[' || *s == '(') - (*s == ']' || *s == ')');
        if (n + 1 >= bytes)
            return false;
        operand[n++] = *s++;
    }
    operand[n] = '\0';
    *text = s;
    return n > 0;
}

static bool implicit(struct op *o, char role, char type)
{
    struct operand it = {.kind = OPERAND_SREG, .type = 'm', .registers = 2};
    switch (type) {
    case 'v':
        it.first = SREG_VCC;
        break;
    case 'm':
        it.first = SREG_M0;
        it.registers = 1;
        it.type = 'u';
        break;
    case 'c': /* SCC and EXEC: only the checks look, add_ranges names them */
    case 'e':
        return true;
    default:
        return false;
    }
    if (role == '<')
        o->src[o->sources++] = it;
    else
        o->dst[o->destinations++] = it;
    return true;
}

static bool one_operand(struct op *o, char role, const char *text, char type)
{
    struct operand it = {.type = type};
    if (role == 'i' || role == 't') {
        char *end;
        o->parameter = strtoll(text, &end, 0);
        return *end == '\0';
    }
    if (role == 'x') /* a message to the hardware that has no effect here */
        return strcmp(text, "sendmsg(MSG_DEALLOC_VGPRS)") == 0;
    if (role == 'h') /* hwreg, and the value for it: only what changes nothing here */
        return strcmp(text, "hwreg(HW_REG_MODE, 4, 2)") == 0 || strcmp(text, "3") == 0 ||
               strncmp(text, "hwreg(HW_REG_XCC_ID", 19) == 0;
    if (role == 'o' && strcmp(text, "off") == 0) {
        o->src[o->sources++] = (struct operand){.kind = OPERAND_NONE};
        return true;
    }
    if (o->sdwa && strncmp(text, "sext(", 5) == 0) {
        char inner[64];
        size_t length = strlen(text);
        if (length - 6 >= sizeof inner)
            return false;
        memcpy(inner, text + 5, length - 6);
        inner[length - 6] = '\0';
        if (o->sources < 2)
            o->sdwa->sign_extend[o->sources] = true;
        return one_operand(o, role, inner, type);
    }
    if (!parse_operand(text, &it))
        return false;
    if (role == 'd' || role == 'D') {
        if (it.kind == OPERAND_CONSTANT || o->destinations == 2)
            return false;
        o->dst[o->destinations++] = it;
    } else {
        if (o->sources == 5)
            return false;
        o->src[o->sources++] = it;
    }
    return true;
}

static bool parse_operands(struct op *o, const char **text, char *reason, size_t bytes)
{
    char operand[96];
    const char *read_too = NULL;
    for (const char *s = o->row->signature; *s; s += 2) {
        while (*s == ' ')
            s++;
        if (*s == '\0')
            break;
        if (*s == '<' || *s == '>') {
            if (!implicit(o, s[0], s[1]))
                return false;
            continue;
        }
        if (!next_operand(text, operand, sizeof operand)) {
            snprintf(reason, bytes, "an operand is missing");
            return false;
        }
        if (!one_operand(o, s[0], operand, s[1])) {
            snprintf(reason, bytes, "operand \"%s\" is not understood", operand);
            return false;
        }
        if (*s == 'D')
            read_too = s;
    }
    if (read_too) {
        o->src[o->sources] = o->dst[0];
        o->src[o->sources].type = read_too[1];
        o->sources++;
    }
    return true;
}

static void look_up(struct op *o, const char *mnemonic, bool *dpp, bool *sdwa)
{
    static const char *const endings[] = {"_e32", "_e64", "_sdwa", "_dpp", "_e64_dpp"};
    char name[64];
    *dpp = *sdwa = false;
    snprintf(name, sizeof name, "%s", mnemonic);
    o->row = opcode_find(name);
    for (int i = 4; i >= 0 && !o->row; i--) {
        size_t length = strlen(name), ending = strlen(endings[i]);
        if (length <= ending || strcmp(name + length - ending, endings[i]) != 0)
            continue;
        *sdwa = i == 2;
        *dpp = i >= 3;
        name[length - ending] = '\0';
        o->row = opcode_find(name);
    }
}

bool parse_instruction(struct hipsim_program *program, struct op *o, const char *text, char *reason,
                       size_t bytes)
{
    char mnemonic[64];
    bool dpp, sdwa;
    size_t n = strcspn(text, " \t");
    if (n >= sizeof mnemonic) {
        snprintf(reason, bytes, "the mnemonic is too long");
        return false;
    }
    memcpy(mnemonic, text, n);
    mnemonic[n] = '\0';
    text += n;
    look_up(o, mnemonic, &dpp, &sdwa);
    if (!o->row) {
        snprintf(reason, bytes, "opcode %s is unknown", mnemonic);
        return false;
    }
    o->run = o->row->run;
    o->class = (uint8_t)o->row->class;
    /* Not written, op_sel_hi means the upper halves; of the mixed forms, three float32. */
    o->op_sel_hi = strstr(o->row->name, "_mix") ? 0 : 7;
    if (dpp)
        o->dpp = program_allocate(program, sizeof *o->dpp);
    if (sdwa)
        o->sdwa = program_allocate(program, sizeof *o->sdwa);
    if ((dpp && !o->dpp) || (sdwa && !o->sdwa)) {
        snprintf(reason, bytes, "no memory");
        return false;
    }
    if (sdwa) /* not written: the whole register */
        *o->sdwa = (struct sdwa){.select = {SDWA_DWORD, SDWA_DWORD}, .destination = SDWA_DWORD};
    if (!parse_operands(o, &text, reason, bytes))
        return false;
    if (strcmp(o->row->name, "s_waitcnt") == 0)
        o->parameter = -1; /* no counter named yet */
    char token[96];
    while (next_operand(&text, token, sizeof token)) {
        if (!parse_modifier(program, o, token)) {
            snprintf(reason, bytes, "modifier \"%s\" is not understood", token);
            return false;
        }
    }
    return finish_instruction(program, o, reason, bytes);
}
