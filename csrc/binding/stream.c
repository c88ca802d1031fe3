/* Streams: the one that was given, the current one of A's library, or the default stream.
 * Path of a call: GPU operands only, during the import. */
#include "binding/stream.h"

#include "binding/errors.h"
#include "binding/libraries/library.h"
#include "plan/backends.h"

#include <string.h>

/* CUDA's names of the legacy default stream and the per-thread one; HIP has no such handles in
 * DLPack. */
enum { LEGACY = 1, PER_THREAD = 2 };

/* A handle, an int >= 0. The default stream is NULL under either name: torch knows no other. */
static mmf_status parse_handle(PyObject *object, mmf_device device, void **handle)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred()) {
        PyErr_Clear(); /* lint: negative or too large: told below */
        return mmf_fail(MMF_VALUE_ERROR, "stream is an int that is no handle of a stream");
    }
    if (device.type == MMF_ROCM && (value == LEGACY || value == PER_THREAD))
        return mmf_fail(MMF_VALUE_ERROR,
                        "stream is %llu, which names no stream in ROCm; pass 0 or a handle", value);
    *handle = value == LEGACY ? NULL : (void *)(uintptr_t)value;
    return MMF_OK;
}

/* The handle of an object with __cuda_stream__, (version, handle). */
static mmf_status parse_protocol(mmf_state *state, PyObject *object, mmf_device device,
                                 void **handle)
{
    PyObject *member = PyObject_GetAttr(object, state->names[MMF_NAME_CUDA_STREAM]);
    char type[MMF_PRINTABLE];
    if (!member) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return MMF_PYTHON_ERROR;
        PyErr_Clear(); /* lint: told below */
        return mmf_fail(
            MMF_TYPE_ERROR,
            "stream must be None, an int handle or an object with __cuda_stream__, got %s",
            mmf_describe(object, type));
    }
    PyObject *pair =
        PyCallable_Check(member) ? PyObject_CallObject(member, NULL) : Py_NewRef(member);
    mmf_status status = pair ? MMF_OK : MMF_PYTHON_ERROR;
    if (pair && (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2 ||
                 !PyLong_Check(PyTuple_GetItem(pair, 1))))
        status =
            mmf_fail(MMF_TYPE_ERROR, "stream: its __cuda_stream__ is no pair (version, handle)");
    if (!status)
        status = parse_handle(PyTuple_GetItem(pair, 1), device, handle);
    Py_XDECREF(pair);
    Py_DECREF(member);
    return status;
}

static mmf_status parse_given(mmf_state *state, PyObject *object, mmf_device device, void **handle)
{
    mmf_status status = PyLong_Check(object) && !PyBool_Check(object)
                            ? parse_handle(object, device, handle)
                            : parse_protocol(state, object, device, handle);
    return status ? status : mmf_gpu_check_stream(device, *handle);
}

mmf_status mmf_stream_find(mmf_state *state, mmf_stream *stream, mmf_device device)
{
    const mmf_import *a = stream->a;
    void *handle = NULL;
    mmf_status status = MMF_OK;
    stream->ran_python = true;
    if (stream->given)
        status = parse_given(state, stream->given, device, &handle);
    else if (a->library->stream)
        status = a->library->stream(state, a, device, &handle, &stream->ran_python);
    stream->known = !status;
    stream->device = device;
    stream->handle = handle;
    return status;
}

/* May a producer make our stream wait? Not where both use one stream, nor while the stream is being
 * captured, which an event from outside would break: then the caller orders the replays. */
static mmf_status may_wait(const mmf_stream *stream, const mmf_import *import, bool *wait)
{
    bool capturing = false;
    bool shared =
        !stream->given && import->library == stream->a->library && import->library->stream;
    mmf_status status = shared || !stream->handle
                            ? MMF_OK
                            : mmf_gpu_is_capturing(stream->device, stream->handle, &capturing);
    *wait = !shared && !capturing;
    return status;
}

PyObject *mmf_stream_argument(mmf_state *state, mmf_stream *stream, const mmf_import *import,
                              DLDevice given)
{
    bool rocm = given.device_type == MMF_DL_ROCM, wait = false;
    bool known =
        rocm || given.device_type == MMF_DL_CUDA || given.device_type == MMF_DL_CUDA_MANAGED;
    mmf_device device = {rocm ? MMF_ROCM : MMF_CUDA, given.device_id};
    mmf_device a = device;
    bool waits = stream->runs && known;
    if (waits && stream->a != import) {
        mmf_status status = mmf_import_device(state, stream->a, &a);
        if (status)
            return mmf_raise(state, status);
    }
    if (waits && a.type == device.type && a.id == device.id) {
        mmf_status status = stream->known ? MMF_OK : mmf_stream_find(state, stream, device);
        if (!status)
            status = may_wait(stream, import, &wait);
        if (status)
            return mmf_raise(state, status);
    }
    if (!wait && import->library->no_unordered)
        return Py_NewRef(Py_None);
    if (!wait)
        return PyLong_FromLong(-1);
    if (!stream->handle)
        return PyLong_FromLong(device.type == MMF_CUDA ? LEGACY : 0);
    return PyLong_FromVoidPtr(stream->handle);
}

mmf_status mmf_stream_of_consumer(PyObject *object, mmf_device device, void **handle, bool *wait)
{
    int overflow = 0;
    *handle = NULL;
    *wait = true;
    if (!object || object == Py_None)
        return MMF_OK;
    long long value = PyLong_Check(object) ? PyLong_AsLongLongAndOverflow(object, &overflow) : 0;
    if (value == -1 && !overflow) {
        *wait = false;
        return MMF_OK;
    }
    if (!PyLong_Check(object) || (device.type == MMF_CUDA && value == 0 && !overflow))
        return mmf_fail(MMF_VALUE_ERROR,
                        "stream must be None, -1 or a stream as DLPack numbers them");
    mmf_status status = parse_handle(object, device, handle);
    return status ? status : mmf_gpu_check_stream(device, *handle);
}
