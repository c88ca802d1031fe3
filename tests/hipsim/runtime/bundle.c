/* Which code object of an image fits a device: a raw ELF file, or clang's offload bundle of
 * several. Features of a target id ("gfx942:sramecc+:xnack-") must agree where the object fixes
 * them. */
#include "rt.h"

#include <elf.h>
#include <string.h>

enum {
    MACHINE_AMDGPU = 224,
    OSABI_HSA = 64,
    FLAG_MACH = 0xff,
    FLAG_XNACK_SHIFT =
        8, /* two bits each since ABI version 4: 0 not supported, 1 any, 2 off, 3 on */
    FLAG_SRAMECC_SHIFT = 10,
    MOST_ENTRIES = 256
};
static const char BUNDLE[] = "__CLANG_OFFLOAD_BUNDLE__", COMPRESSED[] = "CCOB";

/* '+', '-' or 0 if the target id does not say. */
static char feature(const char *target, size_t length, const char *name)
{
    for (size_t i = 0, n = strlen(name); i + n < length; i++) {
        if (target[i] == ':' && i + 1 + n < length && memcmp(target + i + 1, name, n) == 0)
            return target[i + 1 + n];
    }
    return 0;
}

static bool features_fit(const struct hipsim_arch *arch, char xnack, char sramecc)
{
    const char *own = arch->gcn_arch_name;
    char own_xnack = feature(own, strlen(own), "xnack"),
         own_sramecc = feature(own, strlen(own), "sramecc");
    return (!xnack || xnack == own_xnack) && (!sramecc || sramecc == own_sramecc);
}

static bool elf_fits(const unsigned char *object, const struct hipsim_arch *arch)
{
    static const char settings[4] = {0, 0, '-', '+'};
    Elf64_Ehdr header;
    memcpy(&header, object, sizeof header);
    return (header.e_flags & FLAG_MACH) == arch->elf_machine &&
           features_fit(arch, settings[header.e_flags >> FLAG_XNACK_SHIFT & 3],
                        settings[header.e_flags >> FLAG_SRAMECC_SHIFT & 3]);
}

static bool is_code_object(const unsigned char *image)
{
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    return memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64 &&
           header.e_ident[EI_OSABI] == OSABI_HSA && header.e_machine == MACHINE_AMDGPU;
}

/* "hipv4-amdgcn-amd-amdhsa--gfx942:xnack-" */
static bool entry_fits(const char *id, size_t length, const struct hipsim_arch *arch)
{
    static const char vendor[] = "amdgcn-amd-amdhsa-";
    const char *at = memmem(id, length, vendor, sizeof vendor - 1);
    if (length < 4 || memcmp(id, "hip", 3) != 0 || !at)
        return false;
    at += sizeof vendor - 1;
    length -= (size_t)(at - id);
    while (length && *at == '-') {
        at++;
        length--;
    }
    size_t name = strlen(arch->name);
    return length >= name && memcmp(at, arch->name, name) == 0 &&
           (length == name || at[name] == ':') &&
           features_fit(arch, feature(at, length, "xnack"), feature(at, length, "sramecc"));
}

static uint64_t read_u64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static const unsigned char *find_in_bundle(const unsigned char *image,
                                           const struct hipsim_arch *arch)
{
    const unsigned char *at = image + sizeof BUNDLE - 1;
    uint64_t count = read_u64(at);
    at += 8;
    for (uint64_t i = 0; i < count && count <= MOST_ENTRIES; i++) {
        uint64_t offset = read_u64(at), size = read_u64(at + 8), length = read_u64(at + 16);
        if (length > 4096)
            return NULL;
        if (size && entry_fits((const char *)at + 24, length, arch))
            return image + offset;
        at += 24 + length;
    }
    return NULL;
}

hipError_t rt_code_object_find(const void *image, int device, const unsigned char **object)
{
    const struct hipsim_arch *arch = rt.devices[device].arch;
    *object = image;
    if (memcmp(image, COMPRESSED, sizeof COMPRESSED - 1) == 0) {
        rt_violation(device, "call", "compressed offload bundles are not simulated");
        return hipErrorInvalidImage;
    }
    if (memcmp(image, BUNDLE, sizeof BUNDLE - 1) == 0) {
        *object = find_in_bundle(image, arch);
        if (!*object) /* HIP 7 says invalid image, earlier releases no binary */
            return rt.version >= 70000000 ? hipErrorInvalidImage : hipErrorNoBinaryForGpu;
    }
    if (!is_code_object(*object))
        return hipErrorInvalidImage;
    return elf_fits(*object, arch) ? hipSuccess : hipErrorNoBinaryForGpu;
}
