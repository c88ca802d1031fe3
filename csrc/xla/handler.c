/* From XLA's call frame to a request, and through it. XLA's arrays are compact; the frame is
 * checked all the same, because programs may be stored and come from another version of this
 * package. Path of a call: under jax.jit, see handler.h. */
#include "xla/handler.h"

#include "xla/context.h"
#include "xla/plans.h"

#include <string.h>

/* Registration: the latest version known here that the caller knows too. True if that was asked. */
static bool say_version(mmf_ffi_frame *frame)
{
    if (!frame->extensions || frame->extensions->type != MMF_FFI_METADATA)
        return false;
    mmf_ffi_metadata *metadata = ((mmf_ffi_metadata_extension *)frame->extensions)->metadata;
    /* jaxlib 0.5, whose version is 0.1, asks without its functions. */
    const int32_t known = frame->api ? frame->api->version.minor : MMF_FFI_MINOR_LEAST;
    metadata->version.major = MMF_FFI_MAJOR;
    metadata->version.minor = known < MMF_FFI_MINOR ? known : MMF_FFI_MINOR;
    metadata->traits = 0;
    return true;
}

static mmf_ffi_error *error_of(const mmf_ffi_frame *frame, mmf_status status)
{
    mmf_ffi_error_arguments arguments = {.struct_size = MMF_FFI_SIZE(mmf_ffi_error_arguments, code),
                                         .message = mmf_error_text(),
                                         .code = MMF_FFI_INVALID_ARGUMENT};
    if (status == MMF_NO_MEMORY)
        arguments.code = MMF_FFI_RESOURCE_EXHAUSTED;
    else if (status == MMF_NOT_IMPLEMENTED)
        arguments.code = MMF_FFI_UNIMPLEMENTED;
    else if (status != MMF_VALUE_ERROR && status != MMF_TYPE_ERROR)
        arguments.code = MMF_FFI_INTERNAL;
    return frame->api->new_error(&arguments);
}

static mmf_dtype dtype_of(int32_t dtype)
{
    switch (dtype) {
    case MMF_FFI_F16:
        return MMF_FLOAT16;
    case MMF_FFI_F32:
        return MMF_FLOAT32;
    case MMF_FFI_F64:
        return MMF_FLOAT64;
    case MMF_FFI_BF16:
        return MMF_BFLOAT16;
    default:
        return MMF_ABSENT;
    }
}

static mmf_status malformed(const char *what)
{
    return mmf_fail(MMF_VALUE_ERROR,
                    "a call of matmul_fused under jax.jit has no %s that this version knows; "
                    "compile the program again",
                    what);
}

/* The value of an attribute, or NULL. */
static const void *find(const mmf_ffi_attributes *attributes, const char *name, int32_t type)
{
    const size_t length = strlen(name);
    for (int64_t i = 0; i < attributes->count; i++)
        if (attributes->types[i] == type && attributes->names[i]->length == length &&
            memcmp(attributes->names[i]->text, name, length) == 0)
            return attributes->values[i];
    return NULL;
}

static mmf_status read_number(const mmf_ffi_frame *frame, const char *name, double *value)
{
    const mmf_ffi_scalar *scalar = find(&frame->attributes, name, MMF_FFI_SCALAR);
    if (!scalar || scalar->dtype != MMF_FFI_F64)
        return malformed(name);
    memcpy(value, scalar->value, sizeof *value);
    return MMF_OK;
}

enum { NAME = 64 };

static mmf_status read_name(const mmf_ffi_frame *frame, const char *name, char text[NAME])
{
    const mmf_ffi_span *span = find(&frame->attributes, name, MMF_FFI_STRING);
    if (!span || span->length >= NAME)
        return malformed(name);
    memcpy(text, span->text, span->length);
    text[span->length] = 0;
    return MMF_OK;
}

