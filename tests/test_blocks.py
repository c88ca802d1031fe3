"""Where kernels cut a problem: K in pieces whose sums are folded, compensated where there are many; leading axes that
are merged. Results that can be told exactly; the sweep runs the same shapes at random (cases.edge_cases)."""

import itertools

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import assert_close, embed, expect, force_kernel
from support import DTYPES, KERNELS, check, draw, dtype_of, dtype_of_row, nothing_ran, same_bits

DEPTHS = (1, 511, 512, 513, 1000, 1023, 1024, 1025, 2049, 8193, 16385)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", DEPTHS)
def test_integers_are_summed_exactly(kernel, dtype, k):
    rng = np.random.default_rng(k)
    A, B = rng.integers(-3, 4, (7, k)), rng.integers(-3, 4, (k, 37))
    with force_kernel(kernel):
        got = mf.matmul_fused(A.astype(dtype_of(dtype)), B.astype(dtype_of(dtype)), out_dtype="float64")
    np.testing.assert_array_equal(got, A @ B)


@pytest.mark.parametrize("kernel", [*KERNELS, *(row for row in mf.info().kernels if dtype_of_row(row) == "float16")])
def test_every_float16_is_multiplied_exactly(kernel):
    """AMX splits them: infinities meet no zero that the other operand does not have."""
    A = np.arange(1 << 16, dtype=np.uint16).view(np.float16)[:, None]
    B = np.float16([[0, -0.0, 1, -1, 1 / 3, 65504, 6e-8, -6e-8, 3e-5, 1e-3, np.inf, -np.inf, np.nan, -7, 2, 0.1]])
    try:
        with force_kernel(kernel):
            got = mf.matmul_fused(A, B, out_dtype="float32")
    except NotImplementedError as refusal:
        nothing_ran(kernel, str(refusal))
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(got, A.astype(np.float32) * B.astype(np.float32))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1025, 2049, 16600])
def test_infinite_sums_stay_infinite(kernel, dtype, k):
    """An infinity in any piece of K gives that infinity, not the NaN of inf - inf."""
    A, B = np.ones((9, k)), np.ones((k, 20))
    places = [0, 1, 200, 511, 512, k // 2, k - 2, k - 1]
    for row, place in enumerate(places):
        A[row, place] = np.inf if row % 2 else -np.inf
    with force_kernel(kernel):
        got = mf.matmul_fused(A.astype(dtype_of(dtype)), B.astype(dtype_of(dtype)), out_dtype="float64")
    want = np.where(np.arange(9) % 2 == 1, np.inf, -np.inf)
    want[-1] = k
    np.testing.assert_array_equal(got, np.broadcast_to(want[:, None], got.shape))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", KERNELS[:-1])
@pytest.mark.parametrize("k", [1, 4, 5, 300, 1100])
def test_products_that_are_all_minus_zero_make_zero(kernel, dtype, k):
    """Wherever a tile lies and however its sums began: the same sign."""
    A, B = np.full((113, k), -1, dtype), np.zeros((k, 400), dtype)
    with force_kernel(kernel):
        for weight in (B, np.asfortranarray(B), mf.prepack(B)):
            assert not np.signbit(mf.matmul_fused(A, weight)).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_overflowing_sums_are_infinite(kernel, dtype):
    """The sum passes the accumulator's greatest number in a late piece, and stays there."""
    k, greatest = 16600, np.finfo(dtype).max
    A, B = np.full((3, k), np.array(greatest / 10000, dtype)), np.ones((k, 20), dtype)
    with force_kernel(kernel):
        got = mf.matmul_fused(A, B)
    assert (got == np.inf).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gate", [None, "swiglu"])
@pytest.mark.parametrize("kernel", KERNELS[:-1])
def test_few_rows_of_a_weight_that_comes_from_memory(kernel, gate, dtype):
    """From 16 MiB on a row-major weight is read by lines, not by panels."""
    k, n = 1101, (4 if dtype == "float32" else 2) * 1024 + 26
    B, bias = draw((k, n), dtype), draw(n, dtype)
    assert B.nbytes > 16 << 20
    for rows in (1, 2, 3):
        A = draw((rows, k), dtype)
        with force_kernel(kernel):
            got = mf.matmul_fused(A, B, bias, gate)
        check(got, A, B, bias, gate)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", [None, "swiglu"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kernel", KERNELS[:-1])
