"""gemm_wgmma on operands that tensor copies cannot read, by a launch that copies them first; on the stand-in driver."""

import math

import numpy as np
import pytest

import matmul_fused as mf
from gpu_support import Capture, balance, driver, in_child  # noqa: F401
from matmul_fused.testing import force_kernel
from stub_cuda import DeviceArray, calls, clear_log, fail_next, fetch

SM_90A = any(arch == "sm_90a" for arch, _, _ in mf._core.device_objects())
pytestmark = pytest.mark.skipif(not SM_90A, reason="this build has no code for sm_90a")

KERNEL = {np.float16: "gemm_wgmma_128x128x64_f16_nt", np.float32: "gemm_wgmma_128x128x32_f32_nt"}
COPY = {np.float16: "repack_64x64x1_f16_any", np.float32: "repack_64x64x1_f32_any"}


def draw(*shape, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def launched():
    return [line.split("(")[1].split(",")[0] for line in calls("cuLaunchKernel", "cuLaunchKernelEx")]


def run(a, b, dtype, **arguments):
    with force_kernel(KERNEL[dtype]):
        b = tuple(map(DeviceArray, b)) if isinstance(b, tuple) else DeviceArray(b)
        found = mf.explain(DeviceArray(a), b, allow_tf32=True, **arguments)
        clear_log()
        return found, fetch(mf.matmul_fused(DeviceArray(a), b, allow_tf32=True, **arguments))


def padded(*shape, **arguments):
    return draw(*shape[:-1], shape[-1] + 1, **arguments)[..., :-1]


def copy_bytes(matrix, lines, k):
    """Lines of whole 64 bytes, operands at multiples of 256."""
    bytes_of_line = -(-k * matrix.itemsize // 64) * 64
    return -(-math.prod(matrix.shape[:-2]) * lines * bytes_of_line // 256) * 256


@pytest.mark.parametrize(
    ("a", "b", "dtype", "copied"),
    [
        (padded(70, 72), draw(140, 72).T, np.float16, "a"),
        (draw(70, 72), padded(140, 72).T, np.float16, "b"),
        (draw(70, 71), draw(140, 71).T, np.float16, "ab"),
        (draw(71, 70).T, draw(71, 141), np.float16, "ab"),  # neighbours are lines of the copies
        (draw(70, 71), draw(71, 140), np.float16, "ab"),
        (draw(70, 144)[:, ::2], draw(144, 140)[::-2], np.float16, "ab"),
        (padded(3, 70, 72), draw(140, 72).T, np.float16, "a"),
        (padded(3, 70, 72), padded(3, 140, 72).swapaxes(1, 2), np.float16, "ab"),
        (draw(70, 72, dtype=np.float32), draw(72, 140, dtype=np.float32), np.float32, "b"),  # tf32 of NN, TT, TN
        (draw(72, 72, dtype=np.float32).T, draw(140, 72, dtype=np.float32).T, np.float32, "a"),
        (draw(72, 72, dtype=np.float32).T, draw(72, 140, dtype=np.float32), np.float32, "ab"),
        (draw(70, 1), draw(1, 140)[:, ::-1], np.float16, "ab"),
    ],
)
def test_operands_are_copied_first(a, b, dtype, copied):
    found, out = run(a, b, dtype, activation="relu")
    assert launched() == list(found.launches) == [COPY[dtype], KERNEL[dtype]]
    k = a.shape[-1]
    bytes_of = {"a": copy_bytes(a, a.shape[-2], k), "b": copy_bytes(b, b.shape[-1], k)}
    assert found.workspace == sum(bytes_of[operand] for operand in copied)
    assert np.allclose(out, np.maximum(a.astype(float) @ b, 0), rtol=4e-3, atol=2e-2)


def test_a_pair_of_which_one_is_copied():
    a, gate, up = draw(70, 72), padded(140, 72, seed=1).T, draw(140, 72, seed=2).T
    for b in ((gate, up), (up, gate)):
        found, out = run(a, b, np.float16, activation="reglu")
        z = [a.astype(float) @ w for w in b]
        assert np.allclose(out, np.maximum(z[0], 0) * z[1], rtol=8e-3, atol=0.1)
        assert found.workspace == copy_bytes(up, 140, 72)


@pytest.mark.parametrize(
    ("m", "n", "k", "copies"), [(2048, 2048, 2047, True), (1, 2048, 2047, True), (64, 64, 63, False)]
)
def test_where_it_pays(m, n, k, copies):
    found = mf.explain(DeviceArray(np.zeros((m, k), np.float16)), DeviceArray(np.zeros((n, k), np.float16).T))
    assert (len(found.launches) == 2) == copies, found.launches


def test_tf32_of_row_major_weights():
    a, b = np.zeros((2048, 2048), np.float32), np.zeros((2048, 2048), np.float32)
    found = mf.explain(DeviceArray(a), DeviceArray(b), allow_tf32=True)
    assert found.launches[0] == "repack_64x64x1_f32_any"
    assert len(mf.explain(DeviceArray(a), DeviceArray(b)).launches) == 1  # exact products


def test_what_is_read_as_it_is_is_not_copied():
    """Row-major weights of 16 bits have rows of their own."""
    with force_kernel("gemm_wgmma_128x128x64_f16_nt"), pytest.raises(NotImplementedError, match="A and B are NN"):
        mf.explain(DeviceArray(draw(64, 64)), DeviceArray(draw(64, 64)))


def test_a_capture_takes_another_kernel():
    a, b = (DeviceArray(np.zeros((2048, 2047), np.float16)) for _ in range(2))
    b = DeviceArray(np.zeros((2048, 2047), np.float16).T)
    out = DeviceArray(np.full((2048, 2048), np.nan, np.float16))
    with Capture() as stream:
        found = mf.explain(a, b, out=out, stream=stream.handle)
    assert (len(found.launches), found.workspace) == (1, 0)
    why = {row.reason for row in found.candidates if row.name == "gemm_wgmma_128x128x64_f16_nt"}
    assert "while the stream is being captured it can have none" in why.pop()


def test_a_workspace_that_is_too_large():
    a = DeviceArray(np.zeros((1, 4097), np.float16))
    a.array = np.broadcast_to(a.array, (1 << 18, 4097))
    with force_kernel(KERNEL[np.float16]), pytest.raises(NotImplementedError, match="needs a workspace of 2164789248"):
        mf.explain(a, DeviceArray(draw(64, 4097).T))


@pytest.mark.parametrize(
    ("function", "skip"), [("cuLaunchKernelEx", 0), ("cuLaunchKernelEx", 1), ("cuMemAllocAsync", 1)]
)
def test_what_fails_is_named_and_the_next_call_works(function, skip):
    a, b = draw(70, 71), draw(140, 71).T
    x, y = DeviceArray(a), DeviceArray(b)
    with force_kernel(KERNEL[np.float16]):
        mf.matmul_fused(x, y)
        fail_next(function, 2, skip)
        with pytest.raises(mf.DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
            mf.matmul_fused(x, y)
        assert np.allclose(fetch(mf.matmul_fused(x, y)), a.astype(float) @ b, rtol=4e-3, atol=2e-2)
