/* Code bytes to a program: walk every path from the kernel's entry, parse each instruction once,
 * put the operations in address order and aim the branches. Programs of equal code are shared.
 * Path of a launch: hipsim_run or hipsim_prepare -> program_get -> here, on the first launch. */
#include "decode.h"
#include "checks.h"
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_CODE (16u << 20)
#define ARENA_BLOCK 65536

struct block {
    struct block *next;
    size_t used, bytes;
    _Alignas(64) uint8_t data[];
};

void *program_allocate(struct hipsim_program *program, size_t bytes)
{
    bytes = (bytes + 63) & ~(size_t)63;
    struct block *block = program->arena;
    if (!block || block->used + bytes > block->bytes) {
        size_t room = bytes > ARENA_BLOCK ? bytes : ARENA_BLOCK;
        block = aligned_alloc(64, (sizeof *block + room + 63) & ~(size_t)63);
        if (!block)
            return NULL;
        block->next = program->arena;
        block->used = 0;
        block->bytes = room;
        program->arena = block;
    }
    void *p = block->data + block->used;
    block->used += bytes;
    return memset(p, 0, bytes);
}

struct splat {
    struct splat *next;
    uint64_t value;
    _Alignas(64) uint32_t lanes[2 * LANES];
};

const uint32_t *program_splat(struct hipsim_program *program, uint64_t value)
{
    struct splat **bucket = &program->splats[(value ^ value >> 7 ^ value >> 23 ^ value >> 40) & 63];
    for (struct splat *s = *bucket; s; s = s->next)
        if (s->value == value)
            return s->lanes;
    struct splat *s = program_allocate(program, sizeof *s);
    if (!s)
        return NULL;
    s->value = value;
    for (int i = 0; i < LANES; i++) {
        s->lanes[i] = (uint32_t)value;
        s->lanes[LANES + i] = (uint32_t)(value >> 32);
    }
    s->next = *bucket;
    *bucket = s;
    return s->lanes;
}

