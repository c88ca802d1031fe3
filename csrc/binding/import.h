/* Python objects to mmf_tensors, by the cheapest way each type offers. An import may run Python (an
 * unseen type, __dlpack__, a torch subclass), which may resize another operand: all of that comes
 * first, views of memory that only the Python object holds come last. Path of a call: second stop,
 * after the arguments are parsed. */
#ifndef MMF_IMPORT_H
#define MMF_IMPORT_H

#include "binding/state.h"
#include "problem/status.h"
#include "problem/tensor.h"

struct mmf_stream;

/* An imported operand. The Python object (held by the caller) or the DLPack capsule keeps the
 * memory alive. */
typedef struct mmf_import {
    mmf_tensor tensor;
    PyObject *object; /* borrowed */
    const char *name; /* what errors call it */
    const struct mmf_library *library;
    bool transposed;              /* tensor has the object's last two axes exchanged */
    const DLPackExchangeAPI *api; /* of the library, or NULL */
    DLManagedTensor *legacy;      /* owned, or NULL */
    DLManagedTensorVersioned *versioned;
} mmf_import;

/* Say what mmf_import_tensors() shall import: object, called name in errors. */
static inline void mmf_import_init(mmf_import *import, PyObject *object, const char *name)
{
    import->object = object;
    import->name = name;
    import->transposed = false;
    import->legacy = NULL;
    import->versioned = NULL;
}

/* Import all. TypeError: no array, or a dtype or kind of array that has no meaning here;
 * BufferError: the producer broke DLPack's protocol; ValueError: a view that must be copied or
 * resolved first. After a failure too, each import is to be released. */
mmf_status mmf_import_tensors(mmf_state *state, mmf_import *imports, int count,
                              struct mmf_stream *stream);

/* Exchange the two axes of an imported matrix. */
void mmf_import_transpose(mmf_import *import);

/* Where an operand lies whose turn has come already; its memory may not have been viewed yet. */
mmf_status mmf_import_device(mmf_state *state, const mmf_import *import, mmf_device *device);

/* Python may have run since mmf_import_tensors(): BufferError if memory moved meanwhile. */
mmf_status mmf_import_recheck(mmf_state *state, const mmf_import *imports, int count);

/* Give the capsule's tensor, if there is one, back to its producer. */
void mmf_import_release(mmf_import *import);

/* --- for the libraries --- */

/* Library and exchange API of a type, NULL if it is not in the cache; valid until Python runs. */
static inline const mmf_type_facts *mmf_known_type(const mmf_state *state, PyTypeObject *type)
{
    for (const mmf_type_facts *facts = state->types; facts < state->types + MMF_TYPE_CACHE; facts++)
        if (facts->type == type)
            return facts;
    return NULL;
}

/* Is it an array, as its type is known to be one? Then it is no number, tuple or PackedMatrix. */
static inline bool mmf_is_known_array(const mmf_state *state, PyObject *object)
{
    return Py_TYPE(object) == state->ndarray_type || mmf_known_type(state, Py_TYPE(object));
}

/* The refusal of a dtype, given its text. */
mmf_status mmf_refuse_dtype(const char *name, const char *dtype);

/* Take over data, shape and strides, which count pieces of an element: 1 << shift make one. False,
 * with nothing decided, unless it is what most operands are: one or two axes with lengths and
 * strides that nothing overflows with, whole elements, aligned. */
static inline bool mmf_take_usual(mmf_tensor *tensor, uintptr_t data, int ndim,
                                  const int64_t *shape, const int64_t *strides, int shift)
{
    if (ndim != 1 && ndim != 2)
        return false;
    const int last = ndim - 1, size = mmf_dtypes[tensor->dtype].size;
    const int64_t shape0 = shape[0], shape1 = shape[last];
    const int64_t stride0 = strides[0], stride1 = strides[last];
    const int64_t step0 = stride0 >> shift, step1 = stride1 >> shift;
    uint64_t bits = data & (uint64_t)(size - 1);
    bits |= (uint64_t)(stride0 | stride1) & ((UINT64_C(1) << shift) - 1);
    bits <<= 32; /* a length of 0, or below, sets the highest bits */
    bits |= ((uint64_t)shape0 - 1) | ((uint64_t)shape1 - 1);
    bits |= (uint64_t)(step0 ^ step0 >> 63) | (uint64_t)(step1 ^ step1 >> 63);
    tensor->data = (void *)data;
    tensor->ndim = ndim;
    tensor->shape[0] = shape0, tensor->shape[last] = shape1;
    tensor->strides[0] = step0, tensor->strides[last] = step1;
    return bits >> 27 == 0;
}

/* Check a DLTensor and take its facts over; the second one asks nothing of it. */
mmf_status mmf_view_unusual(const DLTensor *dl, const char *name, mmf_tensor *tensor);
static inline mmf_status mmf_view_dltensor(const DLTensor *dl, const char *name, mmf_tensor *tensor)
{
    const mmf_dtype dtype = mmf_dtype_from_dlpack(dl->dtype.code, dl->dtype.bits);
    tensor->dtype = dtype;
    tensor->device = (mmf_device){MMF_CPU, 0};
    tensor->readonly = MMF_WRITABLE;
    if (dtype != MMF_ABSENT && dl->dtype.lanes == 1 && dl->device.device_type == MMF_DL_CPU &&
        dl->data && dl->shape && dl->strides &&
        mmf_take_usual(tensor, (uintptr_t)dl->data + dl->byte_offset, dl->ndim, dl->shape,
                       dl->strides, 0))
        return MMF_OK;
    return mmf_view_unusual(dl, name, tensor);
}

/* Rank, strides and alignment: checks shared by every way of import. Strides of an empty tensor
 * become compact. */
mmf_status mmf_check_rank(const char *name, int64_t ndim);
mmf_status mmf_check_memory(const char *name, mmf_tensor *tensor);

#endif