def test_some_strips_of_a_weight_that_comes_from_memory(kernel, packed, gate, dtype):
    """From 4 MiB on what is packed next is asked for while tiles run: columns, then the next piece of K. Where rows are
    dot products with a plain weight, more than 24 are two blocks."""
    k, n = 1101, 2 * 1024 + 26
    W, bias = draw((n, k), dtype), draw(n, dtype)
    assert W.nbytes > 4 << 20
    with force_kernel(kernel):
        B = W.T if not packed else mf.prepack(W.T, gate_layout="halves" if gate else None)
        for rows in (16, 25, 48, 65):
            A = draw((rows, k), dtype)
            check(mf.matmul_fused(A, B, bias, gate), A, W.T, bias, gate)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("k", [256, 300, 1408, 4200])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize("shape", [(9, 17), (33, 161), (70, 200), (128, 130), (300, 384), (390, 400)])
@pytest.mark.parametrize("kernel", mf.info().kernels[:-1])
def test_a_weight_stored_by_columns(kernel, shape, activation, k, order):
    """Its columns are packed whole, or are the rows of tiles, where they lie or in strips; K ends within a tile or with
    one, in one piece or two. The two weights of a gated call have other gaps between columns."""
    rows, columns = shape
    dtype = dtype_of_row(kernel)
    A, B, bias = draw((rows, k), dtype), draw((columns, k), dtype).T, draw(columns, dtype)
    if activation == "swiglu":
        up = draw((columns, k + 40), dtype, seed=7)[:, :k].T
        B, bias = (B, up), (bias, draw(columns, dtype, seed=8))
    results = [np.full(shape, np.nan, dtype_of(dtype), order=order) for _ in range(2)]
    try:
        for threads, out in zip((2, 16), results, strict=True):
            with force_kernel(kernel), mf.num_threads(threads):
                mf.matmul_fused(A, B, bias, activation, out=out)
    except NotImplementedError as refusal:
        nothing_ran(kernel, str(refusal))
        return
    check(results[0], A, B, bias, activation)
    assert same_bits(*results)


