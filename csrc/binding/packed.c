/* prepack(): a weight reordered once, for many calls. Not on the path of a call: call.c reads the
 * struct as B. */
#include "binding/packed.h"

#include "binding/activations.h"
#include "binding/arguments.h"
#include "binding/array.h"
#include "binding/call.h"
#include "binding/device_order.h"
#include "binding/errors.h"
#include "binding/interrupt.h"
#include "binding/objects.h"
#include "binding/scalars.h"
#include "plan/backends.h"

#include <stdio.h>

int mmf_split_streams(mmf_gate_layout gate, int64_t n, int64_t col, mmf_stream_view streams[2])
{
    bool up_first = gate == MMF_GATE_HALVES_UP_FIRST, interleaved = gate == MMF_GATE_INTERLEAVED;
    streams[0] = (mmf_stream_view){up_first ? n * col : 0, interleaved ? 2 * col : col};
    streams[1] = (mmf_stream_view){up_first      ? 0
                                   : interleaved ? col
                                                 : n * col,
                                   interleaved ? 2 * col : col};
    return gate == MMF_GATE_NONE ? 1 : 2;
}

PyObject *mmf_packed_no_memory(mmf_state *state, const mmf_tensor *weight, int64_t bytes)
{
    char shape[MMF_SHAPE_TEXT], text[40] = "";
    if (bytes)
        snprintf(text, sizeof text, "%lld bytes of ", (long long)bytes);
    return mmf_raise(state, mmf_fail(MMF_NO_MEMORY, "no memory for %sa packed %s weight %s", text,
                                     mmf_dtypes[weight->dtype].name,
                                     mmf_shape_text(2, weight->shape, shape)));
}

/* An empty PackedMatrix of weight's shape and dtype, with room for the values. NULL with an
 * exception. */
static mmf_packed *new_packed(mmf_state *state, const mmf_tensor *weight, mmf_gate_layout gate,
                              int layout, void *stream)
{
    static const mmf_remedy remedy = {.captured = "prepack before the capture",
                                      .no_pools = "pass the plain weight"};
    int64_t streams = gate == MMF_GATE_NONE ? 1 : 2;
    if (!mmf_prepack_has_size(weight->shape[0], weight->shape[1])) /* a broadcast view, for one */
        return (mmf_packed *)mmf_packed_no_memory(state, weight, 0);
    int64_t padded =
        mmf_prepack_bytes(layout, weight->dtype, weight->shape[0], weight->shape[1] / streams);
    mmf_memory memory;
    mmf_status status =
        mmf_memory_new(weight->device, (size_t)(padded * streams), stream, &remedy, &memory);
    if (status && weight->device.type != MMF_CPU)
        return (mmf_packed *)mmf_raise(state, status);
    if (status)
        return (mmf_packed *)mmf_packed_no_memory(state, weight, padded * streams);
    allocfunc allocate = (allocfunc)PyType_GetSlot(state->packed_type, Py_tp_alloc);
    mmf_packed *self = (mmf_packed *)allocate(state->packed_type, 0);
    if (!self) {
        mmf_memory_free(&memory);
        return NULL;
    }
    self->weight = *weight;
    self->weight.data = memory.data;
    mmf_prepack_strides(layout, &self->weight);
    self->memory = memory;
    self->weight.readonly = MMF_WRITABLE; /* whatever it was copied from */
    self->gate = gate;
    self->layout = layout;
    self->up = streams == 2 && padded ? (char *)memory.data + padded : NULL;
    self->bytes = padded * streams;
    return self;
}

static int count_streams(const mmf_packed *self)
{
    return self->gate == MMF_GATE_NONE ? 1 : 2;
}

/* Without the GIL. */
static mmf_status pack_stream(mmf_packed *self, int up, const mmf_tensor *source,
                              mmf_stream_view view, void *stream, mmf_interrupt *interrupt)
{
    const mmf_weight weight = {
        .device = source->device,
        .stream = stream,
        .interrupt = interrupt,
        .dtype = source->dtype,
        .k = source->shape[0],
        .n = self->weight.shape[1] / count_streams(self),
        .row = source->strides[0],
        .col = view.col,
        .data = (char *)source->data + view.offset * mmf_dtypes[source->dtype].size,
    };
    return mmf_prepack(self->layout, &weight, up ? self->up : self->weight.data);
}

/* A PackedMatrix of weight's shape, its streams filled from their sources. call: of prepack(),
 * which imported them; NULL: they are on the host. NULL with an exception. */
