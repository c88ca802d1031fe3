/* One call, from Python arguments to a checked problem. Path of a call: the first half of it, which
 * explain takes too. */
#ifndef MMF_CALL_H
#define MMF_CALL_H

#include "binding/memory.h"
#include "binding/numbers.h"
#include "binding/output.h"
#include "binding/stream.h"
#include "plan/cache.h"

/* At most one import for each operand of a request. */
enum { MMF_CALL_IMPORTS = MMF_OPERANDS };

/* Imported operands and what refers to them. A packed B that is not borrowed, or a
 * number, occupies no import. */
typedef struct mmf_call {
    mmf_request request;
    const mmf_prepared *prepared; /* own, or that of entry */
    mmf_prepared own;
    struct mmf_cache_entry *entry; /* found in the plan cache, or NULL */
    mmf_buffers buffers;
    mmf_tensor result;    /* a new result, once there is memory for it */
    PyObject *out;        /* borrowed; NULL if not given */
    mmf_stream stream;    /* of a GPU */
    mmf_output workspace; /* of a GPU, where the plan wants one */
    int imports;
    mmf_import import[MMF_CALL_IMPORTS];  /* the first one is A */
    mmf_tensor packed[2];                 /* prepacked weights */
    mmf_memory *packed_memory[2];         /* theirs, or NULL: not one, or borrowed */
    const struct mmf_packed *borrowed[2]; /* of them those of as_prepacked(), or NULL */
    int lender[2];                        /* whose arrays are these imports */
    int numbers;
    mmf_number number[MMF_MULTIPLY - MMF_BIAS + 1];
} mmf_call;

/* A call without operands; mmf_call_end() is due. Its stream is to be set. */
void mmf_call_clear(mmf_call *call);

/* Give one operand the next free slot of the imports. */
void mmf_call_add_import(mmf_call *call, PyObject *object, const char *name, mmf_operand operand);

/* Parse and import the arguments of matmul_fused. runs: the call will be launched; without it
 * nothing is enqueued on a GPU, by producers neither. After a failure too, mmf_call_end() is due.
 */
mmf_status mmf_call_begin(mmf_state *state, const char *function, PyObject *const *arguments,
                          Py_ssize_t count, PyObject *keywords, bool runs, mmf_call *call);

/* Check them and make the problem and the result in call->own. */
mmf_status mmf_call_make(mmf_state *state, mmf_call *call);

/* Plan anew, among the kernels that need no workspace, where the plan wants one and the call cannot
 * have it: call->prepared is then call->own. */
mmf_status mmf_call_check_workspace(mmf_call *call);

/* After launches on a GPU, and their status: the owners of memory hear of them, also where the last
 * of them failed, because those before it use the memory; the workspace is given back. The first
 * error is the one that is returned. result: the new one, or NULL. */
mmf_status mmf_call_finish(mmf_state *state, mmf_call *call, PyObject *result, mmf_status status);

void mmf_call_end(mmf_call *call);

PyObject *mmf_matmul_fused(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords);

/* The same call for matmul_fused.torch: B is (N, K), as torch.nn.Linear has its weight, or a pair
 * of such. NotImplemented, with nothing done, if an operand wants gradients recorded or is no
 * tensor of torch, or if a weight has more than two axes: Python has other ways for those. */
PyObject *mmf_linear(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                     PyObject *keywords);

#endif
