"""prepack and PackedMatrix as B: the values of the plain weight, its facts, unpack. Refusals: test_prepack_refusals.py.

The bits of layout "panels64" are those of a call with a plain weight that is packed for it (both go through the same
tiles), and of one to three rows of a row-major one. Few rows read other plain weights where they lie and sum in another
order.
Pickling, copying and immutability are in test_lifetime.py.
"""

import contextlib
import itertools
import math
import pickle

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import matmul_fused as mf
from matmul_fused.testing import force_kernel
from support import DTYPES, KERNELS, Generic, check, draw, dtype_of, same_bits, to_numpy

PACKING = KERNELS[:-1]  # the reference reads plain weights only
READ_PAIRS = ("cpu_blocked_amx", "cpu_blocked_avx512_bf16")  # that read layout "pairs64"
GATES = (None, "halves", "halves_up_first", "interleaved")
SIZES = (0, 1, 15, 16, 17, 63, 64, 65)

SOURCES = {
    "row-major": draw,
    "column-major": lambda shape, dtype: draw(shape[::-1], dtype).T,
    "padded rows": lambda shape, dtype: draw((shape[0], shape[1] + 3), dtype)[:, : shape[1]],
    "every second column": lambda shape, dtype: draw((shape[0], 2 * shape[1]), dtype)[:, ::2],
    "every third row": lambda shape, dtype: draw((3 * shape[0], shape[1]), dtype)[1::3],
    "rows backwards": lambda shape, dtype: draw(shape, dtype)[::-1],
    "columns backwards": lambda shape, dtype: draw(shape, dtype)[:, ::-1],
    "backwards and transposed": lambda shape, dtype: draw(shape[::-1], dtype)[::-1, ::-1].T,
    "one row for all": lambda shape, dtype: as_strided(draw(shape[1], dtype), shape, (0, dtype_of(dtype).itemsize)),
    "one column for all": lambda shape, dtype: np.broadcast_to(draw((shape[0], 1), dtype), shape),
    "at an odd address": lambda shape, dtype: draw((shape[0] * shape[1] + 3,), dtype)[3:].reshape(shape),
}


# --- values ---


