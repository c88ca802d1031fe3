"""Errors of HIP on the simulated AMD GPUs: each of its calls fails once, memory runs out, loading fails, a process
forks. The call after it is right, and nothing is given back under a kernel that runs.
"""

import ctypes

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import A, B, account, in_child, simulator  # noqa: F401
from support import check


@pytest.fixture
def dev():
    return hipsim.Device("gfx942")


@pytest.mark.parametrize(
    ("function", "code", "name"),
    [
        ("hipModuleLaunchKernel", 719, r"hipErrorLaunchFailure \(unspecified launch failure\)"),
        ("hipModuleLaunchKernel", 701, r"hipErrorLaunchOutOfResources \("),
        ("hipMallocAsync", 2, r"hipErrorOutOfMemory \(out of memory\)"),
        ("hipEventCreateWithFlags", 2, r"hipErrorOutOfMemory \("),
        ("hipEventRecord", 400, r"hipErrorInvalidHandle \("),
        ("hipStreamIsCapturing", 400, r"hipErrorInvalidHandle \("),
        ("hipGetDevice", 719, r"hipErrorLaunchFailure \("),
        ("hipPointerGetAttributes", 719, r"hipErrorLaunchFailure \("),
    ],
)
def test_errors_have_hip_s_name_and_text(dev, function, code, name):
    x, w = dev.array(A), dev.array(B)
    mf.matmul_fused(x, w)
    hipsim.fail_next(function, code, 2 if function == "hipGetDevice" else 0)  # operands on their way come first
    with pytest.raises(mf.DeviceError, match=rf"^{function} on rocm:0: {name}"):
        mf.matmul_fused(x, w)
    assert hipsim.try_hip("hipGetLastError") == 0  # nobody else trips over it
    check(dev.to_numpy(mf.matmul_fused(x, w)), A, B)


def test_an_address_that_rocm_5_does_not_know(dev):
    """It says so by an error, which is nobody else's: `account` asks for what is left."""
    x, w = dev.array(A), dev.array(B)
    hipsim.fail_next("hipPointerGetAttributes", 1)
    with pytest.raises(BufferError, match=r"^A says that it is on rocm:0, but the driver knows no such device memory"):
        mf.matmul_fused(x, w)


@pytest.mark.parametrize("function", ["hipGetDevice", "hipStreamIsCapturing", "hipStreamWaitEvent", "hipEventRecord"])
def test_memory_in_use_outlives_an_error(function):
    """A driver that fails after the launch: what the kernel uses is not given back under it. It is lost instead."""
    in_child(f"""
dev = hipsim.Device(0)
stream = dev.stream()
x, w, wt = (dev.array(v, stream=stream) for v in (A, B, np.ascontiguousarray(B.T)))
def work():
    y = mf.matmul_fused(x, w, stream=stream)
    return mf.matmul_fused(y, wt, stream=stream).__dlpack__(copy=True, stream=stream.handle, max_version=(1, 0))
work()
before = hipsim.calls("{function}")
work()
dev.synchronize()
raised = 0
for skip in range(hipsim.calls("{function}") - before):
    hipsim.fail_next("{function}", 719, skip)
    try:
        work()
    except mf.DeviceError as error:
        raised += 1
        assert str(error).startswith("{function} on rocm:0: hipErrorLaunchFailure ("), error
    finally:
        hipsim.fail_next("{function}", 0)
        dev.assert_clean()
assert raised > 4, raised  # not where memory is given back: there nobody is to take an error
""")


def test_loading_fails_and_is_tried_again():
    in_child("""
dev = hipsim.Device(0)
x, w = dev.array(A), dev.array(B)
for function, code, text in (
    ("hipGetDevicePropertiesR0600", 101, "hipGetDeviceProperties on rocm:0: hipErrorInvalidDevice ("),
    ("hipDeviceGetName", 101, "hipDeviceGetName on rocm:0: hipErrorInvalidDevice ("),
    ("hipDeviceGetAttribute", 719, "hipDeviceGetAttribute on rocm:0: hipErrorLaunchFailure ("),
    ("hipModuleLoadData", 209, "hipModuleLoadData on rocm:0: hipErrorNoBinaryForGpu ("),
    ("hipModuleGetFunction", 500, "hipModuleGetFunction on rocm:0: hipErrorNotFound ("),
):
    hipsim.fail_next(function, code)
    with pytest.raises(mf.DeviceError) as caught:
        mf.matmul_fused(x, w)
    assert str(caught.value).startswith(text), caught.value
check(dev.to_numpy(mf.matmul_fused(x, w)), A, B)
assert hipsim.calls("hipModuleUnload") == 1
""")


