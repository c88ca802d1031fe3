/* torch: views by the C exchange API after checks of its own (gradients, subclasses, tensors
 * without plain memory), its current stream, results on the host by malloc. Path of a call: its row
 * of libraries/. */
#include "binding/libraries/torch.h"

#include "binding/dlpack.h"
#include "binding/errors.h"
#include "binding/libraries/library.h"
#include "binding/objects.h"
#include "plan/backends.h"

#include <stdlib.h>
#include <string.h>

/* --- types --- */

static mmf_status refuse_dispatch(PyObject *object, const char *name)
{
    char type[MMF_PRINTABLE];
    mmf_type_name(object, type);
    if (strcmp(type, "DTensor") == 0)
        return mmf_fail(MMF_TYPE_ERROR, "%s is a DTensor; pass its local tensor (%s.to_local())",
                        name, name);
    if (strcmp(type, "FakeTensor") == 0)
        return mmf_fail(
            MMF_TYPE_ERROR,
            "%s is a FakeTensor, which has no memory; call matmul_fused on real tensors", name);
    mmf_describe(object, type);
    return mmf_fail(
        MMF_TYPE_ERROR,
        "%s is a %s, a torch.Tensor subclass with its own __torch_dispatch__; pass a plain "
        "torch.Tensor",
        name, type);
}

/* Take the C functions behind two members of torch's tensor base type: they are asked on every
 * call. */
static mmf_status take_members(mmf_state *state, PyObject *base, PyObject *is_grad_enabled,
                               PyObject *dispatch_modes)
{
    const bool is_type = PyType_Check(base);
    const PyGetSetDef *attribute =
        is_type ? PyType_GetSlot((PyTypeObject *)base, Py_tp_getset) : NULL;
    const PyMethodDef *method =
        is_type ? PyType_GetSlot((PyTypeObject *)base, Py_tp_methods) : NULL;
    while (attribute && attribute->name && strcmp(attribute->name, "requires_grad"))
        attribute++;
    while (method && method->ml_name && strcmp(method->ml_name, "is_neg"))
        method++;
    if (!attribute || !attribute->name || !method || !method->ml_name ||
        method->ml_flags != METH_NOARGS || !PyCallable_Check(dispatch_modes))
        return mmf_fail(MMF_NOT_IMPLEMENTED,
                        "this torch has no Tensor.requires_grad, Tensor.is_neg or "
                        "_len_torch_dispatch_stack as matmul_fused knows them; report its version");
    state->torch_requires_grad = *attribute;
    state->torch_is_neg = *method;
    state->torch_base = (PyTypeObject *)Py_NewRef(base);
    state->torch_is_grad_enabled = Py_NewRef(is_grad_enabled);
    state->torch_dispatch_modes = Py_NewRef(dispatch_modes);
    return MMF_OK;
}

static mmf_status find_members(mmf_state *state)
{
    PyObject *torch = mmf_imported_module("torch");
    PyObject *core = torch ? mmf_get_attribute(torch, "_C") : NULL;
    PyObject *base = core ? mmf_get_attribute(core, "TensorBase") : NULL;
    PyObject *is_grad_enabled = base ? mmf_get_attribute(torch, "is_grad_enabled") : NULL;
    PyObject *modes = is_grad_enabled ? mmf_get_attribute(core, "_len_torch_dispatch_stack") : NULL;
    if (is_grad_enabled && !modes && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear(); /* lint: told by take_members() */
        modes = Py_NewRef(Py_None);
    }
    mmf_status status =
        modes ? take_members(state, base, is_grad_enabled, modes) : MMF_PYTHON_ERROR;
    Py_XDECREF(modes);
    Py_XDECREF(is_grad_enabled);
    Py_XDECREF(base);
    Py_XDECREF(core);
    Py_XDECREF(torch);
    return status;
}

/* Has the type a __torch_dispatch__ of its own? */
static mmf_status check_dispatch(mmf_state *state, PyObject *object, const char *name)
{
    PyObject *dispatch = state->names[MMF_NAME_TORCH_DISPATCH];
    PyObject *tensor = mmf_attribute(mmf_imported_module("torch"), "Tensor");
    PyObject *plain = tensor ? PyObject_GetAttr(tensor, dispatch) : NULL;
    PyObject *own = plain ? PyObject_GetAttr((PyObject *)Py_TYPE(object), dispatch) : NULL;
    mmf_status status = own ? MMF_OK : MMF_PYTHON_ERROR;
    if (own && own != plain)
        status = refuse_dispatch(object, name);
    Py_XDECREF(own);
    Py_XDECREF(plain);
    Py_XDECREF(tensor);
    return status;
}

