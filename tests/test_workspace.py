"""Plans of two launches and a workspace: split-K, on the stand-in CUDA driver.

The workspace is a call's own: from the allocator of A's library, else from ours, in the order of the call's stream.
What the kernels compute is for the sweeps. gemm_fma_split, which needs no workspace, is left out of the choice.
"""

import re

import numpy as np
import pytest

import matmul_fused as mf
import stub_cuda
from gpu_support import Capture, Stream, balance, driver, in_child  # noqa: F401
from matmul_fused.testing import force_kernel
from stub_cuda import DeviceArray, calls, clear_log, fail_next, fetch
from support import check, draw
from test_gpu_library import Library

A, B = draw((3, 8192), seed=1), draw((8192, 13), seed=2)  # 32 pieces of 256; few tiles for the stub's 4 units
BYTES = 32 * 3 * 16 * 4  # pieces, rows, columns in whole fours
LAUNCHES = ["gemm_simt_splitk_64x64x16_f32_any", "reduce_splitk_16x64x1_f32_any"]


CHOICE = "gemm_simt_splitk,gemm_fma,gemm_simt"


@pytest.fixture(autouse=True)
def without_clusters():
    with force_kernel(CHOICE):
        yield


def operands(device=0):
    return DeviceArray(A, device), DeviceArray(B, device)


def result():
    return DeviceArray(np.full((3, 13), np.nan, np.float32))


def launched():
    return [line.split("(")[1].split(",")[0] for line in calls("cuLaunchKernel")]


# The choice


@pytest.mark.parametrize(
    ("m", "n", "k", "family"),
    [
        (1, 64, 8192, "gemm_simt_splitk"), (64, 64, 4096, "gemm_simt_splitk"), (1, 64, 64, "gemm_simt"),
        (64, 64, 0, "gemm_simt"), (640, 640, 4096, "gemm_fma"),
    ],
)  # fmt: skip
def test_few_tiles_and_a_long_k_are_split(m, n, k, family):
    splits = family == "gemm_simt_splitk"
    found = mf.explain(DeviceArray(np.zeros((m, k), np.float32)), DeviceArray(np.zeros((k, n), np.float32)))
    assert found.family == family
    assert len(found.launches) == 1 + splits
    assert (found.workspace > 0) == splits


def test_explain_shows_launches_and_workspace():
    found = mf.explain(*operands())
    assert (list(found.launches), found.workspace) == (LAUNCHES, BYTES)
    assert re.search(f"launches +{', '.join(LAUNCHES)}\n", repr(found))
    assert f"{BYTES} bytes" in repr(found)
    with force_kernel("gemm_simt"):
        plain = mf.explain(*operands())
    assert (plain.launches, plain.workspace) == (("gemm_simt_64x64x16_f32_any",), 0)
    on_cpu = mf.explain(A, B)
    assert (on_cpu.launches, on_cpu.workspace) == ((), 0)


def test_explain_enqueues_nothing():
    a, b = operands()
    mf.matmul_fused(a, b)
    clear_log()
    mf.explain(a, b)
    questions = {"cuCtxPushCurrent", "cuPointerGetAttribute", "cuStreamIsCapturing"}
    assert {line.split("(")[0] for line in stub_cuda.log()} <= questions


@pytest.mark.parametrize(
    ("m", "k", "why"),
    [
        (64, 0, "there are no products, so no K to cut"),
        (1 << 23, 4096, "needs a workspace of 4294967296 bytes, 1073741824 are the most"),
    ],
)
def test_what_cannot_be_split(m, k, why):
    a, b = DeviceArray(np.zeros((1, k), np.float32)), DeviceArray(np.zeros((k, 1), np.float32))
    a.array = np.broadcast_to(a.array, (m, k))
    with force_kernel("gemm_simt_splitk"), pytest.raises(NotImplementedError) as error:
        mf.explain(a, b)
    assert why in str(error.value)


def test_a_row_has_the_same_bits_whatever_m_is():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((70, 900), np.float32), rng.standard_normal((900, 20), np.float32)
    with force_kernel("gemm_simt_splitk"):
        whole = fetch(mf.matmul_fused(DeviceArray(a), DeviceArray(b)))
        assert (fetch(mf.matmul_fused(DeviceArray(a[66:]), DeviceArray(b))) == whole[66:]).all()


