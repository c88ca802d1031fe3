"""What gemm_wgmma asks of the CUDA driver: tensor maps, clusters, shared memory; on the stand-in driver."""

import numpy as np
import pytest

import matmul_fused as mf
from gpu_support import Capture, balance, driver, in_child  # noqa: F401
from matmul_fused.testing import force_kernel
from stub_cuda import DeviceArray, calls, clear_log, fail_next, fetch

SM_90A = any(arch == "sm_90a" for arch, _, _ in mf._core.device_objects())
pytestmark = pytest.mark.skipif(not SM_90A, reason="this build has no code for sm_90a")


def arrays(m=200, n=264, k=72, offset=0):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m + 1) * k).astype(np.float16)[offset : offset + m * k].reshape(m, k)
    return a, rng.standard_normal((n, k)).astype(np.float16).T


def run(a, b, **arguments):
    with force_kernel("gemm_wgmma"):
        return mf.matmul_fused(DeviceArray(a), DeviceArray(b), **arguments)


def test_maps_are_made_for_every_call():
    a, b = arrays()
    for _ in range(3):  # the third finds its plan
        clear_log()
        out = fetch(run(a, b, activation="relu"))
        assert len(calls("cuTensorMapEncodeTiled")) == 3  # A, B, out
        (launch,) = calls("cuLaunchKernelEx")
        assert "gemm_wgmma_" in launch
    assert np.allclose(out, np.maximum(a.astype(float) @ b, 0), rtol=2e-3, atol=1e-2)


