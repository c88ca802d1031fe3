/* as_prepacked(): a PackedMatrix in memory that another library shuffled. It keeps that library's
 * array, which every use imports as it would an ordinary B: where it lies, in which order of
 * streams it is read, and who hears of that, is the array's library's business each time. Path of a
 * call: mmf_borrowed_view(), after the operands were imported. */
#include "binding/packed.h"

#include "binding/arguments.h"
#include "binding/array.h"
#include "binding/call.h"
#include "binding/device_order.h"
#include "binding/errors.h"
#include "plan/backends.h"

static bool is_compact(const mmf_tensor *t)
{
    int64_t step = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] > 1 && t->strides[i] != step)
            return false;
        step *= t->shape[i];
    }
    return true;
}

/* Can what was imported be a weight (K, N) in the layout, as far as its memory goes? */
static mmf_status check_memory(const mmf_import *import, const int64_t shape[2], int layout)
{
    const mmf_tensor *t = &import->tensor;
    const int align = mmf_prepack_borrowed_align(layout);
    const long long elements = (long long)(shape[0] * shape[1]);
    char given[MMF_SHAPE_TEXT], wanted[MMF_SHAPE_TEXT];
    mmf_shape_text(t->ndim, t->shape, given);
    if (mmf_tensor_size(t) != elements)
        return mmf_fail(MMF_VALUE_ERROR,
                        "%s has shape %s, but a weight (K, N) = %s in layout \"%s\" has %lld "
                        "elements",
                        import->name, given, mmf_shape_text(2, shape, wanted),
                        mmf_prepack_layout_name(layout), elements);
    if (elements && !is_compact(t))
        return mmf_fail(MMF_VALUE_ERROR,
                        "%s of shape %s is not C-contiguous; a shuffled weight is read as it lies "
                        "in memory, pass it as it was shuffled",
                        import->name, given);
    if (elements && (uintptr_t)t->data % (uintptr_t)align)
        return mmf_fail(MMF_VALUE_ERROR,
                        "%s lies at an address that is no multiple of %d bytes; pass an aligned "
                        "copy",
                        import->name, align);
    return MMF_OK;
}

/* What a borrowed weight is after its array was imported. VALUE_ERROR if that is another one by
 * now. */
static mmf_status view(const mmf_packed *self, const mmf_import *import, mmf_tensor *packed)
{
    const mmf_tensor *now = &import->tensor, *then = &self->weight;
    char here[24], there[24];
    *packed = *then;
    packed->data = now->data;
    if (now->dtype != then->dtype || now->device.type != then->device.type ||
        now->device.id != then->device.id)
        return mmf_fail(MMF_VALUE_ERROR,
                        "%s was borrowed by as_prepacked as %s on %s, but its tensor is %s on %s "
                        "now; call as_prepacked again",
                        import->name, mmf_dtypes[then->dtype].name,
                        mmf_device_name(then->device, there), mmf_dtypes[now->dtype].name,
                        mmf_device_name(now->device, here));
    return check_memory(import, then->shape, self->layout);
}

mmf_status mmf_borrowed_view(mmf_call *call)
{
    mmf_status status = MMF_OK;
    for (int up = 0; !status && up < 2; up++)
        if (call->borrowed[up])
            status = view(call->borrowed[up], &call->import[call->lender[up]], &call->packed[up]);
    if (!status && call->borrowed[1])
        call->request.panels_up = call->packed[1].data;
    return status;
}

/* shape=: a pair of lengths. May run Python. */
static mmf_status parse_shape(PyObject *object, int64_t shape[2])
{
    char text[MMF_PRINTABLE];
    const bool sequence = PySequence_Check(object) && !PyUnicode_Check(object);
    Py_ssize_t count = sequence ? PySequence_Size(object) : 0;
    if (count < 0)
        return MMF_PYTHON_ERROR;
    if (count != 2)
        return mmf_fail(sequence ? MMF_VALUE_ERROR : MMF_TYPE_ERROR,
                        "shape must be the weight's (K, N), got %s", mmf_describe(object, text));
    for (int i = 0; i < 2; i++) {
        PyObject *item = PySequence_GetItem(object, i);
        PyObject *length = item ? PyNumber_Index(item) : NULL;
        int overflow = 0;
        shape[i] = length ? PyLong_AsLongLongAndOverflow(length, &overflow) : 0;
        Py_XDECREF(length);
        Py_XDECREF(item);
        if (!length || PyErr_Occurred())
            return MMF_PYTHON_ERROR;
        if (overflow || shape[i] < 0)
            return mmf_fail(MMF_VALUE_ERROR, "shape must be (K, N): two lengths, from 0 on, that "
                                             "memory has room for");
    }
    if (!mmf_prepack_has_size(shape[0], shape[1]))
        return mmf_fail(MMF_VALUE_ERROR, "shape (%lld, %lld) is of more elements than any memory",
                        (long long)shape[0], (long long)shape[1]);
    return MMF_OK;
}

