/* Any other producer: operands through __dlpack__ (capsule, version, ownership), which the rows of
 * other libraries use too; results are mf.Arrays. Path of a call: its row of libraries/. */
#include "binding/libraries/library.h"

#include "binding/errors.h"
#include "binding/objects.h"

#include <string.h>

static mmf_status call_failed(mmf_state *state, const char *name, const char *method)
{
    return mmf_raise_from(state, mmf_fail(MMF_BUFFER_ERROR, "%s: its %s() failed", name, method));
}

/* Give an object of the producer back, which may run Python. */
static void drop(PyObject *object)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_DECREF(object);
    PyErr_Restore(type, value, traceback);
}

/* (type, id) of __dlpack_device__(). */
static mmf_status ask_device(mmf_state *state, PyObject *object, const char *name, DLDevice *device)
{
    PyObject *pair = PyObject_CallMethodObjArgs(object, state->names[MMF_NAME_DLPACK_DEVICE], NULL);
    if (!pair)
        return call_failed(state, name, "__dlpack_device__");
    bool is_pair = PyTuple_Check(pair) && PyTuple_Size(pair) == 2;
    long type = is_pair ? PyLong_AsLong(PyTuple_GetItem(pair, 0)) : 0;
    long id = is_pair && !PyErr_Occurred() ? PyLong_AsLong(PyTuple_GetItem(pair, 1)) : 0;
    *device = (DLDevice){(int32_t)type, (int32_t)id};
    mmf_status status = PyErr_Occurred() ? call_failed(state, name, "__dlpack_device__") : MMF_OK;
    drop(pair);
    if (!status && (device->device_type != type || device->device_id != id))
        return mmf_fail(MMF_BUFFER_ERROR,
                        "%s: its __dlpack_device__() returned (%ld, %ld), which no device is", name,
                        type, id);
    if (is_pair)
        return status;
    return mmf_fail(MMF_BUFFER_ERROR, "%s: its __dlpack_device__() returned no pair (type, id)",
                    name);
}

/* __dlpack__(max_version=(1, 3)), for memory of a GPU with stream=; a producer that knows no
 * max_version raises TypeError and is called without. Steals stream, NULL on the host. */
static PyObject *ask_capsule(mmf_state *state, PyObject *object, PyObject *stream)
{
    PyObject *method = PyObject_GetAttr(object, state->names[MMF_NAME_DLPACK]);
    PyObject *none = method ? PyTuple_New(0) : NULL;
    PyObject *keywords = none ? PyDict_New() : NULL, *capsule = NULL;
    bool ready =
        keywords && (!stream || !PyDict_SetItem(keywords, state->names[MMF_NAME_STREAM], stream));
    if (ready && !PyDict_SetItem(keywords, state->names[MMF_NAME_MAX_VERSION], state->max_version))
        capsule = PyObject_Call(method, none, keywords);
    if (!capsule && ready && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* lint: a producer older than max_version; the second call tells its own
                          error */
        if (!PyDict_DelItem(keywords, state->names[MMF_NAME_MAX_VERSION]))
            capsule = PyObject_Call(method, none, keywords);
    }
    Py_XDECREF(stream);
    Py_XDECREF(keywords);
    Py_XDECREF(none);
    Py_XDECREF(method);
    return capsule;
}

/* Take the tensor out of the capsule (renamed, so that the capsule's own destructor leaves it
 * alone). */
static mmf_status take_tensor(PyObject *capsule, const char *name, mmf_import *import,
                              const DLTensor **view)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *tensor = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (PyCapsule_SetName(capsule, "used_dltensor_versioned"))
            return MMF_PYTHON_ERROR;
        import->versioned = tensor;
        if (tensor->version.major != MMF_DLPACK_MAJOR)
            return mmf_fail(
                MMF_BUFFER_ERROR,
                "%s: its __dlpack__() gave DLPack version %u.%u; matmul_fused reads %d.x", name,
                tensor->version.major, tensor->version.minor, MMF_DLPACK_MAJOR);
        *view = &tensor->dl_tensor;
        return MMF_OK;
    }
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        DLManagedTensor *tensor = PyCapsule_GetPointer(capsule, "dltensor");
        if (PyCapsule_SetName(capsule, "used_dltensor"))
            return MMF_PYTHON_ERROR;
        import->legacy = tensor;
        *view = &tensor->dl_tensor;
        return MMF_OK;
    }
    char type[MMF_PRINTABLE];
    if (!PyCapsule_CheckExact(capsule))
        return mmf_fail(MMF_BUFFER_ERROR,
                        "%s: its __dlpack__() returned a %s, not a DLPack capsule", name,
                        mmf_describe(capsule, type));
    const char *given = PyCapsule_GetName(capsule);
    return mmf_fail(MMF_BUFFER_ERROR,
                    "%s: its __dlpack__() returned a capsule named \"%.64s\"; matmul_fused reads "
                    "\"dltensor_versioned\" and \"dltensor\"",
                    name, given ? given : "");
}

