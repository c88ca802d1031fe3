"""Operands and results of more than 4 GiB: rows far apart in sparse memory of a simulated GPU, few tiles each."""

import gc
import os

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hipsim import hip
from matmul_fused.testing import force_kernel
from support import check, draw

PART = os.environ["MMF_TEST_SIMULATED"]
SPAN = 5 << 30

pytestmark = pytest.mark.device


@pytest.fixture
def dev():
    yield hipsim.Device(0)
    gc.collect()


def copy_rows(view, values, to_device):
    """Row by row: what lies between the rows is never touched."""
    for row, memory in zip(values.reshape(-1, values.shape[-1]), rows_of(view), strict=True):
        first, second = (memory, row.ctypes.data) if to_device else (row.ctypes.data, memory)
        hip("hipMemcpyAsync", first, second, row.nbytes, 1 if to_device else 2, 0)
    hip("hipStreamSynchronize", 0)


def rows_of(view):
    return [view[index].pointer for index in np.ndindex(*view.shape[:-1])]


def sparse(dev, shape, dtype, most=SPAN):
    """A view of this shape whose rows are spread over 5 GiB, or as far apart as may be."""
    count = int(np.prod(shape[:-1]))
    pitch = min(SPAN // count, most) // dtype.itemsize // 8 * 8
    return dev.empty((*shape[:-1], pitch), dtype)[..., : shape[-1]]


def placed(dev, values, most=SPAN):
    view = sparse(dev, values.shape, values.dtype, most)
    copy_rows(view, values, to_device=True)
    return view


def skip_unless_taken(kernel, *operands):
    """Only a part without a gemm_mfma may skip: tests/allowed_skips.txt knows no other reason."""
    with force_kernel(kernel):
        try:
            mf.explain(*operands)
        except NotImplementedError as error:
            pytest.skip(f"{kernel} ran nothing: {error}")


# The matrix-core kernels take rows less than 2^24 bytes apart, the generic one any.
ROWS = [
    ("gemm_simt", "float32", (130, 70, 33), SPAN),
    ("gemm_mfma", "float16", (321, 140, 40), 2**24 - 16),
    ("gemm_mfma_f32", "float32", (321, 140, 40), 2**24 - 16),
    ("gemm_mfma_f64", "float64", (321, 140, 40), 2**24 - 16),
]


# Kernels of whole lines of 16 bytes. Of whole chunks 256 lines lie within 2^31 bytes, so those of A or of B are many.
CHUNKS = {
    "gfx90a": ("gemm_pingpong_staged", "gemm_pingpong_staged_splitk", "gemm_thin"),
    "gfx942": ("gemm_pingpong_staged", "gemm_pingpong_staged_splitk", "gemm_thin", "gemm_thin_splitk"),
    "gfx950": ("gemm_pingpong", "gemm_pingpong_splitk", "gemm_thin"),
    "gfx1100": ("gemm_wmma", "gemm_wmma_thin"),
    "gfx1201": ("gemm_wmma", "gemm_wmma_thin"),
}
MOST = 2**23 - 4096
LINES = [(kernel, "bfloat16", size, MOST) for kernel in CHUNKS[PART] for size in ((660, 72, 136), (72, 660, 136))]
LINES += [("gemm_gemv", "bfloat16", (4, 72, 136), SPAN), ("gemm_gemv", "bfloat16", (1, 660, 136), MOST)]


def name_of(row):
    return f"{row[0]}-{'x'.join(map(str, row[2]))}"


@pytest.mark.parametrize(("kernel", "dtype", "sizes", "most"), ROWS + LINES, ids=map(name_of, ROWS + LINES))
def test_rows_over_4_gib(dev, kernel, dtype, sizes, most):
    m, n, k = sizes
    a, w, c = draw((m, k), dtype), draw((n, k), dtype, 1), draw((m, n), dtype, 2)
    bias = draw(n, dtype, 3)
    x, out = placed(dev, a, most), sparse(dev, (m, n), a.dtype)
    weight = placed(dev, w, most)
    added = dev.array(c)  # three such operands fit into 16 GiB
    skip_unless_taken(kernel, x, weight.mT)
    assert any(view.byte_strides[0] * (view.shape[0] - 1) > 1 << 32 for view in (x, weight))
    assert out.byte_strides[0] * (m - 1) > 1 << 32 or m <= 4
    with force_kernel(kernel):
        assert mf.matmul_fused(x, weight.mT, dev.array(bias), "silu", C=added, out=out) is out
    got = np.empty((m, n), a.dtype)
    copy_rows(out, got, to_device=False)
    check(got, a, w.T, bias, "silu", C=c)


@pytest.mark.parametrize(("kernel", "dtype"), [row[:2] for row in ROWS], ids=[row[0] for row in ROWS])
def test_batches_over_4_gib(dev, kernel, dtype):
    a, b = draw((3, 20, 24), dtype), draw((3, 24, 18), dtype, 1)
    x, out = (dev.empty((3, SPAN // 2 // a.itemsize), a.dtype) for _ in range(2))
    y = dev.empty((3, 24 * 18), b.dtype)
    views = [v[:, : size * last].reshape(3, size, last) for v, size, last in ((x, 20, 24), (y, 24, 18), (out, 20, 18))]
    skip_unless_taken(kernel, *views[:2])
    for view, values in zip(views, (a, b), strict=False):
        copy_rows(view, values, to_device=True)
    with force_kernel(kernel):
        mf.matmul_fused(*views[:2], activation="relu", out=views[2])
    got = np.empty((3, 20, 18), a.dtype)
    copy_rows(views[2], got, to_device=False)
    check(got, a, b, activation="relu")


@pytest.mark.parametrize("kernel", [*CHUNKS[PART], "gemm_gemv"])
def test_batches_of_lines_over_4_gib(dev, kernel):
    """The weight as nn.Linear has it, and the result, each a quarter of 10 GiB from the next one of the batch."""
    values = [draw((3, rows, columns), "bfloat16", seed) for seed, (rows, columns) in enumerate(((4, 24), (40, 24)))]
    memory = [dev.empty((3, SPAN // 2 // 2), values[0].dtype) for _ in range(2)]
    w, out = (
        one[:, : rows * columns].reshape(3, rows, columns)
        for one, (rows, columns) in zip(memory, ((40, 24), (4, 40)), strict=True)
    )
    a = dev.array(values[0])
    copy_rows(w, values[1], to_device=True)
    with force_kernel(kernel):
        mf.matmul_fused(a, w.mT, activation="relu", out=out)
    got = np.empty((3, 4, 40), values[0].dtype)
    copy_rows(out, got, to_device=False)
    check(got, values[0], values[1].swapaxes(1, 2), activation="relu")
