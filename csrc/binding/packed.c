/* mf.PackedMatrix: a weight reordered once, for many calls. Not on the path of a call: call.c reads
 * the struct as B. */
#include "binding/packed.h"

#include "binding/arguments.h"
#include "binding/array.h"
#include "binding/errors.h"
#include "binding/import.h"
#include "binding/objects.h"
#include "binding/scalars.h"
#include "plan/backends.h"

#include <stdio.h>

/* The streams of a weight: one, or gate and up, each K x n with its own offset and column stride
 * (in elements). */
typedef struct stream_view {
    int64_t offset, col;
} stream_view;

static int split_streams(mmf_gate_layout gate, int64_t n, int64_t col, stream_view streams[2])
{
    bool up_first = gate == MMF_GATE_HALVES_UP_FIRST, interleaved = gate == MMF_GATE_INTERLEAVED;
    streams[0] = (stream_view){up_first ? n * col : 0, interleaved ? 2 * col : col};
    streams[1] = (stream_view){up_first      ? 0
                               : interleaved ? col
                                             : n * col,
                               interleaved ? 2 * col : col};
    return gate == MMF_GATE_NONE ? 1 : 2;
}

/* bytes: 0 if they are too many to count */
static PyObject *raise_no_memory(mmf_state *state, const mmf_tensor *weight, int64_t bytes)
{
    char shape[MMF_SHAPE_TEXT], text[40] = "";
    if (bytes)
        snprintf(text, sizeof text, "%lld bytes of ", (long long)bytes);
    return mmf_raise(state, mmf_fail(MMF_NO_MEMORY, "no memory for %sa packed %s weight %s", text,
                                     mmf_dtypes[weight->dtype].name,
                                     mmf_shape_text(2, weight->shape, shape)));
}

/* An empty PackedMatrix of weight's shape and dtype, with room for its panels. NULL with an
 * exception. */
static mmf_packed *new_packed(mmf_state *state, const mmf_tensor *weight, mmf_gate_layout gate,
                              int layout)
{
    int64_t streams = gate == MMF_GATE_NONE ? 1 : 2, limit;
    if (__builtin_add_overflow(weight->shape[1], 64, &limit) ||
        __builtin_mul_overflow(weight->shape[0] + 32, limit, &limit) ||
        __builtin_mul_overflow(limit, 64, &limit)) /* a broadcast view may be that large */
        return (mmf_packed *)raise_no_memory(state, weight, 0);
    int64_t bytes =
        mmf_prepack_bytes(layout, weight->dtype, weight->shape[0], weight->shape[1] / streams);
    int64_t padded = (bytes + 63) / 64 * 64;
    mmf_memory memory;
    mmf_status status = mmf_memory_new(weight->device, (size_t)(padded * streams), NULL, &memory);
    if (status)
        return (mmf_packed *)raise_no_memory(state, weight, padded * streams);
    allocfunc allocate = (allocfunc)PyType_GetSlot(state->packed_type, Py_tp_alloc);
    mmf_packed *self = (mmf_packed *)allocate(state->packed_type, 0);
    if (!self) {
        mmf_memory_free(&memory);
        return NULL;
    }
    self->weight = *weight;
    self->weight.data = memory.data;
    self->memory = memory;
    self->weight.readonly = MMF_WRITABLE; /* whatever it was copied from */
    self->gate = gate;
    self->layout = layout;
    self->up = streams == 2 ? (char *)memory.data + padded : NULL;
    self->bytes = padded * streams;
    return self;
}

static void pack_stream(mmf_packed *self, int stream, const mmf_tensor *source, stream_view view)
{
    int64_t n = self->weight.shape[1] / (self->up ? 2 : 1), size = mmf_dtypes[source->dtype].size;
    const char *data = (const char *)source->data + view.offset * size;
    if (mmf_tensor_size(source))
        mmf_prepack(self->layout, source->dtype, source->shape[0], n, data, source->strides[0],
                    view.col, stream ? self->up : self->weight.data);
}

static mmf_status check_weight(const mmf_tensor *weight, mmf_gate_layout gate)
{
    char shape[MMF_SHAPE_TEXT];
    mmf_shape_text(weight->ndim, weight->shape, shape);
    if (weight->ndim > 2)
        return mmf_fail(MMF_NOT_IMPLEMENTED,
                        "B has shape %s; prepack takes one matrix, pack each of the batch", shape);
    if (weight->ndim < 2)
        return mmf_fail(MMF_VALUE_ERROR, "B has shape %s; prepack takes a matrix (K, N)", shape);
    if (gate != MMF_GATE_NONE && weight->shape[1] % 2)
        return mmf_fail(MMF_VALUE_ERROR, "gate_layout needs an even number of columns, but B is %s",
                        shape);
    return MMF_OK;
}

