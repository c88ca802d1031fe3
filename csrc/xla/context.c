/* XLA's functions for handlers: stream, GPU, memory. Path of a call: see context.h. */
#include "xla/context.h"

#include "plan/backends.h"
#include "problem/kernel.h"

/* Does the caller's table have this function? */
#define HAS(api, function)                                                                         \
    ((api)->struct_size >= MMF_FFI_SIZE(mmf_ffi_api, function) && (api)->function)

/* The GPU by XLA's number: 0 where it cannot be asked. Only a guess: XLA may have been told to use
 * some of the GPUs. */
static mmf_status guess_device(mmf_xla_context *context)
{
    const mmf_ffi_api *api = context->frame->api;
    mmf_ffi_ordinal_arguments asked = {.struct_size =
                                           MMF_FFI_SIZE(mmf_ffi_ordinal_arguments, ordinal),
                                       .context = context->frame->context};
    if (HAS(api, ordinal))
        context->error = api->ordinal(&asked);
    context->device.id = asked.ordinal > 0 ? asked.ordinal : 0;
    return context->error ? MMF_DEVICE_ERROR : MMF_OK;
}

static mmf_status find_stream(mmf_xla_context *context)
{
    const mmf_ffi_api *api = context->frame->api;
    mmf_ffi_stream_arguments asked = {.struct_size = MMF_FFI_SIZE(mmf_ffi_stream_arguments, stream),
                                      .context = context->frame->context};
    if (!HAS(api, stream))
        return mmf_fail(MMF_NOT_IMPLEMENTED,
                        "matmul_fused under jax.jit needs the stream of the call, which this "
                        "version of XLA does not tell");
    context->error = api->stream(&asked);
    context->stream = asked.stream;
    return context->error ? MMF_DEVICE_ERROR : MMF_OK;
}

mmf_status mmf_xla_context_begin(const mmf_ffi_frame *frame, mmf_device_type type,
                                 mmf_xla_context *context)
{
    *context = (mmf_xla_context){.frame = frame, .device.type = (int32_t)type};
    if (type == MMF_CPU)
        return MMF_OK;
    mmf_status status = find_stream(context);
    if (!status)
        status = guess_device(context);
    if (!status)
        status = mmf_gpu_of_stream(context->stream, &context->device);
    if (!status)
        status = mmf_gpu_begin(context->device);
    if (!status)
        mmf_gpu_stream_seen(context->device, context->stream);
    return status;
}

mmf_status mmf_xla_context_allocate(mmf_xla_context *context, int64_t bytes, void **data)
{
    const mmf_ffi_api *api = context->frame->api;
    const uintptr_t align = MMF_WORKSPACE_ALIGN;
    mmf_ffi_allocate_arguments asked = {.struct_size =
                                            MMF_FFI_SIZE(mmf_ffi_allocate_arguments, data),
                                        .context = context->frame->context,
                                        .bytes = (size_t)bytes + align - MMF_FFI_ALIGNMENT,
                                        .alignment = MMF_FFI_ALIGNMENT};
    *data = NULL;
    if (!bytes)
        return MMF_OK;
    if (!HAS(api, allocate) || !HAS(api, free))
        return mmf_fail(MMF_NOT_IMPLEMENTED,
                        "matmul_fused under jax.jit needs a workspace, for which this version of "
                        "XLA has no allocator");
    context->error = api->allocate(&asked);
    if (context->error)
        return MMF_DEVICE_ERROR;
    context->memory = asked.data;
    context->bytes = asked.bytes;
    *data = (void *)(((uintptr_t)asked.data + align - 1) / align * align);
    return MMF_OK;
}

mmf_ffi_error *mmf_xla_context_end(mmf_xla_context *context, mmf_ffi_error *error)
{
    const mmf_ffi_api *api = context->frame->api;
    mmf_ffi_free_arguments asked = {.struct_size = MMF_FFI_SIZE(mmf_ffi_free_arguments, data),
                                    .context = context->frame->context,
                                    .bytes = context->bytes,
                                    .data = context->memory};
    mmf_ffi_error *refused = context->memory ? api->free(&asked) : NULL;
    if (!error || !refused)
        return error ? error : refused;
    mmf_ffi_drop_arguments second = {.struct_size = MMF_FFI_SIZE(mmf_ffi_drop_arguments, error),
                                     .error = refused};
    api->drop_error(&second);
    return error; /* the first is the one to tell */
}
