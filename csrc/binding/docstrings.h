/* What help() and inspect.signature() say of the functions of the module; __init__.pyi has the full
 * texts. Up to "--" a text is the signature, which Python parses. Not on the path of a call. */
#ifndef MMF_DOCSTRINGS_H
#define MMF_DOCSTRINGS_H

#define MMF_CALL_SIGNATURE                                                                         \
    "($module, A, B, bias=None, activation=None, *, alpha=1.0, beta=None, C=None, multiply=None, " \
    "preactivation=None, gate_layout=None, out=None, out_dtype=None, allow_tf32=False, "           \
    "stream=None)\n--\n\n"

/* clang-format off */
static const char mmf_doc_matmul_fused[] =
    "matmul_fused" MMF_CALL_SIGNATURE
    "activation(alpha * (A @ B) + beta * C + bias) * multiply, computed in one kernel, rounded once.\n"
    "\n"
    "    z   = alpha * sum_k A[m, k] * B[k, n] + beta * C[m, n] + bias    (float32, or float64 for float64)\n"
    "    out = activation(z) * multiply[m, n]\n"
    "\n"
    "Shapes as in numpy.matmul; float32, float64, float16 or bfloat16; NumPy, torch, JAX or any DLPack array.\n"
    "\n"
    "A              (..., M, K), any strides; the result belongs to its library\n"
    "B              (..., K, N), dtype of A; W.T for a weight stored (N, K); a PackedMatrix; a pair (gate, up)\n"
    "bias           broadcasts to z; 1-D lies along N, (M, 1) is one per row; a pair with a pair B; or a number, as C\n"
    "               and multiply may be: it is rounded once, to the type of the sums\n"
    "activation     None, a name in any case (mf.activations, mf.gated_activations), (name, parameter, ...), or a\n"
    "               function or module of torch or jax: torch.nn.functional.gelu, torch.nn.SiLU(), jax.nn.gelu (its\n"
    "               tanh form). Gated forms give act(gate) * up of the 2N columns of B\n"
    "alpha, beta    real numbers; beta defaults to 1 with C; with 0, C (or A and B) is not read\n"
    "C              broadcasts to z\n"
    "multiply       broadcasts to the result\n"
    "preactivation  an array of z's shape that is filled with z\n"
    "gate_layout    \"halves\" [gate | up] (default), \"halves_up_first\" [up | gate], \"interleaved\" g0 u0 g1 ...\n"
    "out            an array of the result's shape, filled and returned itself; may be C, in place\n"
    "out_dtype      a name, a NumPy, torch or JAX dtype; default: that of out, else of A\n"
    "allow_tf32     let devices round float32 inputs to 11 bits; the CPU never does\n"
    "stream         for GPU arrays: a handle (int) or an object with __cuda_stream__; None: the current stream of A's\n"
    "               library (torch, CuPy), else the default stream. It waits for the streams of the operands'\n"
    "               libraries, as far as they have one. The call returns before the GPU is done. CPU: None\n"
    "\n"
    "Raises TypeError (no array, a dtype), ValueError (shapes, strides, overlap, an unknown name, an operand that\n"
    "requires grad: none is recorded), BufferError (a DLPack producer broke the protocol), NotImplementedError (no\n"
    "kernel takes the call), MemoryError, DeviceError; nothing is written before every argument is checked. What a\n"
    "signal handler raises (KeyboardInterrupt) ends a long call on the CPU; what it was to write then holds anything.\n"
    "\n"
    ">>> mf.matmul_fused(x, layer.weight.T, layer.bias, \"gelu\")\n"
    "\n"
    "Activations (`python -m matmul_fused activations` shows their parameters, sources and other names):\n"
#define MMF_ACTIVATION(id, name, formula, source, f) "    " name ": " formula "\n"
#define MMF_GATED(id, name, formula, source, f) "    " name ": " formula "\n"
#include "problem/activations.def"
    ;

#define MMF_DOC_EXPLAIN \
    "explain" MMF_CALL_SIGNATURE \
    "The facts of matmul_fused.explain as a dict."

