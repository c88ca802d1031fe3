/* Results, and memory of A's library besides. Path of a call: memory before the kernel runs, the
 * object after it. */
#include "binding/libraries/library.h"

mmf_status mmf_output_new(mmf_state *state, const mmf_import *a, mmf_tensor *tensor, void *stream,
                          mmf_output *output)
{
    return a->library->new_output(state, a, tensor, stream, output);
}

PyObject *mmf_output_finish(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    return a->library->finish(state, a, output);
}

mmf_status mmf_output_make_object(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    if (output->managed) {
        output->object = mmf_output_finish(state, a, output);
        output->ran_python = true;
    }
    return output->object ? MMF_OK : MMF_PYTHON_ERROR;
}

PyObject *mmf_output_object(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    (void)state;
    (void)a;
    return output->object;
}

void mmf_output_drop(mmf_output *output)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); /* a deleter may run Python while an exception is set */
    if (output->managed && output->managed->deleter)
        output->managed->deleter(output->managed);
    output->managed = NULL;
    Py_CLEAR(output->object);
    PyErr_Restore(type, value, traceback);
}
