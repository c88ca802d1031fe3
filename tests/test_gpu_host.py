"""The host path of GPU calls on the stand-in CUDA driver: results, streams, memory, capture.

The sweeps (--device) check results; here the driver's log shows which functions were called.
"""

import numpy as np
import pytest

import matmul_fused as mf
import stub_cuda
from fake_dlpack import DLDevice
from gpu_support import A, B, Capture, Stream, balance, driver, in_child, operands  # noqa: F401
from matmul_fused.testing import covering_sample, force_kernel, run_case
from matmul_fused.testing.devices import DeviceTransfer
from stub_cuda import DeviceArray, calls, clear_log, fetch
from support import check

# Results


def test_info_shows_the_devices():
    info = mf.info()
    assert dict(info.backends)["NVIDIA GPUs"] == f"on: CUDA 13.0, {stub_cuda.LIBRARY}"
    assert dict(info.devices)["cuda:1"].startswith("Stub 1, sm_90, 4 compute units, wave 32; code for sm_")


@pytest.mark.parametrize("case", covering_sample(1, strength=1), ids=lambda case: case.id)
def test_cases(case):
    run_case(case, 1, xp=DeviceTransfer("cuda:1"))


def test_more_tiles_than_a_launch_takes():
    count = (1 << 21) + 3  # matrices, a tile each
    b = np.arange(count, dtype=np.float32).reshape(-1, 1, 1)
    out = mf.matmul_fused(DeviceArray(np.full_like(b, 2)), DeviceArray(b))
    assert [line.split(", ")[1] for line in calls("cuLaunchKernel")] == [str(1 << 21), "3"]
    assert (fetch(out) == 2 * b).all()


def test_empty_results_launch_nothing():
    a, b = DeviceArray(A[:0]), DeviceArray(B)
    out = mf.matmul_fused(a, b)
    assert (out.shape, out.device) == ((0, 6), "cuda:0")
    assert calls("cuLaunchKernel", "cuMemAllocAsync") == []


def test_a_device_for_which_no_kernel_is_named_is_unaffected():
    a, b = operands()
    with force_kernel("cpu_reference"):
        assert mf.explain(a, b).family == "gemm_simt"
        assert mf.explain(A, B).kernel == "cpu_reference"
    chosen = mf.explain(A, B).kernel
    with force_kernel("gemm_simt"):
        assert mf.explain(A, B).kernel == chosen
    with force_kernel("gemm_simt, cpu_reference"):
        assert (mf.explain(a, b).family, mf.explain(A, B).kernel) == ("gemm_simt", "cpu_reference")
    names = {row.name for row in mf.explain(a, b).candidates}
    assert names <= set(mf.info().gpu_kernels)
    assert not any("mfma" in name for name in names)  # for AMD GPUs only


# Kept plans: the third call of its kind is the first that takes one over


def test_kept_plans_read_and_write_where_each_call_says():
    """Other memory, other addresses mod 64, other values, new results and given ones."""
    rng = np.random.default_rng(7)
    kept = []
    for shift in (0, 0, 0, 1, 1, 16, 3, 0, 1):
        a, b, bias = (
            rng.integers(-4, 5, size + shift).astype(np.float32)[shift:].reshape(shape)
            for size, shape in ((350, (5, 70)), (420, (70, 6)), (6, (6,)))
        )
        out = DeviceArray(np.full(30 + shift, np.nan, np.float32)[shift:].reshape(5, 6))
        x, w, c = DeviceArray(a), DeviceArray(b), DeviceArray(bias)
        kept += [x, w, c, out]  # no two calls share an address
        assert (fetch(mf.matmul_fused(x, w, c)) == a @ b + bias).all()
        assert mf.matmul_fused(x, w, c, out=out) is out
        assert (out.numpy() == a @ b + bias).all()


