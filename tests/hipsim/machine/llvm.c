/* LLVM's C disassembler, found at run time: HIPSIM_LLVM (any library with the LLVM-C interface and
 * the AMDGPU target; rocm-llvm-python ships one), else the system's libLLVM.
 * Path of a launch: under decode.c, once per kernel. */
#include "decode.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *(*create_function)(const char *triple, const char *cpu, const char *features,
                                 void *info, int tag, void *get_info, void *look_up);
typedef size_t (*disassemble_function)(void *context, uint8_t *bytes, uint64_t size, uint64_t pc,
                                       char *text, size_t text_bytes);
typedef void (*dispose_function)(void *context);

static struct {
    pthread_mutex_t mutex;
    char path[1024];
    void *library;
    create_function create;
    disassemble_function disassemble;
    dispose_function dispose;
} llvm = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void hipsim_set_llvm(const char *path)
{
    pthread_mutex_lock(&llvm.mutex);
    snprintf(llvm.path, sizeof llvm.path, "%s", path ? path : "");
    pthread_mutex_unlock(&llvm.mutex);
}

static bool bind(void *library, char *sentence, size_t bytes)
{
    static const char *const parts[] = {"LLVMInitializeAMDGPUTargetInfo",
                                        "LLVMInitializeAMDGPUTargetMC",
                                        "LLVMInitializeAMDGPUDisassembler"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        void (*initialise)(void);
        *(void **)&initialise = dlsym(library, parts[i]);
        if (!initialise) {
            snprintf(sentence, bytes, "the LLVM library lacks %s: it was built without AMDGPU",
                     parts[i]);
            return false;
        }
        initialise();
    }
    *(void **)&llvm.create = dlsym(library, "LLVMCreateDisasmCPUFeatures");
    *(void **)&llvm.disassemble = dlsym(library, "LLVMDisasmInstruction");
    *(void **)&llvm.dispose = dlsym(library, "LLVMDisasmDispose");
    if (!llvm.create || !llvm.disassemble || !llvm.dispose) {
        snprintf(sentence, bytes, "the LLVM library lacks the C disassembler");
        return false;
    }
    return true;
}

static bool load(char *sentence, size_t bytes)
{
    if (llvm.library)
        return true;
    const char *named = llvm.path[0] ? llvm.path : getenv("HIPSIM_LLVM");
    const char *candidates[] = {"libLLVM.so.23.0", "libLLVM.so.22.1", "libLLVM-22.so.1",
                                "libLLVM.so.21.1", "libLLVM.so.20.1"};
    void *library = NULL;
    if (named) {
        library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    } else {
        for (size_t i = 0; i < sizeof candidates / sizeof *candidates && !library; i++)
            library = dlopen(candidates[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) {
        snprintf(sentence, bytes,
                 "no LLVM disassembler (%s): set HIPSIM_LLVM to librocmllvm.so of "
                 "the package rocm-llvm-python, or install libLLVM 20 or later",
                 named ? dlerror() : "no system libLLVM");
        return false;
    }
    if (!bind(library, sentence, bytes)) {
        dlclose(library);
        return false;
    }
    llvm.library = library;
    return true;
}

void *disassembler_open(const char *cpu, char *sentence, size_t bytes)
{
    pthread_mutex_lock(&llvm.mutex);
    void *context = NULL;
    if (load(sentence, bytes)) {
        context = llvm.create("amdgcn-amd-amdhsa", cpu, "", NULL, 0, NULL, NULL);
        if (!context)
            snprintf(sentence, bytes, "this LLVM library does not know %s", cpu);
    }
    pthread_mutex_unlock(&llvm.mutex);
    return context;
}

size_t disassemble(void *context, const uint8_t *code, size_t left, char *text, size_t bytes)
{
    uint8_t copy[32] = {0};
    if (left > sizeof copy)
        left = sizeof copy;
    memcpy(copy, code, left);
    return llvm.disassemble(context, copy, left, 0, text, bytes);
}

void disassembler_close(void *context)
{
    llvm.dispose(context);
}