# Our own memory


@pytest.mark.parametrize("given", [False, True])
def test_the_workspace_is_ordered_with_the_call(given):
    """Allocated on its stream, given back behind its last launch."""
    stream = Stream() if given else None
    shown = f"{stream.handle:#x}" if given else "(nil)"
    (a, b), out = operands(), result()
    clear_log()
    assert mf.matmul_fused(a, b, out=out, stream=stream) is out
    names = ("cuMemAllocAsync", "cuLaunchKernel", "cuMemFreeAsync")
    assert calls(*names) == [
        f"cuMemAllocAsync({BYTES}, {shown})",
        f"cuLaunchKernel({LAUNCHES[0]}, 1, 256, {shown})",
        f"cuLaunchKernel({LAUNCHES[1]}, 1, 256, {shown})",
        "cuMemFreeAsync((nil))",
    ]
    order = calls("cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent", "cuMemFreeAsync")
    assert order[-3:] == [f"cuEventRecord({shown})", "cuStreamWaitEvent((nil), 0)", "cuMemFreeAsync((nil))"]
    check(out.numpy(), A, B)


def test_kept_plans_have_a_workspace_each():
    outs = [result() for _ in range(5)]
    for out in outs:
        mf.matmul_fused(*operands(), out=out)
    assert len(calls("cuMemAllocAsync")) == 5
    for out in outs:
        assert (out.numpy() == outs[0].numpy()).all()
    check(outs[0].numpy(), A, B)


@pytest.mark.parametrize("given", [False, True])
def test_a_workspace_that_cannot_be_had(given):
    """Nothing is launched, and a result that was made before goes back (`balance`)."""
    (a, b), out = operands(), result() if given else None
    fail_next("cuMemAllocAsync", 2, 0 if given else 1)
    with pytest.raises(mf.DeviceError, match=r"^cuMemAllocAsync on cuda:0: CUDA_ERROR_OUT_OF_MEMORY"):
        mf.matmul_fused(a, b, out=out)
    assert launched() == []
    assert not given or np.isnan(out.numpy()).all()
    check(fetch(mf.matmul_fused(a, b)), A, B)


@pytest.mark.parametrize("launch", [0, 1])
def test_a_launch_that_fails(launch):
    """The workspace goes back behind the launches that were made (`balance`)."""
    (a, b), out = operands(), result()
    fail_next("cuLaunchKernel", 719, launch)
    with pytest.raises(mf.DeviceError, match=r"^cuLaunchKernel on cuda:0: CUDA_ERROR_LAUNCH_FAILED"):
        mf.matmul_fused(a, b, out=out)
    assert launched() == LAUNCHES[: launch + 1]
    assert len(calls("cuMemFreeAsync")) == 1


# Capture without an allocator


CAPTURED = "needs a workspace; while the stream is being captured it can have none, A's library having no allocator"


def test_a_capture_takes_a_kernel_without_a_workspace():
    (a, b), out = operands(), result()
    mf.matmul_fused(a, b, out=out)  # loads what the capture needs, too
    with Capture() as stream:
        clear_log()
        mf.matmul_fused(a, b, out=out, stream=stream)
        assert launched() == ["gemm_fma_64x64x8_f32_any"]
        assert calls("cuMemAllocAsync", "cuEventRecord") == []
        found = mf.explain(a, b, out=out, stream=stream)
        assert (found.family, found.workspace) == ("gemm_fma", 0)
        assert dict(found.refused)[LAUNCHES[0]].startswith(CAPTURED)
        with force_kernel("gemm_simt_splitk"), pytest.raises(NotImplementedError, match=CAPTURED):
            mf.matmul_fused(a, b, out=out, stream=stream)
    mf.matmul_fused(a, b, out=out)
    assert launched()[1:] == LAUNCHES  # the plan that is kept is the one with a workspace


