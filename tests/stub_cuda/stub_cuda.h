/* Codes and parts of the stand-in driver. */
#ifndef STUB_CUDA_H
#define STUB_CUDA_H

#include "gpu/kernels/common/gemm_args.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STUB_NAME = 64 };

enum { /* CUresult */
       STUB_INVALID_VALUE = 1,
       STUB_OUT_OF_MEMORY = 2,
       STUB_NOT_INITIALIZED = 3,
       STUB_NO_DEVICE = 100,
       STUB_INVALID_DEVICE = 101,
       STUB_INVALID_CONTEXT = 201,
       STUB_INVALID_HANDLE = 400,
       STUB_NOT_FOUND = 500,
       STUB_ILLEGAL_ADDRESS = 700,
       STUB_LAUNCH_FAILED = 719,
       STUB_CAPTURE_UNSUPPORTED = 900,
       STUB_CAPTURE_ISOLATION = 905,
};

typedef struct context {
    int device;
} context;

typedef struct stream {
    context *context;
    int capturing, destroyed;
} stream;

typedef struct module {
    context *context;
    char *image;
} module;

typedef struct function {
    module *module;
    char name[STUB_NAME];
    unsigned shared; /* dynamic bytes that it was allowed */
} function;

/* Log a call; the code of a planted fault, else 0. */
__attribute__((format(printf, 2, 3))) int stub_enter(const char *name, const char *format, ...);

/* This thread's context, or NULL. */
context *stub_current(void);

/* Is the stream alive and of the current context; and not being captured? Else the code. */
int stub_check_stream(const stream *s);
int stub_uncaptured(const stream *s);
bool stub_is_capturing(const stream *s);

/* Is it the argument of a kernel that may run, with the operands on its device? Else the code. */
int stub_check_arguments(const mmf_gemm_args *args);

/* The device whose memory holds an address, or -1. */
int stub_device_of(const void *address);

/* Events that were destroyed: their memory is kept. */
extern _Atomic int stub_kept_events;

/* Name or text of a code; INVALID_VALUE for an unknown one. */
int stub_error(int code, const char **out, int text);

/* Carry out the workgroups of a launch, in rows: those of a piece of K each. */
int stub_run(const char *kernel, const mmf_gemm_args *args, unsigned workgroups, unsigned rows,
             unsigned threads);

/* Carry out a launch in clusters, whose workgroups take tiles as they come: all of them in the
 * first of its launches. */
int stub_run_clusters(const char *kernel, const mmf_gemm_args *args, unsigned threads);

#endif
