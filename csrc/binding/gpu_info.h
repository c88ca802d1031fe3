/* What Python asks about GPUs. Not on the path of a call: info. */
#ifndef MMF_GPU_INFO_H
#define MMF_GPU_INFO_H

#include "binding/state.h"

/* State of the GPU back ends, devices found, code of this build: a dict. Opens the drivers. */
PyObject *mmf_gpus(PyObject *module, PyObject *unused);

/* [(arch, kernel, bytes), ...]: the device code of this build. */
PyObject *mmf_device_objects_call(PyObject *module, PyObject *unused);
PyObject *mmf_device_manifest(PyObject *module, PyObject *unused);
PyObject *mmf_device_kernel(PyObject *module, PyObject *index);

#endif
