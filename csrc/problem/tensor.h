/* A tensor as every layer after the import sees it: memory, dtype, device, shape and strides; no
 * Python. Path of a call: written by binding/import*.c, read by problem.c. */
#ifndef MMF_TENSOR_H
#define MMF_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#define MMF_MAX_RANK 8 /* axes of an operand, matrix axes included */

typedef enum mmf_dtype {
#define MMF_DTYPE(id, name, shift, code, bits, sum) MMF_##id,
#include "problem/dtypes.def"
#undef MMF_DTYPE
    MMF_DTYPE_COUNT,
    MMF_ABSENT = 0xff, /* an operand that was not given */
} mmf_dtype;

typedef struct mmf_dtype_row {
    const char *name;
    uint8_t size; /* bytes of an element, 1 << shift */
    uint8_t shift;
    uint8_t dl_code; /* DLDataTypeCode: 2 float, 4 bfloat */
    uint8_t dl_bits;
    uint8_t sum; /* mmf_dtype of sums of products */
} mmf_dtype_row;

extern const mmf_dtype_row mmf_dtypes[MMF_DTYPE_COUNT];

/* The dtype of a DLPack (code, bits), or MMF_ABSENT. */
static inline mmf_dtype mmf_dtype_from_dlpack(int code, int bits)
{
    switch (code << 8 | bits) {
#define MMF_DTYPE(id, name, shift, code, bits, sum)                                                \
    case code << 8 | bits:                                                                         \
        return MMF_##id;
#include "problem/dtypes.def"
#undef MMF_DTYPE
    default:
        return MMF_ABSENT;
    }
}

/* The dtype called name, or MMF_ABSENT. */
mmf_dtype mmf_dtype_from_name(const char *name);

typedef enum mmf_device_type { MMF_CPU, MMF_CUDA, MMF_ROCM } mmf_device_type;

typedef struct mmf_device {
    int32_t type; /* mmf_device_type */
    int32_t id;   /* ordinal; 0 for the CPU */
} mmf_device;

/* "cpu", "cuda:0", "rocm:1", written to text (at least 24 bytes); returns text. */
const char *mmf_device_name(mmf_device device, char *text);

typedef enum mmf_readonly {
    MMF_WRITABLE,
    MMF_READONLY,
    MMF_UNVERSIONED, /* a DLPack capsule that cannot say */
} mmf_readonly;

typedef struct mmf_tensor {
    void *data; /* address of element [0, ..., 0]; may be NULL if the tensor is empty */
    mmf_dtype dtype;
    mmf_device device;
    mmf_readonly readonly;
    int ndim;
    int64_t shape[MMF_MAX_RANK];
    int64_t strides[MMF_MAX_RANK]; /* in elements; any sign; unspecified where shape is 1 */
} mmf_tensor;

/* Number of elements: 0 if any axis is empty, INT64_MAX if there are more (a producer may lie). */
int64_t mmf_tensor_size(const mmf_tensor *tensor);

/* C-contiguous strides for shape. */
void mmf_tensor_set_compact(mmf_tensor *tensor);

/* "(2, 3)", "(4,)" or "()", written to text (at least MMF_SHAPE_TEXT bytes); returns text. */
#define MMF_SHAPE_TEXT (MMF_MAX_RANK * 22 + 4)
const char *mmf_shape_text(int ndim, const int64_t *shape, char *text);

#endif
