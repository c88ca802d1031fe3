"""What may share memory: out may be C itself; an output shares no element with anything else that is read.

test_overlap.py compares the check itself with np.shares_memory on random layouts.
"""

from itertools import product

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import matmul_fused as mf
from matmul_fused.testing import embed, force_kernel
from support import DTYPES, KERNELS, check, draw, dtype_of

SCALE = {"alpha": 0.5, "beta": -0.75}


# --- out is C ---


def make_in_place(shape, dtype, view="plain", batch=""):
    """An operand for both C and out, in a guarded buffer."""
    operand = embed("out", shape, dtype_of(dtype).name, view, batch=batch, writable=True)
    operand.view[...] = draw(shape, dtype, seed=3)
    operand.freeze()
    return operand


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", ["plain", "offset", "padded", "sliced", "negative", "transposed"])
def test_out_may_be_c(kernel, dtype, view):
    both = make_in_place((17, 37), dtype, view)
    A, B, bias = draw((17, 29), dtype), draw((29, 37), dtype), draw(37, dtype)
    out = both.view
    with force_kernel(kernel):
        got = mf.matmul_fused(A, B, bias, "silu", **SCALE, C=both.view, out=out)
    assert got is out
    check(out, A, B, bias, "silu", **SCALE, C=both.values)
    assert both.damage() is None


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "shape"),
    [
        ((3, 5, 7), (3, 7, 6), (3, 5, 6)),
        ((3, 5, 7), (7, 6), (3, 5, 6)),
        ((5, 7), (3, 7, 6), (3, 5, 6)),
        ((2, 1, 2, 5, 7), (1, 3, 2, 7, 6), (2, 3, 2, 5, 6)),
        ((7,), (7, 6), (6,)),
        ((5, 7), (7,), (5,)),
        ((7,), (7,), ()),
        ((1, 7), (7, 6), (1, 6)),
        ((5, 7), (7, 1), (5, 1)),
    ],
)
@pytest.mark.parametrize(("view", "batch"), [("plain", ""), ("padded", ""), ("sliced", ""), ("plain", "inner")])
def test_out_may_be_c_of_every_rank(a_shape, b_shape, shape, view, batch):
    both = make_in_place(shape, "float32", view, batch)
    A, B = draw(a_shape), draw(b_shape)
    out = both.view
    mf.matmul_fused(A, B, activation="gelu", **SCALE, C=both.view, out=out)
    check(out, A, B, None, "gelu", **SCALE, C=both.values)
    assert both.damage() is None


def test_strides_of_axes_of_length_one_do_not_matter():
    buffer = draw(64)
    out, C = as_strided(buffer, (1, 6), (4, 4)), as_strided(buffer, (1, 6), (400, 4))
    A, B, before = draw((1, 7)), draw((7, 6)), C.copy()
    mf.matmul_fused(A, B, C=C, out=out)
    check(out, A, B, C=before)


def test_out_may_be_c_of_another_library():
    torch = pytest.importorskip("torch")
    out = draw((5, 6), seed=3)
    A, B, before = draw((5, 7)), draw((7, 6)), out.copy()
    mf.matmul_fused(A, B, C=torch.from_numpy(out), out=out)
    check(out, A, B, C=before)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("the transpose", lambda out: out.T),
        ("rows reversed", lambda out: out[::-1]),
        ("columns reversed", lambda out: out[:, ::-1]),
        ("one row for all", lambda out: out[2]),
        ("one column for all", lambda out: out[:, 1:2]),
        ("one element", lambda out: out[3, 3]),
        ("rows of stride 0", lambda out: as_strided(out, (6, 6), (0, 4))),
    ],
)
def test_c_in_another_order_than_out_is_refused(name, other):
    out = draw((6, 6), seed=3)
    C, before = np.asarray(other(out)), out.copy()
    if C.ndim == 0:
        C = out[3:4, 3:4].reshape(())
    with pytest.raises(ValueError, match=r"^out shares memory with C; pass another out, or C itself$"):
        mf.matmul_fused(draw((6, 7)), draw((7, 6)), C=C, out=out)
    np.testing.assert_array_equal(out, before)