@pytest.mark.parametrize("shape", [(40, 2056, 2048), (390, 1312, 800), (401, 1301, 827), (385, 400, 4200)])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize("kernel", mf.info().kernels[:-1])
def test_a_large_prepacked_weight(kernel, shape, activation):
    """Its panels are read as columns of B or, by tiles that split them, turned to rows: for few rows of A by many
    threads alone. There is a rest of columns, of a tile of k, and K has pieces. AMX sums as for a plain B."""
    rows, columns, k = shape
    dtype = dtype_of_row(kernel)
    A, B, bias = draw((rows, k), dtype), draw((columns, k), dtype).T, draw(columns, dtype)
    if activation == "swiglu":
        B, bias = (B, draw((columns, k), dtype, seed=7).T), (bias, draw(columns, dtype, seed=8))
    results = []
    for threads, packed in ((2, True), (16, True), (2, False))[: 3 if "amx" in kernel else 2]:
        out = np.full((rows, columns), np.nan, dtype_of(dtype))
        try:
            with force_kernel(kernel), mf.num_threads(threads):
                mf.matmul_fused(A, mf.prepack(B) if packed else B, bias, activation, out=out)
        except NotImplementedError as refusal:
            assert not results
            nothing_ran(kernel, str(refusal))
            return
        results.append(out)
    check(results[0], A, B, bias, activation)
    for result in results:
        assert same_bits(result, results[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [4, 5, 6, 7, 11, 16, 24, 25])
@pytest.mark.parametrize("kernel", KERNELS[:-1])
def test_some_rows_of_a_weight_stored_by_columns(kernel, rows, dtype):
    """Dot products in groups of rows and of four lines, in blocks of k with a rest; of a pair of weights, too."""
    for k, columns in ((1037, 23), (2048, 8), (9, 6), (11009, 5), (32769, 5)):
        A, B, bias = draw((rows, k), dtype), draw((columns, k), dtype).T, draw(columns, dtype)
        for gate in (None, "swiglu") if columns % 2 == 0 else (None,):
            shape = (rows, columns // 2 if gate else columns)
            out = np.full(shape, np.nan, dtype_of(dtype))
            with force_kernel(kernel):
                mf.matmul_fused(A, B, bias, gate, out=out)
            check(out, A, B, bias, gate)


def _on_threads(kernel, counts, C, A, B, bias, gate, packed=False):
    """Checks the call with out=C, whose bits are those of any count of threads; or says why it is refused."""
    results = []
    for threads in counts:
        out = C.copy()
        try:
            with force_kernel(kernel), mf.num_threads(threads):
                weight = mf.prepack(B, gate_layout=gate and "halves") if packed else B
                mf.matmul_fused(A, weight, bias, gate, out=out, **({} if gate else {"beta": 2, "C": out}))
        except NotImplementedError as refusal:
            assert not results, "refused on some counts of threads only"
            return str(refusal)
        results.append(out)
    for out in results:
        assert same_bits(out, results[0])
    check(results[0], A, B, bias, gate, **({} if gate else {"beta": 2, "C": C}))
    return None


@pytest.mark.parametrize("rows", [3, 4, 5, 16, 17, 48, 49])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        *itertools.product(KERNELS[:-1], ("float32", "float64", "float16")),
        *((row, dtype_of_row(row)) for row in mf.info().kernels[:-1]),
    ],
)
def test_some_rows_of_a_weight_stored_by_rows(kernel, rows, dtype):
    """Groups of two vectors of columns with a rest, eight lines or pairs of lines with a rest, pieces of K; small
    weights, and such as come from memory; the rows of A and of the weight have gaps. Of the largest results the RMS
    counts, too: their terms are positive. Every block of the result is written once, whatever the threads."""
    refusals = []
    for k, columns in (
        (1, 34),
        (7, 33),
        (33, 66),
        (769, 2 * 1024 + 26),
        (2049, 800),
        (300, 4130),
        (13825, 34),
        (30011, 42),
    ):
        A, B = np.abs(draw((rows, k + 3), dtype))[:, :k], np.abs(draw((k, columns + 5), dtype))[:, :columns]
        bias, sums = draw(columns, dtype), "float32" if dtype != "float64" else dtype
        for gate in (None, "swiglu") if columns % 2 == 0 else (None,):
            C = draw((rows, columns // 2 if gate else columns), sums)
            refusals.append(_on_threads(kernel, (1, 2, 7), C, A, B, bias, gate))
            A = np.asfortranarray(A)
    if all(refusals):
        nothing_ran(kernel, refusals[0])


@pytest.mark.parametrize("kernel", mf.info().kernels[:-1])
@pytest.mark.parametrize("rows", [3, 6, 40])
def test_a_batch_against_weights_stored_by_rows(kernel, rows):
    """Each with a weight of its own, and both weights of a gate."""
    dtype = dtype_of_row(kernel)
    A, B = draw((3, rows, 95), dtype), draw((3, 95, 98), dtype)
    try:
        with force_kernel(kernel):
            check(mf.matmul_fused(A, B, None, "relu"), A, B, None, "relu")
            pair = B[0, :, :48], B[1, :, :48]
            check(mf.matmul_fused(A[0], pair, None, "swiglu"), A[0], pair, None, "swiglu")
    except NotImplementedError as refusal:
        nothing_ran(kernel, str(refusal))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS[:-1])
def test_slices_of_k_are_summed_as_one_thread_does(kernel, rows, dtype):
    """From 1 MiB on tasks sum pieces of K of a weight stored by rows, or parts of its lines; of a long K, in groups."""
    for k, columns in ((790, 742), (6001, 90), (14336, 70), (30011, 22)):
        A, B, bias = draw((rows, k), dtype), draw((k, columns + 3), dtype)[:, :columns], draw(columns, dtype)
        for gate in (None, "swiglu"):
            with force_kernel(kernel):
                with mf.num_threads(1):
                    want = mf.matmul_fused(A, B, bias, gate)
                check(want, A, B, bias, gate)
                for threads in (2, 5, 16):
                    with mf.num_threads(threads):
                        assert same_bits(mf.matmul_fused(A, B, bias, gate), want), (k, gate, threads)


@pytest.mark.parametrize("rows", [4, 12, 33, 100])
@pytest.mark.parametrize("layout", ["K x N", "W.T", "prepacked"])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        *itertools.product(KERNELS[:-1], ("float32", "float64", "float16")),
        *((row, dtype_of_row(row)) for row in mf.info().kernels[:-1]),
    ],
)
def test_pieces_of_k_are_summed_as_one_thread_does(kernel, dtype, layout, rows):
    """Where the result is small threads share the pieces of K, the last of which is shorter. C is read and written."""
    refusals = []
    for k, columns in ((2049, 33), (4000, 63), (4096, 16), (4096, 242), (3104, 130), (8192, 2)):
        A, W, bias = draw((rows, k), dtype), draw((columns, k + 3), dtype)[:, :k], draw(columns, dtype)
        B = np.ascontiguousarray(W.T) if layout == "K x N" else W.T
        sums = "float32" if dtype != "float64" else dtype
        for gate in (None, "swiglu") if columns % 2 == 0 else (None,):
            C = draw((rows, columns // 2 if gate else columns), sums)
            refusals.append(_on_threads(kernel, (1, 2, 7, 16), C, A, B, bias, gate, layout == "prepacked"))
    if all(refusals):
        nothing_ran(kernel, refusals[0])


@pytest.mark.parametrize("shape", [(3, 16, 8192), (8, 64, 2048), (30, 64, 4096)])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [*((row, "float32") for row in KERNELS[:-1]), *((row, dtype_of_row(row)) for row in mf.info().kernels[:-1])],
)
def test_pieces_of_k_of_weights_stored_in_two_ways(kernel, dtype, shape):
    rows, columns, k = shape
    A, gate, up = draw((rows, k), dtype), draw((k, columns), dtype), draw((2 * k, 2 * columns), dtype)
    ways = [up[:k, :columns], np.asfortranarray(up[:k, :columns]), up[::2, ::2], up[k - 1 :: -1, columns - 1 :: -1]]
    for pair in itertools.product((gate, np.asfortranarray(gate)), ways):
        for B in (pair, pair[::-1]):
            try:
                with force_kernel(kernel):
                    with mf.num_threads(1):
                        want = mf.matmul_fused(A, B, None, "reglu")
                    check(want, A, B, None, "reglu")
                    for threads in (2, 8):
                        with mf.num_threads(threads):
                            assert same_bits(mf.matmul_fused(A, B, None, "reglu"), want), threads
            except NotImplementedError as refusal:
                nothing_ran(kernel, str(refusal))


@pytest.mark.parametrize("kernel", KERNELS[:-1])
def test_dot_products_of_a_very_long_k_are_summed_as_one_thread_does(kernel):
    A, W = draw((4, 2**18 + 1024), "float32"), draw((5, 2**18 + 1024), "float32")
    results = []
    for threads in (1, 2):
        with force_kernel(kernel), mf.num_threads(threads):
            results.append(mf.matmul_fused(A, W.T))
    assert same_bits(*results)
    check(results[0], A, W.T)


@pytest.mark.parametrize("layout", ["K x N", "W.T"])
@pytest.mark.parametrize("kernel", KERNELS[:-1])
def test_threads_share_the_pieces_of_k(kernel, layout):
    """The result is one block, which one thread would compute."""
    A, B = draw((30, 8192), "float32"), draw((8192, 16), "float32")
    with force_kernel(kernel), mf.num_threads(4):
        assert mf.explain(A, B if layout == "K x N" else np.asfortranarray(B)).threads == 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("kernel", [*KERNELS[:-1], "chosen"])
def test_few_rows_of_a_long_weight_stored_by_columns(kernel, gap, rows, dtype):
    """Up to 256 columns at once, one of each quarter or four that follow each other: the same sums wherever a column
    lies."""
    k, columns = 301, 3 * 256 + 7
    A, W, bias = draw((rows, k), dtype), draw((columns, k + gap), dtype)[:, :k], draw(columns, dtype)
    if kernel == "chosen":
        kernel = mf.explain(A, W.T, bias, "silu").kernel
    with force_kernel(kernel), mf.num_threads(1):
        got = mf.matmul_fused(A, W.T, bias, "silu")
        for first in (0, 63, 190, 254, 513, 770):
            part = slice(first, first + 5)
            np.testing.assert_array_equal(got[:, part], mf.matmul_fused(A, W[part].T, bias[part], "silu"))
    check(got, A, W.T, bias, "silu")


OPERANDS = ("A", "bias", "C", "multiply", "preactivation", "out")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("uneven", OPERANDS)
def test_axes_merge_only_if_every_operand_steps_evenly(kernel, rows, uneven):
    """B does not vary over the leading axes, and all operands but one could be seen as one long matrix."""
    shape, k, columns = (2, 3, rows), 6, 7
    gap = {axis: [(0, 2) if at == axis else (0, 0) for at in range(4)] for axis in range(3)}
    for pad in (gap[1], gap[2] if rows > 1 else gap[1]):
        operands = {}
        for name in OPERANDS:
            full = (*shape, k if name == "A" else columns)
            buffer = draw(full, seed=OPERANDS.index(name))
            if name == uneven:
                buffer = np.pad(buffer, pad, constant_values=np.nan)
            operands[name] = buffer
        views = {n: x[:, : shape[1], : shape[2]] for n, x in operands.items()}
        before = {name: view.copy() for name, view in views.items()}
        B = draw((k, columns), seed=9)
        with force_kernel(kernel):
            out = mf.matmul_fused(B=B, activation="silu", **views)
        inputs = {name: before[name] for name in ("bias", "C", "multiply")}
        expected, expected_z = expect(before["A"], B, activation="silu", **inputs)
        assert_close(out, expected, "float32")
        assert_close(views["preactivation"], expected_z, "float32", "preactivation")
        if uneven in ("out", "preactivation"):
            assert np.isnan(operands[uneven]).sum() == operands[uneven].size - views[uneven].size


def test_padded_views_of_the_cases_have_a_gap_after_every_axis():
    operand = embed("out", (2, 3, 4), "float32", "padded", writable=True)
    assert operand.strides == (3 * (4 + 3) + 3, 4 + 3, 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_clamp_with_its_bounds_swapped_is_torchs(kernel):
    """min(max(z, low), high): high everywhere, NaN where z is NaN."""
    z = np.float32([-5, 0, 0.5, 1, 2, np.inf, -np.inf, np.nan])
    with force_kernel(kernel):
        got = mf.matmul_fused(np.ones((1, 0), np.float32), np.ones((0, 8), np.float32), z, ("clamp", 2, 1))[0]
    np.testing.assert_array_equal(got, np.float32([1] * 7 + [np.nan]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_swiglu_oai_clamps_up_on_both_sides(kernel):
    u = np.float32([-1e30, -9, -7.5, -7, 0, 7, 7.5, 1e30])
    gate = np.full(8, 3, np.float32)
    with force_kernel(kernel):
        empty = np.ones((1, 0), np.float32), np.ones((0, 16), np.float32)
        got = mf.matmul_fused(*empty, np.concatenate([gate, u]), "swiglu_oai")[0]
    np.testing.assert_allclose(got, 3 / (1 + np.exp(-1.702 * 3)) * (np.clip(u, -7, 7) + 1), rtol=1e-5)