static PyObject *new_borrowed(mmf_state *state, const mmf_tensor *weight, int layout,
                              PyObject *owner)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(state->packed_type, Py_tp_alloc);
    mmf_packed *self = (mmf_packed *)allocate(state->packed_type, 0);
    if (!self)
        return NULL;
    self->weight = *weight;
    self->weight.data = NULL; /* of each call */
    mmf_prepack_strides(layout, &self->weight);
    self->gate = MMF_GATE_NONE;
    self->layout = layout;
    self->bytes = mmf_prepack_bytes(layout, weight->dtype, weight->shape[0], weight->shape[1]);
    self->owner = Py_NewRef(owner);
    return (PyObject *)self;
}

PyObject *mmf_as_prepacked_call(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                                PyObject *keywords)
{
    static const mmf_name names[] = {MMF_NAME_TENSOR, MMF_NAME_SHAPE, MMF_NAME_LAYOUT};
    static const mmf_signature signature = {"as_prepacked", 2, 2, 3, names};
    mmf_state *state = mmf_state_of(module);
    PyObject *values[3], *result = NULL;
    mmf_call call;
    int64_t shape[2];
    int layout = 0;
    char layout_name[MMF_PRINTABLE] = "preshuffle_16x16";
    if (mmf_parse_arguments(state, &signature, arguments, count, keywords, values))
        return NULL;
    if (values[2] && !PyUnicode_Check(values[2]))
        return mmf_raise(state, mmf_fail(MMF_TYPE_ERROR, "layout must be a str, got %s",
                                         mmf_describe(values[2], layout_name)));
    if (values[2] && !mmf_printable(values[2], layout_name))
        return NULL;
    mmf_status status = parse_shape(values[1], shape);
    if (status)
        return mmf_raise(state, status);
    if (mmf_is_packed(state, values[0]))
        return mmf_raise(state, mmf_fail(MMF_TYPE_ERROR, "tensor is a PackedMatrix already; pass "
                                                         "it to matmul_fused as it is"));
    mmf_call_clear(&call);
    call.stream = (mmf_stream){.a = call.import, .runs = false};
    mmf_call_add_import(&call, values[0], "tensor", MMF_A);
    status = mmf_import_tensors(state, call.import, call.imports, &call.stream);
    if (!status) {
        mmf_tensor weight = call.import[0].tensor;
        weight.ndim = 2;
        weight.shape[0] = shape[0];
        weight.shape[1] = shape[1];
        weight.readonly = MMF_WRITABLE;
        status = mmf_prepack_layout(&weight, 1, "tensor", layout_name, &layout);
        if (!status && !mmf_prepack_borrowed_align(layout))
            status = mmf_fail(MMF_VALUE_ERROR,
                              "layout \"%s\" is this library's own; use prepack, or layout="
                              "\"preshuffle_16x16\" for what another library shuffled",
                              layout_name);
        if (!status)
            status = check_memory(&call.import[0], shape, layout);
        if (!status)
            result = new_borrowed(state, &weight, layout, values[0]);
    }
    mmf_call_end(&call);
    return status ? mmf_raise(state, status) : result;
}

PyObject *mmf_borrowed_unpack(mmf_state *state, const mmf_packed *self)
{
    mmf_call call;
    mmf_tensor packed, plain = self->weight;
    PyObject *array = NULL;
    mmf_call_clear(&call);
    call.stream = (mmf_stream){.a = call.import, .runs = true};
    mmf_call_add_import(&call, self->owner, "the weight", MMF_A);
    mmf_status status = mmf_import_tensors(state, call.import, call.imports, &call.stream);
    if (!status)
        status = view(self, &call.import[0], &packed);
    if (!status)
        status = mmf_device_prepare(state, &call);
    if (!status) {
        array = mmf_array_new(state, &plain, call.stream.handle);
        status = array ? mmf_device_await(state, &call, NULL) : MMF_PYTHON_ERROR;
    }
    if (!status && call.stream.ran_python)
        status = mmf_import_recheck(state, call.import, call.imports);
    if (!status) {
        status = mmf_packed_unpack(self, packed.data, call.stream.handle, plain.data);
        status = mmf_call_finish(state, &call, NULL, status);
        if (!status)
            status = mmf_gpu_used(mmf_array_memory(array), call.stream.handle);
    }
    if (status) {
        mmf_raise(state, status);
        Py_CLEAR(array);
    }
    mmf_call_end(&call);
    return array;
}
