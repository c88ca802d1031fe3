/* CuPy: operands through __dlpack__, results by cupy.empty, its current stream. Path of a call: its
 * row of libraries/. */
#include "binding/libraries/library.h"

#include "binding/objects.h"

static mmf_status recognise(mmf_state *state, PyObject *object, const char *name,
                            mmf_type_facts *facts)
{
    int cupy = mmf_is_subclass(Py_TYPE(object), "cupy", "ndarray");
    (void)state;
    (void)name;
    if (cupy > 0)
        facts->library = &mmf_library_cupy;
    return cupy < 0 ? MMF_PYTHON_ERROR : MMF_OK;
}

/* cupy.cuda.get_current_stream(ordinal).ptr */
static mmf_status current_stream(mmf_state *state, const mmf_import *of, mmf_device device,
                                 void **handle, bool *ran_python)
{
    PyObject *cuda = mmf_imported_module("cupy.cuda");
    PyObject *get = mmf_attribute(cuda, "get_current_stream");
    PyObject *stream = get ? mmf_invoke(get, 1, PyLong_FromLong(device.id), NULL) : NULL;
    (void)state;
    (void)ran_python;
    return mmf_take_handle(mmf_attribute(stream, "ptr"), of, handle);
}

/* The dtype argument for cupy.empty. */
static PyObject *dtype_object(mmf_dtype dtype)
{
    return dtype == MMF_BFLOAT16
               ? mmf_attribute(PyImport_ImportModule("ml_dtypes"), mmf_dtypes[dtype].name)
               : PyUnicode_FromString(mmf_dtypes[dtype].name);
}

/* cupy.cuda.Device(ordinal).use(): the device before comes back with the next use(). -1 with an
 * exception. */
static int use_device(PyObject *cuda, PyObject *ordinal)
{
    PyObject *device = mmf_invoke(mmf_get_attribute(cuda, "Device"), 1, Py_NewRef(ordinal), NULL);
    PyObject *none = mmf_invoke(mmf_attribute(device, "use"), 0, NULL, NULL);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

/* cupy.empty(shape, dtype) on the current device, its address into tensor->data. */
static PyObject *new_array(PyObject *cupy, mmf_tensor *tensor)
{
    PyObject *empty = mmf_get_attribute(cupy, "empty");
    PyObject *shape = empty ? mmf_shape_tuple(tensor->ndim, tensor->shape) : NULL;
    PyObject *dtype = shape ? dtype_object(tensor->dtype) : NULL;
    PyObject *array = mmf_invoke(empty, 2, shape, dtype);
    PyObject *pointer = mmf_attribute(mmf_attribute(Py_XNewRef(array), "data"), "ptr");
    tensor->data = pointer ? PyLong_AsVoidPtr(pointer) : NULL;
    Py_XDECREF(pointer);
    if (array && PyErr_Occurred())
        Py_CLEAR(array);
    return array;
}

/* With the tensor's device current, and the one before afterwards, also where that failed. */
static PyObject *new_on_device(PyObject *cupy, PyObject *cuda, mmf_tensor *tensor)
{
    PyObject *type, *value, *traceback, *array = NULL;
    PyObject *runtime = mmf_get_attribute(cuda, "runtime");
    PyObject *before = mmf_invoke(mmf_attribute(runtime, "getDevice"), 0, NULL, NULL);
    PyObject *wanted = before ? PyLong_FromLong(tensor->device.id) : NULL;
    int same = wanted ? PyObject_RichCompareBool(before, wanted, Py_EQ) : -1;
    if (same == 1) {
        array = new_array(cupy, tensor);
    } else if (same == 0 && use_device(cuda, wanted) == 0) {
        array = new_array(cupy, tensor);
        PyErr_Fetch(&type, &value, &traceback);
        bool back = use_device(cuda, before) == 0;
        if (back || type)
            PyErr_Restore(type, value, traceback);
        if (!back)
            Py_CLEAR(array);
    }
    Py_XDECREF(wanted);
    Py_XDECREF(before);
    return array;
}

static mmf_status new_output(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                             void *stream, mmf_output *output)
{
    PyObject *cupy = PyImport_ImportModule("cupy");
    PyObject *cuda = cupy ? mmf_get_attribute(cupy, "cuda") : NULL;
    (void)state;
    (void)a;
    (void)stream; /* the library's own one; the caller orders the two */
    output->ran_python = true;
    output->object = cuda ? new_on_device(cupy, cuda, tensor) : NULL;
    Py_XDECREF(cuda);
    Py_XDECREF(cupy);
    return output->object ? MMF_OK : MMF_PYTHON_ERROR;
}

const mmf_library mmf_library_cupy = {
    .recognise = recognise,
    .import = mmf_dlpack_import,
    .trusted = true,
    .stream = current_stream,
    .new_output = new_output,
    .finish = mmf_output_object,
    .owner = &mmf_library_cupy,
};
