/* Modules: a code object loaded for the current device, its functions and variables. A module lives
 * until its handle is unloaded and no queued launch needs it. */
#include "rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void destroy(struct rt_module *module)
{
    for (size_t i = 0; i < module->kernel_count; i++) {
        struct rt_kernel *kernel = &module->kernels[i];
        hipsim_program_free(kernel->machine.program);
        free(kernel->name);
        free(kernel->symbol);
        free(kernel->arguments);
        free(kernel->executed);
    }
    for (size_t i = 0; i < module->symbol_count; i++)
        free(module->symbols[i].name);
    for (size_t i = 0; i < module->segment_count; i++)
        rt_release(module->segments[i]);
    if (module->image)
        rt_release(module->image);
    free(module->kernels);
    free(module->symbols);
    free(module->segments);
    free(module);
}

void rt_module_release(struct rt_module *module)
{
    if (--module->references > 0)
        return;
    struct rt_module **link = &rt.modules;
    while (*link && *link != module)
        link = &(*link)->next;
    if (*link)
        *link = module->next;
    destroy(module);
}

static struct rt_module *module_of(hipModule_t handle)
{
    struct rt_module *module = rt.modules;
    while (module && ((void *)module != (void *)handle || module->unloaded))
        module = module->next;
    return module;
}

struct rt_kernel *rt_kernel_of(hipFunction_t handle)
{
    for (struct rt_module *module = rt.modules; module; module = module->next) {
        for (size_t i = 0; i < module->kernel_count && !module->unloaded; i++) {
            if ((void *)&module->kernels[i] == (void *)handle)
                return &module->kernels[i];
        }
    }
    if (handle)
        rt_violation(rt_thread.device, "handle", "%p is not a function of a loaded module",
                     (void *)handle);
    return NULL;
}

/* AMD's runtime loads during a capture; CUDA's may refuse, and a first call inside a capture is a
 * bug of ours. */
static hipError_t load(hipModule_t *handle, const void *image)
{
    hipError_t error = rt_capture_forbids();
    if (error)
        return error;
    if (!handle || !image)
        return hipErrorInvalidValue;
    const unsigned char *object;
    error = rt_code_object_find(image, rt_thread.device, &object);
    if (error)
        return error;
    struct rt_module *module = calloc(1, sizeof *module);
    if (!module)
        return hipErrorOutOfMemory;
    module->device = rt_thread.device;
    module->references = 1;
    error = rt_code_object_load(module, object);
    if (error) {
        destroy(module);
        return error;
    }
    module->next = rt.modules;
    rt.modules = module;
    *handle = (hipModule_t)(void *)module;
    return hipSuccess;
}

hipError_t rt_hipModuleLoadData(hipModule_t *handle, const void *image)
{
    return load(handle, image);
}

hipError_t rt_hipModuleLoadDataEx(hipModule_t *handle, const void *image, unsigned int count,
                                  hipJitOption *options, void **values)
{
    (void)count, (void)options,
        (void)values; /* as the real runtime: no option applies to machine code */
    return load(handle, image);
}

hipError_t rt_hipModuleLoad(hipModule_t *handle, const char *path)
{
    if (!handle || !path)
        return hipErrorInvalidValue;
    FILE *file = fopen(path, "rb");
    if (!file)
        return hipErrorFileNotFound;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    unsigned char *image = size > 0 ? calloc(1, (size_t)size + 64)
                                    : NULL; /* the header may be read past a short end */
    bool all = image && fseek(file, 0, SEEK_SET) == 0 &&
               fread(image, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    hipError_t error = all ? load(handle, image) : hipErrorInvalidImage;
    free(image);
    return error;
}

hipError_t rt_hipModuleUnload(hipModule_t handle)
{
    struct rt_module *module = module_of(handle);
    if (!module)
        return hipErrorInvalidHandle;
    module->unloaded = true;
    rt_module_release(module);
    return hipSuccess;
}

hipError_t rt_hipModuleGetFunction(hipFunction_t *function, hipModule_t handle, const char *name)
{
    if (!function || !name || !*name)
        return hipErrorInvalidValue;
    *function = NULL;
    struct rt_module *module = module_of(handle);
    if (!module)
        return hipErrorInvalidHandle;
    /* The runtime refuses a module of another device with the same code as an unknown name. */
    for (size_t i = 0; i < module->kernel_count && module->device == rt_thread.device; i++) {
        if (strcmp(module->kernels[i].name, name) == 0) {
            *function = (hipFunction_t)(void *)&module->kernels[i];
            return hipSuccess;
        }
    }
    return hipErrorNotFound;
}

hipError_t rt_hipModuleGetGlobal(hipDeviceptr_t *address, size_t *bytes, hipModule_t handle,
                                 const char *name)
{
    if ((!address && !bytes) || !name || !*name)
        return hipErrorInvalidValue;
    struct rt_module *module = module_of(handle);
    if (!module)
        return hipErrorInvalidHandle;
    for (size_t i = 0; i < module->symbol_count; i++) {
        if (strcmp(module->symbols[i].name, name) == 0) {
            if (address)
                *address = (void *)(uintptr_t)module->symbols[i].address;
            if (bytes)
                *bytes = module->symbols[i].size;
            return hipSuccess;
        }
    }
    return hipErrorNotFound;
}

hipError_t rt_hipFuncGetAttribute(int *value, hipFunction_attribute attribute,
                                  hipFunction_t function)
{
    if (!value)
        return hipErrorInvalidValue;
    const struct rt_kernel *kernel = rt_kernel_of(function);
    if (!kernel)
        return hipErrorInvalidHandle;
    const struct hipsim_arch *arch = kernel->machine.arch;
    uint32_t most = kernel->machine.max_flat_workgroup_size;
    switch (attribute) {
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)kernel->static_lds;
        break;
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = most ? (int)most : arch->max_threads_per_block;
        break;
    case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        *value = 0;
        break;
    case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)kernel->private_bytes;
        break;
    case HIP_FUNC_ATTRIBUTE_NUM_REGS:
        *value = (int)kernel->vgprs;
        break;
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = (int)(arch->lds_bytes - kernel->static_lds);
        break;
    default:
        return hipErrorInvalidValue;
    }
    return hipSuccess;
}
