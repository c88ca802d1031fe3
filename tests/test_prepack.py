"""prepack and PackedMatrix as B: the values of the plain weight, its facts, unpack, and every refusal.

The bits are those of a call with the plain weight wherever that is row-major with more than one column (both go
through the same tiles); a weight stored (N, K) is read as dot products by few rows, which sum in another order.
Pickling, copying and immutability are in test_lifetime.py.
"""

import itertools
import math
import pickle
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import matmul_fused as mf
from matmul_fused.testing import force_kernel
from support import DTYPES, KERNELS, Generic, check, draw, dtype_of, python, same_bits, to_numpy

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
    for m, k, n in itertools.product((1, 3, 4, 13, 200), (1, 17, 700), (2, 16, 17, 65, 200)):
        A, B = draw((m, k), dtype), draw((k, n), dtype)
        with force_kernel(kernel):
            plain, packed = mf.matmul_fused(A, B, None, "silu"), mf.matmul_fused(A, mf.prepack(B), None, "silu")
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


def test_auto_takes_the_layout_of_the_best_row():
    """Where a row of pairs would run a large product of bfloat16, and pairs do not cost much memory."""
    large = draw((1024, 1024), "bfloat16")
    pairs = mf.explain(large, large).kernel in READ_PAIRS
    wanted = "pairs64" if pairs else "panels64"
    for shape, gate_layout in itertools.product(((96, 70), (1027, 66), (2048, 16)), GATES):
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
    for m in (1, 2, 5, 16, 17, 50):
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


# --- refusals ---

A32, B32 = draw((5, 7)), draw((7, 6))
PACKED = {name: mf.prepack(B32, gate_layout=name) for name in GATES}


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "text"),
    [
        ((draw((2, 7, 6)),), {}, NotImplementedError, r"B has shape \(2, 7, 6\); prepack takes one matrix, pack each"),
        ((draw(7),), {}, ValueError, r"B has shape \(7,\); prepack takes a matrix \(K, N\)"),
        ((draw(()),), {}, ValueError, r"B has shape \(\); prepack takes a matrix"),
        ((draw((7, 5)),), {"gate_layout": "halves"}, ValueError, r"even number of columns, but B is \(7, 5\)"),
        (
            (B32,),
            {"gate_layout": "thirds"},
            ValueError,
            'unknown gate_layout "thirds"; it is halves, halves_up_first or',
        ),
        ((B32,), {"gate_layout": 2}, TypeError, "gate_layout must be None or a str, got int"),
        (
            (B32,),
            {"layout": "tiles"},
            ValueError,
            'unknown layout "tiles"; on the CPU it is "auto", "panels64" or "pairs64"',
        ),
        ((B32,), {"layout": None}, TypeError, "layout must be a str"),
        ((B32,), {"gates": 1}, TypeError, r"prepack\(\) got an unexpected keyword argument 'gates'"),
        ((B32, "halves"), {}, TypeError, r"prepack\(\) takes at most 1 positional argument"),
        ((), {}, TypeError, r"prepack\(\) missing required argument 'B'"),
        (([[1.0]],), {}, TypeError, "B is a list, not an array"),
        ((PACKED[None],), {}, TypeError, "B is a PackedMatrix"),
        ((B32.astype(int),), {}, TypeError, "B has dtype int64"),
        ((B32.astype(">f4"),), {}, TypeError, "byte-swapped"),
        (((B32,),), {}, ValueError, r"B is a tuple of 1; a pair is \(gate, up\)"),
        (
            ((B32, B32[:, :4]),),
            {},
            ValueError,
            r"B\[0\] and B\[1\] must have one shape and dtype, got \(7, 6\) float32",
        ),
        (((B32, B32.astype("f8")),), {}, ValueError, r"got \(7, 6\) float32 and \(7, 6\) float64"),
        (((B32, draw((2, 7, 6))),), {}, NotImplementedError, "prepack takes one matrix"),
        (((B32, B32),), {"gate_layout": "halves"}, ValueError, "gate_layout was given but B is a pair"),
        (((B32, PACKED[None]),), {}, TypeError, r"B\[1\] is a PackedMatrix"),
    ],
)
def test_prepack_refuses(arguments, keywords, error, text):
    with pytest.raises(error, match=text) as caught:
        mf.prepack(*arguments, **keywords)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("B", "keywords", "error", "text"),
    [
        (
            PACKED[None],
            {"A": draw((5, 7), "float64")},
            TypeError,
            "A and B must have one dtype, got float64 and float32",
        ),
        (PACKED[None], {"A": draw((5, 6))}, ValueError, r"A \(5, 6\) and B \(7, 6\) do not match"),
        (PACKED[None], {"A": draw(())}, ValueError, "each needs at least one axis"),
        (PACKED[None], {"activation": "swiglu"}, ValueError, 'use prepack\\(B, gate_layout="halves"\\)'),
        (PACKED[None], {"gate_layout": "halves"}, ValueError, "gate_layout was given but the activation has no gate"),
        (PACKED["halves"], {}, ValueError, "B was prepacked for a gate but activation none is not gated"),
        (PACKED["halves"], {"activation": "relu"}, ValueError, "prepacked for a gate but activation relu is not gated"),
        (
            PACKED["halves"],
            {"activation": "glu", "gate_layout": "interleaved"},
            ValueError,
            "gate_layout differs from the one that B was prepacked with",
        ),
        ((PACKED[None], B32), {"activation": "glu"}, TypeError, r"B\[0\] and B\[1\] must both be prepacked or both be"),
        ((B32, PACKED[None]), {"activation": "glu"}, TypeError, r"B\[0\] and B\[1\] must both be prepacked or both be"),
        ((PACKED["halves"],) * 2, {"activation": "glu"}, ValueError, r"B\[0\] was prepacked with a gate_layout"),
        (
            (PACKED[None], PACKED["halves"]),
            {"activation": "glu"},
            ValueError,
            r"B\[1\] was prepacked with a gate_layout",
        ),
        ((PACKED[None],) * 2, {}, ValueError, r"B is a pair \(gate, up\) but activation none is not gated"),
        ((PACKED[None],) * 2, {"activation": "glu", "bias": draw(6)}, ValueError, "bias must be None or a pair"),
        ((PACKED[None], mf.prepack(draw((7, 4)))), {"activation": "glu"}, ValueError, "must have one shape"),
        (PACKED[None], {"A": PACKED[None]}, TypeError, "A is a PackedMatrix; only B can be prepacked"),
        (PACKED[None], {"bias": PACKED[None]}, TypeError, "bias is a PackedMatrix; only B can be prepacked"),
        (PACKED[None], {"out": PACKED[None]}, TypeError, "out is a PackedMatrix; only B can be prepacked"),
    ],
)
def test_calls_refuse_packed_weights(B, keywords, error, text):
    with pytest.raises(error, match=text) as caught:
        mf.matmul_fused(**{"A": A32, "B": B} | keywords)
    assert type(caught.value) is error


