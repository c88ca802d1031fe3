/* The interface of runtime/ against HIP's own headers (Debian's libamdhip64-dev, 5.2): enumerators,
 * the old property layout, structs, and the signature of every entry point. Compiling it is the
 * test; nothing of it runs. */
#include <hip/hip_runtime_api.h>

#include <stddef.h>

#define HIP_ERROR(name, value, text) _Static_assert((int)name == value, #name);
#include "errors.def"
#undef HIP_ERROR

#define HIP_VALUE(name, value) _Static_assert((long long)name == value, #name);
#define HIP_VALUE_NEW(name, value) /* test_abi.py looks at these */
#include "values.def"

#define HIP_PROPERTY(field, type, r0000, r0600, value)                                             \
    _Static_assert(offsetof(hipDeviceProp_t, field) == r0000, #field);                             \
    _Static_assert(sizeof(((hipDeviceProp_t *)0)->field) == sizeof(type), #field);
#define HIP_PROPERTY_NEW(field, type, r0600, value)
#include "properties.def"
_Static_assert(sizeof(hipDeviceProp_t) == 792, "hipDeviceProp_t");
_Static_assert(offsetof(hipDeviceProp_t, name) == 0, "name");
_Static_assert(offsetof(hipDeviceProp_t, gcnArchName) == 396, "gcnArchName");
_Static_assert(offsetof(hipDeviceProp_t, maxThreadsDim) == 284, "maxThreadsDim");
_Static_assert(offsetof(hipDeviceProp_t, maxGridSize) == 296, "maxGridSize");

#define HIP_STRUCT(name, size) _Static_assert(sizeof(name) == size, #name);
#define HIP_FIELD(name, field, offset) _Static_assert(offsetof(name, field) == offset, #field);
#define type memoryType /* hipPointerAttribute_t.type since HIP 6 */
#include "structs.def"
#undef type

#define HIP_ENTRY(name, parameters, arguments)                                                     \
    _Static_assert(_Generic(&name, hipError_t(*) parameters: 1, default: 0), #name);
#define HIP_ENTRY_NEW(name, parameters, arguments)
#include "entry_points.def"

/* The ones outside the list. */
_Static_assert(_Generic(&hipGetErrorName, const char *(*)(hipError_t): 1, default: 0), "");
_Static_assert(_Generic(&hipGetErrorString, const char *(*)(hipError_t): 1, default: 0), "");
_Static_assert(_Generic(&hipGetLastError, hipError_t (*)(void): 1, default: 0), "");
_Static_assert(_Generic(&hipPeekAtLastError, hipError_t (*)(void): 1, default: 0), "");
_Static_assert((unsigned long)hipStreamPerThread == 2, "hipStreamPerThread");
_Static_assert((unsigned long)HIP_LAUNCH_PARAM_BUFFER_POINTER == 1 &&
                   (unsigned long)HIP_LAUNCH_PARAM_BUFFER_SIZE == 2 &&
                   (unsigned long)HIP_LAUNCH_PARAM_END == 3,
               "the markers of a launch buffer");
