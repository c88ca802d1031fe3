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


@pytest.mark.parametrize(("kernel", "dtype", "sizes", "most"), ROWS, ids=[row[0] for row in ROWS])
def test_rows_over_4_gib(dev, kernel, dtype, sizes, most):
    m, n, k = sizes
    a, w, c = draw((m, k), dtype), draw((n, k), dtype, 1), draw((m, n), dtype, 2)
    bias = draw(n, dtype, 3)
    x, out = placed(dev, a, most), sparse(dev, (m, n), a.dtype)
    weight = placed(dev, w, most)
    added = dev.array(c)  # three such operands fit into 16 GiB
    skip_unless_taken(kernel, x, weight.mT)
    for view in (x, out):
        assert view.byte_strides[0] * (m - 1) > 1 << 32
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
