/* JAX: operands through __dlpack__, read-only; results are mf.Arrays that jax.dlpack takes over.
 * Path of a call: its row of libraries/. */
#include "binding/libraries/library.h"

#include "binding/errors.h"
#include "binding/objects.h"
#include "binding/scalars.h"

#include <string.h>

/* Asked before the exchange API: a view by it could be written to, an array of jax may not. */
static mmf_status recognise(mmf_state *state, PyObject *object, const char *name,
                            mmf_type_facts *facts)
{
    int tracer = mmf_is_subclass(Py_TYPE(object), "jax.core", "Tracer");
    int array = tracer ? 0 : mmf_is_subclass(Py_TYPE(object), "jax", "Array");
    (void)state;
    if (tracer < 0 || array < 0)
        return MMF_PYTHON_ERROR;
    if (tracer)
        return mmf_fail(
            MMF_TYPE_ERROR,
            "%s is a JAX tracer, which has no values; inside jax.jit, vmap and grad call "
            "matmul_fused.jax.matmul_fused",
            name);
    if (array)
        facts->library = &mmf_library_jax;
    return MMF_OK;
}

/* Say why jax gave no view of an array, if it is one of the usual reasons. */
__attribute__((cold)) static mmf_status explain_failure(mmf_state *state, const mmf_import *import)
{
    PyObject *type, *value, *traceback;
    char text[MMF_PRINTABLE] = "";
    mmf_status status = MMF_PYTHON_ERROR;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *deleted = mmf_invoke(mmf_get_attribute(import->object, "is_deleted"), 0, NULL, NULL);
    PyObject *dtype = mmf_attribute(Py_NewRef(import->object), "dtype");
    PyObject *string = dtype ? PyObject_Str(dtype) : NULL;
    if (deleted == Py_True)
        status = mmf_fail(MMF_VALUE_ERROR,
                          "%s is a deleted jax.Array (donated, or after delete()); pass a live one",
                          import->name);
    else if (string && mmf_printable(string, text) && strncmp(text, "key<", 4) == 0)
        status = mmf_fail(MMF_TYPE_ERROR, "%s is an array of JAX PRNG keys, which are no numbers",
                          import->name);
    PyErr_Clear(); /* lint: probing why an array was refused; its own error is restored */
    Py_XDECREF(string);
    Py_XDECREF(dtype);
    Py_XDECREF(deleted);
    PyErr_Restore(type, value, traceback);
    return status == MMF_PYTHON_ERROR ? status : mmf_raise_from(state, status);
}

static mmf_status import(mmf_state *state, mmf_import *import, mmf_stream *stream)
{
    mmf_status status = mmf_dlpack_import(state, import, stream);
    if (status == MMF_PYTHON_ERROR && PyErr_ExceptionMatches(PyExc_BufferError))
        return explain_failure(state, import);
    import->tensor.readonly = MMF_READONLY;
    return status;
}

/* Will jax keep the dtype? Without x64 it silently narrows float64. */
static mmf_status check_kept(mmf_state *state, const mmf_tensor *tensor)
{
    if (tensor->dtype != MMF_FLOAT64)
        return MMF_OK;
    PyObject *module = PyImport_ImportModule("jax.dtypes");
    PyObject *canonicalize = mmf_attribute(module, "canonicalize_dtype");
    PyObject *wanted = canonicalize ? PyUnicode_FromString("float64") : NULL;
    PyObject *dtype = mmf_invoke(canonicalize, 1, wanted, NULL);
    mmf_dtype given = MMF_ABSENT;
    mmf_status status =
        dtype ? mmf_parse_dtype(state, dtype, "out_dtype", &given) : MMF_PYTHON_ERROR;
    Py_XDECREF(dtype);
    if (status || given == MMF_FLOAT64)
        return status;
    return mmf_fail(MMF_TYPE_ERROR,
                    "jax makes %s of a float64 result; set jax_enable_x64 or choose another "
                    "out_dtype",
                    mmf_dtypes[given].name);
}

static mmf_status new_output(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                             void *stream, mmf_output *output)
{
    output->ran_python = true;
    mmf_status status = check_kept(state, tensor);
    return status ? status : mmf_array_new_output(state, a, tensor, stream, output);
}

/* jax.dlpack.from_dlpack(mf.Array) */
static PyObject *finish(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    PyObject *module = PyImport_ImportModule("jax.dlpack");
    (void)state;
    (void)a;
    return mmf_invoke(mmf_attribute(module, "from_dlpack"), 1, output->object, NULL);
}

const mmf_library mmf_library_jax = {
    .recognise = recognise,
    .import = import,
    .trusted = true,
    .no_unordered = true,
    .new_output = new_output,
    .finish = finish,
    .owner = &mmf_library_array,
};
