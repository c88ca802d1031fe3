/* An elder's object under a sibling's name, and objects that are none of its elder's. */
#include "gpu/siblings.h"

#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GFX1100 = 0x41, GFX1101 = 0x46, GFX1201 = 0x4e, OTHER_FLAGS = 0x500 };

static int passed, failed;

static void check(bool ok, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        printf("%s\n", what);
}

typedef struct code {
    Elf64_Ehdr header;
    char target[64];
} code;

static mmf_status object_for(const code *of, size_t size, const char *arch, unsigned char **copy)
{
    const unsigned char *begin = (const unsigned char *)of;
    const mmf_device_object object = {"gfx1100", "gemm", begin, begin + size};
    return mmf_gpu_object_for(&object, arch, copy);
}

static void check_refused(const code *of, size_t size, const char *arch, const char *what)
{
    unsigned char *copy = NULL;
    check(object_for(of, size, arch, &copy) == MMF_DEVICE_ERROR && !copy, what);
    check(strstr(mmf_error_text(), "not for that GPU") && strstr(mmf_error_text(), arch), what);
}

int main(void)
{
    code elder = {.header.e_flags = OTHER_FLAGS | GFX1100,
                  .target = "amdgcn-amd-amdhsa--gfx1100 amdgcn-amd-amdhsa--gfx1100"};
    unsigned char *copy = NULL;
    const mmf_status status = object_for(&elder, sizeof elder, "gfx1101", &copy);
    check(status == MMF_OK && copy, "an elder's object");
    if (copy) {
        code made;
        memcpy(&made, copy, sizeof made);
        check(made.header.e_flags == (OTHER_FLAGS | GFX1101), "the machine");
        check(!strcmp(made.target, "amdgcn-amd-amdhsa--gfx1101 amdgcn-amd-amdhsa--gfx1101"),
              "the names");
    }
    free(copy);
    check_refused(&elder, sizeof elder, "gfx942", "a GPU without an elder");
    check_refused(&elder, sizeof elder.header - 1, "gfx1101", "an object that is cut");
    elder.header.e_flags = OTHER_FLAGS | GFX1201;
    check_refused(&elder, sizeof elder, "gfx1101", "another machine's object");
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