def test_a_pair_of_biases_for_a_pair_packed_or_not():
    pair, biases = (draw((7, 6)), draw((7, 6), seed=1)), (draw(6), draw(6, seed=1))
    wanted = mf.matmul_fused(A32, pair, biases, "swiglu")
    check(wanted, A32, np.hstack(pair), np.hstack(biases), "swiglu")
    packed = mf.prepack(pair)
    for weight in (packed, pickle.loads(pickle.dumps(packed)), mf.prepack(np.hstack(pair), gate_layout="halves")):
        assert same_bits(mf.matmul_fused(A32, weight, biases, "swiglu"), wanted)
        assert same_bits(mf.matmul_fused(A32, weight, np.hstack(biases), "swiglu"), wanted)
    z = np.full((A32.shape[0], 12), np.nan)
    mf.matmul_fused(A32, packed, biases, "swiglu", C=draw(12), preactivation=z)
    check(z, A32, np.hstack(pair), np.hstack(biases), C=draw(12))


def test_a_namedtuple_is_a_pair():
    class Pair(NamedTuple):
        gate: Any
        up: Any

    pair, biases = Pair(draw((7, 6)), draw((7, 6), seed=1)), Pair(draw(6), draw(6, seed=1))
    for weight in (pair, mf.prepack(pair)):
        check(mf.matmul_fused(A32, weight, biases, "geglu"), A32, np.hstack(pair), np.hstack(biases), "geglu")


def test_unpack_of_a_read_only_weight_is_writable():
    weight = draw((7, 6))
    weight.flags.writeable = False
    for B in (weight, (weight, weight)):
        copy = np.from_dlpack(mf.prepack(B).unpack())
        assert copy.flags.writeable
        out = mf.prepack(weight).unpack()
        assert mf.matmul_fused(draw((7, 7)), draw((7, 6), seed=1), out=out) is out


def test_a_pickle_of_more_columns_than_bytes_can_be_counted_of():
    make, (_, *rest) = mf.prepack(np.zeros((2, 2), np.float32)).__reduce__()
    dtype, gate = rest[-2:]
    for name in ("bfloat16", "float32", str(dtype)):
        with pytest.raises(MemoryError, match=r"no memory for a packed \w+ weight \(0, 9223372036854775807\)"):
            make(b"", 0, 2**63 - 1, name, gate)


@pytest.mark.parametrize("call", ["prepack", "prepack a pair", "unpack", "pickle"])
def test_other_threads_run_while_a_weight_is_copied(call):
    """Threads that want the GIL get it when it is released: here nobody is asked to give it up for 100 s."""
    weight = np.ones((2048, 2048), np.float32)
    packed = mf.prepack(weight)
    function, argument = {
        "prepack": (mf.prepack, weight),
        "prepack a pair": (mf.prepack, (weight, weight)),
        "unpack": (mf.PackedMatrix.unpack, packed),
        "pickle": (mf.PackedMatrix.__reduce__, packed),
    }[call]
    runs = []
    ready, go = threading.Event(), threading.Event()

    def other():
        ready.set()
        go.wait()
        runs.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    before = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        go.set()
        for _ in range(100):
            function(argument)
            if runs:
                break
        ran = bool(runs)
    finally:
        sys.setswitchinterval(before)
    thread.join()
    assert ran


def test_the_gate_layout_may_be_repeated():
    for gate_layout in GATES[1:]:
        got = mf.matmul_fused(A32, PACKED[gate_layout], None, "glu", gate_layout=gate_layout)
        check(got, A32, B32, None, "glu", gate_layout=gate_layout)


@pytest.mark.parametrize("columns", [1, 2**57])
def test_a_weight_too_large_to_pack_is_refused(columns):
    """Zero strides make a huge weight of one element; its panels would have 2**64 bytes."""
    code = f"""if True:
        import numpy as np, matmul_fused as mf
        weight = np.broadcast_to(np.float16(1), (2**58 // {columns}, {columns}))
        try:
            mf.prepack(weight)
        except (MemoryError, ValueError):
            print("refused")"""
    assert python("-c", code).stdout == "refused\n"
