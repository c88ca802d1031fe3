/* The values of an mf.Array on the host, as NumPy sees them. Not on the path of a call. */
#include "binding/array_values.h"

#include "binding/arguments.h"
#include "binding/array.h"
#include "binding/errors.h"
#include "binding/libraries/numpy.h"
#include "binding/objects.h"

/* The format of a buffer, NULL: the struct module has none. */
static const char *buffer_format(mmf_dtype dtype)
{
    static const char *const formats[MMF_DTYPE_COUNT] = {
        [MMF_FLOAT32] = "f", [MMF_FLOAT64] = "d", [MMF_FLOAT16] = "e"};
    return formats[dtype];
}

/* TYPE_ERROR: why the elements cannot be read here. */
static mmf_status check_host(const mmf_tensor *tensor)
{
    char device[24];
    if (tensor->device.type == MMF_CPU)
        return MMF_OK;
    return mmf_fail(MMF_TYPE_ERROR,
                    "this Array is on %s; copy it to the host first: "
                    "torch.from_dlpack(array).cpu() or cupy.from_dlpack(array).get()",
                    mmf_device_name(tensor->device, device));
}

int mmf_array_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    mmf_array *array = (mmf_array *)self;
    mmf_tensor *tensor = &array->tensor;
    mmf_state *state = mmf_state_of_type(Py_TYPE(self));
    const char *format = buffer_format(tensor->dtype);
    const bool by_columns = (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && tensor->ndim > 1;
    mmf_status status = check_host(tensor);
    view->obj = NULL;
    if (!status && !format)
        status = mmf_fail(MMF_BUFFER_ERROR, "no buffer has elements of bfloat16; np.asarray(array) "
                                            "has, with ml_dtypes");
    if (!status && by_columns)
        status = mmf_fail(MMF_BUFFER_ERROR, "an Array is contiguous in its last axis");
    if (status) {
        mmf_raise(state, status);
        return -1;
    }
    const Py_ssize_t size = mmf_dtypes[tensor->dtype].size;
    for (int i = 0; i < tensor->ndim; i++) /* the same for every view */
        array->byte_strides[i] = (Py_ssize_t)tensor->strides[i] * size;
    *view = (Py_buffer){
        .buf = tensor->data,
        .obj = Py_NewRef(self),
        .len = (Py_ssize_t)mmf_tensor_size(tensor) * size,
        .itemsize = size,
        .ndim = tensor->ndim,
        .format = flags & PyBUF_FORMAT ? (char *)format : NULL,
        .shape = flags & PyBUF_ND && tensor->ndim ? (Py_ssize_t *)tensor->shape : NULL,
        .strides =
            (flags & PyBUF_STRIDES) == PyBUF_STRIDES && tensor->ndim ? array->byte_strides : NULL};
    return 0;
}

/* An ndarray of the memory, which keeps the Array. */
static PyObject *view_of(PyObject *self)
{
    mmf_state *state = mmf_state_of_type(Py_TYPE(self));
    mmf_status status = check_host(mmf_array_tensor(self));
    return status ? mmf_raise(state, status)
                  : mmf_numpy_of_memory(state, mmf_array_tensor(self), self);
}

/* array.astype(dtype), or array.copy(): takes array over. */
static PyObject *converted(PyObject *array, PyObject *dtype, PyObject *copy)
{
    const bool given = dtype && dtype != Py_None;
    PyObject *before = array ? Py_NewRef(array) : NULL;
    PyObject *result = array;
    if (array && given) {
        PyObject *own = mmf_get_attribute(array, "dtype");
        const int same = own ? PyObject_RichCompareBool(own, dtype, Py_EQ) : -1;
        Py_XDECREF(own);
        if (same == 0)
            result = mmf_invoke(mmf_attribute(array, "astype"), 1, Py_NewRef(dtype), NULL);
        else if (same < 0)
            Py_CLEAR(result);
    }
    const bool shares = result && result == before;
    Py_XDECREF(before);
    if (result && !shares && copy == Py_False) {
        Py_CLEAR(result);
        PyErr_SetString(PyExc_ValueError, "another dtype takes a copy; drop copy=False");
    }
    return shares && copy == Py_True ? mmf_invoke(mmf_attribute(result, "copy"), 0, NULL, NULL)
                                     : result;
}

PyObject *mmf_array_to_numpy(PyObject *self, PyObject *const *arguments, Py_ssize_t count,
                             PyObject *keywords)
{
    static const mmf_name names[] = {MMF_NAME_DTYPE, MMF_NAME_COPY};
    static const mmf_signature signature = {"__array__", 0, 2, 2, names};
    PyObject *values[2];
    if (mmf_parse_arguments(mmf_state_of_type(Py_TYPE(self)), &signature, arguments, count,
                            keywords, values))
        return NULL;
    return converted(view_of(self), values[0], values[1]);
}

Py_ssize_t mmf_array_length(PyObject *self)
{
    const mmf_tensor *tensor = mmf_array_tensor(self);
    if (tensor->ndim > 0)
        return (Py_ssize_t)tensor->shape[0];
    PyErr_SetString(PyExc_TypeError, "an Array without axes has no length");
    return -1;
}

PyObject *mmf_array_item(PyObject *self, PyObject *index)
{
    PyObject *view = view_of(self);
    PyObject *item = view ? PyObject_GetItem(view, index) : NULL;
    Py_XDECREF(view);
    return item;
}

PyObject *mmf_array_iterate(PyObject *self)
{
    PyObject *view = view_of(self);
    PyObject *iterator = view ? PyObject_GetIter(view) : NULL;
    Py_XDECREF(view);
    return iterator;
}

/* The values as NumPy prints them, or NULL without an exception where it cannot. */
static PyObject *values_text(PyObject *self)
{
    if (mmf_array_tensor(self)->device.type != MMF_CPU)
        return NULL;
    PyObject *view = view_of(self), *text = view ? PyObject_Str(view) : NULL;
    Py_XDECREF(view);
    if (!view && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Clear(); /* lint: bfloat16 without ml_dtypes; the rest of the text says what it is */
    return text;
}

PyObject *mmf_array_repr(PyObject *self)
{
    char shape[MMF_SHAPE_TEXT], device[24];
    const mmf_tensor *tensor = mmf_array_tensor(self);
    PyObject *values = values_text(self);
    if (!values && PyErr_Occurred())
        return NULL;
    PyObject *text = PyUnicode_FromFormat(
        values ? "<matmul_fused.Array shape=%s dtype=%s device=%s\n%U>"
               : "<matmul_fused.Array shape=%s dtype=%s device=%s>",
        mmf_shape_text(tensor->ndim, tensor->shape, shape), mmf_dtypes[tensor->dtype].name,
        mmf_device_name(tensor->device, device), values);
    Py_XDECREF(values);
    return text;
}
