/* dlopen with a policy: the copy that another package mapped first, so that streams and pointers
 * are shared with it; two copies of one GPU runtime in a process know nothing of each other. Path
 * of a call: first use of a GPU only. */
#define _GNU_SOURCE
#include "gpu/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef struct mapped {
    const char *base;
    char path[PATH_MAX];
} mapped;

static int look_at_mapped(struct dl_phdr_info *info, size_t size, void *context)
{
    mapped *found = context;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    (void)size;
    if (strncmp(name, found->base, strlen(found->base)))
        return 0;
    snprintf(found->path, sizeof found->path, "%s", info->dlpi_name);
    return 1;
}

/* The file that an open library came from. */
static void *opened(void *library, const char *asked, char *path, size_t size)
{
    struct link_map *map = NULL;
    if (library) {
        bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name && *map->l_name;
        snprintf(path, size, "%s", known ? map->l_name : asked);
    }
    return library;
}

/* The folder that holds this package: two above the extension. */
static void package_parent(char *folder, size_t size)
{
    Dl_info self;
    *folder = 0;
    if (!dladdr((void *)(uintptr_t)mmf_library_open, &self) || !self.dli_fname)
        return;
    snprintf(folder, size, "%s", self.dli_fname);
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(folder, '/');
        if (slash)
            *slash = 0;
        else
            *folder = 0;
    }
}

static void *open_pattern(const char *pattern, char *path, size_t size)
{
    char full[PATH_MAX], parent[PATH_MAX];
    glob_t found;
    void *library = NULL;
    package_parent(parent, sizeof parent);
    bool ours = *pattern == '@';
    if (ours && !*parent)
        return NULL;
    if (snprintf(full, sizeof full, "%s%s", ours ? parent : "", pattern + ours) >= (int)sizeof full)
        return NULL;
    if (glob(full, 0, NULL, &found))
        return NULL;
    for (size_t i = 0; !library && i < found.gl_pathc; i++)
        library =
            opened(dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL), found.gl_pathv[i], path, size);
    globfree(&found);
    return library;
}

void *mmf_library_open(const mmf_library_search *search, char *path, size_t path_size, char *reason,
                       size_t reason_size)
{
    mapped found = {.base = search->base};
    void *library = NULL;
    if (search->override) {
        library = opened(dlopen(search->override, RTLD_NOW | RTLD_LOCAL), search->override, path,
                         path_size);
        if (!library)
            snprintf(reason, reason_size, "%s", dlerror());
        return library;
    }
    if (dl_iterate_phdr(look_at_mapped, &found))
        library = opened(dlopen(found.path, RTLD_NOW | RTLD_NOLOAD), found.path, path, path_size);
    for (const char *const *pattern = search->patterns; !library && *pattern; pattern++)
        library = open_pattern(*pattern, path, path_size);
    for (const char *const *name = search->names; !library && *name; name++)
        library = opened(dlopen(*name, RTLD_NOW | RTLD_LOCAL), *name, path, path_size);
    if (!library)
        snprintf(reason, reason_size, "%s was not found", search->base);
    return library;
}

bool mmf_library_symbols(void *library, const mmf_symbol *symbols, int count, char *reason,
                         size_t reason_size)
{
    for (int i = 0; i < count; i++) {
        void *address = dlsym(library, symbols[i].name);
        if (!address && !symbols[i].optional) {
            snprintf(reason, reason_size, "it has no function %s", symbols[i].name);
            return false;
        }
        memcpy(symbols[i].slot, &address, sizeof address);
    }
    return true;
}
