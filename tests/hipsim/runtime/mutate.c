/* For mutation tests: the instructions of a loaded kernel, how often each executed, and other bytes
 * in their place. A kernel is named by its module's device and its function's name; the module that
 * was loaded last counts. Not on the path of a call, but for the counts that launch.c takes along.
 */
#include "rt.h"

#include <stdlib.h>
#include <string.h>

static struct rt_kernel *kernel_named(int device, const char *name)
{
    for (struct rt_module *module = rt.modules; module; module = module->next) {
        for (size_t i = 0; i < module->kernel_count; i++) {
            if (module->device == device && !module->unloaded &&
                strcmp(module->kernels[i].name, name) == 0)
                return &module->kernels[i];
        }
    }
    return NULL;
}

/* The kernel, decoded; NULL if there is none or its code cannot be decoded. */
static struct rt_kernel *prepared(int device, const char *name)
{
    char sentence[256];
    struct rt_kernel *kernel = kernel_named(device, name);
    if (!kernel || kernel->machine.program)
        return kernel;
    if (!rt_bytes(kernel->module->image) ||
        hipsim_prepare(&kernel->machine, sentence, sizeof sentence) != HIPSIM_OK)
        return NULL;
    return kernel;
}

/* How many instructions a kernel has; 0: no such kernel. */
RT_EXPORT size_t hipsim_instructions(int device, const char *name);
/* The text of one and its offset in the code. The text stays until the next patch. */
RT_EXPORT const char *hipsim_instruction(int device, const char *name, size_t index,
                                         uint64_t *offset);
/* How often each executed since the last call (low 32 bits; high ones: as a wait that had something
 * to wait for), into `executed` if it is not NULL. Counting begins with the first call and ends
 * with a patch. -1: no such kernel. */
RT_EXPORT int hipsim_executed(int device, const char *name, uint64_t *executed);
/* Another word at an offset of the code, and what was there. -1: no such kernel. */
RT_EXPORT int hipsim_patch(int device, const char *name, uint64_t offset, uint32_t word,
                           uint32_t *before);

static void leave(void)
{
    rt_memory_close();
    pthread_mutex_unlock(&rt.lock);
}

size_t hipsim_instructions(int device, const char *name)
{
    pthread_mutex_lock(&rt.lock);
    struct rt_kernel *kernel = prepared(device, name);
    size_t count = kernel ? hipsim_program_length(kernel->machine.program) : 0;
    leave();
    return count;
}

const char *hipsim_instruction(int device, const char *name, size_t index, uint64_t *offset)
{
    pthread_mutex_lock(&rt.lock);
    struct rt_kernel *kernel = prepared(device, name);
    const char *text = kernel ? hipsim_program_text(kernel->machine.program, index, offset) : NULL;
    leave();
    return text;
}

int hipsim_executed(int device, const char *name, uint64_t *executed)
{
    pthread_mutex_lock(&rt.lock);
    struct rt_kernel *kernel = prepared(device, name);
    if (kernel) {
        size_t bytes = hipsim_program_length(kernel->machine.program) * sizeof *executed;
        if (!kernel->executed)
            kernel->executed = calloc(1, bytes);
        else if (executed)
            memcpy(executed, kernel->executed, bytes);
        if (kernel->executed)
            memset(kernel->executed, 0, bytes);
    }
    int result = kernel && kernel->executed ? 0 : -1;
    leave();
    return result;
}

int hipsim_patch(int device, const char *name, uint64_t offset, uint32_t word, uint32_t *before)
{
    pthread_mutex_lock(&rt.lock);
    struct rt_kernel *kernel = kernel_named(device, name);
    int result = -1;
    if (kernel && rt_bytes(kernel->module->image) && offset + 4 <= kernel->machine.code_bytes) {
        unsigned char *code = (unsigned char *)(uintptr_t)kernel->machine.code_address + offset;
        memcpy(before, code, sizeof *before);
        memcpy(code, &word, sizeof word);
        hipsim_program_free(kernel->machine.program);
        kernel->machine.program = NULL;
        free(kernel->executed);
        kernel->executed = NULL;
        result = 0;
    }
    leave();
    return result;
}
