/* The kernels of this build as one numbered list, and sets of them by name. Path of a call: the
 * plan walks the list where no call before was alike; names only where a user forces or disables.
 */
#ifndef MMF_PLAN_KERNELS_H
#define MMF_PLAN_KERNELS_H

#include "cpu/rows.h"
#include "gpu/instances.h"
#include "problem/kernel.h"

#define X(row) +1
enum {
    MMF_CPU_KERNEL_COUNT = MMF_CPU_KERNELS(X),
    MMF_KERNELS = MMF_CPU_KERNEL_COUNT + MMF_GPU_KERNELS,
    MMF_SET_GENERAL = MMF_KERNELS, /* of a set: "general_epilogue", see mmf_config */
    MMF_SET_WORDS = (MMF_SET_GENERAL + 64) / 64
};
#undef X

/* Kernel number index, 0 to MMF_KERNELS - 1: those of the CPU first, each kind best first. */
const mmf_kernel *mmf_kernel_at(int index);

/* The first kernel that can be for a device, and the one after the last: most are for GPUs. */
static inline int mmf_kernel_begin(mmf_device device)
{
    return device.type == MMF_CPU ? 0 : MMF_CPU_KERNEL_COUNT;
}

static inline int mmf_kernel_end(mmf_device device)
{
    return device.type == MMF_CPU ? MMF_CPU_KERNEL_COUNT : MMF_KERNELS;
}

/* Is it for this type of device? */
static inline bool mmf_kernel_is_for(const mmf_kernel *kernel, mmf_device device)
{
    return kernel->devices >> device.type & 1;
}

typedef struct mmf_kernel_set {
    uint64_t bits[MMF_SET_WORDS];
} mmf_kernel_set;

static inline bool mmf_kernel_set_has(const mmf_kernel_set *set, int index)
{
    return set->bits[index / 64] >> index % 64 & 1;
}

static inline bool mmf_kernel_set_any(const mmf_kernel_set *set)
{
    uint64_t any = 0;
    for (int word = 0; word < MMF_SET_WORDS; word++)
        any |= set->bits[word];
    return any != 0;
}

/* Does the set have a kernel for this type of device? */
bool mmf_kernel_set_concerns(const mmf_kernel_set *set, mmf_device device);

/* Add what the first name of a list means, an instance, a family or "general_epilogue"; blanks and
 * commas separate names. Returns the rest of the list, NULL at its end. *unknown, *length: the name
 * if there is no such kernel, else length 0. */
const char *mmf_kernel_set_add(mmf_kernel_set *set, const char *names, const char **unknown,
                               size_t *length);

/* The names in a set, a family's where all of it is: call with *index 0 until it returns NULL. */
const char *mmf_kernel_set_next(const mmf_kernel_set *set, int *index);

/* "cpu_blocked, gemm_simt, ..." of a set, cut to size with "...". Returns text. */
const char *mmf_kernel_set_text(const mmf_kernel_set *set, char *text, size_t size);

/* Every kernel. */
mmf_kernel_set mmf_kernel_set_all(void);

#endif