#define MMF_DOC_PREPACK \
    "prepack($module, B, *, gate_layout=None, layout=\"auto\")\n--\n\n" \
    "Reorder a weight once, and pass the PackedMatrix as B of many calls. On a CPU with AVX2 or\n" \
    "AVX-512 it pays for three rows of A and more; docs/prepack.md has what other calls take.\n" \
    "\n" \
    "B            (K, N), any strides, float32, float64, float16 or bfloat16; it is copied. Or a pair (gate, up)\n" \
    "gate_layout  where gate and up columns lie in one weight for a gated activation, as in matmul_fused\n" \
    "layout       \"auto\" or the name of a packed layout of B's device: on the CPU \"panels64\", \"pairs64\" (of\n" \
    "             bfloat16, for CPUs with AMX or AVX512_BF16) or \"columns\", on a GPU \"columns\", on AMD's gfx90a,\n" \
    "             gfx942 and gfx950 also \"preshuffle_16x16\" (16-bit B; K in 32s, N, of gate and up each, in 16s), which\n" \
    "             their matrix kernels alone read. \"auto\" takes pairs64 where the kernel for large products\n" \
    "             reads it and it is at most a tenth larger, columns on a GPU, for up to 4 columns (of gate and\n" \
    "             up each) and for those that AVX-512 multiplies as dot products (docs/prepack.md)\n" \
    "\n" \
    "Raises what matmul_fused raises for B; ValueError for an unknown layout, sizes that it does not hold or an odd\n" \
    "number of gated columns; NotImplementedError for more than two axes, or a layout that no kernel for B's device\n" \
    "reads; DeviceError while the stream is being captured."

#define MMF_DOC_AS_PREPACKED \
    "as_prepacked($module, tensor, shape, *, layout=\"preshuffle_16x16\")\n--\n\n" \
    "A weight that another library has shuffled, as a PackedMatrix: pass it as B. Nothing is copied.\n" \
    "\n" \
    "tensor  an array of any library on an AMD GPU, float16 or bfloat16, C-contiguous, of any shape, K * N elements at\n" \
    "        a multiple of 16 bytes. It is kept, and imported by every call: what is written into it shows\n" \
    "shape   (K, N) of the weight; K is a multiple of 32, N of 16\n" \
    "layout  \"preshuffle_16x16\": (16, 16) of FlyDSL and of aiter's shuffle_weight\n" \
    "\n" \
    "Raises what matmul_fused raises for B; ValueError for another dtype, size, alignment or layout;\n" \
    "NotImplementedError on the CPU and on GPUs without kernels for the layout."

#define MMF_DOC_SET_NUM_THREADS \
    "set_num_threads($module, n, /)\n--\n\n" \
    "Let the CPU back end use n threads from the next call on, the calling one included.\n" \
    "\n" \
    "TypeError unless n is an int, ValueError unless it is from 1 to 1024. Results do not depend on it."

#define MMF_DOC_GET_NUM_THREADS \
    "get_num_threads($module, /)\n--\n\n" \
    "Threads of the CPU back end for a call made here and now: num_threads, else set_num_threads, else\n" \
    "MATMUL_FUSED_NUM_THREADS, else OMP_NUM_THREADS, else the cores that this process may use."

#define MMF_DOC_INFO \
    "info($module, /)\n--\n\n" \
    "The facts of matmul_fused.info as a dict."

#define MMF_DOC_GPUS \
    "gpus($module, /)\n--\n\n" \
    "Facts about GPUs as a dict; opens their drivers."

#define MMF_DOC_ACTIVATION_TABLE \
    "activation_table($module, /)\n--\n\n" \
    "Every activation: (name, gated, formula, source, ((parameter, default or None), ...), (other name, ...))."

#define MMF_DOC_DEVICE_MANIFEST \
    "device_manifest($module, /)\n--\n\n" \
    "How many GPU kernels this build has, and the layout of their argument, as `info --objects` writes it."
#define MMF_DOC_DEVICE_KERNEL \
    "device_kernel($module, index, /)\n--\n\n" \
    "The facts of a GPU kernel of this build, as `info --objects` writes them."
#define MMF_DOC_DEVICE_OBJECTS \
    "device_objects($module, /)\n--\n\n" \
    "The device code of this build: (architecture, kernel, bytes) of every object."

#define MMF_DOC_FORCE_KERNEL \
    "force_kernel($module, name, /)\n--\n\n" \
    "Let only the named kernel run on this thread (None: any); the name forced before, or None."
/* clang-format on */

#endif
