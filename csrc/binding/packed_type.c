/* The Python type of mf.PackedMatrix: attributes, unpack(), pickling. Not on the path of a call.
 */
#include "binding/packed.h"

#include "binding/activations.h"
#include "binding/array.h"
#include "binding/errors.h"
#include "binding/interrupt.h"
#include "binding/objects.h"
#include "binding/scalars.h"
#include "plan/backends.h"

#include <stddef.h>
#include <structmember.h>

mmf_status mmf_packed_unpack(const mmf_packed *self, const void *from, void *stream, void *data)
{
    const mmf_tensor *packed = &self->weight;
    const int64_t n = packed->shape[1], size = mmf_dtypes[packed->dtype].size;
    mmf_status status = MMF_OK;
    mmf_stream_view views[2];
    const int streams = mmf_split_streams(self->gate, n / 2, 1, views);
    mmf_unlocked unlocked;
    mmf_unlock(&unlocked);
    for (int i = 0; !status && i < streams; i++) {
        const mmf_weight weight = {.device = packed->device,
                                   .stream = stream,
                                   .interrupt = &unlocked.interrupt,
                                   .dtype = packed->dtype,
                                   .k = packed->shape[0],
                                   .n = n / streams,
                                   .row = n,
                                   .col = views[i].col,
                                   .data = (char *)data + views[i].offset * size};
        status = mmf_unpack(self->layout, &weight, i ? self->up : from);
    }
    return mmf_lock(&unlocked, status);
}

/* All of it in the order of the default stream. */
static mmf_status unpack_into(const mmf_packed *self, void *data)
{
    return mmf_packed_unpack(self, self->weight.data, NULL, data);
}

/* The same on a GPU, in order with other uses of the two memories. */
static mmf_status unpack_on_gpu(mmf_packed *self, mmf_memory *memory)
{
    mmf_status status = mmf_gpu_wait(&self->memory, NULL);
    if (!status)
        status = unpack_into(self, memory->data);
    if (!status)
        status = mmf_gpu_read(&self->memory, NULL);
    return status ? status : mmf_gpu_used(memory, NULL);
}

static PyObject *packed_unpack(PyObject *object, PyObject *unused)
{
    mmf_packed *self = (mmf_packed *)object;
    mmf_state *state = mmf_state_of_type(Py_TYPE(object));
    mmf_tensor tensor = self->weight;
    (void)unused;
    if (self->owner)
        return mmf_borrowed_unpack(state, self);
    PyObject *array = mmf_array_new(state, &tensor, NULL);
    if (!array)
        return NULL;
    mmf_status status = tensor.device.type == MMF_CPU
                            ? unpack_into(self, tensor.data)
                            : unpack_on_gpu(self, mmf_array_memory(array));
    if (!status)
        return array;
    mmf_raise(state, status);
    Py_DECREF(array);
    return NULL;
}

static PyObject *gate_object(const mmf_packed *self)
{
    const char *name = mmf_gate_layout_name(self->gate);
    return name ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
}

static PyObject *packed_reduce(PyObject *object, PyObject *unused)
{
    mmf_packed *self = (mmf_packed *)object;
    const mmf_tensor *weight = &self->weight;
    char device[24];
    (void)unused;
    if (weight->device.type != MMF_CPU)
        return PyErr_Format(PyExc_TypeError,
                            "a PackedMatrix on %s cannot be pickled; pickle its unpack(), copied "
                            "to the host",
                            mmf_device_name(weight->device, device));
    /* pickle asks for the function that is found by its name now, after a new import too */
    PyObject *module = mmf_imported_module("matmul_fused._core");
    if (!module && !PyErr_Occurred())
        module = Py_XNewRef(PyType_GetModule(Py_TYPE(object)));
    PyObject *load = mmf_attribute(module, "_unpickle_packed");
    Py_ssize_t size = (Py_ssize_t)(mmf_tensor_size(weight) * mmf_dtypes[weight->dtype].size);
    PyObject *bytes = load ? PyBytes_FromStringAndSize(NULL, size) : NULL;
    if (load && !bytes)
        mmf_packed_no_memory(mmf_state_of_type(Py_TYPE(object)), weight, size);
    PyObject *gate = bytes ? gate_object(self) : NULL, *result = NULL;
    if (gate && !unpack_into(self, PyBytes_AsString(bytes)))
        result = Py_BuildValue("(O(OLLsO))", load, bytes, (long long)weight->shape[0],
                               (long long)weight->shape[1], mmf_dtypes[weight->dtype].name, gate);
    Py_XDECREF(gate);
    Py_XDECREF(bytes);
    Py_XDECREF(load);
    return result;
}

