/* What is asked: operands checked against each other and brought to one canonical form that every
 * kernel reads. Path of a call: built by binding/call.c from tensors; then plan/ chooses a kernel,
 * and the kernel runs it. */
#ifndef MMF_PROBLEM_H
#define MMF_PROBLEM_H

#include "problem/activation.h"
#include "problem/status.h"
#include "problem/tensor.h"

#include <string.h>

#define MMF_MAX_BATCH (MMF_MAX_RANK - 2)

typedef enum mmf_operand {
#define MMF_OPERAND(id, name, axes, access, dtypes, stream) MMF_##id,
#include "problem/operands.def"
#undef MMF_OPERAND
    MMF_OPERANDS
} mmf_operand;

typedef enum mmf_axes { MMF_AXES_MK, MMF_AXES_KN, MMF_AXES_Z, MMF_AXES_MN } mmf_axes;
typedef enum mmf_access { MMF_READ, MMF_WRITE } mmf_access;
typedef enum mmf_dtype_rule {
    MMF_DTYPES_OPERAND,
    MMF_DTYPES_LIKE_A,
    MMF_DTYPES_EPILOGUE,
    MMF_DTYPES_ANY
} mmf_dtype_rule;
typedef enum mmf_stream_of { MMF_STREAM_ONE, MMF_STREAM_GATE, MMF_STREAM_UP } mmf_stream_of;

typedef struct mmf_operand_row {
    const char *name;
    uint8_t axes, access, dtypes, stream; /* of the enums above */
} mmf_operand_row;

extern const mmf_operand_row mmf_operands[MMF_OPERANDS];

/* The bit of an operand in a mask of immediates, 0 of one that cannot be one. An immediate is a
 * number of the call instead of an array, rounded once to the type of the sums: a tensor without
 * axes whose data is the number, in host memory; on a GPU it travels in the arguments. */
static inline uint8_t mmf_immediate(mmf_operand operand)
{
    _Static_assert(MMF_MULTIPLY - MMF_BIAS < 8, "they are the bits of a uint8_t");
    return operand >= MMF_BIAS && operand <= MMF_MULTIPLY ? (uint8_t)(1 << (operand - MMF_BIAS))
                                                          : 0;
}

/* What a problem asks of a kernel beyond alpha * A @ B: a bit for each operand that is there, and
 * the ones named here. A kernel lists what it implements; plan/ refuses what needs more. */
enum { MMF_FEATURE_GATED = MMF_OPERANDS, MMF_FEATURE_PACKED, MMF_FEATURE_IMMEDIATES, MMF_FEATURES };
#define MMF_HAS(operand_or_feature) (UINT32_C(1) << (operand_or_feature))
_Static_assert(MMF_FEATURES <= 32, "features are the bits of a uint32_t");

/* The name of a feature in reasons: "multiply", "gated activations". */
const char *mmf_feature_name(int feature);

/* Element [batch..., row, col] of an operand is data + row*i + col*j + sum(batch[b]*index[b]), in
 * elements. A: row is m, col is k. B: row is k, col is n. All others: row is m, col is n. 0 where
 * the operand broadcasts. */
typedef struct mmf_strides {
    int64_t row, col;
    int64_t batch[MMF_MAX_BATCH];
} mmf_strides;

/* Why a call on a GPU can have no workspace. Not a property of the operands: not in the plan cache.
 */
typedef enum mmf_no_workspace {
    MMF_WORKSPACE_ALLOWED,
    MMF_WORKSPACE_CAPTURED, /* ours to allocate, which a capture forbids */
    MMF_WORKSPACE_NO_POOL,  /* ours to allocate, which the driver cannot do in stream order */
} mmf_no_workspace;

/*   for every batch index, m, n (and both streams s where gated):
 *     z[s] = alpha * sum_k A[m,k] * B[s][k,n] + beta * C[s][m,n] + bias[s][m,n]
 *     preactivation[s][m,n] = z[s]
 *     out[m,n] = activation(z) * multiply[m,n]
 * Immutable once made, and free of addresses: calls that differ in their buffers alone share it.
 * What is unused is 0. Leading axes that every operand can merge are merged, into m too. */
