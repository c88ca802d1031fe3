"""Results of few columns on the CPU: dot products of columns of B with many rows, tiles that read A where it lies, a B
that each of few threads packs for its own rows. The bits are those of any count of threads."""

import itertools

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import force_kernel
from support import KERNELS, check, draw, dtype_of, dtype_of_row, nothing_ran, same_bits

CASES = [
    *itertools.product(KERNELS[:-1], ("float32", "float64", "float16")),
    *((row, dtype_of_row(row)) for row in mf.info().kernels[:-1]),
]


def _check_threads(kernel, A, B, bias, activation, counts=(1, 2, 3, 7)):
    """Checks the values, and that every count of threads writes the same bits."""
    m, n, dtype = len(A), B.shape[1] // (2 if activation == "swiglu" else 1), A.dtype
    results = []
    for threads in counts:
        out = np.full((m, n), np.nan, dtype)
        try:
            with force_kernel(kernel), mf.num_threads(threads):
                mf.matmul_fused(A, B, bias, activation, out=out)
        except NotImplementedError as refusal:
            assert not results, "refused on some counts of threads only"
            nothing_ran(kernel, str(refusal))
            return
        results.append(out)
    for out in results[1:]:
        assert same_bits(out, results[0])
    check(results[0], A, B, bias, activation)


@pytest.mark.parametrize("columns", [4, 5, 8, 9, 12, 16, 17, 24, 25])
@pytest.mark.parametrize(("kernel", "dtype"), CASES)
def test_few_columns_against_many_rows(kernel, dtype, columns):
    """Groups of columns and of four rows, each with a rest; K around its least, a block and a step; a long K. The rows
    of both operands have gaps."""
    sizes = (25, 255), (33, 256), (50, 127), (49, 128), (26, 511), (27, 512), (31, 1037), (130, 2048), (29, 32769)
    for rows, k in sizes:
        A, W = draw((rows, k + 5), dtype)[:, :k], draw((columns, k + 3), dtype)[:, :k]
        _check_threads(kernel, A, W.T, draw(columns, dtype), "gelu", (1, 3))


@pytest.mark.parametrize("columns", [2, 3, 4, 7, 8, 10, 15, 17, 18, 20, 24])
@pytest.mark.parametrize(("kernel", "dtype"), CASES)
def test_few_columns_of_a_weight_stored_by_rows(kernel, dtype, columns):
    """Columns that are copied to lines, 16 rows of B at once with a rest, by one thread and several. Memory ends behind
    the last element, which a sanitizer sees; NaN lies between the rows of some; all rows of the last one are one."""
    for rows, k, gap in ((26, 143, 0), (40, 144, 1), (200, 513, 0), (64, 1037, 40), (130, 9000, 3), (300, 600, None)):
        if gap is None:
            B = np.broadcast_to(draw(columns, dtype), (k, columns))
        else:
            pitch = columns + gap
            space = np.full((k - 1) * pitch + columns, np.nan, dtype_of(dtype))
            steps = (pitch * space.itemsize, space.itemsize)
            B = np.lib.stride_tricks.as_strided(space, (k, columns), steps)
            B[:] = draw((k, columns), dtype)
        _check_threads(kernel, draw((rows, k), dtype), B, draw(columns, dtype), "gelu", (1, 2, 9))


@pytest.mark.parametrize("columns", [2, 5, 12, 24])
@pytest.mark.parametrize(("kernel", "dtype"), CASES)
def test_few_columns_of_gate_and_up(kernel, dtype, columns):
    for rows, k in ((30, 300), (77, 1100)):
        A, W = draw((rows, k), dtype), draw((2 * columns, k), dtype)
        _check_threads(kernel, A, W.T, draw(2 * columns, dtype), "swiglu", (1, 2))


@pytest.mark.parametrize("order", ["K x N", "W.T"])
@pytest.mark.parametrize("k", [2, 30, 31, 1026, 4098])
@pytest.mark.parametrize("kernel", mf.info().kernels[:-1])
def test_pairs_of_a_narrow_problem(kernel, k, order):
    """Rows of A that lie an even or an odd count of elements apart, that begin at an odd one, or contiguous in m; of a
    K in one piece or several."""
    dtype = dtype_of_row(kernel)
    for rows, columns in ((9, 33), (40, 20), (65, 100), (170, 200)):
        B = draw((k, columns), dtype) if order == "K x N" else draw((columns, k), dtype).T
        for A in (
            draw((rows, k), dtype),
            draw((rows, k + 4), dtype)[:, 1 : k + 1],
            draw((rows, k + 5), dtype)[:, 2 : k + 2],
            draw((k, rows), dtype).T,
        ):
            _check_threads(kernel, A, B, draw(columns, dtype), "silu", (1, 2))


@pytest.mark.parametrize("order", ["K x N", "W.T"])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize(("kernel", "dtype"), CASES)
def test_threads_that_pack_a_narrow_weight_for_themselves(kernel, dtype, activation, order):
    """Rows that do not divide by the threads, K in one piece, several, and so many that sums are compensated."""
    for rows, columns, k in ((163, 34, 100), (501, 64, 1100), (1030, 20, 2100), (200, 30, 20000)):
        A = draw((rows, k), dtype)
        B = draw((k, columns), dtype) if order == "K x N" else draw((columns, k), dtype).T
        _check_threads(kernel, A, B, draw(columns, dtype), activation, (1, 2, 3, 7))


@pytest.mark.parametrize("columns", [1, 3, 7, 15, 17, 31, 47])
@pytest.mark.parametrize(("kernel", "dtype"), CASES)
def test_columns_that_end_within_a_panel(kernel, dtype, columns):
    """Of a weight (K, N), behind whose last element NaN lies."""
    for rows, k in ((4, 5), (13, 200), (40, 33)):
        space = np.full(k * columns + 64, np.nan, dtype_of(dtype))
        B = space[: k * columns].reshape(k, columns)
        B[:] = draw((k, columns), dtype)
        _check_threads(kernel, draw((rows, k), dtype), B, draw(columns, dtype), "relu", (1, 2))
