/* What Python asks about GPUs. Path of a call: off it; info. */
#ifndef MMF_GPUS_H
#define MMF_GPUS_H

#include "binding/state.h"

/* State of the GPU back ends, devices found, code of this build: a dict. Opens the drivers. */
PyObject *mmf_gpus(PyObject *module, PyObject *unused);

/* [(arch, kernel, bytes), ...]: the device code of this build. */
PyObject *mmf_device_objects_call(PyObject *module, PyObject *unused);

#endif