/* The first torch whose tensors have __dlpack_c_exchange_api__. Plain DLPack would lose the current
 * stream, record_stream and the check for gradients. */
#define LEAST_TORCH "2.10"

static mmf_status refuse_old(const char *name)
{
    char text[MMF_PRINTABLE] = "";
    PyObject *version = mmf_attribute(mmf_imported_module("torch"), "__version__");
    PyObject *plain = version ? PyObject_Str(version) : NULL;
    if (!plain || !mmf_printable(plain, text))
        PyErr_Clear(); /* lint: a text for an error that is raised anyway */
    Py_XDECREF(plain);
    Py_XDECREF(version);
    return mmf_fail(MMF_NOT_IMPLEMENTED,
                    "%s is a tensor of torch %s, which has no DLPack C exchange API; matmul_fused "
                    "needs torch " LEAST_TORCH " or later",
                    name, text);
}

static mmf_status recognise(mmf_state *state, PyObject *object, const char *name,
                            mmf_type_facts *facts)
{
    int tensor = mmf_is_subclass(Py_TYPE(object), "torch", "Tensor");
    if (tensor <= 0)
        return tensor < 0 ? MMF_PYTHON_ERROR : MMF_OK;
    mmf_status status = check_dispatch(state, object, name);
    if (!status)
        status = mmf_exchange_find(state, facts);
    if (!status && !facts->api)
        status = refuse_old(name);
    if (!status && !state->torch_base) {
        status = find_members(state);
        mmf_host_join_threads();
    }
    if (!status && !PyType_IsSubtype(Py_TYPE(object), state->torch_base))
        status = mmf_fail(MMF_TYPE_ERROR,
                          "%s is a tensor of another torch than the one that was used before; "
                          "import torch once in a process",
                          name);
    facts->library = &mmf_library_torch;
    return status;
}

/* --- views --- */

/* Is the attribute of a torch tensor true (equal to text if given)? An attribute that raises counts
 * as false. */
static bool has_attribute(PyObject *object, const char *attribute, const char *text)
{
    PyObject *value = mmf_get_attribute(object, attribute);
    PyObject *compared = value && text ? PyObject_Str(value) : NULL;
    bool result = value && (text ? compared && PyUnicode_CompareWithASCIIString(compared, text) == 0
                                 : PyObject_IsTrue(value) == 1);
    Py_XDECREF(compared);
    Py_XDECREF(value);
    PyErr_Clear(); /* lint: probing why a tensor was refused; the refusal is raised by the caller */
    return result;
}

/* Say why torch gave no view of a tensor. The exception that torch set becomes the cause. */
static mmf_status refuse_view(mmf_state *state, PyObject *object, const char *name)
{
    static const struct {
        const char *attribute, *text, *what;
    } cases[] = {
        {"is_nested", NULL, "is a nested tensor; pass its parts (unbind()) or a padded tensor"},
        {"is_quantized", NULL, "is a quantized tensor; pass .dequantize()"},
        {"is_mkldnn", NULL, "is an MKL-DNN tensor; pass .to_dense()"},
        {"layout", "torch.strided", NULL},
        {"device", "meta", "is on the meta device, which has no memory"},
    };
    PyObject *type, *value, *traceback;
    mmf_status status = MMF_OK;
    PyErr_Fetch(&type, &value, &traceback);
    for (size_t i = 0; !status && i < sizeof cases / sizeof *cases; i++) {
        bool found = has_attribute(object, cases[i].attribute, cases[i].text);
        if (!cases[i].what && !found)
            status = mmf_fail(MMF_TYPE_ERROR, "%s is a sparse tensor; pass .to_dense()", name);
        else if (cases[i].what && found)
            status = mmf_fail(MMF_TYPE_ERROR, "%s %s", name, cases[i].what);
    }
    PyErr_Restore(type, value, traceback);
    if (!status)
        status = mmf_fail(
            MMF_TYPE_ERROR,
            "%s has no memory of its own: it belongs to a functorch transform (vmap, grad, "
            "jvp) or a tracer; call matmul_fused outside of it",
            name);
    return mmf_raise_from(state, status);
}

