"""Where gemm_gemv, gemm_gemv_stream and gemm_mma_thin are chosen, what they refuse, how they are launched.

On a stand-in CUDA driver.
"""

import numpy as np
import pytest

import matmul_fused as mf
from gpu_support import balance, driver  # noqa: F401
from matmul_fused.testing import force_kernel
from stub_cuda import DeviceArray, calls, clear_log, fetch

STREAM = "gemm_gemv_stream_1x16x1024_f16_nt"
SM_90A = any(arch == "sm_90a" for arch, _, _ in mf._core.device_objects())
pytestmark = pytest.mark.skipif(not SM_90A, reason="this build has no code for sm_90a")


def draw(*shape, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def reasons(*operands, **arguments):
    """Why the rows of the operands' dtype refuse the call; None: one does not."""
    found = mf.explain(*(DeviceArray(x) for x in operands), **arguments)
    return {row.reason for row in found.candidates if row.family == "gemm_gemv"}


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "kernel"),
    [
        (1, 16384, 256, np.float16, "gemm_gemv_1x16x512_f16_nt"),
        (1, 72, 4096, np.float16, "gemm_gemv_1x16x1024_f16_nt"),
        (1, 264, 1024, np.float32, "gemm_gemv_1x16x512_f32_nt"),
        (4, 264, 1024, np.float32, "gemm_gemv_4x16x512_f32_nt"),
    ],
)
def test_few_rows_are_taken(m, n, k, dtype, kernel):
    a, w = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype, seed=1)
    clear_log()
    found = mf.explain(DeviceArray(a), DeviceArray(w.T))
    out = fetch(mf.matmul_fused(DeviceArray(a), DeviceArray(w.T), activation="relu"))
    assert found.kernel == kernel
    assert found.rows_independent_of_m
    (launch,) = calls("cuLaunchKernelEx")  # in a cluster of one, which may overlap
    threads = 128 if kernel == "gemm_gemv_1x16x512_f16_nt" else 256
    assert launch.startswith(f"cuLaunchKernelEx({kernel}, {-(-n // 16)}, {threads}")
    assert np.allclose(out, np.maximum(a.astype(float) @ w.T, 0), rtol=4e-3, atol=0.1)


def test_one_row_and_a_large_weight_stream():
    a, w = draw(1, 4096), np.zeros((1024, 4096), np.float16)  # large for the stand-in's four units
    assert mf.explain(DeviceArray(a), DeviceArray(w.T)).kernel == STREAM


@pytest.mark.parametrize(("n", "workgroups"), [(24, 3), (72, 4)])
def test_workgroups_of_the_stream_stay(n, workgroups):
    a, w = draw(1, 1040), draw(n, 1040, seed=1)
    clear_log()
    with force_kernel(STREAM):
        out = fetch(mf.matmul_fused(DeviceArray(a), DeviceArray(w.T), activation="relu"))
    (launch,) = calls("cuLaunchKernelEx")
    assert launch.startswith(f"cuLaunchKernelEx({STREAM}, {workgroups}, 320")
    assert np.allclose(out, np.maximum(a.astype(float) @ w.T, 0), rtol=4e-3, atol=0.1)


def test_what_the_stream_refuses():
    a, w = DeviceArray(draw(3, 1, 64)), DeviceArray(draw(3, 40, 64).swapaxes(1, 2))
    assert {row.reason for row in mf.explain(a, w).candidates if row.name == STREAM} == {"takes no batch"}


@pytest.mark.parametrize(
    ("m", "n", "k", "kernel"),
    [
        (2, 64, 1024, "gemm_mma_thin_16x32x512_f16_nt"),
        (5, 64, 512, "gemm_mma_thin_16x32x512_f16_nt"),
        (16, 72, 512, "gemm_mma_thin_16x32x512_f16_nt"),
        (17, 264, 1024, "gemm_wgmma_64x128x64_f16_nt"),
    ],
)
def test_more_rows(m, n, k, kernel):
    a, w = DeviceArray(draw(m, k)), DeviceArray(draw(n, k).T)
    assert mf.explain(a, w).kernel == kernel
    if kernel.startswith("gemm_mma_thin"):
        clear_log()
        mf.matmul_fused(a, w)
        (launch,) = calls("cuLaunchKernelEx")
        assert launch.startswith(f"cuLaunchKernelEx({kernel}, {-(-n // 32)}, 256")


def test_what_gemm_mma_thin_refuses():
    def found(a, b, **arguments):
        rows = mf.explain(DeviceArray(a), DeviceArray(b), **arguments).candidates
        return {row.reason for row in rows if row.name == "gemm_mma_thin_16x32x512_f16_nt"}

    assert found(draw(16, 64), draw(40, 64).T) == {None}
    assert found(draw(17, 64), draw(40, 64).T) == {"takes M up to 16 and K from 1 to 1073741824"}
    assert found(draw(8, 72)[:, :68], draw(40, 72)[:, :68].T) == {"takes K in multiples of 8"}
    (reason,) = found(draw(8, 64), draw(40, 64).T, out_dtype="float32")
    assert "truncate" in reason


def test_gates_and_pairs():
    a, gate, up = draw(3, 64), draw(40, 64, seed=1), draw(40, 64, seed=2)
    with force_kernel("gemm_gemv"):
        out = fetch(mf.matmul_fused(DeviceArray(a), (DeviceArray(gate.T), DeviceArray(up.T)), activation="reglu"))
    z = [a.astype(float) @ w.T for w in (gate, up)]
    assert np.allclose(out, np.maximum(z[0], 0) * z[1], rtol=4e-3, atol=0.1)


WIDE = draw(264, 72)
FEW = "takes M up to 4 and K from 1 to 1073741824"
ALONG = "needs A and B with stride 1 along K, and multiples of 16 bytes along the other axis and the batch"


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (draw(5, 64), draw(64, 64).T, {FEW}),
        (draw(4, 0), draw(64, 0).T, {FEW}),
        (draw(4, 64), draw(64, 64), {ALONG}),
        (draw(4, 63)[:, :62], draw(62, 64), {ALONG}),  # lines of A of 126 bytes
        (draw(4, 64), draw(64, 68), {ALONG}),  # of B, of 136 bytes
        (draw(64, 4).T, draw(64, 64), {ALONG}),
        (draw(64, 4).T, draw(64, 64).T, {ALONG}),
        (draw(4, 63), draw(64, 63).T, {ALONG}),  # lines of 126 bytes
        (draw(4, 64), WIDE[:, 1:65].T, {ALONG}),  # at 2 bytes behind a multiple
        (draw(2, 4, 72).swapaxes(0, 1)[:, :, :64], draw(64, 64).T, {None}),  # a batch inside of the rows
        (draw(4, 64), WIDE[:, 8:72].T, {None}),
        (draw(4, 63, 2)[:, :, 0], draw(64, 64)[:, :63].T, {ALONG}),
        (draw(4, 64)[:, :63], draw(64, 64)[:, :63].T, {None}),
        (draw(4, 64)[:, :63], draw(63, 64), {ALONG}),
        (draw(1, 63), draw(64, 64)[:, :63].T, {None}),  # one line: where the next begins does not count
    ],
)
def test_what_is_taken(a, b, reason):
    found = reasons(a, b) - {"takes M up to 1 and K from 1 to 1073741824"}
    assert {text for text in found if text is None or "only" not in text} == reason


def test_sums_are_not_truncated():
    assert None in reasons(draw(1, 64), draw(64, 64).T, out_dtype="float32")
