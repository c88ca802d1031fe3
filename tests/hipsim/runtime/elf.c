/* An AMD code object into device memory: the loadable segments at their distances (code and
 * constants read-only), relative relocations, the descriptor and code range of every kernel, and
 * the symbols of data. */
#include "rt.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { NOTE_METADATA = 32, RELOCATE_ABS64 = 3, RELOCATE_RELATIVE64 = 13, PAGE = 4096 };

struct object {
    const unsigned char *bytes;
    Elf64_Ehdr header;
    uint64_t low, high; /* of the loadable segments, as the file numbers addresses */
};

static Elf64_Phdr segment_at(const struct object *object, int index)
{
    Elf64_Phdr segment;
    memcpy(&segment, object->bytes + object->header.e_phoff + (size_t)index * sizeof segment,
           sizeof segment);
    return segment;
}

static Elf64_Shdr section_at(const struct object *object, int index)
{
    Elf64_Shdr section;
    memcpy(&section, object->bytes + object->header.e_shoff + (size_t)index * sizeof section,
           sizeof section);
    return section;
}

static bool open_object(struct object *object, const unsigned char *bytes)
{
    *object = (struct object){.bytes = bytes, .low = UINT64_MAX};
    memcpy(&object->header, bytes, sizeof object->header);
    if (object->header.e_type != ET_DYN || object->header.e_phentsize != sizeof(Elf64_Phdr) ||
        (object->header.e_shnum && object->header.e_shentsize != sizeof(Elf64_Shdr)))
        return false;
    for (int i = 0; i < object->header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(object, i);
        if (segment.p_type != PT_LOAD)
            continue;
        if (segment.p_filesz > segment.p_memsz)
            return false;
        if (segment.p_vaddr < object->low)
            object->low = segment.p_vaddr;
        if (segment.p_vaddr + segment.p_memsz > object->high)
            object->high = segment.p_vaddr + segment.p_memsz;
    }
    object->low -= object->low == UINT64_MAX ? 0 : object->low % PAGE;
    return object->low < object->high && object->high - object->low < (uint64_t)1 << 32;
}

static hipError_t load_segments(struct rt_module *module, const struct object *object)
{
    module->image =
        rt_allocate(module->device, hipMemoryTypeDevice, object->high - object->low, RT_MODULE);
    module->segments = calloc(object->header.e_phnum + 1u, sizeof *module->segments);
    if (!module->image || !module->segments)
        return hipErrorOutOfMemory;
    for (int i = 0; i < object->header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(object, i);
        if (segment.p_type != PT_LOAD || segment.p_memsz == 0)
            continue;
        struct rt_allocation *part = rt_carve(module->image, segment.p_vaddr - object->low,
                                              segment.p_memsz, segment.p_flags & PF_W);
        if (!part)
            return hipErrorOutOfMemory;
        module->segments[module->segment_count++] = part;
        unsigned char *bytes = rt_bytes(part);
        if (!bytes)
            return hipErrorOutOfMemory;
        memcpy(bytes, object->bytes + segment.p_offset, segment.p_filesz);
        memset(bytes + segment.p_filesz, 0, segment.p_memsz - segment.p_filesz);
    }
    return hipSuccess;
}

static uint64_t device_address(const struct rt_module *module, const struct object *object,
                               uint64_t address)
{
    return module->image->base + (address - object->low);
}

/* Only what a linked object without imports can need. */
static hipError_t relocate(struct rt_module *module, const struct object *object)
{
    for (int i = 0; i < object->header.e_shnum; i++) {
        Elf64_Shdr section = section_at(object, i);
        for (uint64_t at = 0; section.sh_type == SHT_RELA && at < section.sh_size;
             at += sizeof(Elf64_Rela)) {
            Elf64_Rela entry;
            memcpy(&entry, object->bytes + section.sh_offset + at, sizeof entry);
            uint64_t value = (uint64_t)entry.r_addend;
            if (ELF64_R_TYPE(entry.r_info) == RELOCATE_ABS64) {
                Elf64_Sym symbol;
                Elf64_Shdr table = section_at(object, (int)section.sh_link);
                memcpy(&symbol,
                       object->bytes + table.sh_offset + ELF64_R_SYM(entry.r_info) * sizeof symbol,
                       sizeof symbol);
                value += symbol.st_value;
                if (symbol.st_shndx == SHN_UNDEF)
                    return hipErrorSharedObjectSymbolNotFound;
            } else if (ELF64_R_TYPE(entry.r_info) != RELOCATE_RELATIVE64) {
                return hipErrorInvalidKernelFile;
            }
            if (entry.r_offset < object->low || entry.r_offset + 8 > object->high)
                return hipErrorInvalidKernelFile;
            value = device_address(module, object, value);
            memcpy(rt_bytes(module->image) + (entry.r_offset - object->low), &value, sizeof value);
        }
    }
    return hipSuccess;
}

