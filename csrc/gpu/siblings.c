/* One object serves all parts of the same instructions. LLVM compiles gfx1101, gfx1102 and gfx1151
 * to the bytes of gfx1100, and gfx1200 to those of gfx1201, once it is told to heed the errata of
 * the elder and to leave out what the elder lacks: tests/test_siblings.py does so, docs/amd_gpus.md
 * says what differs. Only the names in the object must be right: the driver refuses an object of
 * another machine. Path of a call: see siblings.h. */
#include "gpu/siblings.h"

#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_MASK = 0xff }; /* EF_AMDGPU_MACH of e_flags (LLVM's AMDGPUUsage) */

typedef struct sibling {
    const char *arch, *elder; /* of one length, so that the name can be replaced in place */
    uint8_t machine, elder_machine;
} sibling;

static const sibling siblings[] = {{"gfx1101", "gfx1100", 0x46, 0x41},
                                   {"gfx1102", "gfx1100", 0x47, 0x41},
                                   {"gfx1151", "gfx1100", 0x4a, 0x41},
                                   {"gfx1200", "gfx1201", 0x48, 0x4e}};
enum { SIBLINGS = sizeof siblings / sizeof *siblings };

static const sibling *find(const char *arch)
{
    for (int i = 0; i < SIBLINGS; i++)
        if (strcmp(siblings[i].arch, arch) == 0)
            return &siblings[i];
    return NULL;
}

const char *mmf_gpu_elder(const char *arch)
{
    const sibling *s = find(arch);
    return s ? s->elder : NULL;
}

const char *mmf_gpu_sibling(int index, const char **elder)
{
    if (index < 0 || index >= SIBLINGS)
        return NULL;
    *elder = siblings[index].elder;
    return siblings[index].arch;
}

/* The target of the metadata, "amdgcn-amd-amdhsa--gfx1100", wherever it stands. */
static void rename_target(unsigned char *bytes, size_t size, const sibling *s)
{
    static const char vendor[] = "amdgcn-amd-amdhsa--";
    const size_t before = sizeof vendor - 1, name = strlen(s->elder);
    for (size_t i = 0; i + before + name <= size; i++)
        if (memcmp(bytes + i, vendor, before) == 0 &&
            memcmp(bytes + i + before, s->elder, name) == 0)
            memcpy(bytes + i + before, s->arch, name);
}

mmf_status mmf_gpu_object_for(const mmf_device_object *object, const char *arch,
                              unsigned char **copy)
{
    const sibling *s = find(arch);
    const size_t size = (size_t)(object->end - object->begin);
    Elf64_Ehdr header = {.e_flags = 0};
    *copy = NULL;
    if (size >= sizeof header)
        memcpy(&header, object->begin, sizeof header);
    if (!s || (header.e_flags & MACHINE_MASK) != s->elder_machine)
        return mmf_fail(MMF_DEVICE_ERROR,
                        "%s cannot run %s of this build: it is in the place of %s's code, but not "
                        "for that GPU",
                        arch, object->file, object->arch);
    unsigned char *made = malloc(size);
    if (!made)
        return mmf_fail(MMF_NO_MEMORY, "no memory for the code of %s as %s", object->arch, arch);
    memcpy(made, object->begin, size);
    header.e_flags = (header.e_flags & ~(Elf64_Word)MACHINE_MASK) | s->machine;
    memcpy(made, &header, sizeof header);
    rename_target(made, size, s);
    *copy = made;
    return MMF_OK;
}
