"""matmul_fused.jax on a real NVIDIA GPU (--device cuda, JAX_PLATFORMS=cuda,cpu), by XLA itself. Else not collected.

Operands are sent to the GPU first, so that programs are compiled for it. Where sums are of small integers every order
of additions, and every kernel, gives the same exact result.
"""

import functools
import os
import threading

import numpy as np
import pytest

import matmul_fused as mf
from support import DTYPES, check, draw, dtype_of, python, same_bits

pytestmark = pytest.mark.device

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

ORDINAL = int(os.environ["MMF_TEST_DEVICE"].partition(":")[2] or 0)
try:
    DEVICE = jax.devices("gpu")[ORDINAL]
except RuntimeError:
    pytest.skip("this jax has no CUDA", allow_module_level=True)

from matmul_fused.jax import matmul_fused  # noqa: E402

x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # jax 0.5
ACTIVATIONS = ["relu", "gelu_tanh", "silu", "tanh", ("elu", 0.75), "softplus", "mish", ("clamp", -0.5, 1.5), "exp"]


def send(*arrays):
    """Of the GPU; pairs and None stay what they are."""
    sent = jax.device_put(arrays, DEVICE)
    return sent[0] if len(arrays) == 1 else sent


def compiled(A, B, bias=None, activation=None, **keywords):
    """The call inside a program for the GPU, whose arguments are the arrays; NumPy results."""
    arrays = {"A": A, "B": B, "bias": bias} | {name: keywords.pop(name, None) for name in ("C", "multiply")}
    with x64(A.dtype == np.float64 or keywords.get("out_dtype") == "float64"):
        results = jax.jit(lambda arrays: matmul_fused(**arrays, activation=activation, **keywords))(send(arrays))
        assert all(result.devices() == {DEVICE} for result in jax.tree.leaves(results))
        return jax.tree.map(np.asarray, results)


def integers(shape, seed=0, most=3):
    return np.random.default_rng([seed, *shape]).integers(-most, most, shape, endpoint=True).astype(np.float32)