def test_a_kept_plan_goes_to_the_stream_and_device_of_each_call():
    one, two = Stream(), Stream()
    for stream in (one, two, one, two):
        a, b = operands()
        clear_log()
        mf.matmul_fused(a, b, stream=stream.handle)
        assert [line.rpartition(", ")[2] for line in calls("cuLaunchKernel")] == [f"{stream.handle:#x})"]
    for device in (0, 1, 0, 1, 1):
        a, b = operands(device)
        assert mf.matmul_fused(a, b).device == f"cuda:{device}"


def test_a_kept_plan_checks_memory_that_is_shared():
    a, b, other = operands()[0], DeviceArray(np.eye(70, dtype=np.float32)), operands()[0]
    for _ in range(3):
        mf.matmul_fused(a, b, out=other)
    with pytest.raises(ValueError, match="out shares memory with A"):
        mf.matmul_fused(a, b, out=a)


# Streams


def test_default_stream():
    a, b = operands()
    check(fetch(mf.matmul_fused(a, b)), A, B)
    assert a.calls == b.calls == [{"max_version": (1, 3), "stream": 1}]  # DLPack's name of the legacy default stream
    assert calls("cuLaunchKernel") == ["cuLaunchKernel(gemm_simt_64x64x16_f32_any, 1, 256, (nil))"]


@pytest.mark.parametrize(
    "wrap", [lambda stream: stream, lambda stream: stream.handle, lambda s: np.int64(s.handle).item()]
)
def test_given_stream(wrap):
    stream, (a, b) = Stream(), operands()
    check(fetch(mf.matmul_fused(a, b, stream=wrap(stream))), A, B)
    assert a.calls == b.calls == [{"max_version": (1, 3), "stream": stream.handle}]
    assert calls("cuLaunchKernel") == [f"cuLaunchKernel(gemm_simt_64x64x16_f32_any, 1, 256, {stream.handle:#x})"]


@pytest.mark.parametrize(("handle", "launched"), [(0, "(nil)"), (1, "(nil)"), (2, "0x2")])
def test_names_of_default_streams(handle, launched):
    """CUDA has two names for the legacy one; torch makes streams of the first alone."""
    a, b = operands()
    check(fetch(mf.matmul_fused(a, b, stream=handle)), A, B)
    assert a.calls == b.calls == [{"max_version": (1, 3), "stream": handle or 1}]
    assert calls("cuLaunchKernel") == [f"cuLaunchKernel(gemm_simt_64x64x16_f32_any, 1, 256, {launched})"]


def test_producer_without_max_version():
    a, b = operands(knows_max_version=False)
    with pytest.raises(BufferError):  # its __dlpack__ knows no stream either
        mf.matmul_fused(a, b)
    assert a.calls == [{"max_version": (1, 3), "stream": 1}, {"stream": 1}]


class NoStream:
    pass


class BadStream:
    def __cuda_stream__(self):
        return 7


@pytest.mark.parametrize(
    ("stream", "error", "text"),
    [
        (-1, ValueError, "stream is an int that is no handle of a stream"),
        (1 << 70, ValueError, "stream is an int that is no handle of a stream"),
        (True, TypeError, "stream must be None, an int handle or an object with __cuda_stream__, got bool"),
        (
            NoStream(),
            TypeError,
            "stream must be None, an int handle or an object with __cuda_stream__, got test_gpu_host.NoStream",
        ),
        (BadStream(), TypeError, "stream: its __cuda_stream__ is no pair"),
    ],
)
def test_bad_stream(stream, error, text):
    with pytest.raises(error, match=text):
        mf.matmul_fused(*operands(), stream=stream)
    assert calls("cuLaunchKernel") == []


def test_stream_of_another_device():
    mf.matmul_fused(*operands(1))
    with pytest.raises(mf.DeviceError, match="stream belongs to another device than the operands, which are on cuda:0"):
        mf.matmul_fused(*operands(), stream=Stream(1))


def test_stream_of_another_context():
    """Of the right device, so the driver decides; green contexts and their streams are such."""
    stream = Stream()
    stub_cuda.library().stub_stream_move(stream.handle)
    with pytest.raises(mf.DeviceError, match=r"on cuda:0: CUDA_ERROR_INVALID_HANDLE \(invalid resource handle\)"):
        mf.matmul_fused(*operands(), stream=stream)