def test_a_call_loads_the_kernels_of_its_captured_form():
    in_child("""
        from matmul_fused import _core
        from support import draw
        _core.force_kernel("gemm_simt_splitk,gemm_fma,gemm_simt")
        a, b = DeviceArray(draw((3, 8192))), DeviceArray(draw((8192, 13)))
        out = DeviceArray(np.full((3, 13), np.nan, np.float32))
        with Capture() as stream:
            with pytest.raises(mf.DeviceError, match="captured and gemm_fma_64x64x8_f32_any is not loaded yet"):
                mf.matmul_fused(a, b, out=out, stream=stream)
        mf.matmul_fused(a, b, out=out)
        assert len(calls("cuModuleLoadData")) == 3
        with Capture() as stream:
            mf.matmul_fused(a, b, out=out, stream=stream)
        assert len(calls("cuModuleLoadData")) == 3
        assert calls("cuLaunchKernel")[-1].startswith("cuLaunchKernel(gemm_fma_64x64x8_f32_any")
    """)


def test_a_driver_without_pools():
    """A given out= is enough: the call takes a kernel without a workspace."""
    in_child("""
        from matmul_fused import _core
        from support import draw
        _core.force_kernel("gemm_simt_splitk,gemm_fma,gemm_simt")
        fail_next("cuDeviceGetAttribute", 1, 5)  # the question for pools: no such attribute
        a, b = DeviceArray(draw((3, 8192))), DeviceArray(draw((8192, 13)))
        out = DeviceArray(np.full((3, 13), np.nan, np.float32))
        found = mf.explain(a, b, out=out)
        reasons = {row.family: row.reason for row in found.candidates if "f32" in row.name}
        assert found.family == "gemm_fma" and not found.workspace
        assert reasons["gemm_simt_splitk"].startswith("needs a workspace; the driver cannot allocate it"), reasons
        mf.matmul_fused(a, b, out=out)
        check(out.numpy(), draw((3, 8192)), draw((8192, 13)))
        assert calls("cuMemAllocAsync") == []
    """)


# The allocator of A's library


@pytest.fixture(scope="module")
def library(driver):  # noqa: F811
    return Library()


def test_the_workspace_is_the_library_s(library):
    library.stream, library.allocated = Stream(1), []
    a, b = library.array(A), library.array(B)
    clear_log()
    out = mf.matmul_fused(a, b)
    assert launched() == LAUNCHES
    assert library.allocated[-2:] == [(2, 1)] * 2  # the result and the workspace
    assert calls("cuMemAllocAsync", "cuEventRecord", "cuStreamWaitEvent") == []
    assert library.made == {}  # it went back
    check(out.view.copy(), A, B)


def test_the_library_s_stream_and_a_given_one_wait_for_each_other(library):
    """Before the launches for the memory's user before, after them for the next one."""
    library.stream, given = Stream(1), Stream(1)
    own, other = f"{library.stream.handle:#x}", f"{given.handle:#x}"
    a, b, out = library.array(A), library.array(B), library.array(np.zeros((3, 13), np.float32))
    clear_log()
    mf.matmul_fused(a, b, out=out, stream=given)
    order = calls("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel")
    first, last = (order.index(f"cuLaunchKernel({name}, 1, 256, {other})") for name in LAUNCHES)
    assert order[:2] == [f"cuEventRecord({own})", f"cuStreamWaitEvent({other}, 0)"]
    assert last == first + 1
    assert order[-2:] == [f"cuEventRecord({other})", f"cuStreamWaitEvent({own}, 0)"]
    check(out.view.copy(), A, B)


def test_a_capture_with_the_library_s_allocator(library):
    a, b = library.array(A), library.array(B)
    library.stream = Stream(1)
    mf.matmul_fused(a, b)
    with Capture(1) as library.stream:
        clear_log()
        mf.matmul_fused(a, b)
        assert launched() == LAUNCHES
        assert calls("cuMemAllocAsync", "cuEventRecord", "cuStreamWaitEvent") == []


def test_a_workspace_that_is_not_aligned(library):
    library.stream = Stream(1)
    a, b, out = library.array(A), library.array(B), library.array(np.full((3, 13), np.nan, np.float32))
    clear_log()
    library.shift = 64
    try:
        with pytest.raises(BufferError, match="a workspace at an address that is no multiple of 256 bytes"):
            mf.matmul_fused(a, b, out=out)
    finally:
        library.shift = 0
    assert launched() == []
    assert np.isnan(out.view).all()