static PyObject *pack_matrix(mmf_state *state, const mmf_tensor *weight, mmf_gate_layout gate,
                             const char *layout_name)
{
    int layout = 0;
    mmf_status status = check_weight(weight, gate);
    if (!status)
        status = mmf_prepack_layout(weight->device, weight->dtype, layout_name, &layout);
    if (status)
        return mmf_raise(state, status);
    mmf_packed *self = new_packed(state, weight, gate, layout);
    if (!self)
        return NULL;
    stream_view views[2];
    int streams = split_streams(gate, weight->shape[1] / 2, weight->strides[1], views);
    PyThreadState *thread = PyEval_SaveThread();
    for (int i = 0; i < streams; i++)
        pack_stream(self, i, weight, views[i]);
    PyEval_RestoreThread(thread);
    return (PyObject *)self;
}

/* A pair (gate, up) becomes one PackedMatrix [gate | up]. */
static PyObject *pack_pair(mmf_state *state, const mmf_tensor *gate, const mmf_tensor *up,
                           const char *layout_name)
{
    int layout = 0;
    char shapes[2][MMF_SHAPE_TEXT];
    mmf_status status = check_weight(gate, MMF_GATE_NONE);
    if (!status)
        status = check_weight(up, MMF_GATE_NONE);
    if (!status && (gate->shape[0] != up->shape[0] || gate->shape[1] != up->shape[1] ||
                    gate->dtype != up->dtype))
        status = mmf_fail(MMF_VALUE_ERROR,
                          "B[0] and B[1] must have one shape and dtype, got %s %s and %s %s",
                          mmf_shape_text(2, gate->shape, shapes[0]), mmf_dtypes[gate->dtype].name,
                          mmf_shape_text(2, up->shape, shapes[1]), mmf_dtypes[up->dtype].name);
    if (!status)
        status = mmf_prepack_layout(gate->device, gate->dtype, layout_name, &layout);
    if (!status)
        status = mmf_prepack_layout(up->device, up->dtype, layout_name, &layout);
    if (status)
        return mmf_raise(state, status);
    mmf_tensor both = *gate;
    both.shape[1] *= 2;
    mmf_packed *self = new_packed(state, &both, MMF_GATE_HALVES, layout);
    if (!self)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    pack_stream(self, 0, gate, (stream_view){0, gate->strides[1]});
    pack_stream(self, 1, up, (stream_view){0, up->strides[1]});
    PyEval_RestoreThread(thread);
    return (PyObject *)self;
}

static mmf_status check_unpacked(const mmf_state *state, const mmf_import *import)
{
    if (Py_TYPE(import->object) != state->packed_type)
        return MMF_OK;
    return mmf_fail(MMF_TYPE_ERROR,
                    "%s is a PackedMatrix already; pass it to matmul_fused as it is, or prepack "
                    "%s.unpack() anew",
                    import->name, import->name);
}

static PyObject *pack_objects(mmf_state *state, PyObject *b, mmf_gate_layout gate,
                              const char *layout_name)
{
    mmf_import imports[2];
    PyObject *result = NULL;
    mmf_status status = MMF_OK;
    const bool pair = PyTuple_Check(b);
    const int count = pair ? 2 : 1;
    if (pair && PyTuple_Size(b) != 2)
        return mmf_raise(state,
                         mmf_fail(MMF_VALUE_ERROR, "B is a tuple of %zd; a pair is (gate, up)",
                                  PyTuple_Size(b)));
    if (pair && gate != MMF_GATE_NONE)
        return mmf_raise(state,
                         mmf_fail(MMF_VALUE_ERROR,
                                  "gate_layout was given but B is a pair, which needs none; drop "
                                  "it"));
    mmf_import_init(&imports[0], pair ? PyTuple_GetItem(b, 0) : b, pair ? "B[0]" : "B");
    if (pair)
        mmf_import_init(&imports[1], PyTuple_GetItem(b, 1), "B[1]");
    for (int i = 0; !status && i < count; i++)
        status = check_unpacked(state, &imports[i]);
    if (!status)
        status = mmf_import_tensors(state, imports, count, NULL);
    if (status)
        mmf_raise(state, status);
    else if (pair)
        result = pack_pair(state, &imports[0].tensor, &imports[1].tensor, layout_name);
    else
        result = pack_matrix(state, &imports[0].tensor, gate, layout_name);
    for (int i = 0; i < count; i++)
        mmf_import_release(&imports[i]);
    return result;
}