static PyObject *pack_streams(mmf_state *state, mmf_call *call, const mmf_tensor *weight,
                              mmf_gate_layout gate, int layout, const mmf_tensor *const source[2],
                              const mmf_stream_view view[2])
{
    const bool on_gpu = weight->device.type != MMF_CPU;
    mmf_status status = on_gpu ? mmf_device_prepare(state, call) : MMF_OK;
    void *const stream = on_gpu ? call->stream.handle : NULL;
    mmf_packed *self = NULL;
    if (status)
        mmf_raise(state, status);
    else
        self = new_packed(state, weight, gate, layout, stream);
    if (!self)
        return NULL;
    if (on_gpu)
        status = mmf_device_await(state, call, NULL);
    if (!status && call) /* what new_packed() made may have had garbage collected */
        status = mmf_import_recheck(state, call->import, call->imports);
    if (!status) {
        mmf_unlocked unlocked;
        mmf_unlock(&unlocked);
        for (int i = 0; !status && i < count_streams(self); i++)
            status = pack_stream(self, i, source[i], view[i], stream, &unlocked.interrupt);
        status = mmf_lock(&unlocked, status);
        if (on_gpu)
            status = mmf_call_finish(state, call, NULL, status);
        if (on_gpu && !status)
            status = mmf_gpu_used(&self->memory, stream);
    }
    if (status) {
        mmf_raise(state, status);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
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

PyObject *mmf_pack_matrix(mmf_state *state, mmf_call *call, const mmf_tensor *weight,
                          mmf_gate_layout gate, const char *layout_name)
{
    int layout = 0;
    mmf_status status = check_weight(weight, gate);
    if (!status)
        status =
            mmf_prepack_layout(weight, gate == MMF_GATE_NONE ? 1 : 2, "B", layout_name, &layout);
    if (status)
        return mmf_raise(state, status);
    mmf_stream_view views[2];
    mmf_split_streams(gate, weight->shape[1] / 2, weight->strides[1], views);
    return pack_streams(state, call, weight, gate, layout,
                        (const mmf_tensor *const[]){weight, weight}, views);
}

/* A pair (gate, up) becomes one PackedMatrix [gate | up]. */
static PyObject *pack_pair(mmf_state *state, mmf_call *call, const char *layout_name)
{
    const mmf_tensor *gate = &call->import[0].tensor, *up = &call->import[1].tensor;
    int layout = 0;
    char shapes[2][MMF_SHAPE_TEXT], devices[2][24];
    mmf_status status = check_weight(gate, MMF_GATE_NONE);
    if (!status)
        status = check_weight(up, MMF_GATE_NONE);
    if (!status && (gate->shape[0] != up->shape[0] || gate->shape[1] != up->shape[1] ||
                    gate->dtype != up->dtype))
        status = mmf_fail(MMF_VALUE_ERROR,
                          "B[0] and B[1] must have one shape and dtype, got %s %s and %s %s",
                          mmf_shape_text(2, gate->shape, shapes[0]), mmf_dtypes[gate->dtype].name,
                          mmf_shape_text(2, up->shape, shapes[1]), mmf_dtypes[up->dtype].name);
    if (!status && (gate->device.type != up->device.type || gate->device.id != up->device.id))
        status = mmf_fail(
            MMF_VALUE_ERROR, "B[0] is on %s but B[1] is on %s; pass both on one device",
            mmf_device_name(gate->device, devices[0]), mmf_device_name(up->device, devices[1]));
    if (!status)
        status = mmf_prepack_layout(gate, 1, "B[0]", layout_name, &layout);
    if (status)
        return mmf_raise(state, status);
    if (!mmf_prepack_has_size(gate->shape[0], gate->shape[1]))
        return mmf_packed_no_memory(state, gate, 0);
    mmf_tensor both = *gate;
    both.shape[1] *= 2;
    return pack_streams(state, call, &both, MMF_GATE_HALVES, layout,
                        (const mmf_tensor *const[]){gate, up},
                        (const mmf_stream_view[]){{0, gate->strides[1]}, {0, up->strides[1]}});
}

static mmf_status check_unpacked(const mmf_state *state, const mmf_import *import)
{
    if (!mmf_is_packed(state, import->object))
        return MMF_OK;
    return mmf_fail(MMF_TYPE_ERROR,
                    "%s is a PackedMatrix already; pass it to matmul_fused as it is, or prepack "
                    "%s.unpack() anew",
                    import->name, import->name);
}

static PyObject *pack_objects(mmf_state *state, PyObject *b, mmf_gate_layout gate,
                              const char *layout_name)
{
    mmf_call call;
    PyObject *result = NULL;
    mmf_status status = MMF_OK;
    const bool pair = PyTuple_Check(b);
    if (pair && PyTuple_Size(b) != 2)
        return mmf_raise(state,
                         mmf_fail(MMF_VALUE_ERROR, "B is a tuple of %zd; a pair is (gate, up)",
                                  PyTuple_Size(b)));
    if (pair && gate != MMF_GATE_NONE)
        return mmf_raise(state,
                         mmf_fail(MMF_VALUE_ERROR,
                                  "gate_layout was given but B is a pair, which needs none; drop "
                                  "it"));
    mmf_call_clear(&call);
    call.stream = (mmf_stream){.a = call.import, .runs = true};
    /* as A and B, so that the device and the stream are those of the first */
    mmf_call_add_import(&call, pair ? PyTuple_GetItem(b, 0) : b, pair ? "B[0]" : "B", MMF_A);
    if (pair)
        mmf_call_add_import(&call, PyTuple_GetItem(b, 1), "B[1]", MMF_B);
    for (int i = 0; !status && i < call.imports; i++)
        status = check_unpacked(state, &call.import[i]);
    if (!status)
        status = mmf_import_tensors(state, call.import, call.imports, &call.stream);
    if (status)
        mmf_raise(state, status);
    else if (pair)
        result = pack_pair(state, &call, layout_name);
    else
        result = mmf_pack_matrix(state, &call, &call.import[0].tensor, gate, layout_name);
    mmf_call_end(&call);
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
                                         mmf_describe(values[2], layout)));
    if (values[2] && !mmf_printable(values[2], layout))
        return NULL;
    return pack_objects(state, values[0], gate, layout);
}
