/* NumPy, by its C API: arrays in and out, scalars, dtypes. Path of a call: its row of libraries/.
 */
#include "binding/libraries/numpy.h"

#include "binding/errors.h"
#include "binding/libraries/library.h"
#include "binding/objects.h"

#include <numpy/arrayobject.h>

#include <stdio.h>
#include <string.h>

int mmf_numpy_load(mmf_state *state)
{
    if (PyArray_ImportNumPyAPI())
        return -1;
    state->ndarray_type = &PyArray_Type;
    return 0;
}

/* A subclass with arithmetic of its own means more than its numbers: a unit, a mask. */
static mmf_status check_ufuncs(mmf_state *state, PyObject *object, const char *name)
{
    PyObject *ufunc = state->names[MMF_NAME_ARRAY_UFUNC];
    PyObject *plain = PyObject_GetAttr((PyObject *)state->ndarray_type, ufunc);
    PyObject *own = plain ? PyObject_GetAttr((PyObject *)Py_TYPE(object), ufunc) : NULL;
    char type[MMF_PRINTABLE];
    mmf_status status = own ? MMF_OK : MMF_PYTHON_ERROR;
    if (own && own != plain)
        status = mmf_fail(MMF_TYPE_ERROR,
                          "%s is a %s, an ndarray with an __array_ufunc__ of its own, whose "
                          "meaning (a unit, a mask) would be lost; pass its plain values, "
                          "np.array(%s)",
                          name, mmf_type_name(object, type), name);
    Py_XDECREF(own);
    Py_XDECREF(plain);
    return status;
}

static mmf_status recognise(mmf_state *state, PyObject *object, const char *name,
                            mmf_type_facts *facts)
{
    PyTypeObject *type = Py_TYPE(object);
    if (!PyArray_Check(object))
        return MMF_OK;
    facts->library = &mmf_library_numpy;
    int masked = mmf_is_subclass(type, "numpy.ma", "MaskedArray");
    int matrix = masked ? 0 : mmf_is_subclass(type, "numpy", "matrix");
    if (masked < 0 || matrix < 0)
        return MMF_PYTHON_ERROR;
    if (masked)
        return mmf_fail(
            MMF_TYPE_ERROR,
            "%s is a numpy.ma.MaskedArray, whose mask would be lost; pass %s.filled(...)", name,
            name);
    if (matrix)
        return mmf_fail(MMF_TYPE_ERROR, "%s is a numpy.matrix; pass np.asarray(%s)", name, name);
    return check_ufuncs(state, object, name);
}

bool mmf_numpy_is_real_scalar(PyObject *object)
{
    if (PyArray_IsScalar(object, Floating) || PyArray_IsScalar(object, Bool))
        return true;
    if (PyArray_IsScalar(object, Integer)) /* NumPy counts lengths of time among the integers */
        return !PyArray_IsScalar(object, Timedelta);
    if (!PyArray_IsScalar(object, Generic))
        return false;
    PyArray_Descr *descr = PyArray_DescrFromTypeObject((PyObject *)Py_TYPE(object));
    bool real = descr && PyTypeNum_ISUSERDEF(descr->type_num) && strchr("Vfiu", descr->kind) &&
                PyType_GetSlot(Py_TYPE(object), Py_nb_float);
    if (!descr)
        PyErr_Clear(); /* lint: a scalar without a dtype is none of these */
    Py_XDECREF((PyObject *)descr);
    return real;
}

bool mmf_numpy_is_bool(PyObject *object)
{
    return PyArray_IsScalar(object, Bool);
}

