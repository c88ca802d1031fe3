"""gemm_gemv on the simulated AMD GPUs: where it is chosen, what it refuses, ends of K and N, each epilogue.

The sweep (--device hip:...) has it on the case list; its lines are whole runs of 16 bytes, here they end anywhere.
"""

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, simulator  # noqa: F401
from matmul_fused.testing import force_kernel
from support import check, draw, dtype_of, same_bits

PARTS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
WAVES = ("gfx942", "gfx1100")  # of 64 lanes, and of 32
STEPS = {"float16": 1024, "bfloat16": 1024, "float32": 512}


@pytest.fixture(params=WAVES)
def dev(request):
    return hipsim.Device(request.param)


def in_nan(dev, shape, dtype, seed):
    """A matrix in lines that go on with NaN behind their end: what lies there must not be read. NumPy's, and dev's."""
    lines, length = shape
    plain = draw(shape, dtype, seed)
    padded = np.full((lines, (length + 15) // 8 * 8), np.nan, plain.dtype)
    padded[:, :length] = plain
    return plain, dev.array(padded)[:, :length]


@pytest.mark.parametrize("dtype", STEPS)
@pytest.mark.parametrize("part", PARTS)
def test_every_part(part, dtype):
    dev = hipsim.Device(part)
    for m, n, k in ((1, 40, 8), (2, 24, STEPS[dtype]), (3, 16, 2 * STEPS[dtype] + 16), (4, 5, 3 * STEPS[dtype] - 8)):
        (a, x), (w, y) = (in_nan(dev, shape, dtype, seed) for seed, shape in enumerate(((m, k), (n, k))))
        bias = draw(n, "float32", 3)
        with force_kernel("gemm_gemv"):
            got = mf.matmul_fused(x, y.mT, dev.array(bias), "silu")
        check(dev.to_numpy(got), a, w.T, bias, activation="silu")


@pytest.mark.parametrize("dtype", STEPS)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 7, 9, 257, 511, 1023, 1025, 2055])
def test_ends_of_lines(dev, dtype, k):
    """Less than a run, a run, a step; an odd number of columns."""
    for m, n in ((1, 17), (3, 33), (4, 1)):
        (a, x), (w, y) = (in_nan(dev, shape, dtype, seed) for seed, shape in enumerate(((m, k), (n, k))))
        with force_kernel("gemm_gemv"):
            got = mf.matmul_fused(x, y.mT, out_dtype="float32")
        check(dev.to_numpy(got), a, w.T)


EPILOGUES = {
    "halves": {"activation": "swiglu"},
    "up first": {"activation": "geglu", "gate_layout": "halves_up_first"},
    "a column of bias": {"bias": (4, 1), "activation": "relu"},
    "C": {"C": (4, 48), "beta": 0.7, "alpha": -1.25, "bias": (48,)},
    "general": {"activation": "mish", "multiply": (4, 48), "bias": (48,)},
    "C and an activation": {"C": (4, 48), "activation": "gelu"},
    "float64": {"out_dtype": "float64", "activation": "tanh"},
}


@pytest.mark.parametrize("dtype", STEPS)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(dev, name, dtype):
    a, w = draw((4, 72), dtype, 1), draw((48, 72), dtype, 2)
    given = {
        key: draw(value, dtype, 3 + len(key)) if isinstance(value, tuple) else value
        for key, value in EPILOGUES[name].items()
    }
    for m in (1, 4):
        some = {key: x[:m] if isinstance(x, np.ndarray) and x.ndim == 2 else x for key, x in given.items()}
        there = {key: dev.array(x) if isinstance(x, np.ndarray) else x for key, x in some.items()}
        with force_kernel("gemm_gemv"):
            got = mf.matmul_fused(dev.array(a[:m]), dev.array(w).mT, **there)
        check(dev.to_numpy(got), a[:m], w.T, **{key: x for key, x in some.items() if key != "out_dtype"})


