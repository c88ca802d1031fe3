/* The handler that XLA calls, on call frames made here: what it computes, and that a frame which is
 * not as it should be is refused without a read past its end. */
#include "xla/handler.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void check(bool ok, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        printf("%s\n", what);
}

/* What stands in for XLA's errors: the latest text and code. */
static char error_text[512];
static int error_code;

static mmf_ffi_error *new_error(mmf_ffi_error_arguments *arguments)
{
    snprintf(error_text, sizeof error_text, "%s", arguments->message);
    error_code = arguments->code;
    return (mmf_ffi_error *)error_text;
}

static const mmf_ffi_api api = {.version = {.minor = 7}, .new_error = new_error};

enum { OPERANDS = 3, ATTRIBUTES = 6 };

/* elu(A @ B.T + bias): 2 x 3, 4 x 3, 1 x 4. Names and values lie in blocks of their own size, so
 * that a sanitizer sees a read past their end. */
typedef struct call {
    float a[6], b[12], bias[4], out[8], z[8];
    int64_t shape[5][2];
    mmf_ffi_buffer buffer[5], *arguments[OPERANDS], *results[2];
    int32_t types[ATTRIBUTES], buffer_types[OPERANDS];
    double number[ATTRIBUTES];
    mmf_ffi_scalar scalar[ATTRIBUTES];
    mmf_ffi_span text[ATTRIBUTES], name[ATTRIBUTES], *names[ATTRIBUTES];
    void *values[ATTRIBUTES];
    char *blocks[2 * ATTRIBUTES];
    int block_count;
    mmf_ffi_frame frame;
} call;

static mmf_ffi_span span_of(call *c, const char *text)
{
    const size_t length = strlen(text);
    char *block = malloc(length ? length : 1);
    if (!block)
        exit(2);
    memcpy(block, text, length);
    c->blocks[c->block_count++] = block;
    return (mmf_ffi_span){block, length};
}

static void set_buffer(call *c, int index, float *data, int64_t rows, int64_t columns)
{
    c->shape[index][0] = rows;
    c->shape[index][1] = columns;
    c->buffer[index] =
        (mmf_ffi_buffer){.dtype = MMF_FFI_F32, .data = data, .rank = 2, .shape = c->shape[index]};
}

static void set_attribute(call *c, int index, const char *name, const char *text, double number)
{
    c->name[index] = span_of(c, name);
    c->names[index] = &c->name[index];
    c->types[index] = text ? MMF_FFI_STRING : MMF_FFI_SCALAR;
    if (text) {
        c->text[index] = span_of(c, text);
        c->values[index] = &c->text[index];
    } else {
        c->number[index] = number;
        c->scalar[index] = (mmf_ffi_scalar){MMF_FFI_F64, &c->number[index]};
        c->values[index] = &c->scalar[index];
    }
}

static void make(call *c, const char *operands, const char *activation, const char *layout)
{
    *c = (call){.frame.api = &api};
    for (int i = 0; i < 12; i++) {
        c->b[i] = (float)(i - 5);
        c->a[i % 6] = (float)(i % 6 - 2);
        c->bias[i % 4] = (float)(i % 4);
    }
    set_buffer(c, 0, c->a, 2, 3);
    set_buffer(c, 1, c->b, 4, 3);
    set_buffer(c, 2, c->bias, 1, 4);
    set_buffer(c, 3, c->out, 2, 4);
    set_buffer(c, 4, c->z, 2, 4);
    for (int i = 0; i < 5; i++)
        *(i < OPERANDS ? &c->arguments[i] : &c->results[i - OPERANDS]) = &c->buffer[i];
    for (int i = 0; i < OPERANDS; i++)
        c->buffer_types[i] = MMF_FFI_BUFFER;
    set_attribute(c, 0, "activation", activation, 0);
    set_attribute(c, 1, "alpha", NULL, 1);
    set_attribute(c, 2, "beta", NULL, 0);
    set_attribute(c, 3, "gate_layout", layout, 0);
    set_attribute(c, 4, "operands", operands, 0);
    set_attribute(c, 5, "p0", NULL, 1);
    c->frame.arguments =
        (mmf_ffi_buffers){.count = OPERANDS, .types = c->buffer_types, .buffers = c->arguments};
    c->frame.results =
        (mmf_ffi_buffers){.count = 2, .types = c->buffer_types, .buffers = c->results};
    c->frame.attributes = (mmf_ffi_attributes){
        .count = ATTRIBUTES, .types = c->types, .names = c->names, .values = c->values};
}

static void drop(call *c)
{
    while (c->block_count)
        free(c->blocks[--c->block_count]);
}

static void test_value(void)
{
    call c;
    make(&c, "A,B.T,bias", "relu", "");
    check(!mmf_xla_run(&c.frame), "a good frame is computed");
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) {
            float z = c.bias[j];
            for (int k = 0; k < 3; k++)
                z += c.a[3 * i + k] * c.b[3 * j + k];
            check(c.z[4 * i + j] == z, "z");
            check(c.out[4 * i + j] == (z > 0 ? z : 0), "the result");
        }
    drop(&c);
}