# --- results ---


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    A, B, bias = draw((65, 130), dtype), draw((130, 96), dtype), draw((96,), dtype)
    got = compiled(A, B, bias, "gelu")
    assert got.dtype == A.dtype
    check(got, A, B, bias, activation="gelu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_as_outside_of_jit(dtype):
    with x64(dtype == "float64"):
        A, B, bias = send(draw((65, 128), dtype), draw((128, 96), dtype), draw((96,), dtype))
        inside = jax.jit(lambda *x: matmul_fused(*x, "silu"))(A, B, bias)
        outside = mf.matmul_fused(A, B, bias, "silu")
        assert same_bits(np.asarray(inside), np.asarray(outside))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_activations(activation):
    A, B, bias = draw((17, 40)), draw((40, 24)), draw((24,))
    check(compiled(A, B, bias, activation), A, B, bias, activation=activation)


SHAPES = [
    ((5, 7), (7, 6)), ((7,), (7, 6)), ((5, 7), (7,)), ((3, 5, 7), (7, 6)), ((5, 7), (3, 7, 6)),
    ((2, 1, 5, 7), (3, 7, 6)), ((0, 7), (7, 6)), ((5, 7), (7, 0)), ((5, 0), (0, 6)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes(shapes):
    A, B = map(integers, shapes)
    whole = np.matmul(A, B)
    everything = integers(whole.shape, seed=1)
    got = compiled(A, B, everything, "relu", C=everything, beta=2, multiply=everything)
    np.testing.assert_array_equal(got, np.maximum(whole + 3 * everything, 0) * everything)


@pytest.mark.parametrize("layout", ["halves", "halves_up_first", "interleaved"])
def test_gate_layouts(layout):
    A, B, bias, multiply = draw((9, 72)), draw((72, 40)), draw((40,)), draw((9, 20))
    keywords = {"gate_layout": layout, "multiply": multiply}
    check(compiled(A, B, bias, "swiglu", **keywords), A, B, bias, activation="swiglu", **keywords)


@pytest.mark.parametrize("bias", [None, "pair", 0.5, (0.25, 0.5)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pairs(bias, dtype):
    A, gate, up = draw((40, 128), dtype), draw((128, 64), dtype), draw((128, 64), dtype, seed=1)
    if bias == "pair":
        bias = (draw((64,), dtype), draw((64,), dtype, seed=1))
    got = compiled(A, (gate, up), bias, "geglu")
    check(got, A, (gate, up), (0.5, 0.5) if bias == 0.5 else bias, activation="geglu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_out_dtype_and_preactivation(dtype, out_dtype):
    A, B = draw((33, 64), dtype), draw((64, 24), dtype)
    got, z = compiled(A, B, None, "tanh", out_dtype=out_dtype, preactivation=True)
    assert got.dtype == z.dtype == dtype_of(out_dtype)
    check(got, A, B, activation="tanh")
    check(z, A, B)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("traced", [False, True])
def test_numbers_in_place_of_arrays(dtype, traced):
    """They are arrays on the GPU by then."""
    A, B = draw((17, 64), dtype), draw((64, 24), dtype)
    number = 0.1
    with x64(dtype == "float64"):
        if traced:
            run = jax.jit(lambda A, B, x: matmul_fused(A, B, x, "silu", C=x, multiply=x))
            got = run(*send(A, B), number)
        else:
            got = jax.jit(lambda A, B: matmul_fused(A, B, number, "silu", C=number, multiply=number))(*send(A, B))
    check(np.asarray(got), A, B, number, activation="silu", C=number, multiply=number)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_large_call_takes_wgmma(dtype):
    A, B, bias = draw((2048, 2048), dtype), draw((2048, 4096), dtype), draw((4096,), dtype)
    x, w, b = send(A, B, bias)
    assert mf.explain(x, w, b, "gelu").family.startswith("gemm_wgmma")
    got = np.asarray(jax.jit(lambda *x: matmul_fused(*x, "gelu"))(x, w, b))
    assert same_bits(got, np.asarray(mf.matmul_fused(x, w, b, "gelu")))
    rows = slice(100, 2048, 61)
    check(got[rows], A[rows], B, bias, activation="gelu")


def test_on_every_gpu():
    A, B = draw((33, 64)), draw((64, 24))
    for device in jax.devices("gpu"):
        y = jax.jit(functools.partial(matmul_fused, activation="gelu"))(*jax.device_put((A, B), device))
        assert y.devices() == {device}
        check(np.asarray(y), A, B, activation="gelu")


# --- transforms ---


def test_vmap():
    A, B, bias = integers((4, 9, 32)), integers((4, 32, 12)), integers((4, 12))
    cases = {
        "A": (jax.vmap(lambda a: matmul_fused(a, B[0], bias[0], "relu")), (A,), A @ B[0] + bias[0]),
        "B": (jax.vmap(lambda b: matmul_fused(A[0], b, bias[0], "relu")), (B,), A[0] @ B + bias[0]),
        "bias": (jax.vmap(lambda b: matmul_fused(A[0], B[0], b, "relu")), (bias,), A[0] @ B[0] + bias[:, None]),
        "all": (jax.vmap(lambda a, b, c: matmul_fused(a, b, c, "relu")), (A, B, bias), A @ B + bias[:, None]),
    }
    for name, (f, arguments, want) in cases.items():
        got = jax.jit(f)(*send(list(arguments)))
        np.testing.assert_array_equal(got, np.maximum(want, 0), err_msg=name)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "swiglu"])
def test_gradients(activation):
    """Beside the CPU, in float64: sums of 48 products in another order, and functions of another mathematics library,
    each right to some units of 2^-53, through two products."""
    arrays = draw((9, 48), "float64"), draw((48, 24), "float64"), draw((24,), "float64")
    with x64(True):
        f = jax.jit(jax.value_and_grad(lambda *x: jnp.square(matmul_fused(*x, activation)).sum(), argnums=(0, 1, 2)))
        got = jax.tree.map(np.asarray, f(*send(*arrays)))
        want = jax.tree.map(np.asarray, f(*jax.device_put(arrays, jax.devices("cpu")[0])))
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * np.abs(y).max())


def test_scan_and_while():
    A, B = integers((9, 32), most=1), integers((6, 32, 32), seed=1, most=1)

    def step(x, w):
        return jnp.mod(matmul_fused(x, w, None, "relu"), 5) - 2

    last, kept = jax.jit(lambda A, B: jax.lax.scan(lambda x, w: (step(x, w), x), A, B))(*send(A, B))
    looped = jax.jit(
        lambda A, B: jax.lax.while_loop(lambda s: s[0] < 6, lambda s: (s[0] + 1, step(s[1], B[s[0]])), (0, A))[1]
    )(*send(A, B))
    x = A
    for i, w in enumerate(B):
        np.testing.assert_array_equal(kept[i], x)
        x = np.mod(np.maximum(x @ w, 0), 5) - 2
    np.testing.assert_array_equal(last, x)
    np.testing.assert_array_equal(looped, x)


# --- order, memory, threads ---


def test_order_among_the_operators_of_jax():
    """Large and small calls between XLA's own kernels, two results at a time: none may begin before what it reads is
    written, nor be overwritten before it was read."""
    A, B = integers((1024, 1024), most=1), integers((1024, 1024), seed=1, most=1)

    def program(np_, fused, x, w):
        for _ in range(12):
            y, z = fused(x, w)
            x = np_.mod(y + np_.roll(z, 1, axis=0), 3) - 1
            w = np_.mod(w + np_.flip(z, axis=1), 3) - 1
        return x, w

    def plain(x, w):
        z = x @ w
        return np.maximum(z, 0), z

    run = jax.jit(functools.partial(program, jnp, lambda x, w: matmul_fused(x, w, None, "relu", preactivation=True)))
    x, w = send(A, B)
    found = [run(x, w) for _ in range(3)]  # without waiting in between
    want = program(np, plain, A, B)
    for results in found:
        for got, wanted in zip(results, want, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_workspaces_of_xla():
    """Plans of two launches, three calls in a program; what they take of XLA's allocator goes back. In a process whose
    environment asks for that kernel: XLA's threads know no force_kernel."""
    python(
        "-c",
        f"""
import jax, numpy as np
import matmul_fused as mf
from matmul_fused.jax import matmul_fused
draw = np.random.default_rng(0).integers
A, B, C = (draw(-3, 4, shape).astype("f") for shape in ((16, 8192), (8192, 64), (8192, 64)))
device = jax.devices("gpu")[{ORDINAL}]
a, b, c = jax.device_put((A, B, C), device)
workspace = mf.explain(a, b).workspace
assert workspace
run = jax.jit(lambda a, b, c: (matmul_fused(a, b), matmul_fused(a, c), matmul_fused(a, b + c)))
results = jax.block_until_ready(run(a, b, c))
used = device.memory_stats()["bytes_in_use"]
for _ in range(50):
    jax.block_until_ready(run(a, b, c))
assert device.memory_stats()["bytes_in_use"] < used + 10 * workspace  # of 150 calls
for got, want in zip(results, (A @ B, A @ C, A @ (B + C))):
    np.testing.assert_array_equal(got, want)
""",
        environment={"MATMUL_FUSED_KERNEL": "gemm_simt_splitk"},
    )


def test_threads():
    A, B = integers((64, 96)), integers((8, 96, 80), seed=1)
    run = jax.jit(lambda A, B: [matmul_fused(A, B[i], None, "relu") for i in range(8)])
    x, w = send(A, B)
    want = np.maximum(A @ B, 0)
    wrong = []

    def work():
        for _ in range(20):
            wrong.extend(i for i, y in enumerate(run(x, w)) if not (np.asarray(y) == want[i]).all())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_donated_operands():
    A, B = integers((256, 256)), integers((256, 256), seed=1)
    run = jax.jit(lambda x, w: matmul_fused(x, w, None, "relu", C=x, beta=1), donate_argnums=0)
    np.testing.assert_array_equal(run(*send(A, B)), np.maximum(A @ B + A, 0))


# --- errors ---


def test_errors_while_jax_traces():
    A, B = send(draw((5, 7)), draw((7, 6)))
    for call in (
        lambda f: f(A, A),
        lambda f: f(A, B.astype("float16")),
        lambda f: f(A, B, A[0]),
        lambda f: f(A, B, None, "gelo"),
    ):
        with pytest.raises((TypeError, ValueError)) as wanted:
            call(mf.matmul_fused)
        with pytest.raises(wanted.type) as found:
            call(matmul_fused)
        assert str(found.value).startswith(str(wanted.value))


def test_an_error_of_the_handler():
    f = functools.reduce(lambda f, _: jax.vmap(f), range(7), matmul_fused)
    A, B = send(np.ones((1,) * 7 + (2, 3), np.float32), np.ones((1,) * 7 + (3, 2), np.float32))
    with pytest.raises(Exception, match=r"A has 9 axes, those of jax\.vmap among them; at most 8 are supported"):
        jax.block_until_ready(f(A, B))
    assert (np.asarray(matmul_fused(A.reshape(2, 3), B.reshape(3, 2))) == 3).all()