def test_c_of_another_dtype_at_the_same_place_is_refused():
    out = draw((4, 6), seed=3)
    C = out.view(np.float16)[:, :6]
    with pytest.raises(ValueError, match="out shares memory with C"):
        mf.matmul_fused(draw((4, 7), "float16"), draw((7, 6), "float16"), C=C, out=out)


def test_gated_c_is_never_out():
    z = draw((4, 12), seed=3)
    with pytest.raises(ValueError, match="out shares memory with C"):
        mf.matmul_fused(draw((4, 7)), draw((7, 12)), activation="swiglu", C=z, out=z[:, :6])


# --- one shared element is one too many; the next address is fine ---

SHAPES = {"A": (5, 7), "B": (7, 6), "bias": (6,), "multiply": (5, 6), "C": (5, 6)}
PAIR_SHAPES = {"B[0]": (7, 6), "B[1]": (7, 6), "bias[0]": (6,), "bias[1]": (6,)}


def call_with(name, operand, **outputs):
    """matmul_fused with random operands but for the named one."""
    if name in PAIR_SHAPES:
        operands = {key: draw(shape, seed=5) for key, shape in PAIR_SHAPES.items()} | {name: operand}
        B, bias = ((operands[f"{key}[0]"], operands[f"{key}[1]"]) for key in ("B", "bias"))
        return mf.matmul_fused(draw((5, 7)), B, bias, "geglu", **outputs)
    return mf.matmul_fused(**{key: draw(shape, seed=5) for key, shape in SHAPES.items()} | {name: operand}, **outputs)


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("writer", ["out", "preactivation"])
@pytest.mark.parametrize("name", [*SHAPES, *PAIR_SHAPES])
def test_one_shared_element_is_refused(name, writer, side):
    shape = (SHAPES | PAIR_SHAPES)[name]
    columns = 12 if name in PAIR_SHAPES and writer == "preactivation" else 6
    buffer = draw(400, seed=9)
    size, written = int(np.prod(shape)), 5 * columns
    output = buffer[100 : 100 + written].reshape(5, columns)
    touching = 100 + written - 1 if side == "after" else 101 - size
    operand = buffer[touching : touching + size].reshape(shape)
    before = buffer.copy()
    with pytest.raises(ValueError, match=rf"^{writer} shares memory with {name}; pass another".replace("[", r"\[")):
        call_with(name, operand, **{writer: output})
    np.testing.assert_array_equal(buffer, before)

    apart = touching + (1 if side == "after" else -1)
    operand = buffer[apart : apart + size].reshape(shape)
    call_with(name, operand, **{writer: output})
    assert not np.array_equal(output, before[100 : 100 + written].reshape(5, columns))
    np.testing.assert_array_equal(buffer[:100], before[:100])
    np.testing.assert_array_equal(buffer[100 + written :], before[100 + written :])


@pytest.mark.parametrize("block", [0, 1, 2])
def test_one_shared_column_in_one_block_is_refused(block):
    """Three axes that cannot be merged: also where only an outer block is shared."""
    buffer = draw((4, 6, 8), seed=9)
    out, before = buffer[:3, :4, :5], buffer.copy()
    for out_view in (out, out[::-1], out[:, ::-1, ::-1]):
        with pytest.raises(ValueError, match=r"^out shares memory with A; pass another out$"):
            mf.matmul_fused(buffer[block, :4, 4:8], draw((3, 4, 5)), out=out_view)
        np.testing.assert_array_equal(buffer, before)
    mf.matmul_fused(buffer[3, :4, 4:8], draw((3, 4, 5)), out=out)
    check(out.copy(), before[3, :4, 4:8], draw((3, 4, 5)))


def test_outputs_share_nothing_with_each_other():
    buffer = draw(100)
    out, z = buffer[:30].reshape(5, 6), buffer[29:59].reshape(5, 6)
    for preactivation in (z, out):
        with pytest.raises(ValueError, match=r"^preactivation shares memory with out; pass another array$"):
            mf.matmul_fused(draw((5, 7)), draw((7, 6)), out=out, preactivation=preactivation)
    C = draw((5, 6), seed=3)
    with pytest.raises(ValueError, match=r"^preactivation shares memory with C; pass another array$"):
        mf.matmul_fused(draw((5, 7)), draw((7, 6)), C=C, preactivation=C)