/* A subclass's own __torch_function__, or a mode's, raised. */
static mmf_status raised(mmf_state *state, const mmf_import *import, const char *member)
{
    return mmf_raise_from(state, mmf_fail(MMF_TYPE_ERROR,
                                          "%s: its __torch_function__ raised when asked for %s; "
                                          "pass a plain torch.Tensor",
                                          import->name, member));
}

__attribute__((cold)) static mmf_status check_grad_mode(mmf_state *state, const mmf_import *import)
{
    PyObject *enabled = PyObject_CallFunctionObjArgs(state->torch_is_grad_enabled, NULL);
    if (!enabled)
        return MMF_PYTHON_ERROR;
    Py_DECREF(enabled);
    if (enabled == Py_False)
        return MMF_OK;
    return mmf_fail(
        MMF_GRADIENTS,
        "%s requires grad, but matmul_fused records no gradients; pass %s.detach() or call "
        "it under torch.no_grad()",
        import->name, import->name);
}

static mmf_status import(mmf_state *state, mmf_import *import, mmf_stream *stream)
{
    (void)stream;
    PyObject *object = import->object;
    PyObject *requires_grad =
        state->torch_requires_grad.get(object, state->torch_requires_grad.closure);
    if (!requires_grad)
        return raised(state, import, "requires_grad");
    Py_DECREF(requires_grad);
    return requires_grad == Py_False ? MMF_OK : check_grad_mode(state, import);
}

/* torch's public way to a negative bit is the imaginary part of a conjugated tensor: it and its
 * views step over pairs of numbers, or (as_strided) begin at the second number of a pair. Asking
 * torch gives up and takes back the GIL, so other tensors are not asked about. */
static bool may_be_negative(const mmf_tensor *tensor)
{
    if ((uintptr_t)tensor->data & mmf_dtypes[tensor->dtype].size)
        return true;
    for (int i = tensor->ndim - 1; i >= 0; i--)
        if (tensor->shape[i] > 1 && tensor->strides[i] & 1)
            return false;
    return true;
}

__attribute__((cold)) static mmf_status check_negative_bit(mmf_state *state,
                                                           const mmf_import *import)
{
    PyObject *negative = state->torch_is_neg.ml_meth(import->object, NULL);
    if (!negative)
        return raised(state, import, "is_neg()");
    Py_DECREF(negative);
    if (negative == Py_False)
        return MMF_OK;
    return mmf_fail(MMF_VALUE_ERROR, "%s has its negative bit set; pass %s.resolve_neg()",
                    import->name, import->name);
}

/* Functionalized and zero tensors have elements without memory. */
__attribute__((cold)) static mmf_status check_no_memory(const DLTensor *view, const char *name)
{
    for (int i = 0; i < view->ndim; i++)
        if (view->shape[i] == 0)
            return MMF_OK;
    return mmf_fail(MMF_TYPE_ERROR,
                    "%s has elements but no memory (a functionalized or zero tensor); pass "
                    "%s.clone() outside of the transform",
                    name, name);
}

static mmf_status view(mmf_state *state, mmf_import *import, bool *asked)
{
    DLTensor view = {0};
    if (import->api->dltensor_from_py_object_no_sync(import->object, &view))
        return refuse_view(state, import->object, import->name);
    mmf_status status = view.data ? MMF_OK : check_no_memory(&view, import->name);
    if (!status)
        status = mmf_view_dltensor(&view, import->name, &import->tensor);
    if (!status && asked && may_be_negative(&import->tensor)) {
        *asked = true;
        status = check_negative_bit(state, import);
    }
    return status;
}

/* --- streams --- */

/* torch's current stream. Its exchange API has given CUDA's on ROCm (pytorch/pytorch#175432), so
 * Python is asked there. */
static mmf_status current_stream(mmf_state *state, const mmf_import *of, mmf_device device,
                                 void **handle, bool *ran_python)
{
    if (device.type == MMF_CUDA && of->api->current_work_stream) {
        *ran_python = false;
        return mmf_exchange_stream(state, of, device, handle, ran_python);
    }
    PyObject *core = mmf_attribute(mmf_imported_module("torch"), "_C");
    PyObject *get = mmf_attribute(core, "_cuda_getCurrentRawStream");
    return mmf_take_handle(mmf_invoke(get, 1, PyLong_FromLong(device.id), NULL), of, handle);
}

