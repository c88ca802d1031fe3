/* The metadata note of a code object, msgpack: names, sizes and arguments of its kernels. */
#include "rt.h"

#include <stdlib.h>
#include <string.h>

struct cursor {
    const unsigned char *at, *end;
    bool bad;
};

enum type { NUMBER, TEXT, ARRAY, MAP, OTHER };

struct item {
    enum type type;
    uint64_t value; /* the number, or how many bytes, elements or pairs follow */
    const char *text;
};

static uint64_t big_endian(struct cursor *c, size_t bytes)
{
    uint64_t value = 0;
    if (c->bad || (size_t)(c->end - c->at) < bytes) {
        c->bad = true;
        return 0;
    }
    while (bytes--)
        value = value << 8 | *c->at++;
    return value;
}

static void take_bytes(struct cursor *c, struct item *item)
{
    if (item->value > (size_t)(c->end - c->at)) {
        c->bad = true;
        return;
    }
    item->text = (const char *)c->at;
    c->at += item->value;
}

static struct item next(struct cursor *c)
{
    unsigned tag = (unsigned)big_endian(c, 1);
    struct item item = {.type = OTHER};
    if (c->bad)
        return item;
    if (tag < 0x80 || tag >= 0xe0)
        item = (struct item){.type = NUMBER, .value = (uint64_t)(int8_t)tag};
    else if (tag < 0x90)
        item = (struct item){.type = MAP, .value = tag & 15};
    else if (tag < 0xa0)
        item = (struct item){.type = ARRAY, .value = tag & 15};
    else if (tag < 0xc0)
        item = (struct item){.type = TEXT, .value = tag & 31};
    else if (tag == 0xc2 || tag == 0xc3)
        item = (struct item){.type = NUMBER, .value = tag & 1};
    else if (tag >= 0xc4 && tag <= 0xc6)
        item = (struct item){.type = TEXT, .value = big_endian(c, (size_t)1 << (tag - 0xc4))};
    else if (tag == 0xca || tag == 0xcb)
        big_endian(c, tag == 0xca ? 4 : 8);
    else if (tag >= 0xcc && tag <= 0xcf)
        item = (struct item){.type = NUMBER, .value = big_endian(c, (size_t)1 << (tag - 0xcc))};
    else if (tag >= 0xd0 && tag <= 0xd3)
        item = (struct item){.type = NUMBER, .value = big_endian(c, (size_t)1 << (tag - 0xd0))};
    else if (tag >= 0xd9 && tag <= 0xdb)
        item = (struct item){.type = TEXT, .value = big_endian(c, (size_t)1 << (tag - 0xd9))};
    else if (tag == 0xdc || tag == 0xdd)
        item = (struct item){.type = ARRAY, .value = big_endian(c, tag == 0xdc ? 2 : 4)};
    else if (tag == 0xde || tag == 0xdf)
        item = (struct item){.type = MAP, .value = big_endian(c, tag == 0xde ? 2 : 4)};
    else if (tag != 0xc0)
        c->bad = true; /* extensions: no code object has them */
    if (item.type == TEXT)
        take_bytes(c, &item);
    return item;
}

static void skip(struct cursor *c, int depth)
{
    struct item item = next(c);
    if (depth > 16)
        c->bad = true;
    uint64_t count = item.type == MAP ? 2 * item.value : item.type == ARRAY ? item.value : 0;
    while (count-- && !c->bad)
        skip(c, depth + 1);
}

static bool is(const struct item *item, const char *name)
{
    return item->type == TEXT && item->value == strlen(name) &&
           memcmp(item->text, name, item->value) == 0;
}

static void number(struct cursor *c, uint32_t *out)
{
    struct item item = next(c);
    c->bad = c->bad || item.type != NUMBER || item.value > UINT32_MAX;
    *out = (uint32_t)item.value;
}

static void text(struct cursor *c, char **out)
{
    struct item item = next(c);
    if (c->bad || item.type != TEXT || *out) {
        c->bad = true;
        return;
    }
    *out = strndup(item.text, item.value);
    c->bad = !*out;
}