@pytest.mark.parametrize("own_stream", [False, True])
def test_whichever_call_fails(own_stream):
    """Fails every call of HIP that a call of ours makes, one at a time; the call after it is right. In a child: memory
    whose last use cannot be told is never given back."""
    in_child(f"""
dev = hipsim.Device(0)
stream = dev.stream() if {own_stream} else None
c = draw((9, 12), seed=5)
x, w, z = (dev.array(values, stream=stream) for values in (A, B, c))  # producers have nothing to order

def call():
    return mf.matmul_fused(x, w, C=z, stream=stream)

first = call()
before = hipsim.calls()
result = call()
made = {{name: count - before.get(name, 0) for name, count in hipsim.calls().items()}}
check(dev.to_numpy(first, stream=stream), A, B, C=c)
raised = set()
for name, count in made.items():
    for skip in range(count):
        hipsim.fail_next(name, 719, skip)
        try:
            result, text = call(), None
        except (mf.DeviceError, BufferError) as error:
            result, text = None, str(error)
        hipsim.fail_next(name, 0)  # before the result is freed
        if text is not None:
            raised.add(name)
            assert text == f"{{name}} on rocm:0: hipErrorLaunchFailure (unspecified launch failure)", text
        assert hipsim.try_hip("hipGetLastError") == 0
        hipsim.try_hip("hipDeviceSynchronize")
        dev.assert_clean()
        result = call()
        check(dev.to_numpy(result, stream=stream), A, B, C=c)
assert {{"hipMallocAsync", "hipModuleLaunchKernel", "hipEventRecord"}} <= raised, raised
""")


def test_more_memory_than_the_device_has(dev):
    """The driver's own refusal: nothing is injected."""
    x = dev.array(np.ones((1, 1), np.float32)).broadcast_to((1 << 20, 1))
    launches = hipsim.calls("hipModuleLaunchKernel")
    with pytest.raises(mf.DeviceError, match=r"^hipMallocAsync on rocm:0: hipErrorOutOfMemory \(out of memory\)"):
        mf.matmul_fused(x, x.mT)
    assert hipsim.calls("hipModuleLaunchKernel") == launches
    assert hipsim.try_hip("hipGetLastError") == 0


def test_a_gpu_without_code():
    """No object for its gfx in this build and no hipRTC on this machine: the error says both."""
    in_child(
        """
dev = hipsim.Device("gfx906")
x, w = dev.array(A), dev.array(B)
with pytest.raises(mf.DeviceError) as caught:
    mf.matmul_fused(x, w)
text = str(caught.value)
assert "gfx906" in text and "hipRTC" in text and "libhiprtc" in text, text
assert hipsim.calls("hipModuleLoadData") == 0
check(mf.matmul_fused(A, B), A, B)
""",
        devices="gfx906",
    )


def test_default_stream_while_another_is_captured(dev):
    """A blocking stream records, so the default stream may not be used: the driver's error, and the graph is lost."""
    stream, x, w, out = dev.stream(blocking=True), dev.array(A), dev.array(B), dev.empty((9, 12))
    mf.matmul_fused(x, w, out=out, stream=stream)
    dev.synchronize()
    hipsim.hip("hipStreamBeginCapture", stream.handle, hipsim.CAPTURE_GLOBAL)
    with pytest.raises(mf.DeviceError, match="hipErrorStreamCaptureImplicit"):
        mf.matmul_fused(x, w, out=out)
    with pytest.raises(mf.DeviceError, match="hipErrorStreamCaptureInvalidated"):
        mf.matmul_fused(x, w, out=out, stream=stream)
    graph = ctypes.c_void_p()
    assert hipsim.try_hip("hipStreamEndCapture", stream.handle, ctypes.byref(graph)) == 901
    assert hipsim.try_hip("hipGetLastError") == 901  # of the line above, not of ours
    check(dev.to_numpy(mf.matmul_fused(x, w, out=out)), A, B)


def test_start_fails_and_is_tried_again():
    in_child("""
hipsim.fail_next("hipGetDeviceCount", 3)
with pytest.raises(mf.DeviceError) as caught:
    mf.matmul_fused(claim(A), claim(B))
assert str(caught.value) == f"AMD GPUs cannot be used: {HIPSIM}: hipGetDeviceCount: hipErrorNotInitialized (" \\
    "initialization error)", caught.value
dev = hipsim.Device(0)
check(dev.to_numpy(mf.matmul_fused(dev.array(A), dev.array(B))), A, B)
""")


def test_fork():
    in_child("""
import os
dev = hipsim.Device(0)
x, w = dev.array(A), dev.array(B)
y = mf.matmul_fused(x, w)
pid = os.fork()
if pid == 0:
    try:
        with pytest.raises(mf.DeviceError, match="AMD GPUs cannot be used: a parent of this process used them"):
            mf.matmul_fused(x, w)
        del y
        check(mf.matmul_fused(A, B), A, B)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
check(dev.to_numpy(y), A, B)
""")
