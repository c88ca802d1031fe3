/* hipRTC: the generic kernel, compiled on the user's machine for an AMD GPU that this build has no
 * code for. Path of a call: the first one on such a GPU; takes seconds. */
#include "gpu/devices.h"
#include "gpu/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct hiprtc {
    int (*create)(void **program, const char *source, const char *name, int headers,
                  const char *const *header_texts, const char *const *header_names);
    int (*compile)(void *program, int options, const char *const *texts);
    int (*code_size)(void *program, size_t *size);
    int (*code)(void *program, char *code);
    int (*log_size)(void *program, size_t *size);
    int (*log)(void *program, char *log);
    int (*destroy)(void **program);
    const char *(*error_string)(int code);
} hiprtc;

/* The hipRTC beside the HIP runtime in use; until ROCm 5 it is part of the runtime's own library.
 */
static mmf_status open_hiprtc(const mmf_gpu *gpu, hiprtc *rtc)
{
    static const char *const names[] = {"libhiprtc.so",   "libhiprtc.so.9", "libhiprtc.so.8",
                                        "libhiprtc.so.7", "libhiprtc.so.6", NULL};
    char beside[PATH_MAX], path[PATH_MAX], reason[512] = "";
    snprintf(beside, sizeof beside, "%s", gpu->driver->path);
    char *slash = strrchr(beside, '/');
    snprintf(slash ? slash + 1 : beside, sizeof beside - (size_t)(slash ? slash + 1 - beside : 0),
             "libhiprtc.so*");
    const char *patterns[] = {beside, NULL};
    const mmf_library_search search = {NULL, "libhiprtc.so", patterns, names};
    const mmf_library_search runtime = {gpu->driver->path, NULL, NULL, NULL};
    const mmf_symbol symbols[] = {
        {"hiprtcCreateProgram", &rtc->create, false},
        {"hiprtcCompileProgram", &rtc->compile, false},
        {"hiprtcGetCodeSize", &rtc->code_size, false},
        {"hiprtcGetCode", &rtc->code, false},
        {"hiprtcGetProgramLogSize", &rtc->log_size, false},
        {"hiprtcGetProgramLog", &rtc->log, false},
        {"hiprtcDestroyProgram", &rtc->destroy, false},
        {"hiprtcGetErrorString", &rtc->error_string, false},
    };
    int count = sizeof symbols / sizeof *symbols;
    void *library = mmf_library_open(&runtime, path, sizeof path, reason, sizeof reason);
    if (library && mmf_library_symbols(library, symbols, count, reason, sizeof reason))
        return MMF_OK;
    library = mmf_library_open(&search, path, sizeof path, reason, sizeof reason);
    if (library && mmf_library_symbols(library, symbols, count, reason, sizeof reason))
        return MMF_OK;
    return mmf_fail(MMF_DEVICE_ERROR,
                    "this build has no code for %s (%s), and hipRTC, which could compile it, "
                    "cannot be used: %s",
                    gpu->facts.arch, gpu->facts.name, reason);
}

/* The error of a failed compilation with the end of its log. */
static mmf_status refuse(const mmf_gpu *gpu, const hiprtc *rtc, void *program, int code)
{
    size_t size = 0;
    char *log = NULL;
    const char *text = rtc->error_string(code);
    if (program && rtc->log_size(program, &size) == 0 && size) {
        log = malloc(size + 1);
        if (log) {
            log[size] = 0;
            if (rtc->log(program, log))
                *log = 0;
        }
    }
    const char *shown = log && strlen(log) > 1000 ? log + strlen(log) - 1000 : log;
    mmf_status status = mmf_fail(
        MMF_DEVICE_ERROR, "hipRTC did not compile the generic kernel for %s: %s%s%s",
        gpu->facts.arch, text ? text : "unknown error", shown ? "\n" : "", shown ? shown : "");
    free(log);
    return status;
}

mmf_status mmf_hiprtc_compile(const mmf_gpu *gpu, int instance, char **code)
{
    hiprtc rtc;
    void *program = NULL;
    char target[64], kernel[64];
    size_t size = 0;
    *code = NULL;
    mmf_status status = open_hiprtc(gpu, &rtc);
    if (status)
        return status;
    snprintf(target, sizeof target, "--offload-arch=%s", gpu->facts.arch);
    snprintf(kernel, sizeof kernel, "-DMMF_KERNEL=%s", mmf_gpu_instances[instance].name);
    const char *options[] = {target, "-O3", "-DMMF_HIPRTC=1", kernel};
    int failed = rtc.create(&program, mmf_device_source_simt, "gemm_simt.hip", 0, NULL, NULL);
    if (!failed)
        failed = rtc.compile(program, sizeof options / sizeof *options, options);
    if (!failed)
        failed = rtc.code_size(program, &size);
    if (!failed) {
        char *bytes = malloc(size);
        if (!bytes)
            status = mmf_fail(MMF_NO_MEMORY, "no memory for the compiled kernel");
        else
            failed = rtc.code(program, bytes);
        *code = bytes;
    }
    if (failed) {
        free(*code);
        *code = NULL;
        status = refuse(gpu, &rtc, program, failed);
    }
    if (program)
        rtc.destroy(&program);
    return status;
}