static void parse_argument(struct cursor *c, struct rt_argument *argument)
{
    struct item map = next(c);
    char *kind = NULL;
    c->bad = c->bad || map.type != MAP;
    for (uint64_t i = 0; i < map.value && !c->bad; i++) {
        struct item key = next(c);
        if (is(&key, ".offset"))
            number(c, &argument->offset);
        else if (is(&key, ".size"))
            number(c, &argument->size);
        else if (is(&key, ".value_kind"))
            text(c, &kind);
        else
            skip(c, 0);
    }
    bool is_hidden = kind && strncmp(kind, "hidden_", 7) == 0;
    argument->hidden = is_hidden ? rt_hidden_argument(kind) : -1;
    c->bad = c->bad || !kind || (is_hidden && argument->hidden < 0);
    free(kind);
}

static void parse_arguments(struct cursor *c, struct rt_kernel *kernel)
{
    struct item array = next(c);
    c->bad = c->bad || array.type != ARRAY || kernel->arguments || array.value > 4096;
    if (c->bad)
        return;
    kernel->arguments = calloc(array.value + 1, sizeof *kernel->arguments);
    c->bad = !kernel->arguments;
    for (uint64_t i = 0; i < array.value && !c->bad; i++) {
        struct rt_argument *argument = &kernel->arguments[kernel->argument_count++];
        parse_argument(c, argument);
        if (argument->hidden >= 0)
            continue;
        c->bad = c->bad || kernel->explicit_count != i; /* explicit arguments come first */
        kernel->explicit_count++;
        if (argument->offset + argument->size > kernel->explicit_end)
            kernel->explicit_end = argument->offset + argument->size;
    }
}

static void parse_kernel(struct cursor *c, struct rt_kernel *kernel)
{
    struct item map = next(c);
    c->bad = c->bad || map.type != MAP;
    for (uint64_t i = 0; i < map.value && !c->bad; i++) {
        struct item key = next(c);
        if (is(&key, ".name"))
            text(c, &kernel->name);
        else if (is(&key, ".symbol"))
            text(c, &kernel->symbol);
        else if (is(&key, ".args"))
            parse_arguments(c, kernel);
        else if (is(&key, ".kernarg_segment_size"))
            number(c, &kernel->machine.kernarg_bytes);
        else if (is(&key, ".max_flat_workgroup_size"))
            number(c, &kernel->machine.max_flat_workgroup_size);
        else if (is(&key, ".group_segment_fixed_size"))
            number(c, &kernel->static_lds);
        else if (is(&key, ".private_segment_fixed_size"))
            number(c, &kernel->private_bytes);
        else if (is(&key, ".vgpr_count"))
            number(c, &kernel->vgprs);
        else
            skip(c, 0);
    }
    c->bad = c->bad || !kernel->name || !kernel->symbol;
    for (size_t i = 0; i < kernel->argument_count && !c->bad; i++) {
        const struct rt_argument *argument = &kernel->arguments[i];
        c->bad = (uint64_t)argument->offset + argument->size > kernel->machine.kernarg_bytes;
    }
    kernel->machine.name = kernel->name;
}

/* "amdgcn-amd-amdhsa--gfx942:xnack-" must name the device's part, as e_flags does. */
static void check_target(struct cursor *c, const struct hipsim_arch *arch)
{
    struct item item = next(c);
    size_t length = strlen(arch->name), size = 0;
    while (item.type == TEXT && size < item.value && item.text[size] != ':')
        size++;
    c->bad = c->bad || size < length || memcmp(item.text + size - length, arch->name, length) != 0;
}

bool rt_metadata_parse(struct rt_module *module, const unsigned char *note, size_t size)
{
    struct cursor c = {note, note + size, false};
    struct item map = next(&c);
    c.bad = c.bad || map.type != MAP;
    for (uint64_t i = 0; i < map.value && !c.bad; i++) {
        struct item key = next(&c);
        if (is(&key, "amdhsa.target")) {
            check_target(&c, rt.devices[module->device].arch);
            continue;
        }
        if (!is(&key, "amdhsa.kernels")) {
            skip(&c, 0);
            continue;
        }
        struct item array = next(&c);
        c.bad = c.bad || array.type != ARRAY || module->kernels || array.value > 65536;
        module->kernels = c.bad ? NULL : calloc(array.value + 1, sizeof *module->kernels);
        c.bad = c.bad || !module->kernels;
        for (uint64_t k = 0; k < array.value && !c.bad; k++) {
            struct rt_kernel *kernel = &module->kernels[module->kernel_count++];
            kernel->module = module;
            kernel->machine.arch = rt.devices[module->device].arch;
            parse_kernel(&c, kernel);
        }
    }
    return !c.bad;
}