/* Every text cut short, and some that are none, is an error of its own text. */
static void test_texts(void)
{
    static const char *const operands[] = {"",        ",",         "A",         "A,",
                                           "A,B",     "A,B.T,",    ".T,B,bias", "A,B,bias,C",
                                           "A.T.",    "A,B.T,bia", "A,A,bias",  "B.T,A,bias",
                                           "A,B,out", "A,B[2],C",  "a,b,bias"};
    call c;
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
        make(&c, operands[i], "relu", "");
        check(mmf_xla_run(&c.frame) && strstr(error_text, "has no operands"), operands[i]);
        check(error_code == MMF_FFI_INVALID_ARGUMENT, "its code");
        drop(&c);
    }
    static const char *const names[] = {"", "rel", "relu2x",
                                        ("no name has so many characters as "
                                         "this one, which is longer than 64")};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        make(&c, "A,B.T,bias", names[i], "");
        check(mmf_xla_run(&c.frame) && strstr(error_text, "has no activation"), names[i]);
        drop(&c);
        make(&c, "A,B.T,bias", "swiglu", names[i]);
        check(!i || (mmf_xla_run(&c.frame) && strstr(error_text, "has no gate_layout")), names[i]);
        drop(&c);
    }
}

static void test_frames(void)
{
    call c;
    for (int i = 0; i < ATTRIBUTES; i++) {
        make(&c, "A,B.T,bias", "elu", "");
        c.types[i] = i == 4 ? MMF_FFI_SCALAR : 99;
        check(mmf_xla_run(&c.frame) && strstr(error_text, "compile the program again"), "a type");
        drop(&c);
    }
    for (int i = 0; i < OPERANDS + 2; i++) {
        make(&c, "A,B.T,bias", "elu", "");
        c.buffer[i].rank = 1;
        check(mmf_xla_run(&c.frame) && strstr(error_text, "has no "), "one axis");
        c.buffer[i].rank = 9; /* its shape is not read */
        check(mmf_xla_run(&c.frame) && strstr(error_text, "9 axes"), "nine axes");
        c.buffer[i].rank = 2;
        c.buffer[i].dtype = 4;
        check(mmf_xla_run(&c.frame) && strstr(error_text, "dtype"), "integers");
        drop(&c);
    }
    make(&c, "A,B,bias", "elu", "");
    check(mmf_xla_run(&c.frame) && strstr(error_text, "do not match"), "shapes");
    c.frame.results.count = 0;
    check(mmf_xla_run(&c.frame) && strstr(error_text, "results"), "no result");
    drop(&c);
}

static mmf_ffi_error *const xlas = (mmf_ffi_error *)"an error of XLA's own";

static mmf_ffi_error *no_stream(mmf_ffi_stream_arguments *arguments)
{
    check(arguments->struct_size == 32 && !arguments->stream, "what is asked");
    return xlas;
}

/* What ends before a driver is asked for, which need not be there. */
static void test_no_stream(void)
{
    const size_t before = offsetof(mmf_ffi_api, stream);
    const mmf_ffi_api tables[] = {
        {.struct_size = before, .new_error = new_error, .stream = no_stream},
        {.struct_size = sizeof(mmf_ffi_api), .new_error = new_error},
        {.struct_size = before + sizeof(void *), .new_error = new_error, .stream = no_stream},
    };
    call c;
    make(&c, "A,B.T,bias", "relu", "");
    for (int i = 0; i < 3; i++) {
        c.frame.api = &tables[i];
        for (int rocm = 0; rocm < 2; rocm++) {
            error_text[0] = 0;
            mmf_ffi_error *error = (rocm ? mmf_xla_run_rocm : mmf_xla_run_cuda)(&c.frame);
            if (i < 2)
                check(strstr(error_text, "the stream of the call") != NULL &&
                          error_code == MMF_FFI_UNIMPLEMENTED,
                      "a table without streams");
            else
                check(error == xlas && !error_text[0], "XLA's error goes back to it");
        }
    }
    drop(&c);
}

/* The version that a handler says is one that the caller knows. */
static void test_metadata(void)
{
    const mmf_ffi_api old = {.version = {.minor = 2}};
    const mmf_ffi_api *const callers[] = {NULL, &old, &api};
    const int wanted[] = {MMF_FFI_MINOR_LEAST, 2, MMF_FFI_MINOR};
    for (int i = 0; i < 3; i++) {
        mmf_ffi_metadata metadata = {.version = {.major = 9, .minor = 9}, .traits = 9};
        mmf_ffi_metadata_extension extension = {{.type = MMF_FFI_METADATA}, &metadata};
        mmf_ffi_frame frame = {.api = callers[i], .extensions = &extension.base};
        check(!(i % 2 ? mmf_xla_run_cuda : mmf_xla_run)(&frame), "metadata are no error");
        check(metadata.version.major == MMF_FFI_MAJOR && metadata.version.minor == wanted[i] &&
                  metadata.traits == 0,
              "the version");
    }
}

int main(void)
{
    test_value();
    test_texts();
    test_frames();
    test_no_stream();
    test_metadata();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
