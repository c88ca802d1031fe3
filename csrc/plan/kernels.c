/* The list of kernels: the only file that names those of the CPU; those of GPUs are the rows of
 * kernels.def. Path of a call: see kernels.h. */
#include "plan/kernels.h"

#include <stdio.h>
#include <string.h>

static const mmf_kernel *const cpu_kernels[] = {
#define X(row) &row,
    MMF_CPU_KERNELS(X)
#undef X
};

const mmf_kernel *mmf_kernel_at(int index)
{
    return index < MMF_CPU_KERNEL_COUNT ? cpu_kernels[index]
                                        : &mmf_gpu_kernels[index - MMF_CPU_KERNEL_COUNT];
}

bool mmf_kernel_set_concerns(const mmf_kernel_set *set, mmf_device device)
{
    const bool any = mmf_kernel_set_any(set);
    for (int i = mmf_kernel_begin(device); any && i < mmf_kernel_end(device); i++)
        if (mmf_kernel_set_has(set, i) && mmf_kernel_is_for(mmf_kernel_at(i), device))
            return true;
    return false;
}

static const char general[] = "general_epilogue";

static bool is_name(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

const char *mmf_kernel_set_add(mmf_kernel_set *set, const char *names, const char **unknown,
                               size_t *length)
{
    bool found = false;
    names += strspn(names, " ,");
    *unknown = names;
    *length = strcspn(names, " ,");
    for (int i = 0; i <= MMF_SET_GENERAL; i++) {
        const mmf_kernel *kernel = i < MMF_KERNELS ? mmf_kernel_at(i) : NULL;
        if (kernel ? is_name(kernel->name, names, *length) ||
                         is_name(kernel->family->name, names, *length)
                   : is_name(general, names, *length))
            set->bits[i / 64] |= UINT64_C(1) << i % 64, found = true;
    }
    names += *length;
    if (found)
        *length = 0;
    names += strspn(names, " ,");
    return *names ? names : NULL;
}

static bool has_family(const mmf_kernel_set *set, const mmf_family *family)
{
    for (int i = 0; i < MMF_KERNELS; i++)
        if (mmf_kernel_at(i)->family == family && !mmf_kernel_set_has(set, i))
            return false;
    return true;
}

const char *mmf_kernel_set_next(const mmf_kernel_set *set, int *index)
{
    for (; *index < MMF_KERNELS; ++*index) {
        const mmf_kernel *kernel = mmf_kernel_at(*index);
        const mmf_family *before = *index ? mmf_kernel_at(*index - 1)->family : NULL;
        if (!mmf_kernel_set_has(set, *index))
            continue;
        if (!has_family(set, kernel->family))
            return ++*index, kernel->name;
        if (before != kernel->family) /* the first of its family */
            return ++*index, kernel->family->name;
    }
    return (*index)++ == MMF_SET_GENERAL && mmf_kernel_set_has(set, MMF_SET_GENERAL) ? general
                                                                                     : NULL;
}

const char *mmf_kernel_set_text(const mmf_kernel_set *set, char *text, size_t size)
{
    const char *name;
    size_t length = 0;
    *text = 0;
    for (int index = 0; (name = mmf_kernel_set_next(set, &index));) {
        if (length + strlen(name) + 6 > size) { /* ", " and "..." and NUL */
            strcpy(text + length, "...");
            break;
        }
        length += (size_t)sprintf(text + length, "%s%s", length ? ", " : "", name);
    }
    return text;
}

mmf_kernel_set mmf_kernel_set_all(void)
{
    mmf_kernel_set set = {{0}};
    for (int i = 0; i < MMF_KERNELS; i++)
        set.bits[i / 64] |= UINT64_C(1) << i % 64;
    return set;
}