def test_a_shared_operand_is_seen_across_libraries():
    torch = pytest.importorskip("torch")
    A = draw((5, 7))
    out = torch.from_numpy(A)[:, 1:]
    with pytest.raises(ValueError, match="out shares memory with A"):
        mf.matmul_fused(A, draw((7, 6)), out=out)


def test_inputs_may_share_memory():
    x = draw((6, 6))
    got = mf.matmul_fused(x, x.T, x[0], "relu", C=x, multiply=x[:, ::-1])
    check(got, x, x.T, x[0], "relu", C=x, multiply=x[:, ::-1])


# --- interleaved views that share no element ---

APART = {
    "halves": lambda b: (b[:, :6], b[:, 6:]),
    "columns in turn": lambda b: (b[:, ::2], b[:, 1::2]),
    "columns in threes": lambda b: (b[:, ::3], b[:, 1::3]),
    "rows in turn": lambda b: (b[::2], b[1::2]),
    "transposed halves": lambda b: (b[:, :6].T, b[:, 6:].T),
    "transposed columns in turn": lambda b: (b[:, ::2].T, b[:, 1::2].T),
    "only out transposed": lambda b: (b[:8, :8].T, b[:8, 8:]),
    "only the other transposed": lambda b: (b[:4, :6], b[4:, :4].T),
    "negative columns": lambda b: (b[:, 5::-1], b[:, 6:]),
    "negative rows": lambda b: (b[::-1, :6], b[:, 6:]),
    "all negative, in turn": lambda b: (b[::-1, ::-2], b[::-1, -2::-2]),
    "chessboard": lambda b: (b[::2, ::2], b[1::2, 1::2]),
    "rows of a frame": lambda b: (b[1:-1, 1:-1], b[:6, 0:1]),
    "float16 beside": lambda b: (b[:, :6], b.view(np.float16)[:, 12:]),
    "float16 between": lambda b: (b[:, ::2], b.view(np.float16)[:, 2::4]),
    "float64 between": lambda b: (b[:, 2::4], b.view(np.float64)[:, ::2]),
    "other rows with a zero stride": lambda b: (b[:, :6], as_strided(b[:, 7:], (8, 5), (0, 4))),
}


@pytest.mark.parametrize("dtype", ["float32", None])
@pytest.mark.parametrize("case", APART)
def test_interleaved_views_are_allowed(case, dtype):
    buffer = draw((8, 12), seed=7)
    out, A = APART[case](buffer)
    assert not np.shares_memory(out, A)
    B = draw((A.shape[1], out.shape[1]), A.dtype.name)
    preactivation = None if dtype is None else np.empty(out.shape, dtype)
    a_before, wanted = A.copy(), buffer.copy()
    mf.matmul_fused(A, B, activation="gelu_tanh", out=out, preactivation=preactivation)
    check(out.copy(), a_before, B, None, "gelu_tanh")
    APART[case](wanted)[0][...] = out
    np.testing.assert_array_equal(buffer, wanted)  # what is not out is as it was


def test_every_operand_in_one_buffer():
    buffer = draw((6, 40), seed=7)
    A, C, multiply, bias = buffer[:, :6], buffer[:, 6:12], buffer[:, 13:25:2], buffer[0, 12:24:2]
    B = buffer[:, 25:31]
    out, z = buffer[:, 31:37], buffer[:, 37:]  # z does not fit: three columns
    before = buffer.copy()
    with pytest.raises(ValueError, match=r"^preactivation has shape"):
        mf.matmul_fused(A, B, bias, "silu", C=C, multiply=multiply, out=out, preactivation=z)
    np.testing.assert_array_equal(buffer, before)
    mf.matmul_fused(A, B, bias, "silu", C=C, multiply=multiply, out=out)
    check(out.copy(), A, B, bias, "silu", C=C, multiply=multiply)
    np.testing.assert_array_equal(np.delete(buffer, np.s_[31:37], 1), np.delete(before, np.s_[31:37], 1))


# --- outputs whose own elements are distinct, or not ---


