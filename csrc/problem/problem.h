/* What is asked: operands checked against each other and brought to one canonical form that every
 * kernel reads. Path of a call: built by binding/call.c from tensors; then plan/ chooses a row, and
 * the row runs it. */
#ifndef MMF_PROBLEM_H
#define MMF_PROBLEM_H

#include "problem/activation.h"
#include "problem/status.h"
#include "problem/tensor.h"

#define MMF_MAX_BATCH (MMF_MAX_RANK - 2)

/* Gated forms have a second stream of columns (up), which is always read through its own operand:
 * the layouts halves, halves_up_first, interleaved and pair differ only in pointer and strides. */
typedef enum mmf_operand {
    MMF_A,
    MMF_B,
    MMF_B_UP,
    MMF_BIAS,
    MMF_BIAS_UP,
    MMF_C,
    MMF_C_UP,
    MMF_MULTIPLY,
    MMF_PREACTIVATION,
    MMF_PREACTIVATION_UP,
    MMF_OUT,
    MMF_OPERANDS
} mmf_operand;

/* Element [batch..., row, col] of an operand is data + row*i + col*j + sum(batch[b]*index[b]), in
 * elements. A: row is m, col is k. B: row is k, col is n. All others: row is m, col is n. 0 where
 * the operand broadcasts. */
typedef struct mmf_strides {
    int64_t row, col;
    int64_t batch[MMF_MAX_BATCH];
} mmf_strides;

/*   for every batch index, m, n (and both streams s where gated):
 *     z[s] = alpha * sum_k A[m,k] * B[s][k,n] + beta * C[s][m,n] + bias[s][m,n]
 *     preactivation[s][m,n] = z[s]
 *     out[m,n] = activation(z) * multiply[m,n]
 * Strides of absent operands and past batch_ndim are unspecified. Leading axes that every operand
 * can merge are merged, into m too. */
typedef struct mmf_problem {
    int64_t m, n, k; /* n: columns of out (half of z's where gated); k is 0 if alpha is 0: A and B
                        are not read */
    int32_t batch_ndim;
    mmf_device device;
    uint8_t activation;  /* mmf_activation */
    uint8_t gate_layout; /* mmf_gate_layout */
    uint8_t packed; /* 0, or the id of the prepacked layout that data[MMF_B], data[MMF_B_UP] have */
    uint8_t allow_tf32;
    uint8_t
        dtype[MMF_OPERANDS]; /* mmf_dtype, MMF_ABSENT where not given (C: also where beta is 0) */
    int64_t batch_shape[MMF_MAX_BATCH];
    mmf_strides strides[MMF_OPERANDS];
    double alpha, beta, parameters[2];
    void *data[MMF_OPERANDS]; /* NULL where absent */
    void *stream;             /* of a GPU, NULL: its default one; unspecified on the CPU */
} mmf_problem;

/* The arguments of a call after import. Absent tensors are NULL. */
typedef struct mmf_request {
    union {
        const mmf_tensor *operand[MMF_OPERANDS];
        struct { /* the same by name: in the order of mmf_operand; ..._up: a pair was passed */
            const mmf_tensor *a, *b, *b_up, *bias, *bias_up, *c, *no_c_up, *multiply,
                *preactivation;
            const mmf_tensor *no_preactivation_up, *out;
        };
    };
    double alpha, beta;
    bool beta_given;
    mmf_activation activation;
    double parameters[2];
    mmf_gate_layout gate_layout; /* MMF_GATE_NONE: not given */
    mmf_dtype out_dtype;         /* MMF_ABSENT: not given */
    bool allow_tf32;
    /* A prepacked B: b has its shape and dtype, b->data the first panel, panels_up that of the
     * second stream (gated). */
    int packed;
    mmf_gate_layout packed_gate;
    void *panels_up;
} mmf_request;

/* Check a request and fill *problem with all but MMF_OUT. *result is out if it was given, else what
 * is to be allocated: dtype, device, shape and compact strides, no data. Errors name the argument.
 */
mmf_status mmf_problem_make(const mmf_request *request, mmf_problem *problem, mmf_tensor *result);

/* Add the output (result, with its data) and merge leading axes. Cannot fail. */
void mmf_problem_set_out(mmf_problem *problem, const mmf_request *request, const mmf_tensor *out);

static inline bool mmf_problem_gated(const mmf_problem *problem)
{
    return problem->gate_layout != MMF_GATE_NONE;
}

/* The type sums are kept in: float64 for float64 operands, else float32. */
static inline mmf_dtype mmf_problem_accumulator(const mmf_problem *problem)
{
    return problem->dtype[MMF_A] == MMF_FLOAT64 ? MMF_FLOAT64 : MMF_FLOAT32;
}

#endif
