/* What a call on GPU operands does besides one on the CPU. Path of a call: around problem/, and
 * after the run. */
#ifndef MMF_BINDING_DEVICE_H
#define MMF_BINDING_DEVICE_H

#include "binding/call.h"

/* Before anything is computed: device usable, stream found, memory where its producer says, earlier
 * uses of mf.Array operands waited for. */
mmf_status mmf_device_prepare(mmf_state *state, mmf_call *call);

/* Before the launch: the stream waits for those of libraries whose memory is only viewed, and of
 * the new result (NULL with out=), whose memory's user before may still be at work; torch hears of
 * it. */
mmf_status mmf_device_await(mmf_state *state, mmf_call *call, PyObject *result);

/* After the launch: mf.Arrays, the new result (NULL with out=) included, are in use until the
 * stream has come this far; so is the memory of libraries that cannot be told, whose own stream
 * waits (torch was told before). */
mmf_status mmf_device_finish(mmf_state *state, mmf_call *call, PyObject *result);

/* The DLPack number of a device. */
DLDevice mmf_dl_device(mmf_device device);

/* A CuPy array for a result on a GPU; sets tensor->data. NULL with an exception. */
PyObject *mmf_cupy_new(mmf_tensor *tensor);

#endif