def test_pairs_batches_and_prepacked_weights(dev):
    """Rows of one A for all of a batch, of one weight and of two; a weight whose lines are at odd addresses."""
    a, both = draw((3, 64), "bfloat16"), draw((2, 48, 64), "bfloat16", 1)
    x, w = dev.array(a), dev.array(both)
    pair = dev.array(both[:, :24]).mT, dev.array(both[:, 24:]).mT
    packed = mf.prepack(dev.array(draw((48, 65), "bfloat16", 1))[:, :64].mT, gate_layout="halves")
    with force_kernel("gemm_gemv"):
        results = [dev.to_numpy(mf.matmul_fused(x, b, activation="swiglu")) for b in (w.mT, pair)]
        of_packed = dev.to_numpy(mf.matmul_fused(x, packed, activation="swiglu"))
    check(results[0], a, both.swapaxes(1, 2), activation="swiglu")
    check(of_packed, a, draw((48, 65), "bfloat16", 1)[:, :64].T, activation="swiglu")
    assert same_bits(*results)


def test_bits_of_a_row_do_not_depend_on_its_neighbours(dev):
    a, w = dev.array(draw((4, 1104), "float16"))[:, :1100], dev.array(draw((40, 1104), "float16", 1))[:, :1100].mT
    name = "gemm_gemv_4x16x1024_f16_nt"
    with force_kernel(name):
        every = dev.to_numpy(mf.matmul_fused(a, w))
        for m in range(4):
            assert same_bits(dev.to_numpy(mf.matmul_fused(a[m : m + 1], w)), every[m : m + 1])


# Choice


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dtype", STEPS)
def test_few_rows_are_taken(part, dtype):
    dev = hipsim.Device(part)
    w = dev.empty((4096, 4096), dtype_of(dtype)).mT
    few = 3 if part.startswith("gfx1") and dtype != "float32" else 5  # from there on gemm_wmma_thin's time is less
    for m in range(1, 6):
        found = mf.explain(dev.empty((m, 4096), dtype_of(dtype)), w)
        short = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
        taken = f"gemm_gemv_{1 if m == 1 else 4}x16x{STEPS[dtype]}_{short}_nt"
        assert (found.kernel == taken) == (m < few)
        assert m >= few or found.rows_independent_of_m


FEW = "takes M up to 4 and K from 1 to 268435456"
ALONG = "needs A and B with stride 1 along K, and multiples of 16 bytes along the other axis and the batch"
TAKEN = {  # A's and B's lines: shape in memory, what is cut off the front, and off the end of each -> why it is refused
    "plain": ((4, 64), 0, 0, (24, 64), 0, 0, None),
    "rows": ((5, 64), 0, 0, (24, 64), 0, 0, FEW),
    "no products": ((4, 0), 0, 0, (24, 0), 0, 0, FEW),
    "a cut line": ((4, 64), 0, 1, (24, 64), 0, 1, None),
    "odd lines of A": ((4, 63), 0, 0, (24, 64), 0, 1, ALONG),
    "one odd line of A": ((1, 63), 0, 0, (24, 64), 0, 1, None),
    "odd lines of B": ((4, 64), 0, 1, (24, 63), 0, 0, ALONG),
    "address of A": ((4, 72), 1, 7, (24, 64), 0, 0, ALONG),
    "address of B": ((4, 64), 0, 0, (24, 72), 1, 7, ALONG),
    "next run": ((4, 72), 8, 0, (24, 72), 8, 0, None),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken(dev, name):
    *lines, why = TAKEN[name]
    x, y = (
        dev.array(draw(shape, "float16"))[:, front : shape[1] - end] for shape, front, end in (lines[:3], lines[3:])
    )
    found = mf.explain(x, y.mT)
    row = next(row for row in found.candidates if row.name == "gemm_gemv_4x16x1024_f16_nt")
    assert row.reason == why


def test_layouts_that_are_refused(dev):
    x, y = dev.array(draw((4, 64), "float16")), dev.array(draw((64, 24), "float16"))
    turned = dev.array(draw((64, 4), "float16")).mT
    for a, b in ((x, y), (turned, y)):
        reasons = {row.reason for row in mf.explain(a, b).candidates if row.name == "gemm_gemv_4x16x1024_f16_nt"}
        assert reasons == {ALONG}


@pytest.mark.parametrize("more", [0, 1])
def test_longest_k(dev, more):
    k = 2**28 + more
    x, w = dev.empty((1, 2**28 + 4), np.float32)[:, :k], dev.empty((1, 2**28 + 4), np.float32)[:, :k]
    rows = [row for row in mf.explain(x, w.mT).candidates if row.name == "gemm_gemv_4x16x512_f32_nt"]
    assert [row.reason for row in rows] == [FEW if more else None]
