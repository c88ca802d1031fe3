/* A stand-in libcuda.so for tests of the host path: the entry points that csrc/gpu/driver_cuda.c
 * looks up, for two devices whose memory is the host's. A launch is carried out tile by tile by the
 * CPU's reference row, from the kernel's argument alone, so that what the host passes is what is
 * tested. Every call is checked the way a strict driver would (current context, live handles,
 * devices that match, capture), logged, and may be made to fail. Work is done at once: what orders
 * streams is seen in the log. Built by stub_cuda/__init__.py. */
#include "stub_cuda.h"

#include "cpu/rows.h"
#include "gpu/kernels/common/gemm_args.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES = 2, LOG_SIZE = 1 << 20, NAME = STUB_NAME };

typedef struct event {
    context *context;
    int records, destroyed;
} event;

static context contexts[DEVICES] = {{0}, {1}};
static char log_text[LOG_SIZE];
static size_t log_length;
static char fail_name[NAME];
static int fail_code, fail_skip;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local context *stack[16];
static _Thread_local int depth;
static int initialised;
static char gate[NAME]; /* a function that waits; "": none */
static atomic_bool gate_closed;

/* --- log, faults, a gate --- */

const char *stub_log(void)
{
    static _Thread_local char *copy; /* another thread may log on */
    pthread_mutex_lock(&mutex);
    free(copy);
    copy = strdup(log_text);
    pthread_mutex_unlock(&mutex);
    return copy ? copy : "";
}

void stub_clear_log(void)
{
    pthread_mutex_lock(&mutex);
    log_length = 0;
    log_text[0] = 0;
    pthread_mutex_unlock(&mutex);
}

void stub_fail_next(const char *name, int code, int skip)
{
    pthread_mutex_lock(&mutex);
    snprintf(fail_name, sizeof fail_name, "%s", name);
    fail_code = code;
    fail_skip = skip;
    pthread_mutex_unlock(&mutex);
}

/* Let calls of a function wait until it is called for "". */
void stub_close_gate(const char *name)
{
    if (*name)
        snprintf(gate, sizeof gate, "%s", name);
    atomic_store(&gate_closed, *name != 0);
}

int stub_enter(const char *name, const char *format, ...)
{
    va_list arguments;
    int code = 0;
    pthread_mutex_lock(&mutex);
    if (log_length < LOG_SIZE - 512) {
        log_length += (size_t)snprintf(log_text + log_length, 256, "%s", name);
        va_start(arguments, format);
        log_length += (size_t)vsnprintf(log_text + log_length, 200, format, arguments);
        va_end(arguments);
        log_text[log_length++] = '\n';
        log_text[log_length] = 0;
    }
    if (strcmp(name, fail_name) == 0 && fail_skip-- == 0) {
        code = fail_code;
        fail_name[0] = 0;
    }
    pthread_mutex_unlock(&mutex);
    while (atomic_load(&gate_closed) && strcmp(name, gate) == 0)
        usleep(1000);
    if (!code && !initialised && strcmp(name, "cuInit"))
        code = STUB_NOT_INITIALIZED;
    return code;
}

context *stub_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

static bool is_default(const stream *s)
{
    return (uintptr_t)s <= 2;
}

bool stub_is_capturing(const stream *s)
{
    return !is_default(s) && s->capturing;
}

int stub_check_stream(const stream *s)
{
    if (!stub_current())
        return STUB_INVALID_CONTEXT;
    if (!is_default(s) && (s->destroyed || s->context != stub_current()))
        return STUB_INVALID_HANDLE;
    return 0;
}

/* --- what tests do as the user of the device --- */

void *stub_stream_create(int device)
{
    stream *s = calloc(1, sizeof *s);
    if (s)
        s->context = &contexts[device];
    return s;
}

void stub_stream_capture(void *s, int capturing)
{
    ((stream *)s)->capturing = capturing;
}

/* To a context beside the primary one. */
void stub_stream_move(void *s)
{
    static context others[DEVICES] = {{0}, {1}};
    ((stream *)s)->context = &others[((stream *)s)->context->device];
}

void stub_stream_destroy(void *s)
{
    ((stream *)s)->destroyed = 1;
}

/* --- device, context --- */

int cuInit(unsigned flags)
{
    int code = stub_enter("cuInit", "(%u)", flags);
    initialised |= !code;
    return code;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return stub_enter("cuDriverGetVersion", "()");
}