#define OP(name, signature, class, function, parameter)                                            \
    {#name, signature, CLASS_##class, function, parameter},
static const struct opcode rows[] = {
#include "opcodes.def"
};
#undef OP
#define ROWS (sizeof rows / sizeof *rows)

static struct {
    pthread_mutex_t mutex; /* of the list of programs and the index */
    struct hipsim_program *programs;
    uint16_t index[8192]; /* open addressing: row number + 1 */
    bool indexed;
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static uint32_t hash_name(const char *s)
{
    uint32_t h = 2166136261u;
    while (*s)
        h = (h ^ (uint8_t)*s++) * 16777619u;
    return h ^ h >> 15;
}

static void index_rows(void)
{
    _Static_assert(ROWS < 4096, "the index is too small");
    for (size_t i = 0; i < ROWS; i++) {
        uint32_t at = hash_name(rows[i].name) & 8191;
        while (state.index[at])
            at = (at + 1) & 8191;
        state.index[at] = (uint16_t)(i + 1);
    }
    state.indexed = true;
}

const struct opcode *opcode_find(const char *name)
{
    for (uint32_t at = hash_name(name) & 8191; state.index[at]; at = (at + 1) & 8191)
        if (strcmp(rows[state.index[at] - 1].name, name) == 0)
            return &rows[state.index[at] - 1];
    return NULL;
}

/* One walk. `visited` has a byte per dword of the code, `work` the addresses still to follow. */
struct walk {
    struct hipsim_program *program;
    const struct hipsim_kernel *kernel;
    const uint8_t *code;
    uint8_t *visited;
    uint32_t *work;
    size_t waiting;
    void *disassembler;
    char *sentence;
    size_t bytes;
};

static struct op *new_op(struct hipsim_program *program)
{
    if (program->count == program->capacity) {
        size_t capacity = program->capacity ? 2 * program->capacity : 1024;
        struct op *ops = realloc(program->ops, capacity * sizeof *ops);
        if (!ops)
            return NULL;
        program->ops = ops;
        program->capacity = capacity;
    }
    struct op *o = &program->ops[program->count++];
    memset(o, 0, sizeof *o);
    return o;
}

/* The operands of some forms differ only at the end of the text: a load straight
 * to LDS, an atomic that returns. The row's name then has that as an ending. */
static void name_variant(const char *text, char *out, size_t bytes)
{
    size_t n = strcspn(text, " \t");
    const char *ending = "";
    bool memory = strncmp(text, "buffer_", 7) == 0 || strncmp(text, "global_", 7) == 0 ||
                  strncmp(text, "flat_", 5) == 0;
    if (memory && strncmp(text, "buffer_load", 11) == 0 && strstr(text, " lds"))
        ending = "_lds";
    else if (memory && strstr(text, "_atomic_") &&
             (strstr(text, " sc0") || strstr(text, " glc") || strstr(text, "TH_ATOMIC_RETURN")))
        ending = "_rtn";
    /* v_cmpx of gfx9 writes a mask besides EXEC: three operands instead of two. */
    bool both =
        strncmp(text, "v_cmpx_", 7) == 0 && strchr(text, ',') && strchr(strchr(text, ',') + 1, ',');
    if (both)
        snprintf(out, bytes, "v_cmpxd_%s", text + 7);
    else
        snprintf(out, bytes, "%.*s%s%s", (int)n, text, ending, text + n);
}

static bool parse_dual(struct hipsim_program *program, struct op *o, char *text, char *second,
                       char *reason, size_t bytes)
{
    *second = '\0';
    second += 2;
    while (*second == ' ' || *second == '\t')
        second++;
    o->other = program_allocate(program, 2 * sizeof *o->other);
    if (!o->other) {
        snprintf(reason, bytes, "no memory");
        return false;
    }
    struct op *x = &o->other[0], *y = &o->other[1];
    if (!parse_instruction(program, x, text, reason, bytes) ||
        !parse_instruction(program, y, second, reason, bytes))
        return false;
    o->row = x->row;
    o->run = run_dual;
    o->class = CLASS_VALU;
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < o->other[half].range_count && o->range_count < MAX_RANGES; i++)
            o->ranges[o->range_count++] = o->other[half].ranges[i];
    return true;
}

static bool decode_one(struct walk *walk, uint32_t pc, struct op *o)
{
    char raw[512], text[512], reason[256] = "";
    size_t size = disassemble(walk->disassembler, walk->code + pc, walk->kernel->code_bytes - pc,
                              raw, sizeof raw);
    const char *start = raw;
    while (*start == ' ' || *start == '\t')
        start++;
    for (char *s = raw; *s; s++)
        *s = *s == '\t' ? ' ' : *s;
    size_t length = strlen(start);
    while (length && start[length - 1] == ' ')
        raw[(start - raw) + --length] = '\0';
    if (size == 0) {
        snprintf(walk->sentence, walk->bytes, "kernel %s (%s): no instruction at code offset 0x%x",
                 walk->kernel->name, walk->kernel->arch->name, pc);
        return false;
    }
    o->pc = pc;
    o->bytes = (uint32_t)size;
    o->text = program_allocate(walk->program, length + 1);
    if (!o->text) {
        snprintf(walk->sentence, walk->bytes, "no memory");
        return false;
    }
    memcpy(o->text, start, length + 1);
    name_variant(start, text, sizeof text);
    char *second = strstr(text, "::");
    bool good = second ? parse_dual(walk->program, o, text, second, reason, sizeof reason)
                       : parse_instruction(walk->program, o, text, reason, sizeof reason);
    if (good)
        o->traits = traits_of(o->row->name);
    else
        snprintf(walk->sentence, walk->bytes, "kernel %s (%s), code offset 0x%x: \"%s\": %s",
                 walk->kernel->name, walk->kernel->arch->name, pc, o->text, reason);
    return good;
}

static bool push(struct walk *walk, int64_t pc)
{
    if (pc < 0 || pc % 4 || pc >= (int64_t)walk->kernel->code_bytes) {
        snprintf(walk->sentence, walk->bytes, "kernel %s: a branch leaves the code, to offset %lld",
                 walk->kernel->name, (long long)pc);
        return false;
    }
    if (!walk->visited[pc / 4]) {
        walk->visited[pc / 4] = 1;
        walk->work[walk->waiting++] = (uint32_t)pc;
    }
    return true;
}

static bool follow(struct walk *walk, uint32_t pc)
{
    for (;;) {
        struct op *o = new_op(walk->program);
        if (!o) {
            snprintf(walk->sentence, walk->bytes, "no memory");
            return false;
        }
        if (!decode_one(walk, pc, o))
            return false;
        walk->visited[pc / 4] = 1;
        if (o->row->class == CLASS_BRANCH) {
            int64_t target = pc + 4 + 4 * (int64_t)(int16_t)o->parameter;
            o->target = (int32_t)target;
            if (!push(walk, target))
                return false;
        }
        if (o->run == s_endpgm || o->run == s_branch)
            return true;
        pc += o->bytes;
        if (pc < walk->kernel->code_bytes && walk->visited[pc / 4])
            return true;
        if (pc >= walk->kernel->code_bytes) {
            snprintf(walk->sentence, walk->bytes, "kernel %s runs off the end of its code",
                     walk->kernel->name);
            return false;
        }
    }
}

static int by_pc(const void *a, const void *b)
{
    const struct op *x = a, *y = b;
    return (x->pc > y->pc) - (x->pc < y->pc);
}

static size_t index_of(const struct hipsim_program *program, uint32_t pc)
{
    size_t low = 0, high = program->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (program->ops[middle].pc < pc)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool walk_code(struct walk *walk, uint32_t entry)
{
    if (!push(walk, entry))
        return false;
    while (walk->waiting)
        if (!follow(walk, walk->work[--walk->waiting]))
            return false;
    struct hipsim_program *program = walk->program;
    qsort(program->ops, program->count, sizeof *program->ops, by_pc);
    for (size_t i = 0; i < program->count; i++)
        if (program->ops[i].row->class == CLASS_BRANCH)
            program->ops[i].target = (int32_t)index_of(program, (uint32_t)program->ops[i].target);
    program->entry = index_of(program, entry);
    return true;
}

static void destroy(struct hipsim_program *program)
{
    struct block *next;
    for (struct block *block = program->arena; block; block = next) {
        next = block->next;
        free(block);
    }
    free(program->ops);
    free(program);
}

static enum hipsim_status decode(struct hipsim_program *program, struct hipsim_kernel *kernel,
                                 uint32_t entry, char *sentence, size_t bytes)
{
    struct walk walk = {.program = program, .kernel = kernel, .sentence = sentence, .bytes = bytes};
    walk.code = (const uint8_t *)(uintptr_t)kernel->code_address; /* device memory is mapped here */
    walk.disassembler = disassembler_open(kernel->arch->name, sentence, bytes);
    if (!walk.disassembler)
        return HIPSIM_NO_DECODER;
    enum hipsim_status status = HIPSIM_NO_MEMORY;
    walk.visited = calloc(kernel->code_bytes / 4 + 1, 1);
    walk.work = malloc((kernel->code_bytes / 4 + 1) * sizeof *walk.work);
    if (!walk.visited || !walk.work)
        snprintf(sentence, bytes, "no memory");
    else
        status = walk_code(&walk, entry) ? HIPSIM_OK : HIPSIM_UNDECODED;
    free(walk.visited);
    free(walk.work);
    disassembler_close(walk.disassembler);
    return status;
}

static void hash_code(const struct hipsim_kernel *kernel, uint64_t entry, uint64_t key[2])
{
    const uint8_t *p = (const uint8_t *)(uintptr_t)kernel->code_address;
    uint64_t a = UINT64_C(0xcbf29ce484222325) ^ entry, b = kernel->code_bytes * 31 + entry;
    for (size_t i = 0; i + 4 <= kernel->code_bytes; i += 4) {
        uint32_t word;
        memcpy(&word, p + i, 4);
        a = (a ^ word) * UINT64_C(0x100000001b3);
        b = (b + word) * UINT64_C(0x9e3779b97f4a7c15);
        b ^= b >> 29;
    }
    key[0] = a;
    key[1] = b;
}

static enum hipsim_status get(struct hipsim_kernel *kernel, uint64_t entry, char *sentence,
                              size_t bytes)
{
    uint64_t key[2];
    hash_code(kernel, entry, key);
    if (!state.indexed)
        index_rows();
    for (struct hipsim_program *p = state.programs; p; p = p->next) {
        if (p->key[0] == key[0] && p->key[1] == key[1] && p->arch == kernel->arch) {
            p->references++;
            kernel->program = p;
            return HIPSIM_OK;
        }
    }
    struct hipsim_program *program = calloc(1, sizeof *program);
    if (!program) {
        snprintf(sentence, bytes, "no memory");
        return HIPSIM_NO_MEMORY;
    }
    program->arch = kernel->arch;
    program->references = 1;
    memcpy(program->key, key, sizeof key);
    enum hipsim_status status = decode(program, kernel, (uint32_t)entry, sentence, bytes);
    if (status != HIPSIM_OK) {
        destroy(program);
        return status;
    }
    program->next = state.programs;
    state.programs = program;
    kernel->program = program;
    return HIPSIM_OK;
}

enum hipsim_status hipsim_prepare(struct hipsim_kernel *kernel, char *sentence, size_t bytes)
{
    int64_t offset;
    memcpy(&offset, (const void *)(uintptr_t)(kernel->descriptor + 16), sizeof offset);
    uint64_t entry = kernel->descriptor + (uint64_t)offset - kernel->code_address;
    if (kernel->code_bytes > MAX_CODE || entry >= kernel->code_bytes || entry % 4) {
        snprintf(sentence, bytes, "kernel %s: entry at offset %llu of %zu bytes of code",
                 kernel->name, (unsigned long long)entry, kernel->code_bytes);
        return HIPSIM_BAD_LAUNCH;
    }
    pthread_mutex_lock(&state.mutex);
    enum hipsim_status status = kernel->program ? HIPSIM_OK : get(kernel, entry, sentence, bytes);
    pthread_mutex_unlock(&state.mutex);
    return status;
}

void hipsim_program_free(struct hipsim_program *program)
{
    if (!program)
        return;
    pthread_mutex_lock(&state.mutex);
    if (--program->references == 0) {
        struct hipsim_program **link = &state.programs;
        while (*link != program)
            link = &(*link)->next;
        *link = program->next;
        destroy(program);
    }
    pthread_mutex_unlock(&state.mutex);
}

size_t hipsim_program_length(const struct hipsim_program *program)
{
    return program->count;
}

const char *hipsim_program_text(const struct hipsim_program *program, size_t index,
                                uint64_t *offset)
{
    if (index >= program->count)
        return NULL;
    *offset = program->ops[index].pc;
    return program->ops[index].text;
}
