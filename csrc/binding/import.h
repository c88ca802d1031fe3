/* One Python object to one mmf_tensor, by the cheapest way its type offers. */
#ifndef MMF_IMPORT_H
#define MMF_IMPORT_H

#include "binding/state.h"
#include "problem/status.h"
#include "problem/tensor.h"

/* An imported operand. The Python object (held by the caller) or the DLPack capsule keeps the
 * memory alive. */
typedef struct mmf_import {
    mmf_tensor tensor;
    PyObject *object; /* borrowed */
    mmf_kind kind;
    const DLPackExchangeAPI *api;
    DLManagedTensor *legacy; /* owned, or NULL */
    DLManagedTensorVersioned *versioned;
    struct mmf_stream
        *stream; /* of the call, or NULL: producers of GPU memory are not waited for */
} mmf_import;

/* Import object, called name in errors. TypeError: no array, or a dtype or kind of array that has
 * no meaning here; BufferError: the producer broke DLPack's protocol; ValueError: a view that must
 * be copied or resolved first. */
mmf_status mmf_import_tensor(mmf_state *state, PyObject *object, const char *name,
                             mmf_import *import);

/* Give the capsule's tensor, if there is one, back to its producer. */
void mmf_import_release(mmf_import *import);

/* --- one per way of import (import_types.c, import_exchange.c, import_capsule.c, numpy.c) --- */

/* Kind and exchange API of a type, from the cache or found out. */
mmf_status mmf_find_type(mmf_state *state, PyObject *object, const char *name,
                         mmf_type_facts *facts);

mmf_status mmf_import_exchange(mmf_state *state, const char *name, mmf_import *import);
mmf_status mmf_import_capsule(mmf_state *state, const char *name, mmf_import *import);

/* Check a DLTensor and take its facts over. */
mmf_status mmf_view_dltensor(const DLTensor *dl, const char *name, mmf_tensor *tensor);

/* The refusal of a dtype, given its text. */
mmf_status mmf_refuse_dtype(const char *name, const char *dtype);

/* Rank, alignment: checks shared by every way of import. */
mmf_status mmf_check_rank(const char *name, int64_t ndim);
mmf_status mmf_check_alignment(const char *name, const mmf_tensor *tensor);

#endif