int cuDeviceGetCount(int *count)
{
    *count = DEVICES;
    return stub_enter("cuDeviceGetCount", "()");
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    int code = stub_enter("cuDeviceGet", "(%d)", ordinal);
    return code ? code : ordinal < 0 || ordinal >= DEVICES ? STUB_INVALID_DEVICE : 0;
}

int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Stub %d", device);
    return stub_enter("cuDeviceGetName", "(%d)", device);
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    static const int known[][2] = {{8, 49152},   {10, 32},   {16, 4}, {75, 9},
                                   {76, 0},      {37, 6144}, /* bits of an H200's memory */
                                   {97, 232448}, {115, 1}};
    int code = stub_enter("cuDeviceGetAttribute", "(%d, %d)", attribute, device);
    const char *older = getenv("STUB_CUDA_CAPABILITY"); /* two digits: another GPU than sm_90 */
    if (!code && older && (attribute == 75 || attribute == 76)) {
        *value = older[attribute - 75] - '0';
        return 0;
    }
    if (!code && older && attribute == 97) { /* 99 KiB of sm_86, 163 of sm_80 */
        *value = older[1] == '0' ? 166912 : 101376;
        return 0;
    }
    const char *shared = getenv("STUB_CUDA_SHARED"); /* bytes for a workgroup */
    if (!code && shared && attribute == 97) {
        *value = atoi(shared);
        return 0;
    }
    const char *clock = getenv("STUB_CUDA_MEMORY_CLOCK"); /* kHz; an H200's if not set */
    if (!code && attribute == 36) {
        *value = clock ? atoi(clock) : 3201000;
        return 0;
    }
    for (size_t i = 0; !code && i < sizeof known / sizeof *known; i++)
        if (known[i][0] == attribute) {
            *value = known[i][1];
            return 0;
        }
    return code ? code : STUB_INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **out, int device)
{
    *out = &contexts[device];
    return stub_enter("cuDevicePrimaryCtxRetain", "(%d)", device);
}

int cuCtxGetCurrent(void **out)
{
    *out = stub_current();
    return 0;
}

int cuCtxGetDevice(int *device)
{
    if (!stub_current())
        return STUB_INVALID_CONTEXT;
    *device = stub_current()->device;
    return 0;
}

int cuCtxPushCurrent_v2(void *c)
{
    int code = stub_enter("cuCtxPushCurrent", "(%d)", ((context *)c)->device);
    if (!code)
        stack[depth++] = c;
    return code;
}

int cuCtxPopCurrent_v2(void **out)
{
    if (!depth)
        return STUB_INVALID_CONTEXT;
    *out = stack[--depth];
    return 0;
}

/* For testing/devices.py, which takes the part of an array library. */

int cuCtxSynchronize(void)
{
    return stub_enter("cuCtxSynchronize", "()");
}

int stub_context_depth(void)
{
    return depth;
}

int cuStreamGetCtx(void *s, void **out)
{
    int code = stub_enter("cuStreamGetCtx", "(%p)", s);
    *out = s ? ((stream *)s)->context : stub_current();
    return code;
}

int cuGetErrorName(int code, const char **name)
{
    return stub_error(code, name, 0);
}

int cuGetErrorString(int code, const char **text)
{
    return stub_error(code, text, 1);
}

/* --- modules, streams, memory, events --- */

int cuModuleLoadData(void **out, const void *image)
{
    int code = stub_enter("cuModuleLoadData", "()");
    if (!code && !stub_current())
        code = STUB_INVALID_CONTEXT;
    if (code)
        return code;
    module *m = malloc(sizeof *m);
    char *copy = m ? strdup(image) : NULL;
    if (!copy) {
        free(m);
        return STUB_OUT_OF_MEMORY;
    }
    *m = (module){stub_current(), copy};
    *out = m;
    return 0;
}

int cuModuleUnload(void *m)
{
    free(((module *)m)->image);
    free(m);
    return stub_enter("cuModuleUnload", "()");
}

int cuModuleGetFunction(void **out, void *m, const char *name)
{
    char entry[NAME + 16];
    int code = stub_enter("cuModuleGetFunction", "(%s)", name);
    snprintf(entry, sizeof entry, ".entry %s(", name);
    const char *image =
        ((module *)m)->image; /* PTX; of machine code, only the first bytes were kept */
    if (!code && strncmp(image, "\177ELF", 4) && !strstr(image, entry))
        code = STUB_NOT_FOUND;
    function *f = code ? NULL : malloc(sizeof *f);
    if (!f)
        return code ? code : STUB_OUT_OF_MEMORY;
    f->module = m;
    f->shared = 0;
    snprintf(f->name, sizeof f->name, "%s", name);
    *out = f;
    return 0;
}