/* torch's object for a stream: of handle 0 torch would make a new one. */
static PyObject *stream_object(const mmf_stream *stream)
{
    PyObject *cuda = PyImport_ImportModule("torch.cuda");
    PyObject *make = mmf_attribute(cuda, stream->handle ? "ExternalStream" : "default_stream");
    PyObject *ordinal = make ? PyLong_FromLong(stream->device.id) : NULL;
    return stream->handle
               ? mmf_invoke(make, 2, ordinal ? PyLong_FromVoidPtr(stream->handle) : NULL, ordinal)
               : mmf_invoke(make, 1, ordinal, NULL);
}

/* tensor.record_stream(stream): torch hands memory to its next user in the order of the stream it
 * was made on. */
static mmf_status record(const mmf_stream *stream, PyObject *tensor)
{
    PyObject *object = stream_object(stream);
    PyObject *method = object ? mmf_get_attribute(tensor, "record_stream") : NULL;
    PyObject *none = mmf_invoke(method, 1, object, NULL);
    Py_XDECREF(none);
    return none ? MMF_OK : MMF_PYTHON_ERROR;
}

/* --- results --- */

/* A result on the host that a torch tensor will own: description and elements in one piece of
 * memory. torch's host allocator is malloc too, but asking for it costs half a small call. */
typedef struct host_block {
    DLManagedTensorVersioned managed;
    int64_t shape[MMF_MAX_RANK], strides[MMF_MAX_RANK];
    char elements[];
} host_block;

/* manager_ctx: of a block whose tensor is being made, where to note that it is gone. */
static void free_host_block(DLManagedTensorVersioned *managed)
{
    if (managed->manager_ctx)
        *(bool *)managed->manager_ctx = true;
    free(managed); /* the first member of its block */
}

/* Where torch fails, it has freed the block or not: that depends on how far it came. */
static PyObject *finish(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    DLManagedTensorVersioned *managed = output->managed;
    if (!managed)
        return output->object;
    if (managed->deleter != free_host_block)
        return mmf_exchange_finish(state, a, output);
    bool freed = false;
    managed->manager_ctx = &freed;
    PyObject *tensor = mmf_exchange_finish(state, a, output);
    if (!freed)
        managed->manager_ctx = NULL;
    if (!tensor && !freed)
        free_host_block(managed);
    return tensor;
}

/* Memory of torch's allocator, which runs Python only in a mode with __torch_dispatch__. */
static mmf_status new_on_gpu(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                             mmf_output *output)
{
    mmf_status status = mmf_exchange_allocate(state, a, tensor, output);
    if (status)
        return status;
    PyObject *modes = PyObject_CallNoArgs(state->torch_dispatch_modes);
    if (!modes)
        return MMF_PYTHON_ERROR;
    output->ran_python = PyLong_AsLong(modes) != 0;
    Py_DECREF(modes);
    return PyErr_Occurred() ? MMF_PYTHON_ERROR : MMF_OK;
}

static mmf_status new_output(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                             void *stream, mmf_output *output)
{
    (void)stream; /* torch's own one, unless one was given: then it is told of that */
    if (tensor->device.type != MMF_CPU)
        return new_on_gpu(state, a, tensor, output);
    size_t bytes = (size_t)mmf_tensor_size(tensor) * mmf_dtypes[tensor->dtype].size;
    host_block *block = malloc(sizeof *block + 64 + bytes);
    if (!block)
        return mmf_fail(MMF_NO_MEMORY, "no memory for a result of %zu bytes", bytes);
    tensor->data = (void *)(((uintptr_t)block->elements + 63) & ~(uintptr_t)63);
    block->managed = (DLManagedTensorVersioned){
        .version = {MMF_DLPACK_MAJOR, MMF_DLPACK_MINOR},
        .deleter = free_host_block,
        .dl_tensor = mmf_dl_tensor(tensor, block->shape, block->strides)};
    output->managed = &block->managed;
    return MMF_OK;
}

mmf_status mmf_torch_dtype(PyObject *object, mmf_dtype *dtype, char text[MMF_PRINTABLE])
{
    PyObject *string = PyObject_Str(object);
    bool named = string && mmf_printable(string, text);
    Py_XDECREF(string);
    if (!named)
        return MMF_PYTHON_ERROR;
    *dtype = strncmp(text, "torch.", 6) ? MMF_ABSENT : mmf_dtype_from_name(text + 6);
    return *dtype == MMF_ABSENT ? MMF_TYPE_ERROR : MMF_OK;
}

const mmf_library mmf_library_torch = {
    .recognise = recognise,
    .import = import,
    .view = view,
    .trusted = true,
    .stream = current_stream,
    .record = record,
    .new_output = new_output,
    .finish = finish,
    .owner = &mmf_library_torch,
};
