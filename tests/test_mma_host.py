"""What gemm_mma, gemm_fma and their split forms take and ask of the CUDA driver, on the stand-in driver."""

import numpy as np
import pytest

import matmul_fused as mf
from gpu_support import Capture, balance, driver, in_child  # noqa: F401
from matmul_fused.testing import force_kernel
from stub_cuda import DeviceArray, calls, clear_log, fail_next, fetch

SM_80 = any(arch == "sm_80" for arch, _, _ in mf._core.device_objects())
SM_90A = any(arch == "sm_90a" for arch, _, _ in mf._core.device_objects())
pytestmark = pytest.mark.skipif(not SM_80, reason="this build has no code for sm_80")


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def reasons(family, *operands, **arguments):
    """Why each row of the family refuses the call; None: it does not."""
    found = mf.explain(*map(DeviceArray, operands), **arguments)
    return {row.reason for row in found.candidates if row.family == family}


def check_shared_memory(kernel, dtype, tf32, shared):
    a, b = draw(130, 37, dtype=dtype), draw(37, 70, dtype=dtype, seed=1)
    with force_kernel(kernel):
        out = fetch(mf.matmul_fused(DeviceArray(a), DeviceArray(b), activation="relu", allow_tf32=tf32))
    assert np.allclose(out, np.maximum(a.astype(float) @ b, 0), rtol=2e-3, atol=1e-2)
    assert any(f"({kernel}, 8, {shared})" in call for call in calls("cuFuncSetAttribute"))
    (launch,) = calls("cuLaunchKernel")
    assert kernel in launch


@pytest.mark.parametrize(
    ("kernel", "dtype", "tf32", "shared"),
    [
        ("gemm_mma_128x128x64_f16_any", np.float16, False, 98304),  # three stages of 256 lines of 128 bytes
        ("gemm_mma_64x64x64_f16_any", np.float16, False, 49152),
        ("gemm_mma_128x128x32_f32_any", np.float32, True, 98304),
        ("gemm_mma_64x64x16_f64_any", np.float64, False, 49152),
        ("gemm_mma_128x64x16_f64_any", np.float64, False, 73728),
        ("gemm_fma_128x128x8_f32_any", np.float32, False, 67584),  # 128 lines of sums, of 132 each: four are padding
        ("gemm_fma_128x64x8_f32_any", np.float32, False, 38400),  # six stages of eight k of 200 lines
        ("gemm_fma_64x64x8_f32_any", np.float32, False, 26112),
    ],
)
def test_a_launch_has_its_shared_memory(kernel, dtype, tf32, shared):
    """In a process that has not loaded the kernel: what it may have is set then."""
    in_child(f"import test_mma_host as t; t.check_shared_memory({kernel!r}, np.{dtype.__name__}, {tf32}, {shared})")


@pytest.mark.skipif(not SM_90A, reason="this build has no code for sm_90a")
@pytest.mark.parametrize(
    ("kernel", "dtype", "m", "n", "k", "parts", "tiles"),
    [
        ("gemm_fma_split_64x64x8_f32_any", np.float32, 60, 60, 4096, 6, 1),  # 8 would be three on a unit
        ("gemm_fma_split_64x64x8_f32_any", np.float32, 60, 60, 50, 3, 1),  # parts of two steps
        ("gemm_fma_split_128x64x8_f32_any", np.float32, 129, 60, 1024, 2, 2),  # a unit each
        ("gemm_fma_split_64x64x8_f32_any", np.float32, 60, 60, 24, 1, 1),  # three steps
        ("gemm_fma_split_64x64x8_f32_any", np.float32, 640, 130, 640, 1, 30),  # they fill the GPU as they are
        ("gemm_fma_split_64x64x8_f32_any", np.float32, 60, 60, 0, 1, 1),
        ("gemm_mma_split_64x64x16_f64_any", np.float64, 60, 60, 1000, 6, 1),
        ("gemm_mma_split_128x64x16_f64_any", np.float64, 129, 60, 1024, 2, 2),
    ],
)
def test_workgroups_of_a_cluster_share_a_tile(kernel, dtype, m, n, k, parts, tiles):
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    clear_log()
    with force_kernel(kernel):
        found = mf.explain(DeviceArray(a), DeviceArray(b))
        out = fetch(mf.matmul_fused(DeviceArray(a), DeviceArray(b)))
    assert np.allclose(out, a.astype(float) @ b, rtol=1e-4, atol=1e-3)
    (launch,) = calls("cuLaunchKernelEx")
    assert launch.startswith(f"cuLaunchKernelEx({kernel}, {tiles * parts}, ")
    assert not calls("cuLaunchKernel")
    assert not found.workspace
    assert not found.rows_independent_of_m