PyObject *mmf_prepack_call(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords)
{
    static const mmf_name names[] = {MMF_NAME_B, MMF_NAME_GATE_LAYOUT, MMF_NAME_LAYOUT};
    static const mmf_signature signature = {"prepack", 1, 1, 3, names};
    mmf_state *state = mmf_state_of(module);
    PyObject *values[3];
    mmf_gate_layout gate = MMF_GATE_NONE;
    if (mmf_parse_arguments(state, &signature, arguments, count, keywords, values))
        return NULL;
    mmf_status status = values[1] ? mmf_parse_gate_layout(values[1], &gate) : MMF_OK;
    if (status)
        return mmf_raise(state, status);
    char layout[MMF_PRINTABLE] = "auto";
    if (values[2] && !PyUnicode_Check(values[2]))
        return mmf_raise(state, mmf_fail(MMF_TYPE_ERROR, "layout must be a str, got %s",
                                         mmf_type_name(values[2], layout)));
    if (values[2] && !mmf_printable(values[2], layout))
        return NULL;
    return pack_objects(state, values[0], gate, layout);
}

/* Write the plain weight, C-contiguous (K, N), to data, without the GIL. */
static void unpack_into(const mmf_packed *self, void *data)
{
    const mmf_tensor *weight = &self->weight;
    int64_t k = weight->shape[0], n = weight->shape[1], size = mmf_dtypes[weight->dtype].size;
    stream_view views[2];
    int streams = split_streams(self->gate, n / 2, 1, views);
    PyThreadState *thread = PyEval_SaveThread();
    for (int i = 0; i < streams && k && n; i++)
        mmf_unpack(self->layout, weight->dtype, k, n / streams, i ? self->up : weight->data, n,
                   views[i].col, (char *)data + views[i].offset * size);
    PyEval_RestoreThread(thread);
}

static PyObject *packed_unpack(PyObject *object, PyObject *unused)
{
    mmf_packed *self = (mmf_packed *)object;
    mmf_tensor tensor = self->weight;
    (void)unused;
    PyObject *array = mmf_array_new(mmf_state_of_type(Py_TYPE(object)), &tensor, NULL);
    if (array)
        unpack_into(self, tensor.data);
    return array;
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
    (void)unused;
    PyObject *module = PyType_GetModule(Py_TYPE(object));
    PyObject *load = module ? PyObject_GetAttrString(module, "_unpickle_packed") : NULL;
    Py_ssize_t size = (Py_ssize_t)(mmf_tensor_size(weight) * mmf_dtypes[weight->dtype].size);
    PyObject *bytes = load ? PyBytes_FromStringAndSize(NULL, size) : NULL;
    if (load && !bytes)
        raise_no_memory(mmf_state_of_type(Py_TYPE(object)), weight, size);
    PyObject *gate = bytes ? gate_object(self) : NULL, *result = NULL;
    if (gate) {
        unpack_into(self, PyBytes_AsString(bytes));
        result = Py_BuildValue("(O(OLLsO))", load, bytes, (long long)weight->shape[0],
                               (long long)weight->shape[1], mmf_dtypes[weight->dtype].name, gate);
    }
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
    int64_t bytes = weight.dtype == MMF_ABSENT ? -1 : mmf_dtypes[weight.dtype].size;
    if (weight.shape[0] < 0 || weight.shape[1] < 0 ||
        __builtin_mul_overflow(bytes, weight.shape[0], &bytes) ||
        __builtin_mul_overflow(bytes, weight.shape[1], &bytes) || bytes != size)
        return mmf_raise(
            state,
            mmf_fail(MMF_VALUE_ERROR, "a pickled PackedMatrix whose size does not fit its shape"));
    weight.data = data;
    mmf_tensor_set_compact(&weight);
    return pack_matrix(state, &weight, gate, "auto");
}

static void packed_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    mmf_memory_free(&((mmf_packed *)object)->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
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

static PyGetSetDef packed_getset[] = {
    {"shape", get_shape, NULL, "(K, N) of the weight.", NULL},
    {"dtype", get_dtype, NULL, "Name of the weight's dtype.", NULL},
    {"device", get_device, NULL, "Where the panels are: \"cpu\".", NULL},
    {"layout", get_layout, NULL, "Name of the prepacked layout.", NULL},
    {"gate_layout", get_gate_layout, NULL, "The gate layout it was packed with, or None.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes that the panels take.", NULL},
    {0},
};

static PyMethodDef packed_methods[] = {
    {"unpack", packed_unpack, METH_NOARGS,
     "unpack($self, /)\n--\n\nThe plain (K, N) weight as a matmul_fused.Array."},
    {"__reduce__", packed_reduce, METH_NOARGS,
     "Pickles as the plain weight; loading packs it again."},
    {0},
};

static PyType_Slot packed_slots[] = {
    {Py_tp_doc,
     "A weight (K, N) in the layout that a kernel reads; made by prepack() and passed as B.\n\n"
     "It owns a copy of the values, never changes, and may be used by several threads at once."},
    {Py_tp_dealloc, packed_dealloc},
    {Py_tp_repr, packed_repr},
    {Py_tp_methods, packed_methods},
    {Py_tp_getset, packed_getset},
    {0, NULL},
};

PyType_Spec mmf_packed_spec = {
    .name = "matmul_fused.PackedMatrix",
    .basicsize = sizeof(mmf_packed),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = packed_slots,
};