static mmf_status read_activation(const mmf_ffi_frame *frame, mmf_terms *terms)
{
    static const char *const names[MMF_MAX_PARAMETERS] = {"p0", "p1", "p2", "p3"};
    char text[NAME];
    mmf_status status = read_name(frame, "activation", text);
    const int index = status ? -1 : mmf_activation_find(text);
    if (index < 0)
        return status ? status : malformed("activation");
    const mmf_activation id = mmf_activation_names[index].id;
    const int count = mmf_activation_parameters(id);
    terms->activation = (uint8_t)id;
    for (int i = 0; !status && i < count; i++)
        status = read_number(frame, names[i], &terms->parameters[i]);
    return status ? status : mmf_activation_check(id, count, terms->parameters);
}

static mmf_status read_terms(const mmf_ffi_frame *frame, mmf_terms *terms)
{
    char text[NAME];
    terms->out_dtype = MMF_ABSENT;
    mmf_status status = read_activation(frame, terms);
    if (!status)
        status = read_number(frame, "alpha", &terms->alpha);
    if (!status)
        status = read_number(frame, "beta", &terms->beta);
    if (!status)
        status = read_name(frame, "gate_layout", text);
    if (status || !text[0])
        return status;
    for (int i = MMF_GATE_HALVES; i <= MMF_GATE_INTERLEAVED; i++)
        if (strcmp(text, mmf_gate_layout_name((mmf_gate_layout)i)) == 0)
            terms->gate_layout = (uint8_t)i;
    return terms->gate_layout ? MMF_OK : malformed("gate_layout");
}

static mmf_status take(const mmf_ffi_buffers *from, int64_t index, const char *name,
                       mmf_device device, mmf_tensor *tensor)
{
    const mmf_ffi_buffer *buffer = from->buffers[index];
    if (from->types[index] != MMF_FFI_BUFFER || buffer->rank < 2)
        return malformed(name);
    if (buffer->rank > MMF_MAX_RANK)
        return mmf_fail(MMF_VALUE_ERROR,
                        "%s has %lld axes, those of jax.vmap among them; at most %d are supported, "
                        "merge some by reshape",
                        name, (long long)buffer->rank, MMF_MAX_RANK);
    *tensor = (mmf_tensor){.data = buffer->data,
                           .dtype = dtype_of(buffer->dtype),
                           .device = device,
                           .ndim = (int)buffer->rank};
    if (tensor->dtype == MMF_ABSENT)
        return mmf_fail(MMF_TYPE_ERROR,
                        "%s has a dtype that matmul_fused has not; it must be float32, float64, "
                        "float16 or bfloat16",
                        name);
    memcpy(tensor->shape, buffer->shape, sizeof(int64_t) * (size_t)tensor->ndim);
    mmf_tensor_set_compact(tensor);
    return MMF_OK;
}

static void swap(int64_t *x, int64_t *y)
{
    const int64_t kept = *x;
    *x = *y;
    *y = kept;
}

/* One name of the attribute operands, up to `length`: the operand after `before` that has it. */
static mmf_operand operand_of(const char *text, size_t length, mmf_operand before)
{
    for (mmf_operand i = before; i < MMF_OUT; i++)
        if (mmf_operands[i].access == MMF_READ && strlen(mmf_operands[i].name) == length &&
            !memcmp(mmf_operands[i].name, text, length))
            return i;
    return MMF_OPERANDS;
}