def check_that_the_next_call_works(function, skip, kernel):
    a, b = arrays()
    x, y = DeviceArray(a), DeviceArray(b if kernel.endswith("nt") else np.ascontiguousarray(b))
    with force_kernel(kernel):
        fail_next(function, 700, skip)
        with pytest.raises(mf.DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
            mf.matmul_fused(x, y)
        assert function in str(caught.value)
        assert np.allclose(fetch(mf.matmul_fused(x, y)), a.astype(float) @ b, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("function", "skip", "kernel"),
    [
        ("cuTensorMapEncodeTiled", 0, "gemm_wgmma_128x256x64_f16_nt"),
        ("cuTensorMapEncodeTiled", 1, "gemm_wgmma_128x256x64_f16_nt"),
        ("cuTensorMapEncodeTiled", 2, "gemm_wgmma_128x128x64_f16_nt"),
        ("cuLaunchKernelEx", 0, "gemm_wgmma_128x256x64_f16_nt"),
        ("cuTensorMapEncodeTiled", 2, "gemm_wgmma_pingpong_128x192x64_f16_nt"),
        ("cuTensorMapEncodeTiled", 2, "gemm_wgmma_pingpong_128x112x64_f16_nt"),
        ("cuTensorMapEncodeTiled", 2, "gemm_wgmma_128x224x64_f16_nt"),
        ("cuTensorMapEncodeTiled", 2, "gemm_wgmma_64x128x64_f16_nt"),
    ],
)
def test_what_fails_is_named_and_the_next_call_works(function, skip, kernel):
    check_that_the_next_call_works(function, skip, kernel)


def test_an_attribute_that_cannot_be_set_is_named_and_the_next_call_works():
    """In a process that has not loaded the kernel: it is set then."""
    call = "check_that_the_next_call_works('cuFuncSetAttribute', 0, 'gemm_wgmma_64x128x64_f16_nn')"
    in_child(f"import test_wgmma_host as t; t.{call}")


def test_memory_that_a_map_cannot_name_goes_to_another_row():
    """One that copies it first: test_repack_host."""
    a, b = arrays(offset=1)
    x, y = DeviceArray(a), DeviceArray(b)
    rows = {row.name: row.reason for row in mf.explain(x, y).candidates}
    assert rows["gemm_wgmma_128x128x64_f16_nn"].startswith("needs A and B at multiples of 16 bytes")
    assert rows["gemm_wgmma_128x128x64_f16_nt"] is None
    with (
        force_kernel("gemm_wgmma_128x128x64_f16_nn"),
        pytest.raises(NotImplementedError, match="needs A and B at mult"),
    ):
        mf.matmul_fused(x, y)


def test_tiles_are_counted_in_31_bits():
    batch = 1 << 21

    def repeated(rows):
        return np.broadcast_to(np.ones((rows, 8), np.float16), (batch, rows, 8))

    a, b = DeviceArray(repeated(1024)), DeviceArray(repeated(2048).swapaxes(1, 2))
    reasons = {row.name: row.reason for row in mf.explain(a, b).candidates}
    assert reasons["gemm_wgmma_16x128x64_f16_nt"] == "takes up to 2147482623 tiles"  # of 64 x 16 x 2^21
    assert reasons["gemm_wgmma_64x128x64_f16_nt"] is None


@pytest.mark.parametrize(
    ("tile", "of_b", "of_out"),
    [("pingpong_128x112", 56, 112), ("pingpong_128x160", 80, 80), ("128x224", 112, 112), ("128x256", 128, 64)],
)
def test_columns_of_boxes(tile, of_b, of_out):
    """Tiles of out whose columns are no whole swizzled lines are stored by halves, or as a whole."""
    a, b = arrays()
    with force_kernel(f"gemm_wgmma_{tile}x64_f16_nt"):
        clear_log()
        out = fetch(mf.matmul_fused(DeviceArray(a), DeviceArray(b)))
    boxes = [call.rpartition(", ")[2].strip(")") for call in calls("cuTensorMapEncodeTiled")]
    assert boxes == ["64 x 128", f"64 x {of_b}", f"{of_out} x 16"]
    assert np.allclose(out, a.astype(float) @ b, rtol=2e-3, atol=1e-2)


def test_threads_ask_for_shared_memory_once():
    said = in_child("""
        import matmul_fused.testing
        os.environ["STUB_CUDA_SLOW_ATTRIBUTE"] = "1"
        def run():
            with mf.testing.force_kernel("gemm_wgmma_64x128x64_f16_nt"):
                x, w = DeviceArray(np.ones((64, 64), np.float16)), DeviceArray(np.ones((128, 64), np.float16).T)
                right.append((fetch(mf.matmul_fused(x, w)) == 64).all())
        right = []
        threads = [threading.Thread(target=run) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(right) and len(right) == 16
        print(*calls("cuFuncSetAttribute"))
    """)
    assert said.strip() == f"cuFuncSetAttribute(gemm_wgmma_64x128x64_f16_nt, 8, {35840 + 8 * 24576})"


def test_slower_memory_is_told_by_the_driver():
    """With an H100's, not an H200's, the tile that reads most takes longer; unknown, it is an H200's."""

    def seconds(clock, before=""):
        return float(
            in_child(f"""
                os.environ["STUB_CUDA_MEMORY_CLOCK"] = "{clock}"
                {before}
                x = np.zeros((512, 2048), np.float16)
                rows = mf.explain(DeviceArray(x), DeviceArray(x.T)).candidates
                print(next(row.seconds for row in rows if row.name == "gemm_wgmma_pingpong_128x128x64_f16_nt"))
            """)
        )

    usual = seconds(3201000)
    assert seconds(2619000) > 1.02 * usual
    assert seconds(0) == usual
    assert seconds(2619000, 'fail_next("cuDeviceGetAttribute", 1, 7)') == usual  # the clock is the eighth question


def test_float32_goes_there_where_it_may_be_rounded():
    a, b = (x.astype(np.float32) for x in arrays(k=68))
    x, y = DeviceArray(a), DeviceArray(np.ascontiguousarray(b.T).T)
    clear_log()
    with force_kernel("gemm_wgmma_128x256x32_f32_nt"):
        out = fetch(mf.matmul_fused(x, y, activation="relu", allow_tf32=True))
    assert np.allclose(out, np.maximum(a.astype(float) @ b, 0), rtol=2e-3, atol=1e-2)
    made = calls("cuTensorMapEncodeTiled")
    assert [call.rpartition(", ")[2] for call in made] == ["32 x 128)"] * 2  # A, half of B
    assert all(call.startswith("cuTensorMapEncodeTiled(11,") for call in made)
    reasons = {row.reason for row in mf.explain(x, y).candidates if row.family == "gemm_wgmma"}
    assert "rounds float32 to 11 bits, which allow_tf32 allows" in reasons


def test_few_rows_share_k_in_a_cluster():
    a, b = arrays(m=3, n=128, k=4096)
    with force_kernel("gemm_wgmma_16x128x64_f16_nt"):
        out = fetch(mf.matmul_fused(DeviceArray(a), DeviceArray(b)))
    assert calls("cuLaunchKernelEx")[0].startswith("cuLaunchKernelEx(gemm_wgmma_16x128x64_f16_nt, 2, 384")
    assert np.allclose(out, a.astype(float) @ b, rtol=4e-3, atol=0.2)


@pytest.mark.parametrize(
    ("n", "k", "grid", "columns"),
    [
        (256, 64, 2, 64),  # up to half of the stand-in's 4 units
        (384, 64, 4, 48),  # 3 tiles of 128 columns would share 2 ways to memory
        (640, 64, 4, 40),  # two turns; as wide as two turns allow
        (192, 1536, 4, 48),  # two parts of k, each of 2 tiles
        (192, 1472, 2, 64),  # k is too short for them
        (256, 4096, 4, 64),
    ],
)
def test_tiles_of_few_rows_are_as_wide_as_fills_the_gpu(n, k, grid, columns):
    a, b = arrays(m=4, n=n, k=k)
    clear_log()
    with force_kernel("gemm_wgmma_16x128x64_f16_nt"):
        out = fetch(mf.matmul_fused(DeviceArray(a), DeviceArray(b)))
    boxes = [call.rpartition(", ")[2].strip(")") for call in calls("cuTensorMapEncodeTiled")]
    assert boxes == ["64 x 16", f"64 x {columns}", f"{columns} x 8"]
    assert calls("cuLaunchKernelEx")[0].startswith(f"cuLaunchKernelEx(gemm_wgmma_16x128x64_f16_nt, {grid}, 384")
    assert np.allclose(out, a.astype(float) @ b, rtol=4e-3, atol=0.2)


def test_a_captured_launch_is_only_recorded():
    a, b = arrays()
    run(a, b)  # loads the kernel
    x, y, out = DeviceArray(a), DeviceArray(b), DeviceArray(np.full((200, 264), np.nan, np.float16))
    with force_kernel("gemm_wgmma"), Capture() as stream:
        mf.matmul_fused(x, y, out=out, stream=stream.handle)
    assert np.isnan(out.numpy()).all()


def test_ping_pong_takes_what_leaves_it_registers():
    a, b = arrays()
    x, y = DeviceArray(a), DeviceArray(b)
    bias, column = (DeviceArray(np.ones(shape, np.float16)) for shape in (264, (200, 1)))
    c = DeviceArray(np.ones((200, 264), np.float16))
    with force_kernel("gemm_wgmma_pingpong"):
        clear_log()
        out = fetch(mf.matmul_fused(x, y, bias, "gelu_tanh"))
        (launch,) = calls("cuLaunchKernelEx")
        assert launch.startswith("cuLaunchKernelEx(gemm_wgmma_pingpong_128x128x64_f16_nt, 4, 384"), launch
        z = a.astype(float) @ b + 1
        want = z / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))
        assert np.allclose(out, want, rtol=2e-3, atol=1e-2)
        for arguments in ({"C": c, "beta": 1.0}, {"bias": column}):
            assert np.allclose(fetch(mf.matmul_fused(x, y, **arguments)), a.astype(float) @ b + 1, rtol=2e-3, atol=1e-2)
        with pytest.raises(NotImplementedError, match="has no registers for gates"):
            mf.matmul_fused(x, y, activation="swiglu")


