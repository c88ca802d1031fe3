"""Random calls by Hypothesis: any shapes, strides, dtypes and epilogues, against the reference; and shape rules against
numpy.matmul. The seed is that of the run (MMF_TEST_SEED), so CI repeats itself.
"""

import math
import os

import numpy as np
from hypothesis import HealthCheck, assume, event, given, seed, settings
from hypothesis import strategies as st

import matmul_fused as mf
from matmul_fused.testing import Case, expect
from matmul_fused.testing.cases import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from matmul_fused.testing.reference import assert_close
from matmul_fused.testing.rounding import DTYPES, numpy_dtype

SEED = int(os.environ.get("MMF_TEST_SEED", "0"))
EXAMPLES = int(os.environ.get("MMF_TEST_EXAMPLES", "1000"))
COMMON = settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)  # fmt: skip

dimensions = st.integers(0, 4)
shapes = st.lists(dimensions, min_size=0, max_size=5).map(tuple)


def result_or_error(function, *arguments):
    """The shape of the result, or the type of the exception."""
    try:
        return np.shape(function(*arguments))
    except Exception as error:
        return type(error)


@seed(SEED)
@COMMON
@given(shapes, shapes, st.booleans())
def test_shape_rules_are_those_of_matmul(a_shape, b_shape, fit):
    if fit and a_shape and b_shape:  # make K match, so that both outcomes are common
        k = a_shape[-1]
        b_shape = (k,) if len(b_shape) == 1 else (*b_shape[:-2], k, b_shape[-1])
    A, B = np.ones(a_shape, np.float32), np.ones(b_shape, np.float32)
    want = result_or_error(np.matmul, A, B)
    event(f"{'shape' if isinstance(want, tuple) else want.__name__}")
    got = result_or_error(mf.matmul_fused, A, B)
    assert got == want, f"{a_shape} @ {b_shape}: {got}, numpy.matmul: {want}"
    if isinstance(want, tuple):
        np.testing.assert_array_equal(mf.matmul_fused(A, B), A @ B)


@seed(SEED + 1)
@COMMON
@given(st.sampled_from(["bias", "C", "multiply"]), shapes, st.lists(dimensions, min_size=1, max_size=2))
def test_epilogue_operands_broadcast_to_the_result_only(name, shape, leading):
    """They broadcast by NumPy's rules and never enlarge the result."""
    A, B = np.ones((*leading, 2, 3), np.float32), np.ones((3, 4), np.float32)
    result = (*leading, 2, 4)
    try:
        fits = np.broadcast_shapes(result, shape) == result and len(shape) <= len(result)
    except ValueError:
        fits = False
    operand = np.full(shape, 2, np.float32)
    got = result_or_error(lambda: mf.matmul_fused(A, B, **{name: operand}))
    assert got == (result if fits else ValueError), f"{name} {shape} to {result}: {got}"


@st.composite
def views(draw, shape, dtype, rng, *, writable=False):
    """An array of this shape with random strides in a larger one: (view, base)."""
    order = draw(st.permutations(range(len(shape)))) if shape else []
    steps = [1, 2, -1, -3] if writable else [1, 2, -1, -3, 0]
    step = [draw(st.sampled_from(steps)) if draw(st.booleans()) else 1 for _ in shape]
    pads = [draw(st.integers(0, 2)) for _ in shape]
    extents = [(max(n - 1, 0) * abs(s) + 1 if n else 0) + pad for n, s, pad in zip(shape, step, pads, strict=True)]
    base = rng.standard_normal([extents[axis] for axis in order]).astype(numpy_dtype(dtype))
    base = np.asarray(base, numpy_dtype(dtype))
    view = base.transpose(np.argsort(order)) if shape else base
    for axis, (n, s) in enumerate(zip(shape, step, strict=True)):
        index = [slice(None)] * len(shape)
        if s == 0:
            index[axis] = slice(0, 1) if n else slice(0, 0)
        else:
            end = (n - 1) * abs(s)
            index[axis] = slice(0, 0) if not n else slice(0, end + 1, s) if s > 0 else slice(end, None, s)
        view = view[tuple(index)]
    return np.broadcast_to(view, shape) if not writable else view, base


