/* What a call asks of its GPU before it is launched. An error is a DEVICE_ERROR with the driver's
 * own name and text unless it says otherwise. Path of a call: during the import and after problem/.
 */
#ifndef MMF_GPU_PREFLIGHT_H
#define MMF_GPU_PREFLIGHT_H

#include "problem/status.h"
#include "problem/tensor.h"

/* Can tensors of this device be computed with? Opens its driver on first use. */
mmf_status mmf_gpu_begin(mmf_device device);

/* Make *device that of a stream. It stays what it was, a device of the stream's driver, where that
 * cannot say: of a default stream, or if the driver is too old. */
mmf_status mmf_gpu_of_stream(void *stream, mmf_device *device);

/* An error unless the stream belongs to the device, as far as the driver can tell. */
mmf_status mmf_gpu_check_stream(mmf_device device, void *stream);

/* Is work on the stream being recorded into a graph? */
mmf_status mmf_gpu_is_capturing(mmf_device device, void *stream, bool *capturing);

/* BUFFER_ERROR unless the memory of operand `name` is the device's. */
mmf_status mmf_gpu_check_memory(mmf_device device, const void *data, const char *name);

#endif