@pytest.mark.parametrize(
    "index", list(product([np.s_[:], np.s_[::2], np.s_[2:0:-1]], [np.s_[:], np.s_[1::2]], [np.s_[::-1], np.s_[:3]]))
)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_slices_of_an_array_are_never_taken_for_overlapping(index, order):
    out = np.full((4, 5, 6), np.nan, np.float32)[index].transpose(order)
    A, B = draw((*out.shape[:2], 7)), draw((7, out.shape[2]))
    mf.matmul_fused(A, B, out=out)
    check(out.copy(), A, B)


@pytest.mark.parametrize("writer", ["out", "preactivation"])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((5, 6), (0, 4)),
        ((5, 6), (4, 0)),
        ((5, 6), (0, 0)),
        ((5, 6), (4, 4)),
        ((5, 6), (20, 4)),
        ((5, 6), (4, 16)),
        ((5, 6), (8, 12)),
        ((5, 6), (-20, 4)),
        ((2, 5, 6), (0, 24, 4)),
        ((2, 5, 6), (116, 24, 4)),
        ((2, 5, 6), (4, 24, 4)),
    ],
)
def test_overlapping_elements_are_refused(writer, shape, strides):
    memory = draw(400)
    output = as_strided(memory[100:], shape, strides)
    before = memory.copy()
    with pytest.raises(ValueError, match=rf"^{writer} has strides that make its elements overlap; pass an array whose"):
        mf.matmul_fused(draw((*shape[:-1], 7)), draw((7, 6)), **{writer: output})
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((1, 6), (0, 4)), ((5, 1), (4, 0)), ((1, 1), (0, 0)), ((5, 0), (0, 0)), ((0, 6), (0, 0)), ((5, 6), (4, 20))],
)
def test_distinct_elements_are_allowed_whatever_the_strides(shape, strides):
    memory = np.full(200, np.nan, np.float32)
    A, B = draw((shape[0], 7)), draw((7, shape[1]))
    out = as_strided(memory, shape, strides)
    mf.matmul_fused(A, B, out=out)
    check(out.copy(), A, B)
    assert np.count_nonzero(~np.isnan(memory)) == out.size


def test_expanded_torch_outputs_are_refused():
    torch = pytest.importorskip("torch")
    for out in (torch.zeros(6).expand(5, 6), torch.zeros(5, 1).expand(5, 6), torch.zeros(20).unfold(0, 6, 1)[:5]):
        with pytest.raises(ValueError, match="out has strides that make its elements overlap"):
            mf.matmul_fused(draw((5, 7)), draw((7, 6)), out=out)
        assert not out.any()


# --- operands that are not read ---


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_beta_0_does_not_read_c(kernel, dtype):
    A, B = draw((5, 7), dtype), draw((7, 6), dtype)
    C = np.full((5, 6), np.nan, dtype_of(dtype))
    with force_kernel(kernel):
        check(mf.matmul_fused(A, B, C=C, beta=0, activation="relu"), A, B, None, "relu")
        check(mf.matmul_fused(A, B, C=C, beta=-0.0, out=C), A, B)


@pytest.mark.parametrize("other", [np.s_[::-1], np.s_[:, ::-1], np.s_[2], np.s_[:, :1]])
def test_c_that_is_not_read_may_overlap_anything(other):
    A, B = draw((5, 7)), draw((7, 6))
    out = np.full((5, 6), np.nan, np.float32)
    mf.matmul_fused(A, B, C=out[other], beta=0, out=out)
    check(out, A, B)
    z = np.empty((5, 6), np.float32)
    mf.matmul_fused(A, B, C=z[other], beta=0, preactivation=z)
    check(z, A, B)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("activation", ["silu", "swiglu"])
def test_alpha_0_does_not_read_a_and_b(kernel, activation):
    columns = 12 if activation == "swiglu" else 6
    A, B = np.full((5, 7), np.nan, np.float32), np.full((7, columns), np.inf, np.float32)
    C, bias = draw((5, columns)), draw(columns)
    with force_kernel(kernel):
        got = mf.matmul_fused(A, B, bias, activation, alpha=0, C=C, beta=2)
    check(got, A[:, :0], B[:0], bias, activation, C=C, beta=2)
