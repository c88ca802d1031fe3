/* GPUs for info(): back ends, devices, embedded code. Not on the path of a call. */
#include "binding/gpu_info.h"

#include "binding/errors.h"
#include "plan/backends.h"
#include "plan/plan.h"

#include <string.h>

/* A str of what may hold a file name in any encoding. */
static PyObject *text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* Append and drop item. False with an exception. */
static bool add(PyObject *list, PyObject *item)
{
    bool added = item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return added;
}

static PyObject *library_of(mmf_device_type type)
{
    const char *path = mmf_gpu_library(type);
    return path ? PyUnicode_DecodeFSDefault(path) : Py_NewRef(Py_None);
}

static bool add_kind(PyObject *backends, PyObject *devices, mmf_device_type type, const char *name)
{
    char text[2048];
    int count = mmf_gpu_describe(type, text, sizeof text);
    if (!add(backends, Py_BuildValue("(sN)", name, text_of(text))))
        return false;
    for (int i = 0; i < count; i++) {
        mmf_device device = {(int32_t)type, i};
        char device_name[24];
        bool known = mmf_gpu_describe_device(device, text, sizeof text) == MMF_OK;
        if (!add(devices, Py_BuildValue("(sN)", mmf_device_name(device, device_name),
                                        text_of(known ? text : mmf_error_text()))))
            return false;
    }
    return true;
}

PyObject *mmf_gpus(PyObject *module, PyObject *unused)
{
    PyObject *backends = PyList_New(0), *devices = backends ? PyList_New(0) : NULL, *result = NULL;
    char code[512];
    (void)module;
    (void)unused;
    mmf_gpu_describe_code(code, sizeof code);
    if (devices && add_kind(backends, devices, MMF_ROCM, "AMD GPUs") &&
        add_kind(backends, devices, MMF_CUDA, "NVIDIA GPUs"))
        result =
            Py_BuildValue("{sOsOsss{sNsN}}", "backends", backends, "devices", devices, "code", code,
                          "libraries", "rocm", library_of(MMF_ROCM), "cuda", library_of(MMF_CUDA));
    Py_XDECREF(devices);
    Py_XDECREF(backends);
    return result;
}

PyObject *mmf_device_objects_call(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    const char *arch, *kernel;
    const void *bytes;
    size_t size;
    (void)module;
    (void)unused;
    for (int i = 0; list && mmf_gpu_object(i, &arch, &kernel, &bytes, &size); i++)
        if (!add(list,
                 Py_BuildValue("(ssy#)", arch, kernel, (const char *)bytes, (Py_ssize_t)size)))
            Py_CLEAR(list);
    return list;
}

PyObject *mmf_device_kernel(PyObject *module, PyObject *index)
{
    const Py_ssize_t i = PyNumber_AsSsize_t(index, PyExc_IndexError);
    (void)module;
    if (i == -1 && PyErr_Occurred())
        return NULL;
    if (i < 0 || i >= MMF_GPU_INSTANCES)
        return PyErr_Format(PyExc_IndexError, "there are %d GPU kernels, no number %zd",
                            (int)MMF_GPU_INSTANCES, i);
    const mmf_gpu_instance *row = &mmf_gpu_instances[i];
    return Py_BuildValue("{sssssOs(iii)sisissss}", "instance", row->name, "family", row->family,
                         "gemm", row->kernel ? Py_True : Py_False, "tile", row->tile_m, row->tile_n,
                         row->tile_k, "block", row->threads, "lds", row->lds, "layout",
                         mmf_gpu_layout_names[row->layout], "targets", row->targets);
}

/* [name, ...] of a table. */
static PyObject *names_of(int count, const char *(*name)(int index))
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < count; i++)
        if (!add(list, PyUnicode_FromString(name(i))))
            Py_CLEAR(list);
    return list;
}

static const char *operand_name(int operand)
{
    return mmf_operands[operand].name;
}

static const char *dtype_name(int dtype)
{
    return mmf_dtypes[dtype].name;
}

static const char *activation_name(int id)
{
    return mmf_activation_row_of((mmf_activation)id)->name;
}

/* {sibling: the target whose objects it runs} */
static PyObject *siblings_of_all(void)
{
    PyObject *dict = PyDict_New();
    const char *name, *elder;
    for (int i = 0; dict && (name = mmf_gpu_sibling(i, &elder)); i++) {
        PyObject *text = PyUnicode_FromString(elder);
        if (!text || PyDict_SetItemString(dict, name, text))
            Py_CLEAR(dict);
        Py_XDECREF(text);
    }
    return dict;
}

PyObject *mmf_device_manifest(PyObject *module, PyObject *unused)
{
    int count;
    size_t bytes;
    const mmf_argument_field *field = mmf_gpu_argument_fields(&count, &bytes);
    PyObject *fields = PyList_New(0), *result = NULL;
    (void)module;
    (void)unused;
    for (int i = 0; fields && i < count; i++)
        if (!add(fields,
                 Py_BuildValue("{sssnsn}", "name", field[i].name, "offset",
                               (Py_ssize_t)field[i].offset, "size", (Py_ssize_t)field[i].size)))
            Py_CLEAR(fields);
    PyObject *siblings = fields ? siblings_of_all() : NULL;
    if (siblings)
        result = Py_BuildValue("{sis{snsO}sOsNsNsN}", "kernels", (int)MMF_GPU_INSTANCES, "argument",
                               "bytes", (Py_ssize_t)bytes, "fields", fields, "siblings", siblings,
                               "operands", names_of(MMF_OPERANDS, operand_name), "dtypes",
                               names_of(MMF_DTYPE_COUNT, dtype_name), "activations",
                               names_of(MMF_ACT_COUNT, activation_name));
    Py_XDECREF(siblings);
    Py_XDECREF(fields);
    return result;
}