static hipError_t find_metadata(struct rt_module *module, const struct object *object)
{
    for (int i = 0; i < object->header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(object, i);
        uint64_t at = 0;
        while (segment.p_type == PT_NOTE && at + sizeof(Elf64_Nhdr) <= segment.p_filesz) {
            Elf64_Nhdr note;
            const unsigned char *bytes = object->bytes + segment.p_offset + at;
            memcpy(&note, bytes, sizeof note);
            uint64_t name = (note.n_namesz + 3u) & ~3u, content = (note.n_descsz + 3u) & ~3u;
            at += sizeof note + name + content;
            if (at > segment.p_filesz + 3)
                return hipErrorInvalidImage;
            if (note.n_type == NOTE_METADATA && note.n_namesz == 7 &&
                memcmp(bytes + 12, "AMDGPU", 7) == 0)
                return rt_metadata_parse(module, bytes + 12 + name, note.n_descsz)
                           ? hipSuccess
                           : hipErrorInvalidImage;
        }
    }
    return hipErrorInvalidImage;
}

/* Where the kernel's code lies: the segment that its descriptor's entry offset points into. */
static bool place_kernel(const struct rt_module *module, const struct object *object,
                         struct rt_kernel *kernel, uint64_t address)
{
    int64_t entry;
    if (address < object->low || address + 64 > object->high)
        return false;
    memcpy(&entry, rt_bytes(module->image) + (address - object->low) + 16, sizeof entry);
    for (int i = 0; i < object->header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(object, i);
        uint64_t code = address + (uint64_t)entry;
        if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) && code >= segment.p_vaddr &&
            code - segment.p_vaddr < segment.p_memsz) {
            kernel->machine.code_address = device_address(module, object, segment.p_vaddr);
            kernel->machine.code_bytes = segment.p_memsz;
            kernel->machine.descriptor = device_address(module, object, address);
            return true;
        }
    }
    return false;
}

static bool add_symbol(struct rt_module *module, const char *name, uint64_t address, size_t size)
{
    void *symbols = realloc(module->symbols, (module->symbol_count + 1) * sizeof *module->symbols);
    char *copy = strdup(name);
    if (symbols)
        module->symbols = symbols;
    if (!symbols || !copy) {
        free(copy);
        return false;
    }
    module->symbols[module->symbol_count++] = (struct rt_symbol){copy, address, size};
    return true;
}

static hipError_t read_symbols(struct rt_module *module, const struct object *object)
{
    for (int i = 0; i < object->header.e_shnum; i++) {
        Elf64_Shdr section = section_at(object, i);
        if (section.sh_type != SHT_DYNSYM)
            continue;
        const char *names =
            (const char *)object->bytes + section_at(object, (int)section.sh_link).sh_offset;
        for (uint64_t at = 0; at < section.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, object->bytes + section.sh_offset + at, sizeof symbol);
            if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT)
                continue;
            const char *name = names + symbol.st_name;
            bool descriptor = false;
            for (size_t k = 0; k < module->kernel_count; k++) {
                if (strcmp(module->kernels[k].symbol, name) == 0) {
                    descriptor = true;
                    if (!place_kernel(module, object, &module->kernels[k], symbol.st_value))
                        return hipErrorInvalidImage;
                }
            }
            if (!descriptor &&
                !add_symbol(module, name, device_address(module, object, symbol.st_value),
                            symbol.st_size))
                return hipErrorOutOfMemory;
        }
    }
    for (size_t k = 0; k < module->kernel_count; k++) {
        if (!module->kernels[k].machine.descriptor)
            return hipErrorInvalidImage;
    }
    return hipSuccess;
}

hipError_t rt_code_object_load(struct rt_module *module, const unsigned char *bytes)
{
    struct object object;
    if (!open_object(&object, bytes))
        return hipErrorInvalidImage;
    hipError_t error = load_segments(module, &object);
    if (!error)
        error = relocate(module, &object);
    if (!error)
        error = find_metadata(module, &object);
    if (!error)
        error = read_symbols(module, &object);
    return error;
}
