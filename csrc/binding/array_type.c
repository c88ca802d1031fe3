/* The Python type of mf.Array: attributes, and its export through DLPack. Not on the path of
 * a call.
 */
#include "binding/array.h"

#include "binding/arguments.h"
#include "binding/array_values.h"
#include "binding/dlpack.h"
#include "binding/errors.h"
#include "binding/objects.h"
#include "binding/stream.h"

#include <stdlib.h>
#include <string.h>

static void array_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    mmf_memory_free(mmf_array_memory(object));
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    return mmf_shape_tuple(mmf_array_tensor(self)->ndim, mmf_array_tensor(self)->shape);
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(mmf_dtypes[mmf_array_tensor(self)->dtype].name);
}

static PyObject *get_device(PyObject *self, void *unused)
{
    char text[24];
    (void)unused;
    return PyUnicode_FromString(mmf_device_name(mmf_array_tensor(self)->device, text));
}

/* --- DLPack export. The managed tensor owns a reference to the Array and its own copy of shape and
 * strides. --- */

typedef struct exported {
    union {
        DLManagedTensor legacy;
        DLManagedTensorVersioned versioned;
    } managed;
    PyObject *owner;
    int64_t shape[MMF_MAX_RANK], strides[MMF_MAX_RANK];
} exported;

/* With the GIL. */
static void free_exported(exported *self)
{
    Py_DECREF(self->owner);
    free(self);
}

/* What a deleter does: consumers call it on any thread, with or without the GIL. */
static void free_anywhere(exported *self)
{
    if (!Py_IsInitialized()) /* leak rather than touch an interpreter that is gone */
        return;
    PyGILState_STATE gil = PyGILState_Ensure();
    free_exported(self);
    PyGILState_Release(gil);
}

static void delete_legacy(DLManagedTensor *tensor)
{
    free_anywhere(tensor->manager_ctx);
}

static void delete_versioned(DLManagedTensorVersioned *tensor)
{
    free_anywhere(tensor->manager_ctx);
}

/* Destructor of a capsule: frees what no consumer has taken (a consumer renames the capsule). */
static void drop_capsule(PyObject *capsule)
{
    DLManagedTensorVersioned *versioned = PyCapsule_IsValid(capsule, "dltensor_versioned")
                                              ? PyCapsule_GetPointer(capsule, "dltensor_versioned")
                                              : NULL;
    DLManagedTensor *legacy =
        PyCapsule_IsValid(capsule, "dltensor") ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
    if (versioned)
        free_exported(versioned->manager_ctx);
    else if (legacy)
        free_exported(legacy->manager_ctx);
}

static size_t byte_size(const mmf_tensor *tensor)
{
    return (size_t)mmf_tensor_size(tensor) * mmf_dtypes[tensor->dtype].size;
}

static bool on_host(const mmf_tensor *tensor)
{
    return tensor->device.type == MMF_CPU;
}

static PyObject *export_capsule(PyObject *owner, bool versioned, uint64_t flags)
{
    const mmf_tensor *tensor = mmf_array_tensor(owner);
    exported *self = calloc(1, sizeof *self);
    if (!self)
        return mmf_raise(mmf_state_of_type(Py_TYPE(owner)),
                         mmf_fail(MMF_NO_MEMORY, "no memory for the %zu bytes of a DLPack tensor",
                                  sizeof *self));
    DLTensor view = mmf_dl_tensor(tensor, self->shape, self->strides);
    if (versioned)
        self->managed.versioned = (DLManagedTensorVersioned){
            {MMF_DLPACK_MAJOR, MMF_DLPACK_MINOR}, self, delete_versioned, flags, view};
    else
        self->managed.legacy = (DLManagedTensor){view, self, delete_legacy};
    self->owner = Py_NewRef(owner);
    PyObject *capsule =
        PyCapsule_New(&self->managed, versioned ? "dltensor_versioned" : "dltensor", drop_capsule);
    if (!capsule)
        free_exported(self);
    return capsule;
}

/* Is max_version a tuple whose first item is at least 1? -1 with an exception. */
static int wants_versioned(PyObject *max_version)
{
    if (!max_version || max_version == Py_None)
        return 0;
    if (!PyTuple_Check(max_version) || PyTuple_Size(max_version) != 2) {
        PyErr_SetString(PyExc_TypeError, "max_version must be None or a pair (major, minor)");
        return -1;
    }
    long major = PyLong_AsLong(PyTuple_GetItem(max_version, 0));
    return major == -1 && PyErr_Occurred() ? -1 : major >= 1;
}

static PyObject *array_dlpack_device(PyObject *self, PyObject *unused)
{
    DLDevice device = mmf_dl_device(mmf_array_tensor(self)->device);
    (void)unused;
    return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
}

/* Is dl_device None or where the Array is? -1 with an exception. */
static int check_dl_device(PyObject *self, PyObject *dl_device)
{
    if (!dl_device || dl_device == Py_None)
        return 0;
    DLDevice device = mmf_dl_device(mmf_array_tensor(self)->device);
    PyObject *own = array_dlpack_device(self, NULL);
    int same = own ? PyObject_RichCompareBool(dl_device, own, Py_EQ) : -1;
    char text[24];
    Py_XDECREF(own);
    if (same == 0)
        PyErr_Format(PyExc_BufferError, "dl_device: this Array is on %s, (%d, %d)",
                     on_host(mmf_array_tensor(self))
                         ? "the CPU"
                         : mmf_device_name(mmf_array_tensor(self)->device, text),
                     (int)device.device_type, (int)device.device_id);
    return same == 1 ? 0 : -1;
}