typedef struct mmf_problem {
    int64_t m, n, k; /* n: columns of out (half of z's where gated); k is 0 if alpha is 0: A and B
                        are not read */
    double alpha, beta, parameters[MMF_MAX_PARAMETERS];
    mmf_device device;
    uint32_t features; /* MMF_HAS() of operands and features */
    int32_t batch_ndim;
    uint8_t activation;  /* mmf_activation */
    uint8_t gate_layout; /* mmf_gate_layout */
    uint8_t packed;      /* 0, or the id of the prepacked layout that B and B_UP have */
    uint8_t allow_tf32;
    uint8_t immediates;   /* mmf_immediate() of those operands */
    uint8_t no_workspace; /* mmf_no_workspace: kernels that need one cannot run */
    uint8_t
        dtype[MMF_OPERANDS]; /* mmf_dtype, MMF_ABSENT where not given (C: also where beta is 0) */
    uint8_t offset[MMF_OPERANDS]; /* on a GPU: address of element [0, 0] mod 64 */
    int64_t batch_shape[MMF_MAX_BATCH];
    mmf_strides strides[MMF_OPERANDS];
} mmf_problem;

/* What differs between two calls of one problem. */
typedef struct mmf_buffers {
    void *data[MMF_OPERANDS]; /* element [0, 0] of batch index 0; NULL where absent */
    void *stream;             /* of a GPU, NULL: its default one */
    void *workspace;          /* of a GPU: as many bytes as the plan wants, 256-byte aligned */
} mmf_buffers;

/* All of a call but its arrays. Compared as bytes: zeroed before it is filled. */
typedef struct mmf_terms {
    double alpha, beta;
    double parameters[MMF_MAX_PARAMETERS];
    uint8_t activation;  /* mmf_activation */
    uint8_t gate_layout; /* mmf_gate_layout; MMF_GATE_NONE: not given */
    uint8_t out_dtype;   /* mmf_dtype; MMF_ABSENT: not given */
    uint8_t beta_given;
    uint8_t allow_tf32;
    uint8_t packed;      /* layout of a prepacked B, 0: B is an array */
    uint8_t packed_gate; /* mmf_gate_layout that it was prepacked for */
    uint8_t immediates;  /* mmf_immediate() of those operands */
} mmf_terms;

/* A prepacked layout with this bit is a matrix with strides, that of the tensor; where gated, its
 * up stream has them too. Kernels see a plain weight. */
#define MMF_PACKED_STRIDED 0x80

/* One with this bit takes the memory of a compact (K, N), which the tensor is; where gated, its two
 * streams half of that each. It may be another's memory. */
#define MMF_PACKED_COMPACT 0x40

/* A K x N weight outside of a prepacked layout: what is packed, and unpacked to. */
typedef struct mmf_weight {
    mmf_device device;
    void *stream; /* of a GPU, NULL: its default one */
    mmf_dtype dtype;
    int64_t k, n, row, col; /* strides in elements */
    void *data;
    struct mmf_interrupt *interrupt; /* on the CPU: may end the work half-way */
} mmf_weight;

/* The arguments of a call after import. Absent tensors are NULL; ..._UP: a pair was passed. */
typedef struct mmf_request {
    const mmf_tensor *operand[MMF_OPERANDS];
    mmf_terms terms;
    void *panels_up; /* a prepacked B: its data is that of the first stream, this of the up one */
} mmf_request;

/* Check a request and fill *problem and *buffers with all but MMF_OUT. *result is out if it was
 * given, else what is to be allocated: dtype, device, shape and compact strides, no data. Errors
 * name the argument. */
mmf_status mmf_problem_make(const mmf_request *request, mmf_problem *problem, mmf_buffers *buffers,
                            mmf_tensor *result);

/* Add the output (result, with its data if there is memory for it yet) and merge leading axes: the
 * problem is complete. Cannot fail. */
void mmf_problem_set_out(mmf_problem *problem, mmf_buffers *buffers, const mmf_request *request,
                         const mmf_tensor *out);

/* Is it 0 or -0? By its bits: a thread that flushes subnormals compares them equal to 0. */
static inline bool mmf_is_zero(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits << 1 == 0;
}

static inline bool mmf_problem_gated(const mmf_problem *problem)
{
    return problem->gate_layout != MMF_GATE_NONE;
}

/* The type that sums are kept in: float64 for float64 operands, else float32. */
static inline mmf_dtype mmf_problem_accumulator(const mmf_problem *problem)
{
    return (mmf_dtype)mmf_dtypes[problem->dtype[MMF_A]].sum;
}

#endif