@st.composite
def epilogue_shapes(draw, shape):
    """A shape that broadcasts to this one."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.booleans()) and draw(st.booleans()) else n for n in kept)


@st.composite
def calls(draw):
    """Keyword arguments of a call, and the bases of the arrays that it writes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(DTYPES))
    gated = draw(st.booleans())
    activation = draw(st.sampled_from(GATED_ACTIVATIONS if gated else PLAIN_ACTIVATIONS))
    sizes = st.integers(0, 40) | st.sampled_from([1, 2, 8, 16, 64, 65, 130])
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    parts = [tuple(draw(st.sampled_from([size, 1])) for size in batch) for _ in "AB"]
    parts = [part[draw(st.integers(0, len(part))) :] for part in parts]
    leading = np.broadcast_shapes(*parts)
    assume(math.prod(leading) * m * n * max(k, 1) < 500_000)
    pair = gated and draw(st.booleans())
    columns = n * (2 if gated and not pair else 1)
    shape, z_shape = (*leading, m, n), (*leading, m, n * (2 if gated else 1))
    out_dtype = draw(st.sampled_from([None, *DTYPES]))
    result = out_dtype or dtype
    epilogue_dtypes = st.sampled_from(sorted({dtype, result, "float32"}))
    call = {"activation": Case(1, 1, 1, activation=activation).activation_argument, "out_dtype": out_dtype}
    written = {}

    def array(shape, dtype=dtype):
        return draw(views(shape, dtype, rng))[0]

    call["A"] = array((*parts[0], m, k))
    weights = tuple(array((*parts[1], k, columns)) for _ in range(2 if pair else 1))
    call["B"] = weights if pair else weights[0]
    if gated and not pair:
        call["gate_layout"] = draw(st.sampled_from([None, "halves", "halves_up_first", "interleaved"]))
    if draw(st.booleans()):
        extent = draw(epilogue_shapes(shape if pair else z_shape))
        bias = tuple(array(extent, draw(epilogue_dtypes)) for _ in weights)
        call["bias"] = bias if pair else bias[0]
    if draw(st.booleans()):
        call["C"] = array(draw(epilogue_shapes(z_shape)), draw(epilogue_dtypes))
        call["beta"] = draw(st.sampled_from([None, 0, 1.0, np.float32(0.25), -1.7]))
    if draw(st.booleans()):
        call["multiply"] = array(draw(epilogue_shapes(shape)), draw(epilogue_dtypes))
    call["alpha"] = draw(st.sampled_from([1, 1.0, 0.5, -2.3, np.float64(0.1), 0]))
    if draw(st.booleans()):
        kind = draw(st.sampled_from(DTYPES))
        call["preactivation"], written["preactivation"] = draw(views(z_shape, kind, rng, writable=True))
    if draw(st.booleans()):
        call["out"], written["out"] = draw(views(shape, result, rng, writable=True))
    return call, written, shape, result


def outside(view, base):
    """The bytes of base that view does not cover."""
    bits = f"u{base.itemsize}"
    rest = base.view(bits).copy() if base.ndim else base.reshape(1).view(bits).copy()
    start = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0]) if view.size else 0
    covered = np.zeros(rest.size, bool)
    if view.size:
        strides = tuple(s // base.itemsize for s in view.strides)
        np.ndarray(view.shape, bool, covered, start // base.itemsize, strides)[...] = True
    return rest.ravel()[~covered]


@seed(SEED + 2)
@COMMON
@given(calls())
def test_random_calls(drawn):
    call, written, shape, result_dtype = drawn
    guards = {name: outside(call[name], base) for name, base in written.items()}
    reference = {name: value for name, value in call.items() if name not in ("out", "preactivation", "out_dtype")}
    expected, expected_z = expect(**reference)
    for name in written:
        call[name][...] = np.nan
    result = mf.matmul_fused(**call)
    assert result.shape == shape
    if "out" in call:
        assert result is call["out"]
    assert_close(result, expected, result_dtype)
    if "preactivation" in call:
        assert_close(call["preactivation"], expected_z, call["preactivation"].dtype.name, "preactivation")
    for name, base in written.items():
        np.testing.assert_array_equal(outside(call[name], base), guards[name], err_msg=f"outside of {name}")
    event(f"dtype {result_dtype}")


@seed(SEED + 3)
@settings(COMMON, max_examples=max(20, EXAMPLES // 4))
@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 70), st.sampled_from(DTYPES), st.data())
def test_prepacked_weights_give_the_same(m, n, k, dtype, data):
    """Any strides: a packed weight as B gives a result within the bound."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    A = rng.standard_normal((m, k)).astype(numpy_dtype(dtype))
    B, _ = data.draw(views((k, n), dtype, rng))
    packed = mf.prepack(B)
    assert packed.shape == (k, n)
    expected, _ = expect(A, B, None, "silu")
    assert_close(mf.matmul_fused(A, packed, activation="silu"), expected, dtype)