/* The stream that a consumer named. *wait is false if it wants no order. */
static int parse_stream(mmf_state *state, PyObject *self, PyObject *object, void **stream,
                        bool *wait)
{
    *stream = NULL;
    *wait = false;
    if (on_host(mmf_array_tensor(self))) {
        if (!object || object == Py_None)
            return 0;
        PyErr_SetString(PyExc_BufferError, "stream must be None on the CPU");
        return -1;
    }
    mmf_status status =
        mmf_stream_of_consumer(object, mmf_array_tensor(self)->device, stream, wait);
    if (status)
        mmf_raise(state, status);
    return status ? -1 : 0;
}

/* A copy, made on stream if it is a GPU's. */
static PyObject *copy_array(mmf_state *state, PyObject *self, void *stream)
{
    mmf_tensor tensor = *mmf_array_tensor(self);
    PyObject *copy = mmf_array_new(state, &tensor, stream);
    if (!copy)
        return NULL;
    if (on_host(&tensor)) {
        memcpy(tensor.data, mmf_array_tensor(self)->data, byte_size(&tensor));
        return copy;
    }
    mmf_status status =
        mmf_gpu_copy(mmf_array_memory(copy), mmf_array_memory(self), byte_size(&tensor), stream);
    if (status) {
        mmf_raise(state, status);
        Py_CLEAR(copy);
    }
    return copy;
}

static PyObject *array_dlpack(PyObject *self, PyObject *const *arguments, Py_ssize_t count,
                              PyObject *keywords)
{
    static const mmf_name names[] = {MMF_NAME_STREAM, MMF_NAME_MAX_VERSION, MMF_NAME_DL_DEVICE,
                                     MMF_NAME_COPY};
    static const mmf_signature signature = {"__dlpack__", 0, 0, 4, names};
    mmf_state *state = mmf_state_of_type(Py_TYPE(self));
    PyObject *values[4];
    if (mmf_parse_arguments(state, &signature, arguments, count, keywords, values))
        return NULL;
    void *stream;
    bool wait;
    int versioned = wants_versioned(values[1]);
    if (versioned < 0 || check_dl_device(self, values[2]))
        return NULL;
    if (values[3] && values[3] != Py_None && !PyBool_Check(values[3])) {
        PyErr_SetString(PyExc_TypeError, "copy must be None, True or False");
        return NULL;
    }
    if (parse_stream(state, self, values[0], &stream, &wait))
        return NULL;
    bool copied = values[3] == Py_True;
    PyObject *owner = copied ? copy_array(state, self, stream) : Py_NewRef(self), *capsule = NULL;
    mmf_status status = owner && wait ? mmf_gpu_lend(mmf_array_memory(owner), stream) : MMF_OK;
    if (status)
        mmf_raise(state, status);
    else if (owner)
        capsule = export_capsule(owner, versioned, copied ? MMF_DL_FLAG_IS_COPIED : 0);
    Py_XDECREF(owner);
    return capsule;
}

static PyGetSetDef array_getset[] = {
    {"shape", get_shape, NULL, "Tuple of int.", NULL},
    {"dtype", get_dtype, NULL, "Name of the dtype, such as \"bfloat16\".", NULL},
    {"device", get_device, NULL, "Where the memory is: \"cpu\", \"rocm:0\".", NULL},
    {0},
};

static PyMethodDef array_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))array_dlpack, METH_FASTCALL | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\nA "
     "DLPack capsule "
     "that shares the memory."},
    {"__array__", (PyCFunction)(void (*)(void))mmf_array_to_numpy, METH_FASTCALL | METH_KEYWORDS,
     "__array__($self, dtype=None, copy=None)\n--\n\nAn ndarray that shares the memory; on the "
     "CPU."},
    {"__dlpack_device__", array_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\n(device type, ordinal): (1, 0) on the CPU."},
    {0},
};

static PyType_Slot array_slots[] = {
    {Py_tp_doc,
     "A result for operands of a library that matmul_fused does not know.\n\n"
     "Take it over with from_dlpack of NumPy, torch, JAX, CuPy, ..., without a copy. On the "
     "CPU also with np.asarray and memoryview; an index gives what NumPy gives."},
    {Py_tp_dealloc, array_dealloc},
    {Py_tp_repr, mmf_array_repr},
    {Py_tp_iter, mmf_array_iterate},
    {Py_mp_length, mmf_array_length},
    {Py_mp_subscript, mmf_array_item},
    {Py_bf_getbuffer, mmf_array_get_buffer},
    {Py_tp_methods, array_methods},
    {Py_tp_getset, array_getset},
    {0, NULL},
};

PyType_Spec mmf_array_spec = {
    .name = "matmul_fused.Array",
    .basicsize = sizeof(mmf_array),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = array_slots,
};