PyObject *mmf_unpickle_packed(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    mmf_state *state = mmf_state_of(module);
    mmf_tensor weight = {.ndim = 2, .device = {MMF_CPU, 0}};
    mmf_gate_layout gate;
    char *data;
    Py_ssize_t size;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "_unpickle_packed() takes 5 arguments");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(arguments[0], &data, &size))
        return NULL;
    for (int i = 0; i < 2; i++) {
        weight.shape[i] = PyLong_AsLongLong(arguments[1 + i]);
        if (weight.shape[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    mmf_status status = mmf_parse_dtype(state, arguments[3], "dtype", &weight.dtype);
    if (!status)
        status = mmf_parse_gate_layout(arguments[4], &gate);
    if (status)
        return mmf_raise(state, status);
    int64_t bytes = weight.dtype == MMF_ABSENT ? 0 : mmf_dtypes[weight.dtype].size;
    if (bytes == 0 || weight.shape[0] < 0 || weight.shape[1] < 0 ||
        __builtin_mul_overflow(bytes, weight.shape[0], &bytes) ||
        __builtin_mul_overflow(bytes, weight.shape[1], &bytes) || bytes != size)
        return mmf_raise(
            state,
            mmf_fail(MMF_VALUE_ERROR, "a pickled PackedMatrix whose size does not fit its shape"));
    weight.data = data;
    mmf_tensor_set_compact(&weight);
    return mmf_pack_matrix(state, NULL, &weight, gate, "auto");
}

static void packed_dealloc(PyObject *object)
{
    mmf_packed *self = (mmf_packed *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    PyObject_ClearWeakRefs(object);
    if (self->owner)
        Py_CLEAR(self->owner);
    else
        mmf_memory_free(&self->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* A cycle through a borrowed array ends at another of its objects: what was borrowed is there until
 * the end. */
static int packed_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((mmf_packed *)object)->owner);
    return 0;
}

static PyObject *packed_repr(PyObject *object)
{
    const mmf_packed *self = (const mmf_packed *)object;
    char shape[MMF_SHAPE_TEXT], device[24];
    const char *gate = mmf_gate_layout_name(self->gate);
    return PyUnicode_FromFormat(
        "<matmul_fused.PackedMatrix shape=%s dtype=%s device=%s layout=%s%s%s>",
        mmf_shape_text(2, self->weight.shape, shape), mmf_dtypes[self->weight.dtype].name,
        mmf_device_name(self->weight.device, device), mmf_prepack_layout_name(self->layout),
        gate ? " gate_layout=" : "", gate ? gate : "");
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    return mmf_shape_tuple(2, ((mmf_packed *)self)->weight.shape);
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(mmf_dtypes[((mmf_packed *)self)->weight.dtype].name);
}

static PyObject *get_device(PyObject *self, void *unused)
{
    char text[24];
    (void)unused;
    return PyUnicode_FromString(mmf_device_name(((mmf_packed *)self)->weight.device, text));
}

static PyObject *get_layout(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(mmf_prepack_layout_name(((mmf_packed *)self)->layout));
}

static PyObject *get_gate_layout(PyObject *self, void *unused)
{
    (void)unused;
    return gate_object((mmf_packed *)self);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(((mmf_packed *)self)->bytes);
}

static PyObject *packed_copy(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *packed_sizeof(PyObject *self, PyObject *unused)
{
    (void)unused;
    const mmf_packed *packed = (const mmf_packed *)self;
    const bool on_host = packed->weight.device.type == MMF_CPU;
    return PyLong_FromLongLong((long long)sizeof *packed + (on_host ? packed->bytes : 0));
}

/* Without it NumPy would make an array of one object. */
static PyObject *packed_array(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    const bool on_host = ((mmf_packed *)self)->weight.device.type == MMF_CPU;
    (void)arguments;
    (void)keywords;
    return PyErr_Format(PyExc_TypeError,
                        "a PackedMatrix is no array, but a weight for matmul_fused; unpack() gives "
                        "the plain one%s",
                        on_host ? ": np.asarray(packed.unpack())" : ", on the same GPU");
}

static PyGetSetDef packed_getset[] = {
    {"shape", get_shape, NULL, "(K, N) of the weight.", NULL},
    {"dtype", get_dtype, NULL, "Name of the weight's dtype.", NULL},
    {"device", get_device, NULL, "Where the packed weight is: \"cpu\", \"cuda:0\".", NULL},
    {"layout", get_layout, NULL, "Name of the prepacked layout.", NULL},
    {"gate_layout", get_gate_layout, NULL, "The gate layout it was packed with, or None.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes that the packed weight takes.", NULL},
    {0},
};

static PyMethodDef packed_methods[] = {
    {"unpack", packed_unpack, METH_NOARGS,
     "unpack($self, /)\n--\n\nThe plain (K, N) weight as a matmul_fused.Array."},
    {"__reduce__", packed_reduce, METH_NOARGS,
     "Pickles as the plain weight; loading packs it again."},
    {"__copy__", packed_copy, METH_NOARGS, "__copy__($self, /)\n--\n\nItself: it never changes."},
    {"__deepcopy__", packed_copy, METH_O,
     "__deepcopy__($self, memo, /)\n--\n\nItself: it never changes."},
    {"__sizeof__", packed_sizeof, METH_NOARGS,
     "Bytes of the host that the object takes, with the packed weight."},
    {"__array__", (PyCFunction)(void (*)(void))packed_array, METH_VARARGS | METH_KEYWORDS,
     "__array__($self, /, *args, **kwargs)\n--\n\nRaises TypeError: unpack() gives the plain "
     "weight."},
    {0},
};

static PyMemberDef packed_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(mmf_packed, weak_references), READONLY, NULL},
    {0},
};

static PyType_Slot packed_slots[] = {
    {Py_tp_doc,
     "A weight (K, N) in the layout that a kernel reads; made by prepack() and passed as B.\n\n"
     "It owns a copy of the values, never changes, and may be used by several threads at once. One "
     "of as_prepacked() holds another library's array instead, whose changes show through."},
    {Py_tp_dealloc, packed_dealloc},
    {Py_tp_traverse, packed_traverse},
    {Py_tp_repr, packed_repr},
    {Py_tp_methods, packed_methods},
    {Py_tp_getset, packed_getset},
    {Py_tp_members, packed_members},
    {0, NULL},
};

PyType_Spec mmf_packed_spec = {
    .name = "matmul_fused.PackedMatrix",
    .basicsize = sizeof(mmf_packed),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = packed_slots,
};

bool mmf_is_packed_type(PyTypeObject *type)
{
    return PyType_GetSlot(type, Py_tp_repr) == (void *)packed_repr;
}
