/* Finding a shared library that some other package may have mapped already. Path of a call: first
 * use of a GPU only. */
#ifndef MMF_GPU_LIBRARY_H
#define MMF_GPU_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* How a library is found: the first that opens, in this order. */
typedef struct mmf_library_search {
    const char *override;        /* a path or name: this or nothing; NULL: the rest */
    const char *base;            /* "libamdhip64.so": a mapped library whose file name starts so */
    const char *const *patterns; /* globs; a leading '@' stands for the folder that holds this
                                    package; NULL ends */
    const char *const *names;    /* for the dynamic linker; NULL ends */
} mmf_library_search;

/* Open it; path gets its file. NULL with the reason. */
void *mmf_library_open(const mmf_library_search *search, char *path, size_t path_size, char *reason,
                       size_t reason_size);

/* A function to be looked up and where its address goes. */
typedef struct mmf_symbol {
    const char *name;
    void *slot; /* address of a function pointer */
    bool optional;
} mmf_symbol;

/* Fill every slot (NULL where an optional function is missing). False with the reason. */
bool mmf_library_symbols(void *library, const mmf_symbol *symbols, int count, char *reason,
                         size_t reason_size);

#endif
