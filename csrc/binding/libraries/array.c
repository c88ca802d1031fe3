/* mf.Array, our own: operands without a look at Python, and results for every library that has no
 * way to make one. Path of a call: its row of libraries/. */
#include "binding/array.h"

#include "binding/libraries/library.h"

static mmf_status import(mmf_state *state, mmf_import *import, mmf_stream *stream)
{
    (void)state;
    (void)stream;
    import->tensor = *mmf_array_tensor(import->object);
    return MMF_OK;
}

static mmf_status wait(const mmf_stream *stream, PyObject *array)
{
    return mmf_gpu_wait(mmf_array_memory(array), stream->handle);
}

static mmf_status used(const mmf_stream *stream, PyObject *array)
{
    return mmf_gpu_used(mmf_array_memory(array), stream->handle);
}

mmf_status mmf_array_new_output(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                                void *stream, mmf_output *output)
{
    (void)a;
    output->object = mmf_array_new(state, tensor, stream);
    return output->object ? MMF_OK : MMF_PYTHON_ERROR;
}

const mmf_library mmf_library_array = {
    .import = import,
    .trusted = true,
    .wait = wait,
    .used = used,
    .new_output = mmf_array_new_output,
    .finish = mmf_output_object,
    .owner = &mmf_library_array,
};
