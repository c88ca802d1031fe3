/* Calls of a driver on one device. Path of a call: see attempt.h. */
#include "gpu/attempt.h"

mmf_status mmf_attempt_begin(mmf_device device, mmf_attempt *a)
{
    const mmf_driver *driver;
    mmf_status status = mmf_driver_of(device, &driver);
    if (status)
        return status;
    *a = (mmf_attempt){.driver = driver, .ordinal = device.id};
    return mmf_driver_enter(a->driver, device.id, &a->scope);
}

bool mmf_attempt_note(mmf_attempt *a, int code, mmf_driver_call call)
{
    if (a->code == 0 && code) {
        a->code = code;
        a->call = call;
    }
    return a->code == 0;
}

mmf_status mmf_attempt_end(mmf_attempt *a)
{
    a->driver->leave(&a->scope);
    return a->code ? mmf_driver_fail(a->driver, a->code, a->call, a->ordinal) : MMF_OK;
}

bool mmf_attempt_in_capture(mmf_attempt *a, void *stream)
{
    int capturing = MMF_NOT_CAPTURING;
    int code = a->driver->stream_is_capturing(stream, &capturing);
    bool implicit = code == MMF_CAPTURE_IMPLICIT;
    mmf_attempt_note(a, implicit ? 0 : code, MMF_CALL_CAPTURING);
    if (implicit && a->driver->forget_error)
        a->driver->forget_error();
    return implicit || capturing != MMF_NOT_CAPTURING;
}

mmf_status mmf_driver_is_capturing(mmf_device device, void *stream, bool *capturing)
{
    mmf_attempt a;
    int state = MMF_NOT_CAPTURING;
    mmf_status status = mmf_attempt_begin(device, &a);
    if (status)
        return status;
    mmf_attempt_note(&a, a.driver->stream_is_capturing(stream, &state), MMF_CALL_CAPTURING);
    *capturing = state != MMF_NOT_CAPTURING;
    return mmf_attempt_end(&a);
}