mmf_status mmf_dlpack_import(mmf_state *state, mmf_import *import, mmf_stream *stream)
{
    const char *name = import->name;
    DLDevice device = {0};
    const DLTensor *view = NULL;
    mmf_status status = ask_device(state, import->object, name, &device);
    if (status)
        return status;
    bool host = device.device_type == MMF_DL_CPU || device.device_type == MMF_DL_CUDA_HOST ||
                device.device_type == MMF_DL_ROCM_HOST;
    PyObject *argument = NULL;
    if (!host && !(argument = mmf_stream_argument(state, stream, import, device)))
        return MMF_PYTHON_ERROR;
    PyObject *capsule = ask_capsule(state, import->object, argument);
    if (!capsule)
        return call_failed(state, name, "__dlpack__");
    status = take_tensor(capsule, name, import, &view);
    if (!status && (view->device.device_type != device.device_type ||
                    view->device.device_id != device.device_id))
        status = mmf_fail(MMF_BUFFER_ERROR,
                          "%s: its __dlpack_device__() says (%d, %d) but its capsule (%d, %d)",
                          name, (int)device.device_type, (int)device.device_id,
                          (int)view->device.device_type, (int)view->device.device_id);
    if (!status)
        status = mmf_view_dltensor(view, name, &import->tensor);
    /* An unversioned capsule cannot say that it may be written. */
    bool readonly = import->versioned && view && import->versioned->flags & MMF_DL_FLAG_READ_ONLY;
    import->tensor.readonly = readonly         ? MMF_READONLY
                              : import->legacy ? MMF_UNVERSIONED
                                               : MMF_WRITABLE;
    if (status) { /* now: Python that the release runs may leave another error text */
        mmf_raise(state, status);
        mmf_import_release(import);
    }
    drop(capsule);
    return status ? MMF_PYTHON_ERROR : MMF_OK;
}

static mmf_status recognise(mmf_state *state, PyObject *object, const char *name,
                            mmf_type_facts *facts)
{
    mmf_status status = mmf_check_kind(object, name); /* some have __dlpack__, too */
    if (status)
        return status;
    PyObject *method = mmf_type_attribute(Py_TYPE(object), state->names[MMF_NAME_DLPACK]);
    if (!method)
        return PyErr_Occurred() ? MMF_PYTHON_ERROR : mmf_refuse_type(object, name);
    Py_DECREF(method);
    facts->library = &mmf_library_dlpack;
    return MMF_OK;
}

/* A.__array_namespace__().from_dlpack(mf.Array) where A's library has that, else the mf.Array. */
static PyObject *finish(mmf_state *state, const mmf_import *a, mmf_output *output)
{
    PyObject *has = mmf_type_attribute(Py_TYPE(a->object), state->names[MMF_NAME_ARRAY_NAMESPACE]);
    if (!has && !PyErr_Occurred())
        return output->object;
    Py_XDECREF(has);
    PyObject *space =
        has ? mmf_invoke(mmf_attribute(Py_NewRef(a->object), "__array_namespace__"), 0, NULL, NULL)
            : NULL;
    PyObject *array = output->object;
    output->object = NULL;
    PyObject *result = mmf_invoke(mmf_attribute(space, "from_dlpack"), 1, array, NULL);
    if (!result)
        mmf_raise_from(state, mmf_fail(MMF_TYPE_ERROR,
                                       "A's library took no result of this dtype or device over "
                                       "(from_dlpack); choose another out_dtype or pass out="));
    return result;
}

const mmf_library mmf_library_dlpack = {
    .recognise = recognise,
    .import = mmf_dlpack_import,
    .new_output = mmf_array_new_output,
    .finish = finish,
    .owner = &mmf_library_array,
};