# Memory that is not what its producer says


def test_host_memory_claimed_as_cuda():
    host = np.ones((5, 70), np.float32)
    a, b = operands()
    liar = DeviceArray(A)
    liar.change = lambda tensor: (setattr(tensor, "device", DLDevice(2, 0)), setattr(tensor, "data", host.ctypes.data))
    with pytest.raises(BufferError, match="A says that it is on cuda:0, but the driver knows no such device memory"):
        mf.matmul_fused(liar, b)
    out = DeviceArray(np.zeros((5, 6), np.float32))
    out.change = liar.change
    with pytest.raises(BufferError, match="out says that it is on cuda:0, but"):
        mf.matmul_fused(a, b, out=out)
    assert calls("cuLaunchKernel") == []


def test_memory_of_another_device():
    a, b = operands()
    other = DeviceArray(B, 1)
    pointer = other.memory.pointer
    b.change = lambda tensor: (setattr(tensor, "device", DLDevice(2, 0)), setattr(tensor, "data", pointer))
    with pytest.raises(BufferError, match="B says that it is on cuda:0, but its memory is on cuda:1"):
        mf.matmul_fused(a, b)


def test_operands_on_two_devices():
    a, b = DeviceArray(A), DeviceArray(B, 1)
    with pytest.raises(ValueError, match="B is on cuda:1 but A is on cuda:0; move it to A's device"):
        mf.matmul_fused(a, b)
    assert b.calls == [{"max_version": (1, 3), "stream": -1}]
    with pytest.raises(ValueError, match="B is on cuda:0 but A is on cpu"):
        mf.matmul_fused(A, a)
    assert a.calls[-1]["stream"] == -1


def test_misaligned():
    a, b = operands()
    change = a.change
    a.change = lambda tensor: (change(tensor), setattr(tensor, "data", tensor.data + 2))
    with pytest.raises(ValueError, match="A lies at an address that is no multiple of its item size"):
        mf.matmul_fused(a, b)


# mf.Array on a device


def test_array_is_an_operand_and_an_out():
    a, b = operands()
    z = mf.matmul_fused(a, b)
    w = mf.matmul_fused(z, DeviceArray(np.eye(6, dtype=np.float32)), stream=Stream())
    assert fetch(w) == pytest.approx(fetch(z))
    assert mf.matmul_fused(a, b, activation="relu", out=z) is z
    check(fetch(z), A, B, activation="relu")
    assert (z.device, z.__dlpack_device__()) == ("cuda:0", (2, 0))


def test_uses_of_an_array_are_ordered():
    """A stream that uses an Array waits for its earlier uses, and its memory goes back behind the last one."""
    stream = Stream()
    z = mf.matmul_fused(*operands())
    identity = DeviceArray(np.eye(6, dtype=np.float32))
    clear_log()
    w = mf.matmul_fused(z, identity, stream=stream)
    names = [line.split("(")[0] for line in calls("cuStreamWaitEvent", "cuLaunchKernel", "cuEventRecord")]
    # w's memory; z awaited; the launch; z in use; w in use
    assert names == [
        "cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel",
        "cuStreamWaitEvent", "cuEventRecord", "cuStreamWaitEvent", "cuEventRecord",
    ]  # fmt: skip
    assert all(f"{stream.handle:#x}" in line for line in calls("cuStreamWaitEvent", "cuEventRecord"))
    stub_cuda.library().stub_stream_destroy(stream.handle)
    clear_log()
    del z, w
    assert calls("cuStreamWaitEvent", "cuMemFreeAsync", "cuEventDestroy") == [
        "cuStreamWaitEvent((nil), 0)", "cuMemFreeAsync((nil))", "cuEventDestroy()",
    ] * 2  # fmt: skip


