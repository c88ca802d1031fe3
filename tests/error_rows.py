"""The table of exact error texts that test_errors.py checks and docs/errors.md shows."""

NUMBERS = "an array; bias, C and multiply may be real numbers, other operands have axes"
DTYPES = "matmul_fused takes float32, float64, float16 and bfloat16"

# (section, call, exception and text). f is matmul_fused; A is (5, 7), B (7, 6), out (5, 6), all float32; t is A in
# torch. Rows with torch, jax or scipy in the call need that library.
ROWS: list[tuple[str, str, str]] = [
    ("Arguments", "f(A)", "TypeError: matmul_fused() missing required argument 'B' (pos 2)"),
    (
        "Arguments",
        "f(A, B, None, None, 2.0)",
        "TypeError: matmul_fused() takes at most 4 positional arguments (5 given)",
    ),
    (
        "Arguments",
        "f(A, B, activaton='relu')",
        "TypeError: matmul_fused() got an unexpected keyword argument 'activaton'",
    ),
    ("Arguments", "f(A, B, A=A)", "TypeError: matmul_fused() got multiple values for argument 'A'"),
    ("Arrays", "f([[1.0]], B)", "TypeError: A is a list, not an array; pass np.asarray(A)"),
    ("Arrays", "f(A, 3.0)", f"TypeError: B is a float, not {NUMBERS}"),
    ("Arrays", "f(A, B, True)", "TypeError: bias is a bool; pass a number or an array"),
    ("Arrays", "f(A, B, C=np.bool_(1))", "TypeError: C is a bool; pass a number or an array"),
    ("Arrays", "f(A, B, 1j)", f"TypeError: bias is a complex, not {NUMBERS}"),
    ("Arrays", "f(A, B, 10**400)", "ValueError: bias is too large for a float"),
    ("Arrays", "f(A, B, out=1.0)", f"TypeError: out is a float, not {NUMBERS}"),
    ("Arrays", "f(np.float32(1), B)", "TypeError: A is a numpy.float32, not an array; pass np.asarray(A)"),
    (
        "Arrays",
        "f(ArrayProtocolOnly(), B)",
        "TypeError: A is a test_errors.ArrayProtocolOnly, not an array; pass np.asarray(A)",
    ),
    (
        "Arrays",
        "f({}, B)",
        "TypeError: A is a dict, not an array; pass one of NumPy, torch, JAX or another library with __dlpack__",
    ),
    ("Arrays", "f(array.array('f', [1]), B)", "TypeError: A is an array.array, not an array; pass np.asarray(A)"),
    (
        "Arrays",
        "f(scipy.sparse.csr_array(A), B)",
        "TypeError: A is a scipy.sparse._csr.csr_array, which is sparse; pass A.toarray()",
    ),
    (
        "Arrays",
        "f(np.ma.array(A), B)",
        "TypeError: A is a numpy.ma.MaskedArray, whose mask would be lost; pass A.filled(...)",
    ),
    ("Arrays", "f(A, np.matrix(B))", "TypeError: B is a numpy.matrix; pass np.asarray(B)"),
    ("Arrays", "f(A, B, mf.prepack(B))", "TypeError: bias is a PackedMatrix; only B can be prepacked"),
    (
        "Arrays",
        "f(A, [B, B], None, 'swiglu')",
        "TypeError: B is a list, not an array; pass a pair as a tuple (gate, up), one array as np.asarray(B)",
    ),
    (
        "Arrays",
        "f(A, (B, B), [b, b], 'swiglu')",
        "TypeError: bias is a list, not an array; pass a pair as a tuple (gate, up), one array as np.asarray(bias)",
    ),
    ("Arrays", "f(A, (B, [1.0]), None, 'swiglu')", "TypeError: B[1] is a list, not an array; pass np.asarray(B[1])"),
    ("Dtypes", "f(A.astype(int), B)", f"TypeError: A has dtype int64; {DTYPES}"),
    ("Dtypes", "f(A.astype(bool), B)", f"TypeError: A has dtype bool; {DTYPES}"),
    ("Dtypes", "f(A, B.astype(complex))", f"TypeError: B has dtype complex128; {DTYPES}"),
    ("Dtypes", "f(A.astype('>f4'), B)", f"TypeError: A has dtype >f4 (byte-swapped); {DTYPES}"),
    ("Dtypes", "f(A.astype(object), B)", f"TypeError: A has dtype object; {DTYPES}"),
    (
        "Dtypes",
        "f(A, B.astype('f8'))",
        "TypeError: A and B must have one dtype, got float32 and float64; convert one of them",
    ),
    (
        "Dtypes",
        "f(A, B, b.astype('f2'))",
        "TypeError: bias has dtype float16; it must be float32, that of A (float32) or that of the result (float32)",
    ),
    (
        "Dtypes",
        "f(A, B, out_dtype='int8')",
        "TypeError: out_dtype is int8; it must be float32, float64, float16 or bfloat16",
    ),
    (
        "Dtypes",
        "f(A, B, out_dtype='single precision')",
        "TypeError: out_dtype is no dtype; it must be float32, float64, float16 or bfloat16",
    ),
    (
        "Dtypes",
        "f(A, B, out_dtype='float32\\0x')",
        "TypeError: out_dtype is no dtype; it must be float32, float64, float16 or bfloat16",
    ),
    (
        "Dtypes",
        "f(A, B, out_dtype=torch.int8)",
        "TypeError: out_dtype is torch.int8; it must be float32, float64, float16 or bfloat16",
    ),
    (
        "Dtypes",
        "f(A, B, out=out, out_dtype='float64')",
        "ValueError: out has dtype float32 but out_dtype is float64; drop out_dtype or pass another out",
    ),
    (
        "Shapes",
        "f(np.float32([1])[0:1].reshape(()), B)",
        "ValueError: A is () and B (7, 6); each needs at least one axis",
    ),
    (
        "Shapes",
        "f(A, square)",
        "ValueError: A (5, 7) and B (5, 5) do not match: K is the last axis of A and the last but one of B",
    ),
    (
        "Shapes",
        "f(A, B.T)",
        "ValueError: A (5, 7) and B (6, 7) do not match: K is the last axis of A and the last but one of B; "
        "an (N, K) weight? pass B.T",
    ),
    (
        "Shapes",
        "f(A, (B.T, B.T), None, 'swiglu')",
        "ValueError: A (5, 7) and B (6, 7) do not match: K is the last axis of A and the last but one of B; "
        "(N, K) weights? pass (B[0].T, B[1].T)",
    ),
    (
        "Shapes",
        "f(np.ones((2, 5, 7), 'f4'), np.ones((3, 7, 6), 'f4'))",
        "ValueError: leading axes of A (2, 5, 7) and B (3, 7, 6) do not broadcast",
    ),
    (
        "Shapes",
        "f(np.ones((1,) * 9, 'f4'), B)",
        "NotImplementedError: A has 9 axes; at most 8 are supported, merge some by reshape",
    ),
    ("Shapes", "f(A, B, np.ones(5, 'f4'))", "ValueError: bias has shape (5,), which does not broadcast to (5, 6)"),
    (
        "Shapes",
        "f(A, B, np.ones((2, 5, 6), 'f4'))",
        "ValueError: bias has shape (2, 5, 6), which does not broadcast to (5, 6)",
    ),
    (
        "Shapes",
        "f(A, B, C=np.ones((6, 5), 'f4'))",
        "ValueError: C has shape (6, 5), which does not broadcast to (5, 6)",
    ),
    (
        "Shapes",
        "f(A, B, multiply=np.ones((5, 3), 'f4'))",
        "ValueError: multiply has shape (5, 3), which does not broadcast to (5, 6)",
    ),
    (
        "Shapes",
        "f(A, B, preactivation=np.ones(6, 'f4'))",
        "ValueError: preactivation has shape (6,), it must be (5, 6)",
    ),
    ("Shapes", "f(A, B, out=np.ones((5, 5), 'f4'))", "ValueError: out has shape (5, 5), it must be (5, 6)"),
    (
        "Shapes",
        "f(np.broadcast_to(A[:1], (2**40, 7)), np.broadcast_to(B[:, :1], (7, 2**40)))",
        "ValueError: the result of A (1099511627776, 7) and B (7, 1099511627776) would not fit into memory",
    ),
    (
        "Layouts",
        "f(odd_stride, B)",
        "ValueError: A has a stride of 29 bytes, no multiple of its item size (4); copy it first",
    ),
    (
        "Layouts",
        "f(misaligned, B)",
        "ValueError: A lies at an address that is no multiple of its item size (4); copy it first",
    ),
    (
        "Layouts",
        "f(as_strided(A, (2, 7), (2**60, 4)), B)",
        "ValueError: A has lengths and strides that reach farther than any memory",
    ),
    ("Outputs", "f(A, B, out=readonly)", "ValueError: out is read-only; pass a writable array"),
    (
        "Outputs",
        "f(A, B, out=overlapping)",
        "ValueError: out has strides that make its elements overlap; pass an array whose elements are distinct",
    ),
    (
        "Outputs",
        "f(np.ones((3, 3, 7), 'f4'), B[:, :3], out=strided((3, 3, 3), (4, 8, 20)))",
        "ValueError: out has strides that make its elements overlap; pass an array whose elements are distinct",
    ),
    ("Outputs", "f(square, square, out=square)", "ValueError: out shares memory with A; pass another out"),
    ("Outputs", "f(A[:, :5], square, out=square)", "ValueError: out shares memory with B; pass another out"),
    ("Outputs", "f(A, B, buffer[0], out=buffer[:5])", "ValueError: out shares memory with bias; pass another out"),
    (
        "Outputs",
        "f(A, B, C=buffer[1:6], out=buffer[:5])",
        "ValueError: out shares memory with C; pass another out, or C itself",
    ),
    (
        "Outputs",
        "f(A, B, preactivation=buffer[:5], out=buffer[1:6])",
        "ValueError: preactivation shares memory with out; pass another array",
    ),
    (
        "Outputs",
        "f(A, B, preactivation=buffer[:5], C=buffer[:5])",
        "ValueError: preactivation shares memory with C; pass another array",
    ),
    ("Scale factors", "f(A, B, beta=1.0)", "ValueError: beta was given without C; pass C or drop beta"),
    (
        "Scale factors",
        "f(A, B, alpha=np.ones(1))",
        "TypeError: alpha must be a float, an int or a real NumPy scalar, got numpy.ndarray",
    ),
    (
        "Scale factors",
        "f(A, B, alpha=None)",
        "TypeError: alpha must be a float, an int or a real NumPy scalar, got NoneType",
    ),
    (
        "Scale factors",
        "f(A, B, C=out, beta=1j)",
        "TypeError: beta must be a float, an int or a real NumPy scalar, got complex",
    ),
    (
        "Scale factors",
        "f(A, B, alpha=np.timedelta64(2))",
        "TypeError: alpha must be a float, an int or a real NumPy scalar, got numpy.timedelta64",
    ),
    ("Scale factors", "f(A, B, alpha=10**400)", "ValueError: alpha is too large for a float"),
    (
        "Activations",
        "f(A, B, activation='geluu')",
        'ValueError: unknown activation "geluu", did you mean "gelu"? Known: ' + "{names}",
    ),
    (
        "Activations",
        "f(A, B, activation='relu\\0x')",
        'ValueError: unknown activation "relu\\x00x". Known: ' + "{names}",
    ),
    (
        "Activations",
        "f(A, B, activation='relu7')",
        'ValueError: unknown activation "relu7". Known: ' + "{names}",
    ),
    (
        "Activations",
        "f(A, B, activation=len)",
        "TypeError: activation must be None, a name, a tuple (name, parameters...), or a function or module of torch "
        "or jax that is one of them, got builtin_function_or_method",
    ),
    (
        "Activations",
        "f(A, B, activation=torch.nn.SiLU)",
        "TypeError: activation is the class SiLU; pass an instance, SiLU(), or a name",
    ),
    (
        "Activations",
        "f(A, B, activation=torch.nn.Softplus(2))",
        "ValueError: activation is a torch.nn.Softplus with beta=2; matmul_fused has it with 1 alone",
    ),
    ("Activations", "f(A, B, activation=('relu6', 1))", "ValueError: activation relu6 takes 0 parameters, got 1"),
    ("Activations", "f(A, B, activation=())", "ValueError: activation is an empty tuple; pass (name, parameters...)"),
    ("Activations", "f(A, B, activation=('relu', 1))", "ValueError: activation relu takes 0 parameters, got 1"),
    (
        "Activations",
        "f(A, B, activation=('elu', '1'))",
        "TypeError: activation: alpha of elu must be a float, an int or a real NumPy scalar, got str",
    ),
    (
        "Activations",
        "f(A, B, activation=('elu', float('nan')))",
        "ValueError: activation: alpha of elu must be a number, got nan",
    ),
    (
        "Activations",
        "f(A, B, activation='clamp')",
        'ValueError: activation clamp needs its parameters: ("clamp", low, high)',
    ),
    (
        "Activations",
        "f(A, B, activation=('swiglu_oai', -1))",
        "ValueError: activation swiglu_oai: its limit must not be negative, got -1",
    ),
    (
        "Activations",
        "f(A, B, activation=('celu', 0))",
        "ValueError: activation celu: its alpha must be positive, got 0",
    ),
    (
        "Activations",
        "f(A, B, activation=('swiglu', 7, 1, 0, 2))",
        "ValueError: activation swiglu takes 3 parameters, got 4",
    ),
    (
        "Gates",
        "f(A, B, activation='mul_and_silu', gate_layout='halves')",
        "ValueError: gate_layout is halves, but the activation is swiglu with gate_layout halves_up_first by its name; "
        'drop gate_layout or pass "swiglu"',
    ),
    (
        "Gates",
        "f(A, (B, B), activation='silu_and_mul')",
        "ValueError: the activation is swiglu with gate_layout halves by its name, but B is a pair (gate, up); "
        'pass "swiglu"',
    ),
    (
        "Gates",
        "f(A, B, gate_layout='halves')",
        "ValueError: gate_layout was given but the activation has no gate; drop it",
    ),
    (
        "Gates",
        "f(A, B, activation='swiglu', gate_layout='thirds')",
        'ValueError: unknown gate_layout "thirds"; it is halves, halves_up_first or interleaved',
    ),
    (
        "Gates",
        "f(A, B, activation='swiglu', gate_layout='halves\\0')",
        'ValueError: unknown gate_layout "halves\\x00"; it is halves, halves_up_first or interleaved',
    ),
    ("Gates", "f(A, B, activation='swiglu', gate_layout=1)", "TypeError: gate_layout must be None or a str, got int"),
    (
        "Gates",
        "f(A, B[:, :5], activation='swiglu')",
        "ValueError: a gated activation needs an even number of columns: A is (5, 7), B (7, 5)",
    ),
    (
        "Gates",
        "f(A, B[:, 0], activation='swiglu')",
        "ValueError: a gated activation needs columns: A is (5, 7), but B (7,) has one axis",
    ),
    (
        "Gates",
        "f(A, (B, B))",
        "ValueError: B is a pair (gate, up) but activation none is not gated; pass swiglu, geglu, ...",
    ),
    (
        "Gates",
        "f(A, (B, B), activation='swiglu', gate_layout='halves')",
        "ValueError: gate_layout was given but B is a pair, which needs none; drop it",
    ),
    (
        "Gates",
        "f(A, (B, B[:, :5]), activation='swiglu')",
        "ValueError: B[0] and B[1] must have one shape, got (7, 6) and (7, 5)",
    ),
    ("Gates", "f(A, (B,), activation='swiglu')", "ValueError: B is a tuple of 1; a pair is (gate, up)"),
    ("Gates", "f(A, (B, B), b, 'swiglu')", "ValueError: B is a pair, so bias must be None or a pair (gate, up)"),
    ("Gates", "f(A, B, (b, b), 'swiglu')", "ValueError: bias is a pair but B is not; pass one bias of B's columns"),
    ("Gates", "f(A, B, (b, b))", "ValueError: bias is a pair but B is not; pass one bias"),
    (
        "Prepacked weights",
        "mf.prepack(np.ones((2, 7, 6), 'f4'))",
        "NotImplementedError: B has shape (2, 7, 6); prepack takes one matrix, pack each of the batch",
    ),
    ("Prepacked weights", "mf.prepack(b)", "ValueError: B has shape (6,); prepack takes a matrix (K, N)"),
    (
        "Prepacked weights",
        "mf.prepack(B[:, :5], gate_layout='halves')",
        "ValueError: gate_layout needs an even number of columns, but B is (7, 5)",
    ),
    (
        "Prepacked weights",
        "mf.prepack(mf.prepack(B))",
        "TypeError: B is a PackedMatrix already; pass it to matmul_fused as it is, or prepack B.unpack() anew",
    ),
    (
        "Prepacked weights",
        "mf.prepack(B, layout='tiles')",
        'ValueError: unknown layout "tiles"; on the CPU it is "auto", "panels64", "pairs64" or "columns"',
    ),
    (
        "Prepacked weights",
        "mf.prepack(B, layout='auto\\0x')",
        'ValueError: unknown layout "auto\\x00x"; on the CPU it is "auto", "panels64", "pairs64" or "columns"',
    ),
    ("Prepacked weights", "mf.prepack(B, layout=1)", "TypeError: layout must be a str, got int"),
    (
        "Prepacked weights",
        "mf.prepack(strided((2**30, 2**20), (0, 0)))",
        "MemoryError: no memory for 4503599627370496 bytes of a packed float32 weight (1073741824, 1048576)",
    ),
    (
        "Prepacked weights",
        "mf.prepack(strided((2**40, 2**20), (0, 0)))",
        "MemoryError: no memory for a packed float32 weight (1099511627776, 1048576)",
    ),
    (
        "Prepacked weights",
        "f(A, mf.prepack(B), activation='swiglu')",
        'ValueError: activation swiglu needs a weight prepacked for its gate; use prepack(B, gate_layout="halves")',
    ),
    (
        "Prepacked weights",
        "f(A, mf.prepack(B, gate_layout='halves'))",
        "ValueError: B was prepacked for a gate but activation none is not gated",
    ),
    (
        "Prepacked weights",
        "f(A, mf.prepack(B, gate_layout='halves'), activation='swiglu', gate_layout='interleaved')",
        "ValueError: gate_layout differs from the one that B was prepacked with; drop it",
    ),
    (
        "Prepacked weights",
        "f(A, (mf.prepack(B), B), activation='swiglu')",
        "TypeError: B[0] and B[1] must both be prepacked or both be arrays",
    ),
    ("Streams and flags", "f(A, B, stream=0)", "ValueError: stream must be None for operands on the CPU"),
    ("Streams and flags", "f(A, B, allow_tf32=1)", "TypeError: allow_tf32 must be True or False, got int"),
    (
        "torch",
        "f(t.requires_grad_(), B)  # torch",
        "ValueError: A requires grad, but matmul_fused records no gradients; pass A.detach() or call it under "
        "torch.no_grad()",
    ),
    (
        "torch",
        "f(A, B, out=torch.empty(5, 6, requires_grad=True))",
        "ValueError: out requires grad, but matmul_fused records no gradients; pass out.detach() or call it under "
        "torch.no_grad()",
    ),
    (
        "torch",
        "f(torch.nn.UninitializedBuffer(), B)",
        "TypeError: A: its __torch_function__ raised when asked for is_neg(); pass a plain torch.Tensor",
    ),
    ("torch", "f(torch.complex(t, t).conj().imag, B)", "ValueError: A has its negative bit set; pass A.resolve_neg()"),
    ("torch", "f(t.to(torch.complex64).conj(), B)", f"TypeError: A has dtype complex64; {DTYPES}"),
    (
        "torch",
        "torch.fx.symbolic_trace(lambda x: f(x, B))",
        "TypeError: A is a torch.fx.proxy.Proxy, which stands for A while torch.fx traces; call matmul_fused on "
        "tensors",
    ),
    ("torch", "f(t.to_sparse(), B)  # torch", "TypeError: A is a sparse tensor; pass .to_dense()"),
    ("torch", "f(t.to_sparse_csr(), B)  # torch", "TypeError: A is a sparse tensor; pass .to_dense()"),
    ("torch", "f(t.to_mkldnn(), B)  # torch", "TypeError: A is an MKL-DNN tensor; pass .to_dense()"),
    ("torch", "f(t.to('meta'), B)  # torch", "TypeError: A is on the meta device, which has no memory"),
    (
        "torch",
        "f(torch.nested.nested_tensor([t, t[:2]]), B)",
        "TypeError: A is a nested tensor; pass its parts (unbind()) or a padded tensor",
    ),
    (
        "torch",
        "f(torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), B)",
        "TypeError: A is a quantized tensor; pass .dequantize()",
    ),
    (
        "torch",
        "torch.func.vmap(lambda row: f(row, B))(t)",
        "TypeError: A has no memory of its own: it belongs to a functorch transform (vmap, grad, jvp) or a tracer; "
        "call matmul_fused outside of it",
    ),
    (
        "torch",
        "torch.func.functionalize(lambda x: f(x, B))(t)",
        "TypeError: A has elements but no memory (a functionalized or zero tensor); pass A.clone() outside of the "
        "transform",
    ),
    (
        "torch",
        "f(fake_tensor, B)  # torch",
        "TypeError: A is a FakeTensor, which has no memory; call matmul_fused on real tensors",
    ),
    ("torch", "f(dtensor, B)  # torch", "TypeError: A is a DTensor; pass its local tensor (A.to_local())"),
    (
        "torch",
        "f(dispatching_subclass, B)  # torch",
        "TypeError: A is a test_errors.Dispatching, a torch.Tensor subclass with its own __torch_dispatch__; pass a "
        "plain torch.Tensor",
    ),
    (
        "JAX",
        "jax.jit(lambda x: f(x, B))(A)",
        "TypeError: A is a JAX tracer, which has no values; inside jax.jit, vmap and grad call "
        "matmul_fused.jax.matmul_fused",
    ),
    (
        "JAX",
        "f(jax.ShapeDtypeStruct((5, 7), 'float32'), B)",
        "TypeError: A is a jax.ShapeDtypeStruct, which is the shape of A without its values; pass an array",
    ),
    (
        "JAX",
        "f(A, jax.random.split(jax.random.key(0), 7))",
        "TypeError: B is an array of JAX PRNG keys, which are no numbers",
    ),
    (
        "JAX",
        "f((lambda x: (x.delete(), x)[1])(jax.numpy.ones((5, 7))), B)",
        "ValueError: A is a deleted jax.Array (donated, or after delete()); pass a live one",
    ),
    ("JAX", "f(A, B, out=jax.numpy.zeros((5, 6)))", "ValueError: out is read-only; pass a writable array"),
    ("Threads", "mf.set_num_threads(0)", "ValueError: n must be from 1 to 1024, got 0"),
    ("Threads", "mf.set_num_threads(2**70)", "ValueError: n must be from 1 to 1024, got far more"),
    ("Threads", "mf.set_num_threads(True)", "TypeError: n must be an int, got bool"),
    ("Threads", "mf.set_num_threads(1.5)", "TypeError: n must be an int, got float"),
]