@pytest.mark.skipif(not SM_90A, reason="this build has no code for sm_90a")
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "family"),
    [
        (64, 64, 2048, np.float32, "gemm_fma_split"), (64, 64, 2048, np.float64, "gemm_mma_split"),
        (640, 640, 4096, np.float32, "gemm_fma"), (640, 640, 4096, np.float64, "gemm_mma"),
    ],
)  # fmt: skip
def test_few_tiles_and_a_long_k_are_split(m, n, k, dtype, family):
    assert mf.explain(DeviceArray(np.zeros((m, k), dtype)), DeviceArray(np.zeros((k, n), dtype))).family == family


def test_float32_is_rounded_only_where_that_is_allowed():
    a, b = draw(64, 64), draw(64, 64)
    (reason,) = reasons("gemm_mma", a, b) - {"takes float32 only", "takes float16 only"} - other_dtypes("float32")
    assert reason == "rounds float32 to 11 bits, which allow_tf32 allows"
    assert None in reasons("gemm_mma", a, b, allow_tf32=True)
    assert None in reasons("gemm_fma", a, b)


def other_dtypes(own):
    return {f"takes {name} only" for name in ("float16", "bfloat16", "float32", "float64") if name != own}


@pytest.mark.parametrize("argument", ["out_dtype", "preactivation"])
def test_truncated_sums_have_16_bits(argument):
    a, b = draw(64, 63, dtype=np.float16), draw(63, 64, dtype=np.float16)
    wide = {"out_dtype": "float32", "preactivation": DeviceArray(draw(64, 64))}
    found = mf.explain(DeviceArray(a), DeviceArray(b), **{argument: wide[argument]})
    own = [row.reason for row in found.candidates if row.family == "gemm_mma" and "_f16_" in row.name]
    assert own == ["truncates its sums, so out and preactivation must have 16 bits"] * 2
    assert found.family == "gemm_simt"


def test_steps_that_32_bits_do_not_hold_go_elsewhere():
    memory = np.zeros((3, (1 << 22) + 1), np.float32)
    far = memory[:, :8]
    (reason,) = reasons("gemm_fma", far, draw(8, 8))
    assert reason == "needs strides of A and B up to 2^24 bytes, and the same of both weights of a gate"
    assert None in reasons("gemm_fma", far[:1], draw(8, 8))  # one row: its stride is not taken


def test_a_tile_that_the_shared_memory_does_not_hold_is_not_taken():
    in_child("""
        os.environ["STUB_CUDA_SHARED"] = "65536"
        found = mf.explain(DeviceArray(np.zeros((512, 64), np.float32)), DeviceArray(np.zeros((64, 512), np.float32)))
        reasons = {row.name: row.reason for row in found.candidates}
        assert reasons["gemm_fma_128x128x8_f32_any"] == "needs 68608 bytes of shared memory, this GPU has 65536"
        assert reasons["gemm_fma_128x64x8_f32_any"] is None
    """)


def test_weights_of_a_gate_that_lie_alike():
    a, gate = draw(16, 32), draw(32, 16)
    for up, takes in ((draw(32, 16), True), (draw(16, 32).T, False)):
        weights = DeviceArray(gate), DeviceArray(up)
        found = mf.explain(DeviceArray(a), weights, activation="swiglu")
        assert any(row.family == "gemm_fma" and row.reason is None for row in found.candidates) == takes


def check_that_the_next_call_works():
    a, b = draw(65, 33), draw(33, 65)
    x, y = DeviceArray(a), DeviceArray(b)
    with force_kernel("gemm_mma_64x64x32_f32_any"):
        fail_next("cuFuncSetAttribute", 700, 0)
        with pytest.raises(mf.DeviceError, match="cuFuncSetAttribute"):
            mf.matmul_fused(x, y, allow_tf32=True)
        assert np.allclose(fetch(mf.matmul_fused(x, y, allow_tf32=True)), a @ b, rtol=1e-3, atol=1e-3)


def test_a_driver_that_fails_is_named_and_the_next_call_works():
    """In a process that has not loaded the kernel."""
    in_child("import test_mma_host as t; t.check_that_the_next_call_works()")


def test_a_captured_launch_is_only_recorded():
    a, b = draw(40, 40), draw(40, 40)
    x, y, out = DeviceArray(a), DeviceArray(b), DeviceArray(np.full((40, 40), np.nan, np.float32))
    with force_kernel("gemm_fma"):
        mf.matmul_fused(x, y)  # loads the kernel
        with Capture() as stream:
            mf.matmul_fused(x, y, out=out, stream=stream.handle)
    assert np.isnan(out.numpy()).all()
