/* Names and texts of errors, and the error that a thread met last. Since HIP 7 a later success does
 * not clear it. */
#include "rt.h"

#define HIP_ERROR(code, value, sentence) {value, #code, sentence},
static const struct {
    hipError_t value;
    const char *name, *text;
} errors[] = {
#include "errors.def"
};
#undef HIP_ERROR

static size_t row_of(hipError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].value == error)
            return i;
    }
    return row_of(hipErrorUnknown);
}

RT_EXPORT const char *hipGetErrorName(hipError_t error);
RT_EXPORT const char *hipGetErrorString(hipError_t error);
RT_EXPORT hipError_t hipGetLastError(void);
RT_EXPORT hipError_t hipPeekAtLastError(void);
RT_EXPORT hipError_t hipExtGetLastError(void);

const char *hipGetErrorName(hipError_t error)
{
    return errors[row_of(error)].name;
}

const char *hipGetErrorString(hipError_t error)
{
    return errors[row_of(error)].text;
}

hipError_t hipGetLastError(void)
{
    hipError_t error = rt.version >= 70000000 ? rt_thread.last_error : rt_thread.last_result;
    rt_thread.last_error = rt_thread.last_result = hipSuccess;
    return error;
}

hipError_t hipPeekAtLastError(void)
{
    return rt.version >= 70000000 ? rt_thread.last_error : rt_thread.last_result;
}

hipError_t hipExtGetLastError(void)
{
    hipError_t error = rt_thread.last_result;
    rt_thread.last_result = hipSuccess;
    return error;
}

hipError_t rt_hipDrvGetErrorName(hipError_t error, const char **name)
{
    if (!name)
        return hipErrorInvalidValue;
    *name = errors[row_of(error)].name;
    return errors[row_of(error)].value == error ? hipSuccess : hipErrorInvalidValue;
}

hipError_t rt_hipDrvGetErrorString(hipError_t error, const char **text)
{
    if (!text)
        return hipErrorInvalidValue;
    *text = errors[row_of(error)].text;
    return errors[row_of(error)].value == error ? hipSuccess : hipErrorInvalidValue;
}