def test_operands_of_the_epilogue_go_to_ping_pong_and_what_is_general_does_not():
    a, under, column = (DeviceArray(np.zeros(shape, np.float16)) for shape in ((1024, 2048), (1024, 7168), (1024, 1)))
    weight = DeviceArray(np.zeros((7168, 2048), np.float16).T)
    for arguments in ({"C": under, "beta": 1.0}, {"multiply": under}, {"bias": column},
                      {"preactivation": under, "activation": "gelu"}, {"C": under, "activation": "silu"}):  # fmt: skip
        assert mf.explain(a, weight, **arguments).kernel.startswith("gemm_wgmma_pingpong_aux_"), arguments
    assert "_aux_" not in mf.explain(a, weight, activation="silu").kernel
    for arguments in ({"activation": "mish"}, {"activation": "mish", "multiply": under}):
        assert mf.explain(a, weight, **arguments).kernel.startswith("gemm_wgmma_128x"), arguments


def test_the_general_epilogue_counts_for_every_kernel():
    """Else a slower product would win where that epilogue takes most of the time."""
    a, under = DeviceArray(np.zeros((1024, 64), np.float32)), DeviceArray(np.zeros((1024, 1024), np.float32))
    b = DeviceArray(np.zeros((1024, 64), np.float32).T)
    fast = mf.explain(a, b).kernel
    assert not fast.startswith("gemm_simt")
    assert mf.explain(a, b, activation="mish", multiply=under).kernel == fast