/* Remember the dtype of ml_dtypes.bfloat16 if that package has been imported by now. */
static void find_bfloat16(mmf_state *state)
{
    PyObject *module = state->bfloat16 ? NULL : mmf_imported_module("ml_dtypes");
    PyObject *type = mmf_attribute(module, "bfloat16");
    const bool is_type = type && PyType_Check(type);
    PyArray_Descr *descr = is_type ? PyArray_DescrFromTypeObject(type) : NULL;
    Py_XDECREF(type);
    if (descr && (!PyTypeNum_ISUSERDEF(descr->type_num) || PyDataType_ELSIZE(descr) != 2))
        Py_CLEAR(descr); /* of a mock NumPy makes a dtype of objects */
    if (!descr) {
        PyErr_Clear(); /* lint: without ml_dtypes there is no such dtype */
        return;
    }
    state->bfloat16 = (PyObject *)descr;
    state->bfloat16_number = descr->type_num;
}

static mmf_dtype dtype_of(mmf_state *state, const PyArray_Descr *descr)
{
    switch (descr->type_num) {
    case NPY_FLOAT:
        return MMF_FLOAT32;
    case NPY_DOUBLE:
        return MMF_FLOAT64;
    case NPY_HALF:
        return MMF_FLOAT16;
    }
    if (descr->type_num < NPY_USERDEF)
        return MMF_ABSENT;
    find_bfloat16(state);
    return state->bfloat16 && descr->type_num == state->bfloat16_number ? MMF_BFLOAT16 : MMF_ABSENT;
}

static void descr_text(PyArray_Descr *descr, char text[MMF_PRINTABLE])
{
    PyObject *string = PyObject_Str((PyObject *)descr);
    if (!string || !mmf_printable(string, text)) {
        PyErr_Clear(); /* lint: a text for an error that is raised anyway */
        strcpy(text, "unknown");
    }
    Py_XDECREF(string);
}

static mmf_status refuse_descr(const PyArrayObject *array, const char *name, bool swapped)
{
    char text[MMF_PRINTABLE + 16];
    descr_text(PyArray_DESCR(array), text);
    if (swapped)
        strncat(text, " (byte-swapped)", sizeof text - strlen(text) - 1);
    return mmf_refuse_dtype(name, text);
}

/* Data, shape and strides of an array that is not usual. */
__attribute__((noinline)) static mmf_status view_unusual(const PyArrayObject *array,
                                                         const char *name, mmf_tensor *tensor)
{
    int64_t size = mmf_dtypes[tensor->dtype].size;
    int shift = mmf_dtypes[tensor->dtype].shift, ndim = PyArray_NDIM(array);
    mmf_status status = mmf_check_rank(name, ndim);
    if (status)
        return status;
    tensor->data = PyArray_DATA(array);
    tensor->ndim = ndim;
    const npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array);
    for (int i = 0; i < ndim; i++) {
        tensor->shape[i] = shape[i];
        tensor->strides[i] = strides[i] >> shift;
        if (strides[i] & (size - 1) && shape[i] > 1)
            return mmf_fail(
                MMF_VALUE_ERROR,
                "%s has a stride of %lld bytes, no multiple of its item size (%lld); copy it "
                "first",
                name, (long long)strides[i], (long long)size);
    }
    return mmf_check_memory(name, tensor);
}

mmf_status mmf_numpy_view(mmf_state *state, mmf_import *import, bool *asked)
{
    const PyArrayObject *array = (const PyArrayObject *)import->object;
    mmf_tensor *tensor = &import->tensor;
    (void)asked;
    tensor->dtype = dtype_of(state, PyArray_DESCR(array));
    if (tensor->dtype == MMF_ABSENT || !PyArray_ISNOTSWAPPED(array))
        return refuse_descr(array, import->name, tensor->dtype != MMF_ABSENT);
    tensor->device = (mmf_device){MMF_CPU, 0};
    tensor->readonly = PyArray_ISWRITEABLE(array) ? MMF_WRITABLE : MMF_READONLY;
    if (mmf_take_usual(tensor, (uintptr_t)PyArray_DATA(array), PyArray_NDIM(array),
                       PyArray_DIMS(array), PyArray_STRIDES(array),
                       mmf_dtypes[tensor->dtype].shift))
        return MMF_OK;
    return view_unusual(array, import->name, tensor);
}