int cuStreamIsCapturing(void *s, int *status)
{
    int code = stub_enter("cuStreamIsCapturing", "(%p)", s);
    if (!code)
        code = stub_check_stream(s);
    *status = stub_is_capturing(s);
    return code;
}

int stub_uncaptured(const stream *s)
{
    int code = stub_check_stream(s);
    return code ? code : stub_is_capturing(s) ? STUB_CAPTURE_UNSUPPORTED : 0;
}

int cuEventCreate(void **out, unsigned flags)
{
    int code = stub_enter("cuEventCreate", "(%u)", flags);
    event *e = code ? NULL : calloc(1, sizeof *e);
    if (!e)
        return code ? code : STUB_OUT_OF_MEMORY;
    e->context = stub_current();
    *out = e;
    return e->context ? 0 : STUB_INVALID_CONTEXT;
}

int cuEventRecord(void *e, void *s)
{
    int code = stub_enter("cuEventRecord", "(%p)", s);
    if (!code)
        code = stub_check_stream(s);
    if (!code && (((event *)e)->destroyed || ((event *)e)->context != stub_current()))
        code = STUB_INVALID_HANDLE;
    ((event *)e)->records += !code;
    return code;
}

int cuStreamWaitEvent(void *s, void *e, unsigned flags)
{
    int code = stub_enter("cuStreamWaitEvent", "(%p, %u)", s, flags);
    if (!code)
        code = stub_check_stream(s);
    if (!code && ((event *)e)->destroyed)
        code = STUB_INVALID_HANDLE;
    return code ? code : stub_is_capturing(s) ? STUB_CAPTURE_ISOLATION : 0;
}

int cuEventDestroy_v2(void *e)
{
    int code = stub_enter("cuEventDestroy", "()");
    ((event *)e)->destroyed = 1; /* kept, so that a later use is seen */
    stub_kept_events++;
    return code;
}

/* --- launch --- */

/* Is everything that the kernel may not look at 0? Other bytes would be those of the host's stack.
 */
static bool is_clean(const mmf_gemm_args *args)
{
    static const mmf_gemm_strides none;
    const char *end = (const char *)(args + 1);
    for (int i = 0; i < MMF_GEMM_OPERANDS; i++) {
        const mmf_gemm_strides *s = &args->strides[i];
        const bool absent = args->dtype[i] == MMF_GEMM_ABSENT;
        if (absent && (args->data[i] || memcmp(s, &none, sizeof none)))
            return false;
        for (int b = args->batch_ndim; b < MMF_GEMM_BATCH; b++)
            if (s->batch[b])
                return false;
    }
    for (int b = args->batch_ndim; b < MMF_GEMM_BATCH; b++)
        if (args->batch_shape[b])
            return false;
    for (const char *byte = (const char *)&args->epilogue + 1; byte < end; byte++)
        if (*byte)
            return false;
    return true;
}

int stub_check_arguments(const mmf_gemm_args *args)
{
    if (!is_clean(args))
        return STUB_LAUNCH_FAILED;
    for (int i = 0; i < MMF_GEMM_OPERANDS; i++) /* empty operands have no address to ask about */
        if (args->dtype[i] != MMF_GEMM_ABSENT && args->data[i] && args->k &&
            stub_device_of(args->data[i]) >= 0 &&
            stub_device_of(args->data[i]) != stub_current()->device)
            return STUB_ILLEGAL_ADDRESS;
    return 0;
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *s, void **arguments, void **extra)
{
    const function *kernel = f;
    int code = stub_enter("cuLaunchKernel", "(%s, %u, %u, %p)", kernel->name, gx, bx, s);
    if (!code)
        code = stub_check_stream(s);
    if (!code && kernel->module->context != stub_current())
        code = STUB_INVALID_HANDLE;
    if (!code && (!gx || !gy || gz != 1 || by != 1 || bz != 1 || shared > kernel->shared || extra ||
                  !arguments))
        code = STUB_INVALID_VALUE;
    if (code || stub_is_capturing(s) || strncmp(kernel->name, "empty", 5) == 0)
        return code;
    const mmf_gemm_args *args = arguments[0];
    code = stub_check_arguments(args);
    return code ? code : stub_run(kernel->name, args, gx, gy, bx);
}