@pytest.mark.parametrize("gate_layout", GATES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", SOURCES)
def test_values_are_those_of_the_plain_weight(source, dtype, gate_layout):
    B = SOURCES[source]((33, 70), dtype)
    packed = mf.prepack(B, gate_layout=gate_layout, layout="panels64")
    assert same_bits(to_numpy(packed.unpack()), np.ascontiguousarray(B))
    activation, bias = ("geglu" if gate_layout else "gelu"), draw(70, dtype)
    for kernel, rows in itertools.product(PACKING, (1, 3, 40)):
        A = draw((rows, 33), dtype)
        with force_kernel(kernel):
            got = mf.matmul_fused(A, packed, bias, activation)
        check(got, A, B, bias, activation, gate_layout=gate_layout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", PACKING)
def test_bits_are_those_of_a_row_major_weight(kernel, dtype):
    """4 to 48 rows of 16 bits, and with AVX-512 many rows of few columns, have a weight whose columns have gaps: a
    dense one is summed by lines, or by dot products."""
    for m, k, n in itertools.product((1, 3, 4, 13, 200), (1, 17, 700), (2, 16, 17, 65, 200)):
        A, B = draw((m, k), dtype), draw((k, n), dtype)
        by_dots = "avx512" in kernel and n <= 24 < m and k >= 128
        has_gaps = by_dots or (3 < m <= 48 and B.itemsize == 2)
        with force_kernel(kernel):
            plain = mf.matmul_fused(A, np.repeat(B, 2, axis=1)[:, ::2] if has_gaps else B, None, "silu")
            packed = mf.matmul_fused(A, mf.prepack(B, layout="panels64"), None, "silu")
        assert same_bits(plain, packed), (m, k, n)


@pytest.mark.parametrize("gate_layout", GATES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_around_the_panels(dtype, gate_layout):
    activation = "reglu" if gate_layout else "relu"
    for k, n in itertools.product(SIZES, SIZES):
        columns = 2 * n if gate_layout else n
        A, B = draw((3, k), dtype), draw((k, columns), dtype)
        packed = mf.prepack(B, gate_layout=gate_layout)
        assert packed.shape == (k, columns)
        assert same_bits(to_numpy(packed.unpack()), B), (k, n)
        got = mf.matmul_fused(A, packed, None, activation)
        assert got.shape == (3, n)
        check(got, A, B, None, activation, gate_layout=gate_layout)


@pytest.mark.parametrize("kernel", PACKING)
@pytest.mark.parametrize("shape", [(7,), (1, 7), (4, 5, 7), (2, 1, 3, 4, 7), (0, 7), (2, 0, 7)])
def test_a_may_have_any_rank(kernel, shape):
    A, B = draw(shape), draw((7, 20))
    C, multiply = draw(20), draw((*shape[:-1], 20))
    z, out = np.empty((*shape[:-1], 20)), np.empty((*shape[:-1], 20), np.float16)
    with force_kernel(kernel):
        keywords = {"alpha": 0.5, "beta": 2, "C": C, "multiply": multiply}
        got = mf.matmul_fused(A, mf.prepack(B), draw(20), "mish", **keywords, preactivation=z, out=out)
    assert got is out
    check(out, A, B, draw(20), "mish", **keywords)
    check(z, A, B, draw(20), alpha=0.5, beta=2, C=C)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("kernel", PACKING)
def test_few_rows_read_panels_of_16_bits_once(kernel, rows, dtype):
    """In sums of eight lines, in pieces of K and a rest; a longer K goes through tiles. Of the largest result the RMS
    counts, too: its terms are positive."""
    for k, columns in ((1, 18), (31, 40), (770, 4100), (1543, 34), (13824, 20), (13825, 20)):
        A, B, bias = np.abs(draw((k, rows), dtype)).T, np.abs(draw((k, columns), dtype)), draw(columns, dtype)
        for gate in (None, "swiglu"):
            with force_kernel(kernel):
                packed = mf.prepack(B, gate_layout="halves" if gate else None)
                got = mf.matmul_fused(A, packed, bias, gate, out_dtype="float32")
            check(got, A, B, bias, gate)


def test_alpha_0_does_not_read_a_packed_weight():
    A, B, C = np.full((5, 7), np.nan, np.float32), np.full((7, 12), np.nan, np.float32), draw((5, 12))
    assert same_bits(mf.matmul_fused(A, mf.prepack(B), alpha=0, C=C), C)
    got = mf.matmul_fused(A, mf.prepack(B, gate_layout="halves"), None, "swiglu", alpha=0, C=C)
    check(got, A[:, :0], B[:0], None, "swiglu", C=C)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate_layout", GATES)
def test_unpack_is_exact(dtype, gate_layout):
    info = {"float32": np.finfo(np.float32), "float64": np.finfo(np.float64), "float16": np.finfo(np.float16)}
    tiny, most = (2.0**-133, 3.38e38) if dtype == "bfloat16" else (info[dtype].smallest_subnormal, info[dtype].max)
    B = draw((20, 34), dtype)
    B.flat[:7] = [0.0, -0.0, np.inf, -np.inf, tiny, -tiny, most]
    got = to_numpy(mf.prepack(B, gate_layout=gate_layout).unpack())
    assert same_bits(got, B)
    B[3:5, 30:] = np.nan
    got = to_numpy(mf.prepack(B, gate_layout=gate_layout).unpack())
    np.testing.assert_array_equal(got.astype(float), B.astype(float))


# --- facts ---


@pytest.mark.parametrize("gate_layout", GATES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_matrix_says_what_it_is(dtype, gate_layout):
    packed = mf.prepack(draw((7, 50), dtype), gate_layout=gate_layout)
    assert (packed.shape, packed.dtype, packed.device) == ((7, 50), dtype, "cpu")
    assert (packed.layout, packed.gate_layout) == ("panels64", gate_layout)
    streams, columns = (2 if gate_layout else 1), (8 if dtype == "float64" else 16)
    panels = math.ceil(50 / streams / columns) * 7 * columns * dtype_of(dtype).itemsize
    assert packed.nbytes == streams * math.ceil(panels / 64) * 64
    gate = f" gate_layout={gate_layout}" if gate_layout else ""
    wanted = f"<matmul_fused.PackedMatrix shape=(7, 50) dtype={dtype} device=cpu layout=panels64{gate}>"
    assert repr(packed) == wanted
    array = packed.unpack()
    assert type(array) is mf.Array
    assert (array.shape, array.dtype) == ((7, 50), dtype)


def test_layout_may_be_named():
    B = draw((7, 6))
    for layout in ("auto", "panels64"):
        assert mf.prepack(B, layout=layout).layout == "panels64"


def layout_of(shape, dtype="bfloat16", **keywords):
    packed = mf.prepack(draw(shape, dtype), **keywords)
    assert packed.nbytes <= 1.1 * mf.prepack(draw(shape, dtype), layout="panels64", **keywords).nbytes
    return packed.layout


@pytest.mark.parametrize("gate_layout", GATES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 4])
def test_few_columns_are_packed_as_columns(columns, dtype, gate_layout):
    """A call with them is that with W.T, and they take the memory of W."""
    k, n = 1027, 2 * columns if gate_layout else columns
    B = draw((k, n), dtype)
    packed = mf.prepack(B, gate_layout=gate_layout)
    assert packed.layout == "columns"
    assert packed.nbytes <= n * (k * dtype_of(dtype).itemsize + 63)
    assert same_bits(to_numpy(packed.unpack()), B)
    assert same_bits(to_numpy(pickle.loads(pickle.dumps(packed)).unpack()), B)
    activation = "swiglu" if gate_layout else "gelu"
    more = {"gate_layout": gate_layout} if gate_layout else {}
    for kernel, rows in itertools.product((None, *KERNELS), (1, 5, 130)):
        A, bias = draw((rows, k), dtype), draw(n, dtype)
        with force_kernel(kernel) if kernel else contextlib.nullcontext():
            got = mf.matmul_fused(A, packed, bias, activation)
            check(got, A, B, bias, activation, **more)
            if gate_layout in (None, "halves"):
                assert same_bits(got, mf.matmul_fused(A, np.asfortranarray(B), bias, activation, **more))


@pytest.mark.parametrize(
    ("k", "columns", "dots"),
    [
        (127, 4, DTYPES),
        (127, 5, ()),
        (128, 7, ("float32", "float64", "float16")),
        (256, 7, DTYPES),
        (512, 9, DTYPES),
        (600, 8, ("float32", "float16", "bfloat16")),  # of float64 a full panel
        (600, 16, ("float16",)),  # which is widened
        (1027, 17, DTYPES),
        (600, 24, ("float32", "float16", "bfloat16")),
        (600, 25, ()),
        (32769, 5, ()),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_some_columns_stay_columns_where_dot_products_take_them(dtype, k, columns, dots):
    """With AVX-512, unless AMX has tiles for them."""
    features = mf.info().cpu_features
    if "avx512" not in features or (dtype == "bfloat16" and "amx_bf16" in features):
        dots = DTYPES if columns <= 4 else ()
    elif dtype == "bfloat16" and "avx512_bf16" not in features:
        dots = ("bfloat16",) if "float16" in dots else ()
    for gate_layout in GATES:
        B = draw((k, 2 * columns if gate_layout else columns), dtype)
        packed = mf.prepack(B, gate_layout=gate_layout)
        assert (packed.layout == "columns") == (dtype in dots)
        A, more = draw((40, k), dtype), {"gate_layout": gate_layout} if gate_layout else {}
        activation = "swiglu" if gate_layout else "relu"
        check(mf.matmul_fused(A, packed, None, activation), A, B, None, activation, **more)


def test_columns_may_be_many():
    A, B = draw((33, 70)), draw((70, 129))
    packed = mf.prepack(B, layout="columns")
    assert packed.layout == "columns"
    assert same_bits(to_numpy(packed.unpack()), B)
    assert same_bits(mf.matmul_fused(A, packed), mf.matmul_fused(A, np.asfortranarray(B)))


def test_auto_takes_the_layout_of_the_best_row():
    """Where a row of pairs would run a large product of bfloat16, and pairs do not cost much memory."""
    large = draw((1024, 1024), "bfloat16")
    pairs = mf.explain(large, large).kernel in READ_PAIRS
    wanted = "pairs64" if pairs else "panels64"
    for shape, gate_layout in itertools.product(((96, 70), (1027, 66), (2048, 50)), GATES):
        assert layout_of(shape, gate_layout=gate_layout) == wanted
    assert layout_of((7, 50)) == layout_of((97, 64)) == "panels64"  # 32 and 128 k
    for dtype in ("float32", "float16", "float64"):
        assert layout_of((96, 70), dtype) == "panels64"
    for kernel in PACKING:
        with force_kernel(kernel):
            assert layout_of((96, 70)) == "panels64"
    with force_kernel(KERNELS[-1]):  # which reads none
        assert layout_of((96, 70)) == "panels64"
    for row in READ_PAIRS:
        if not dict(mf.explain(large, large).refused).get(row, "").startswith(("needs", "disabled")):
            with force_kernel(row):
                assert layout_of((96, 70)) == "pairs64"


@pytest.mark.parametrize("gate_layout", [None, "halves", "interleaved"])
@pytest.mark.parametrize("shape", [(1, 2), (31, 16), (64, 34), (1027, 66)])
def test_pairs_of_bfloat16(shape, gate_layout):
    """Layout "pairs64": copied back as it was; where a row reads it, right for any number of rows."""
    B = draw(shape, "bfloat16")
    packed = mf.prepack(B, gate_layout=gate_layout, layout="pairs64")
    assert packed.layout == "pairs64"
    assert same_bits(to_numpy(packed.unpack()), B)
    activation = "swiglu" if gate_layout else "relu"
    refused = dict(mf.explain(draw((17, shape[0]), "bfloat16"), B).refused)
    lacks = all(refused.get(row, "").startswith(("needs", "disabled")) for row in READ_PAIRS)
    for m in (1, 2, 3, 5, 16, 17, 50):
        A = draw((m, shape[0]), "bfloat16")
        if lacks:
            with pytest.raises(
                NotImplementedError, match="cpu_blocked: reads prepacked weights of layout panels64 only"
            ):
                mf.matmul_fused(A, packed, None, activation)
            continue
        assert mf.explain(A, packed, None, activation).kernel in READ_PAIRS
        for row in READ_PAIRS:
            if not refused.get(row, "").startswith(("needs", "disabled")):
                with force_kernel(row):
                    got = mf.matmul_fused(A, packed, None, activation)
                check(got, A, B, None, activation, gate_layout=gate_layout)


def test_pairs_hold_bfloat16_only():
    with pytest.raises(ValueError, match='layout "pairs64" holds bfloat16 only, but B is float32'):
        mf.prepack(draw((4, 4)), layout="pairs64")


def test_sources_of_every_library():
    B, A = draw((7, 6)), draw((5, 7))
    wanted = mf.matmul_fused(A, B)
    array = mf.matmul_fused(Generic(np.eye(7, dtype=np.float32)), B)
    for source in (B, Generic(B), array, np.asfortranarray(B)):
        assert same_bits(mf.matmul_fused(A, mf.prepack(source)), wanted)
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(7, 6).requires_grad_(False)
    packed = mf.prepack(linear.weight.T)
    got = mf.matmul_fused(torch.from_numpy(A), packed, linear.bias)
    assert isinstance(got, torch.Tensor)
    check(got.numpy(), A, linear.weight.T.numpy(), linear.bias.numpy())


def test_explain_knows_packed_weights():
    A, packed = draw((5, 7)), mf.prepack(draw((7, 6)))
    explanation = mf.explain(A, packed, None, "relu")
    assert explanation.kernel == KERNELS[0]
    assert "M=5 N=6 K=7" in explanation.problem
    with force_kernel(KERNELS[-1]), pytest.raises(NotImplementedError) as caught:
        mf.explain(A, packed)
    assert str(caught.value).endswith("cpu_reference: does not implement prepacked weights)")


def test_the_reference_kernel_refuses_packed_weights():
    out = np.full((5, 6), np.nan, np.float32)
    with force_kernel("cpu_reference"), pytest.raises(NotImplementedError) as caught:
        mf.matmul_fused(draw((5, 7)), mf.prepack(draw((7, 6))), out=out)
    text = str(caught.value)
    assert text.startswith("no kernel takes this call (")
    assert text.endswith("cpu_reference: does not implement prepacked weights)")
    for kernel in PACKING:
        assert f"{kernel}: cpu_reference is forced; " in text
    assert np.isnan(out).all()


# --- pairs ---


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pair_becomes_one_packed_matrix(dtype):
    gate, up, A = draw((17, 35), dtype), draw((35, 17), dtype).T, draw((5, 17), dtype)
    packed = mf.prepack((gate, up))
    assert (packed.shape, packed.gate_layout) == ((17, 70), "halves")
    both = np.concatenate([gate, up], 1)
    assert same_bits(to_numpy(packed.unpack()), both)
    bias = draw(70, dtype)
    got = mf.matmul_fused(A, packed, bias, "swiglu")
    assert same_bits(got, mf.matmul_fused(A, mf.prepack(both, gate_layout="halves"), bias, "swiglu"))
    check(got, A, both, bias, "swiglu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_matrices_make_a_pair(dtype):
    gate, up, A = draw((17, 35), dtype), draw((17, 35), dtype, seed=1), draw((5, 17), dtype)
    bias = draw(35, dtype), draw(35, dtype, seed=1)
    z = np.empty((5, 70), np.float32)
    got = mf.matmul_fused(A, (mf.prepack(gate), mf.prepack(up)), bias, "geglu", preactivation=z)
    check(got, A, (gate, up), bias, "geglu")
    check(z, A.astype("f4"), np.concatenate([gate, up], 1).astype("f4"), np.concatenate(bias).astype("f4"))


def test_one_packed_matrix_twice():
    packed, A, B = mf.prepack(draw((7, 6))), draw((5, 7)), draw((7, 6))
    check(mf.matmul_fused(A, (packed, packed), None, "glu"), A, (B, B), None, "glu")