/* The operands into tensors, in their order, which is that of operands.def. */
static mmf_status take_operands(const mmf_ffi_frame *frame, mmf_device device, mmf_request *request,
                                mmf_tensor *tensors)
{
    char text[NAME];
    const char *name = text;
    mmf_operand operand = MMF_A;
    mmf_status status = read_name(frame, "operands", text);
    for (int64_t i = 0; !status && i < frame->arguments.count; i++) {
        size_t length = strcspn(name, ",");
        const bool more = name[length];
        const bool transposed = length > 2 && !memcmp(name + length - 2, ".T", 2);
        operand = operand_of(name, length - 2 * transposed, operand);
        if (operand == MMF_OPERANDS || more != (i + 1 < frame->arguments.count))
            return malformed("operands");
        mmf_tensor *t = &tensors[operand];
        status = take(&frame->arguments, i, mmf_operands[operand].name, device, t);
        if (!status && transposed) {
            swap(&t->shape[t->ndim - 2], &t->shape[t->ndim - 1]);
            swap(&t->strides[t->ndim - 2], &t->strides[t->ndim - 1]);
        }
        request->operand[operand++] = t;
        name += length + more;
    }
    return status || (request->operand[MMF_A] && request->operand[MMF_B]) ? status
                                                                          : malformed("operands");
}

/* jax.vmap over an operand of the epilogue alone gives the results an axis that A and B have not:
 * A is read again for each of its indices. */
static void repeat_a(mmf_tensor *a, const mmf_tensor *out)
{
    for (int axis = 0; axis < a->ndim - 2 && a->ndim == out->ndim; axis++)
        if (a->shape[axis] == 1 && out->shape[axis] != 1) {
            a->shape[axis] = out->shape[axis];
            a->strides[axis] = 0;
        }
}

static mmf_status make_request(const mmf_ffi_frame *frame, mmf_device device, mmf_request *request,
                               mmf_tensor tensors[MMF_OPERANDS])
{
    mmf_status status = read_terms(frame, &request->terms);
    if (!status)
        status = take_operands(frame, device, request, tensors);
    if (!status && (frame->results.count < 1 || frame->results.count > 2))
        status = malformed("results");
    if (!status)
        status = take(&frame->results, 0, "out", device, &tensors[MMF_OUT]);
    if (!status && frame->results.count == 2) {
        status = take(&frame->results, 1, "preactivation", device, &tensors[MMF_PREACTIVATION]);
        request->operand[MMF_PREACTIVATION] = &tensors[MMF_PREACTIVATION];
    }
    if (status)
        return status;
    request->operand[MMF_OUT] = &tensors[MMF_OUT];
    request->terms.beta_given = request->operand[MMF_C] != NULL;
    repeat_a(&tensors[MMF_A], &tensors[MMF_OUT]);
    return MMF_OK;
}

static mmf_status run(const mmf_ffi_frame *frame, mmf_xla_context *context)
{
    mmf_tensor tensors[MMF_OPERANDS];
    mmf_request request = {0};
    mmf_prepared prepared;
    mmf_buffers buffers;
    const mmf_config *config = &prepared.plan.config;
    mmf_status status = make_request(frame, context->device, &request, tensors);
    if (!status)
        status = mmf_xla_prepare(&request, &buffers, &prepared);
    if (status)
        return status;
    buffers.stream = context->stream;
    status = mmf_xla_context_allocate(context, config->workspace_bytes, &buffers.workspace);
    return status ? status
                  : prepared.plan.kernel->family->run(&prepared.problem, config, &buffers, NULL);
}

static mmf_ffi_error *handle(mmf_ffi_frame *frame, mmf_device_type type)
{
    mmf_xla_context context;
    if (say_version(frame))
        return NULL;
    mmf_status status = mmf_xla_context_begin(frame, type, &context);
    if (!status)
        status = run(frame, &context);
    mmf_ffi_error *error = status && !context.error ? error_of(frame, status) : context.error;
    return mmf_xla_context_end(&context, error);
}

mmf_ffi_error *mmf_xla_run(mmf_ffi_frame *frame)
{
    return handle(frame, MMF_CPU);
}

mmf_ffi_error *mmf_xla_run_cuda(mmf_ffi_frame *frame)
{
    return handle(frame, MMF_CUDA);
}

mmf_ffi_error *mmf_xla_run_rocm(mmf_ffi_frame *frame)
{
    return handle(frame, MMF_ROCM);
}
