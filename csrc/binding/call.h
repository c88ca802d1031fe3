/* One call, from Python arguments to a checked problem. Path of a call: the first half of it, which
 * explain takes too. */
#ifndef MMF_CALL_H
#define MMF_CALL_H

#include "binding/stream.h"
#include "plan/cache.h"

/* A, B, B[1], bias, bias[1], C, multiply, preactivation, out */
enum { MMF_CALL_IMPORTS = 9 };

/* Imported operands and what refers to them. A packed B occupies no import. */
typedef struct mmf_call {
    mmf_request request;
    mmf_prepared *prepared; /* own, or that of known */
    mmf_prepared own;
    struct mmf_known *known; /* found in the plan cache, or NULL */
    PyObject *out;           /* borrowed; NULL if not given */
    mmf_stream stream;       /* of a GPU */
    int imports;
    mmf_import import[MMF_CALL_IMPORTS]; /* the first one is A */
    mmf_tensor packed[2];
} mmf_call;

/* Parse and import the arguments of matmul_fused. After a failure too, mmf_call_end() is due. */
mmf_status mmf_call_begin(mmf_state *state, const char *function, PyObject *const *arguments,
                          Py_ssize_t count, PyObject *keywords, mmf_call *call);

/* Check them and make the problem and the result in call->own. */
mmf_status mmf_call_make(mmf_state *state, mmf_call *call);

void mmf_call_end(mmf_call *call);

PyObject *mmf_matmul_fused(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords);

#endif
