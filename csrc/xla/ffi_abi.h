/* The part of XLA's C ABI of FFI handlers (version 0.3) that this library speaks. Source of the
 * layouts: xla/ffi/api/c_api.h, as jaxlib ships it; tests/test_jax_ffi_abi.py compares both. Path
 * of a call: under jax.jit, what XLA hands over, read by handler.c and context.c. */
#ifndef MMF_FFI_ABI_H
#define MMF_FFI_ABI_H

#include <stddef.h>
#include <stdint.h>

#define MMF_FFI_MAJOR 0
#define MMF_FFI_MINOR 3
#define MMF_FFI_MINOR_LEAST 1 /* the layouts are the same, the table of functions is shorter */

/* The struct_size of a struct whose last member is `last`: the ABI counts no padding behind it. */
#define MMF_FFI_SIZE(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

/* A chain of what a caller adds to a struct. */
enum { MMF_FFI_METADATA = 1 };
typedef struct mmf_ffi_extension {
    size_t struct_size;
    int32_t type;
    struct mmf_ffi_extension *next;
} mmf_ffi_extension;

typedef struct mmf_ffi_version {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    int32_t major, minor;
} mmf_ffi_version;

/* Asked for when a handler is registered: it says the version that it was written for. */
typedef struct mmf_ffi_metadata {
    size_t struct_size;
    mmf_ffi_version version;
    uint32_t traits;
} mmf_ffi_metadata;

typedef struct mmf_ffi_metadata_extension {
    mmf_ffi_extension base; /* its type is MMF_FFI_METADATA */
    mmf_ffi_metadata *metadata;
} mmf_ffi_metadata_extension;

enum { /* codes of errors */
       MMF_FFI_INVALID_ARGUMENT = 3,
       MMF_FFI_RESOURCE_EXHAUSTED = 8,
       MMF_FFI_UNIMPLEMENTED = 12,
       MMF_FFI_INTERNAL = 13,
};

typedef struct mmf_ffi_error mmf_ffi_error; /* XLA's own */

typedef struct mmf_ffi_error_arguments {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    const char *message; /* copied */
    int32_t code;
} mmf_ffi_error_arguments;

typedef struct mmf_ffi_drop_arguments {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    mmf_ffi_error *error;
} mmf_ffi_drop_arguments;

typedef struct mmf_ffi_context mmf_ffi_context; /* XLA's own: of one execution of a program */

typedef struct mmf_ffi_stream_arguments {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    mmf_ffi_context *context;
    void *stream; /* CUstream, hipStream_t; to be filled */
} mmf_ffi_stream_arguments;

/* Memory of the execution's GPU. It may be freed once all that uses it is on the stream. */
typedef struct mmf_ffi_allocate_arguments {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    mmf_ffi_context *context;
    size_t bytes;
    size_t alignment; /* at most MMF_FFI_ALIGNMENT */
    void *data;       /* to be filled */
} mmf_ffi_allocate_arguments;

#define MMF_FFI_ALIGNMENT 16 /* not in the header: xla/ffi/ffi_api.cc refuses more */

typedef struct mmf_ffi_free_arguments {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    mmf_ffi_context *context;
    size_t bytes; /* as allocated */
    void *data;
} mmf_ffi_free_arguments;

typedef struct mmf_ffi_ordinal_arguments {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    mmf_ffi_context *context;
    int32_t ordinal; /* to be filled */
} mmf_ffi_ordinal_arguments;

/* XLA's functions; void * are those that are not called. Past struct_size nothing is there. */
typedef struct mmf_ffi_api {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    mmf_ffi_version version;
    const void *internal;
    mmf_ffi_error *(*new_error)(mmf_ffi_error_arguments *arguments);
    void *message_of;
    void (*drop_error)(mmf_ffi_drop_arguments *arguments);
    void *register_handler;
    mmf_ffi_error *(*stream)(mmf_ffi_stream_arguments *arguments);
    void *register_type, *user_data, *set_state, *get_state;
    mmf_ffi_error *(*allocate)(mmf_ffi_allocate_arguments *arguments);
    mmf_ffi_error *(*free)(mmf_ffi_free_arguments *arguments);
    void *schedule, *threads, *new_future, *set_available, *set_error, *run_id;
    mmf_ffi_error *(*ordinal)(mmf_ffi_ordinal_arguments *arguments); /* of later versions */
} mmf_ffi_api;

enum { /* types of elements */
       MMF_FFI_F16 = 10,
       MMF_FFI_F32 = 11,
       MMF_FFI_F64 = 12,
       MMF_FFI_BF16 = 16,
};

/* A compact row-major array: an argument or a result. */
typedef struct mmf_ffi_buffer {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    int32_t dtype;
    void *data;
    int64_t rank;
    int64_t *shape;
} mmf_ffi_buffer;

enum { MMF_FFI_BUFFER = 1 }; /* the type of an argument, and of a result */

/* Arguments, and results: one layout. */
typedef struct mmf_ffi_buffers {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    int64_t count;
    int32_t *types;
    mmf_ffi_buffer **buffers; /* those whose type is MMF_FFI_BUFFER */
} mmf_ffi_buffers;

typedef struct mmf_ffi_span {
    const char *text; /* not terminated */
    size_t length;
} mmf_ffi_span;

typedef struct mmf_ffi_scalar {
    int32_t dtype;
    void *value;
} mmf_ffi_scalar;

enum { MMF_FFI_SCALAR = 3, MMF_FFI_STRING = 4 }; /* types of attributes */

typedef struct mmf_ffi_attributes {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    int64_t count;
    int32_t *types;
    mmf_ffi_span **names;
    void **values; /* mmf_ffi_scalar *, mmf_ffi_span * */
} mmf_ffi_attributes;

/* One call of a handler. */
typedef struct mmf_ffi_frame {
    size_t struct_size;
    mmf_ffi_extension *extensions;
    const mmf_ffi_api *api;
    mmf_ffi_context *context;
    int32_t stage;
    mmf_ffi_buffers arguments, results;
    mmf_ffi_attributes attributes;
} mmf_ffi_frame;

#endif