@pytest.mark.parametrize(("stream", "waits"), [(None, "(nil)"), (1, "(nil)"), (-1, None), (2, "0x2")])
def test_consumer_names_its_stream(stream, waits):
    z = mf.matmul_fused(*operands())
    clear_log()
    if stream == 2:
        stream = Stream().handle
        waits = f"{stream:#x}"
    z.__dlpack__(stream=stream, max_version=(1, 0))
    assert calls("cuStreamWaitEvent") == ([f"cuStreamWaitEvent({waits}, 0)"] if waits else [])
    clear_log()
    del z
    stays = stream not in (None, 1, -1)  # until the consumer's stream, which may be gone by now, is seen again
    assert calls("cuMemFreeAsync") == ([] if stays else ["cuMemFreeAsync((nil))"])
    if stays:
        mf.matmul_fused(*operands(), stream=stream)
        assert calls("cuMemFreeAsync")[0] == f"cuMemFreeAsync({waits})"


@pytest.mark.parametrize("stream", [0, "x", -2, 1.5])
def test_consumer_names_no_stream(stream):
    z = mf.matmul_fused(*operands())
    with pytest.raises(ValueError, match="stream"):
        z.__dlpack__(stream=stream)


def test_copy_of_an_array():
    z = mf.matmul_fused(*operands())
    clear_log()
    capsule = z.__dlpack__(max_version=(1, 0), copy=True)
    assert len(calls("cuMemAllocAsync", "cuMemcpyDtoDAsync")) == 2
    del capsule
    assert len(calls("cuMemFreeAsync")) == 1
    with pytest.raises(BufferError, match=r"this Array is on cuda:0, \(2, 0\)"):
        z.__dlpack__(dl_device=(1, 0))


# explain


@pytest.mark.parametrize("given", [False, True])
def test_explain_changes_nothing_on_the_device(given):
    """What it asks the driver are questions; producers, too, are to order nothing."""
    stream, (a, b) = Stream() if given else None, operands()
    ours = mf.matmul_fused(a, b, stream=stream)
    out, lent = mf.matmul_fused(a, b), mf.matmul_fused(a, b)
    lent.__dlpack__(stream=Stream().handle if stream is None else stream.handle)
    del lent  # its memory waits for that stream
    for x in (a, b):
        x.calls.clear()
    clear_log()
    assert mf.explain(a, b, C=ours, out=out, stream=stream).family == "gemm_simt"
    questions = {"cuCtxPushCurrent", "cuPointerGetAttribute", "cuStreamGetCtx", "cuStreamIsCapturing"}
    assert {line.split("(")[0] for line in stub_cuda.log()} <= questions
    assert [x.calls for x in (a, b)] == [[{"max_version": (1, 3), "stream": -1}]] * 2
    stub_cuda.fail_next("cuMemAllocAsync", 2)
    mf.matmul_fused(a, b)  # gives back what waits


# Capture


def test_captured_call_needs_no_driver_memory():
    a, b = operands()
    out = DeviceArray(np.zeros((5, 6), np.float32))
    ours = mf.matmul_fused(a, b)
    with Capture() as stream:
        clear_log()
        mf.matmul_fused(a, b, out=out, stream=stream)
        mf.matmul_fused(a, b, out=ours, stream=stream)
        assert len(calls("cuLaunchKernel")) == 2
        assert calls("cuMemAllocAsync", "cuModuleLoadData", "cuEventRecord", "cuStreamWaitEvent") == []
        with pytest.raises(
            mf.DeviceError, match="the stream is being captured, so no memory can be allocated; pass out="
        ):
            mf.matmul_fused(a, b, stream=stream)


def test_first_call_in_a_capture():
    in_child("""
        out = DeviceArray(np.zeros((5, 6), np.float32))
        with Capture() as stream:
            with pytest.raises(mf.DeviceError, match="captured and gemm_simt_64x64x16_f32_any is not loaded yet"):
                mf.matmul_fused(*operands(), out=out, stream=stream)
        assert calls("cuModuleLoadData", "cuLaunchKernel") == []
        mf.matmul_fused(*operands(), out=out, stream=stream)
        check(out.numpy(), A, B)
        with Capture() as stream:
            mf.matmul_fused(*operands(), out=out, stream=stream)
    """)
