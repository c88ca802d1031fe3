/* The part of DLPack's C ABI (version 1.3) that this library speaks. A new dtype or device here is
 * a deliberate change. Source of the layouts: the DLPack specification. Asserted below for 64-bit
 * machines. Path of a call: read and written by the DLPack imports and exports of binding/. */
#ifndef MMF_DLPACK_ABI_H
#define MMF_DLPACK_ABI_H

#include <stdint.h>

#define MMF_DLPACK_MAJOR 1
#define MMF_DLPACK_MINOR 3

typedef struct DLPackVersion {
    uint32_t major, minor;
} DLPackVersion;

enum { /* DLDeviceType */
       MMF_DL_CPU = 1,
       MMF_DL_CUDA = 2,
       MMF_DL_CUDA_HOST = 3,
       MMF_DL_ROCM = 10,
       MMF_DL_ROCM_HOST = 11,
       MMF_DL_CUDA_MANAGED = 13,
};

typedef struct DLDevice {
    int32_t device_type, device_id;
} DLDevice;

enum { /* DLDataTypeCode */
       MMF_DL_INT = 0,
       MMF_DL_UINT = 1,
       MMF_DL_FLOAT = 2,
       MMF_DL_BFLOAT = 4,
       MMF_DL_COMPLEX = 5,
       MMF_DL_BOOL = 6,
};

typedef struct DLDataType {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: compact, row-major */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self); /* may be NULL */
} DLManagedTensor;

#define MMF_DL_FLAG_READ_ONLY 1
#define MMF_DL_FLAG_IS_COPIED 2

typedef struct DLManagedTensorVersioned {
    DLPackVersion version; /* another major: only the deleter may be used */
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* type(x).__dlpack_c_exchange_api__: a capsule "dlpack_exchange_api" that lives as long as the
 * process. Functions return 0, or -1 with a Python exception set (the allocator: reported through
 * set_error). */
typedef struct DLPackExchangeAPIHeader {
    DLPackVersion version;
    struct DLPackExchangeAPIHeader *prev_api;
} DLPackExchangeAPIHeader;

typedef struct DLPackExchangeAPI {
    DLPackExchangeAPIHeader header;
    int (*managed_tensor_allocator)(DLTensor *prototype, DLManagedTensorVersioned **out,
                                    void *error_context,
                                    void (*set_error)(void *error_context, const char *kind,
                                                      const char *message));
    int (*managed_tensor_from_py_object_no_sync)(void *py_object, DLManagedTensorVersioned **out);
    int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *tensor,
                                               void **out_py_object);
    int (*dltensor_from_py_object_no_sync)(void *py_object,
                                           DLTensor *out); /* borrowed view; may be NULL */
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void **out_stream);
} DLPackExchangeAPI;

_Static_assert(sizeof(DLTensor) == 48, "DLTensor");
_Static_assert(sizeof(DLManagedTensor) == 64, "DLManagedTensor");
_Static_assert(sizeof(DLManagedTensorVersioned) == 80, "DLManagedTensorVersioned");
_Static_assert(sizeof(DLPackExchangeAPI) == 56, "DLPackExchangeAPI");

#endif