/* Without bfloat16, whose number ml_dtypes is given at run time. */
static const int numbers[MMF_DTYPE_COUNT] = {
    [MMF_FLOAT32] = NPY_FLOAT, [MMF_FLOAT64] = NPY_DOUBLE, [MMF_FLOAT16] = NPY_HALF};
_Static_assert(MMF_DTYPE_COUNT == 4, "a dtype without its number would be made as bool");

/* New reference to a dtype's descr, NULL with an exception. */
static PyArray_Descr *descr_of(mmf_state *state, mmf_dtype dtype)
{
    if (dtype != MMF_BFLOAT16)
        return PyArray_DescrFromType(numbers[dtype]);
    PyObject *module = PyImport_ImportModule("ml_dtypes");
    Py_XDECREF(module);
    if (!module && !PyErr_ExceptionMatches(PyExc_ImportError))
        return NULL;
    if (!module)
        PyErr_Clear(); /* lint: the error below says that it is missing */
    find_bfloat16(state);
    if (!state->bfloat16)
        return (PyArray_Descr *)mmf_raise(
            state, mmf_fail(MMF_TYPE_ERROR, "this Array has dtype bfloat16, which NumPy has with "
                                            "ml_dtypes; install that package"));
    return (PyArray_Descr *)Py_NewRef(state->bfloat16);
}

PyObject *mmf_numpy_of_memory(mmf_state *state, const mmf_tensor *tensor, PyObject *owner)
{
    npy_intp shape[MMF_MAX_RANK];
    PyArray_Descr *descr = descr_of(state, tensor->dtype);
    if (!descr)
        return NULL;
    for (int i = 0; i < tensor->ndim; i++)
        shape[i] = (npy_intp)tensor->shape[i];
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, descr, tensor->ndim, shape, NULL,
                                           tensor->data, NPY_ARRAY_CARRAY, NULL);
    if (array && PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(owner)))
        Py_CLEAR(array);
    return array;
}

static mmf_status new_output(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                             void *stream, mmf_output *output)
{
    npy_intp shape[MMF_MAX_RANK];
    PyObject *array;
    (void)a;
    (void)stream;
    for (int i = 0; i < tensor->ndim; i++)
        shape[i] = (npy_intp)tensor->shape[i];
    if (tensor->dtype == MMF_BFLOAT16) {
        find_bfloat16(state);
        if (!state->bfloat16)
            return mmf_fail(
                MMF_TYPE_ERROR,
                "a bfloat16 result for NumPy operands needs ml_dtypes; import ml_dtypes or "
                "choose another out_dtype");
        Py_INCREF(state->bfloat16);
        array = PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)state->bfloat16, tensor->ndim,
                                     shape, NULL, NULL, 0, NULL);
    } else {
        array = PyArray_SimpleNew(tensor->ndim, shape, numbers[tensor->dtype]);
    }
    if (!array)
        return MMF_PYTHON_ERROR;
    tensor->data = PyArray_DATA((PyArrayObject *)array);
    output->object = array;
    return MMF_OK;
}

mmf_status mmf_numpy_dtype(mmf_state *state, PyObject *object, mmf_dtype *dtype, char *text)
{
    PyArray_Descr *descr = NULL;
    if (!PyArray_DescrConverter(object, &descr)) {
        Py_XDECREF((PyObject *)descr);
        return MMF_PYTHON_ERROR;
    }
    *dtype = PyArray_ISNBO(descr->byteorder) ? dtype_of(state, descr) : MMF_ABSENT;
    descr_text(descr, text);
    Py_DECREF((PyObject *)descr);
    return *dtype == MMF_ABSENT ? MMF_TYPE_ERROR : MMF_OK;
}

const mmf_library mmf_library_numpy = {
    .recognise = recognise,
    .view = mmf_numpy_view,
    .trusted = true,
    .new_output = new_output,
    .finish = mmf_output_object,
    .owner = &mmf_library_numpy,
};
