"""The host path of GPU calls on the simulated AMD GPUs: HIP's own rules for streams, capture, memory and errors.

Work on a simulated device runs late and in a seeded order, so a missing dependency or memory given back too early is a
wrong result. What the kernels compute is for the sweeps (--device hip:...); cases here are small.
"""

import ctypes
import gc
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import hipsim
import hipsim.build
import matmul_fused as mf
from fake_dlpack import DLDevice, Producer
from support import check, draw, dtype_of, python

HIPSIM = Path(os.environ["MATMUL_FUSED_HIP_LIBRARY"])  # of conftest.py
A, B = draw((9, 70), seed=1), draw((70, 12), seed=2)


@pytest.fixture(scope="session", autouse=True)
def simulator():
    hipsim.build.build(HIPSIM.parent)


@pytest.fixture(autouse=True)
def account(simulator):
    """No test leaves a violation, device memory, an event or an error for the next caller of HIP behind."""
    hipsim.configure(order="late", seed=1)
    devices = [hipsim.Device(i) for i in range(hipsim.device_count())]
    before = [device.report() for device in devices]
    yield
    gc.collect()
    for device, earlier in zip(devices, before, strict=True):
        report = device.assert_clean()
        assert report.allocations <= earlier.allocations
        assert report.handles["events"] <= earlier.handles["events"]
    assert hipsim.try_hip("hipPeekAtLastError") == 0


@pytest.fixture
def dev():
    return hipsim.Device("gfx942")


def in_child(code, devices="gfx942"):
    start = "import numpy as np, pytest, hipsim, matmul_fused as mf\nfrom test_hip_host import *\n"
    environment = {
        "MATMUL_FUSED_HIP_LIBRARY": str(HIPSIM),
        "HIPSIM_DEVICES": devices,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return python("-c", start + code, environment=environment).stdout


# Results


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_part(arch, dtype):
    dev, dtype = hipsim.Device(arch), dtype_of(dtype)
    a, w, bias = A.astype(dtype), np.ascontiguousarray(B.T).astype(dtype), draw(12, seed=3)
    x = dev.array(a), dev.array(w).mT, dev.array(bias)
    y = mf.matmul_fused(*x, "silu")
    assert (y.device, y.shape, y.dtype) == (f"rocm:{dev.ordinal}", (9, 12), dtype.name)
    check(dev.to_numpy(y), a, w.T, bias, activation="silu")
    matrix = dtype.name == "bfloat16" and arch in ("gfx942", "gfx950")
    assert mf.explain(*x, "silu").kernel == ("gemm_mfma" if matrix else "gemm_simt")


def test_info_shows_the_parts():
    info = mf.info()
    assert dict(info.backends)["AMD GPUs"].startswith("on: HIP ")
    assert dict(info.devices)["rocm:0"] == "AMD Instinct MI300X, gfx942, 304 compute units, wave 64; code for gfx942"
    assert "gfx1100, 48 compute units, wave 32" in dict(info.devices)["rocm:2"]


def test_a_machine_without_a_gpu():
    code = """
print(dict(mf.info().backends)["AMD GPUs"])
a = np.ones((2, 2), np.float32)
assert (mf.matmul_fused(a, a) == 2).all()
"""
    assert in_child(code, "none").startswith(f"off: {HIPSIM} finds no AMD GPU (hip")


# Order of streams


@pytest.mark.parametrize("seed", range(5))
def test_work_on_several_streams_is_ordered(dev, seed):
    """Each operand arrives late on a stream of its own; results wander over streams and are dropped at once.

    The producers' arrays stay: their memory goes back in the order of their own stream, which knows nothing of ours.
    """
    hipsim.configure(seed=seed)
    one, two, three = dev.stream(), dev.stream(), dev.stream()
    x, w, wt = dev.array(A, stream=one), dev.array(B, stream=two), dev.array(np.ascontiguousarray(B.T), stream=one)
    y = mf.matmul_fused(x, w, stream=three)
    z = mf.matmul_fused(y, wt, None, "relu", stream=two)
    del y
    again = mf.matmul_fused(x, w)  # may take the memory of y
    check(dev.to_numpy(z), A @ B, B.T, activation="relu")
    check(dev.to_numpy(again), A, B)
    dev.synchronize()


def test_default_stream_for_unknown_libraries(dev):
    x, y = dev.array(A), dev.array(B)
    mf.matmul_fused(x, y)
    assert x.exports == y.exports == [{"max_version": (1, 3), "stream": 0}]
    stream = dev.stream()
    mf.matmul_fused(x, y, stream=stream)
    assert x.exports[1:] == y.exports[1:] == [{"max_version": (1, 3), "stream": stream.handle}]


@pytest.mark.parametrize("stream", [1, 2])
def test_rocm_has_no_such_streams(dev, stream):
    with pytest.raises(ValueError, match=f"stream is {stream}, which names no stream in ROCm; pass 0 or a handle"):
        mf.matmul_fused(dev.array(A), dev.array(B), stream=stream)


def test_stream_of_another_device(dev):
    other = hipsim.Device("gfx1100").stream()
    with pytest.raises(mf.DeviceError, match="stream belongs to another device than the operands, which are on rocm:0"):
        mf.matmul_fused(dev.array(A), dev.array(B), stream=other)


def test_the_current_device_stays(dev):
    other = hipsim.Device("gfx1100")
    with other.current():
        check(dev.to_numpy(mf.matmul_fused(dev.array(A), dev.array(B))), A, B)
        current = ctypes.c_int()
        hipsim.hip("hipGetDevice", ctypes.byref(current))
        assert current.value == other.ordinal


def test_threads_on_several_devices():
    errors, start = [], threading.Barrier(6)

    def work(ordinal):
        try:
            dev = hipsim.Device(ordinal)
            a, b = dev.array(A), dev.array(B)
            start.wait()
            for _ in range(5):
                stream = dev.stream()
                y = mf.matmul_fused(a, b, stream=stream)
                check(dev.to_numpy(y, stream=stream), A, B)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i % 2 * 5,)) for i in range(6)]  # both gfx942
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# Capture


def test_graph_replays_with_new_inputs(dev):
    stream = dev.stream()
    x, w, out = dev.array(A), dev.array(B), dev.empty((9, 12))
    mf.matmul_fused(x, w, out=out, stream=stream)  # loads the kernel
    with dev.capture(stream) as graph:
        assert mf.matmul_fused(x, w, out=out, activation="gelu", stream=stream) is out
    for seed in (7, 8):
        new = draw(A.shape, seed=seed)
        hipsim.hip("hipMemcpyAsync", x.pointer, new.ctypes.data, new.nbytes, 1, stream.handle)
        graph.launch(stream)
        check(dev.to_numpy(out, stream=stream), new, B, activation="gelu")
    graph.destroy()


def test_results_in_a_capture_need_out(dev):
    stream, x, w = dev.stream(), dev.array(A), dev.array(B)
    out = mf.matmul_fused(x, w, stream=stream)
    stream.synchronize()
    before = hipsim.calls("hipMallocAsync")
    with dev.capture(stream) as graph:
        text = "the stream is being captured, so no result can be allocated; pass out="
        with pytest.raises(mf.DeviceError, match=text):
            mf.matmul_fused(x, w, stream=stream)
        mf.matmul_fused(x, w, activation="relu", out=out, stream=stream)  # the capture is whole: it goes on
    assert hipsim.calls("hipMallocAsync") == before
    graph.launch(stream)
    check(dev.to_numpy(out, stream=stream), A, B, activation="relu")
    graph.destroy()


def test_first_call_in_a_capture():
    in_child("""
dev = hipsim.Device(0)
stream, x, w, out = dev.stream(), dev.array(A), dev.array(B), dev.empty((9, 12))
dev.synchronize()
with dev.capture(stream) as graph:
    with pytest.raises(mf.DeviceError, match="is being captured and gemm_simt_f32 is not loaded yet; make one"):
        mf.matmul_fused(x, w, out=out, stream=stream)
assert hipsim.calls("hipModuleLoadData") == 0
mf.matmul_fused(x, w, out=out, stream=stream)
check(dev.to_numpy(out, stream=stream), A, B)
""")


@pytest.mark.parametrize("blocking", [False, True])
def test_arrays_may_go_while_a_graph_is_captured(dev, blocking):
    """Giving memory back is no part of the graph and does not break it; it waits where it would."""
    stream, x, w, out = dev.stream(blocking=blocking), dev.array(A), dev.array(B), dev.empty((9, 12))
    y = mf.matmul_fused(x, w, out=out, stream=stream)
    y = mf.matmul_fused(x, w)
    dev.synchronize()
    with dev.capture(stream) as graph:
        mf.matmul_fused(x, w, out=out, stream=stream)
        freed = hipsim.calls("hipFreeAsync")
        del y
        assert hipsim.calls("hipFreeAsync") == freed + (not blocking)
        mf.matmul_fused(x, w, out=out, stream=stream)
    graph.launch(stream)
    del out
    out = mf.matmul_fused(x, w, stream=stream)  # gives back what waited
    assert hipsim.calls("hipFreeAsync") >= freed + 2
    check(dev.to_numpy(out, stream=stream), A, B)
    graph.destroy()


# Memory that is not what its producer says


def claim(array, ordinal=0):
    """A producer that says of any memory that it is a ROCm device's."""
    return Producer(array, device=(10, ordinal), change=lambda tensor: setattr(tensor, "device", DLDevice(10, ordinal)))


def test_host_memory_claimed_as_rocm(dev):
    text = "A says that it is on rocm:0, but the driver knows no such device memory"
    with pytest.raises(BufferError, match=text):
        mf.matmul_fused(claim(A), dev.array(B))
    with pytest.raises(BufferError, match="out says that it is on rocm:0, but"):
        mf.matmul_fused(dev.array(A), dev.array(B), out=claim(np.zeros((9, 12), np.float32)))


def test_memory_of_another_device(dev):
    other = hipsim.Device("gfx950").array(B)
    with pytest.raises(ValueError, match="B is on rocm:1 but A is on rocm:0; move it to A's device"):
        mf.matmul_fused(dev.array(A), other)
    fake = Producer(B, device=(10, 0), change=lambda tensor: moved(tensor, other.pointer))
    with pytest.raises(BufferError, match="B says that it is on rocm:0, but its memory is on rocm:1"):
        mf.matmul_fused(dev.array(A), fake)


def moved(tensor, pointer):
    tensor.device = DLDevice(10, 0)
    tensor.data = pointer


def test_misaligned_memory(dev):
    x = dev.array(A, offset=2)
    with pytest.raises(ValueError, match="A lies at an address that is no multiple of its item size"):
        mf.matmul_fused(x, dev.array(B))


def test_a_device_that_is_not_there(dev):
    count = hipsim.device_count()
    with pytest.raises(mf.DeviceError, match=rf"there is no device rocm:{count}; HIP finds {count} \("):
        mf.matmul_fused(claim(A, count), claim(B, count))


# HIP's errors


@pytest.mark.parametrize(
    ("function", "code", "name"),
    [
        ("hipModuleLaunchKernel", 719, r"hipErrorLaunchFailure \(unspecified launch failure\)"),
        ("hipModuleLaunchKernel", 701, r"hipErrorLaunchOutOfResources \("),
        ("hipMallocAsync", 2, r"hipErrorOutOfMemory \(out of memory\)"),
        ("hipEventCreateWithFlags", 2, r"hipErrorOutOfMemory \("),
        ("hipEventRecord", 400, r"hipErrorInvalidHandle \("),
        ("hipStreamIsCapturing", 400, r"hipErrorInvalidHandle \("),
    ],
)
def test_errors_have_hip_s_name_and_text(dev, function, code, name):
    x, w = dev.array(A), dev.array(B)
    mf.matmul_fused(x, w)
    hipsim.fail_next(function, code)
    with pytest.raises(mf.DeviceError, match=rf"^{function} on rocm:0: {name}"):
        mf.matmul_fused(x, w)
    assert hipsim.try_hip("hipGetLastError") == 0  # nobody else trips over it
    check(dev.to_numpy(mf.matmul_fused(x, w)), A, B)


def test_loading_fails_and_is_tried_again():
    in_child("""
dev = hipsim.Device(0)
x, w = dev.array(A), dev.array(B)
for function, code, text in (
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


def outcome_of(function):
    """What a call returns, and the text of the exception that it raises."""
    try:
        return function(), None
    except (mf.DeviceError, BufferError) as error:
        return None, str(error)


@pytest.mark.parametrize("own_stream", [False, True])
def test_whichever_call_fails(dev, own_stream):
    """Fails every call of HIP that a call of ours makes, one at a time; the call after it is right."""
    stream = dev.stream() if own_stream else None
    c = draw((9, 12), seed=5)
    x, w, z = (dev.array(values, stream=stream) for values in (A, B, c))  # producers have nothing to order

    def call():
        return mf.matmul_fused(x, w, C=z, stream=stream)

    first = call()
    before = hipsim.calls()
    result = call()
    made = {name: count - before.get(name, 0) for name, count in hipsim.calls().items()}
    check(dev.to_numpy(first, stream=stream), A, B, C=c)
    raised, early = set(), set()
    for name, count in made.items():
        for skip in range(count):
            hipsim.fail_next(name, 719, skip)
            result, text = outcome_of(call)
            hipsim.fail_next(name, 0)  # before the result is freed
            if text is not None:
                raised.add(name)
                told = {"hipGetDevice": "hipSetDevice"}.get(name, name)  # one step for us: a device becomes current
                texts = (
                    rf"{told} on rocm:0: hipErrorLaunchFailure \(unspecified launch failure\)",
                    r"\w+ says that it is on rocm:0, but the driver knows no such device memory.*",
                )
                assert re.fullmatch("|".join(texts), text), (name, skip)
            assert hipsim.try_hip("hipGetLastError") == 0
            hipsim.try_hip("hipDeviceSynchronize")
            early |= {name} if dev.report().violations else set()
            result = call()
            check(dev.to_numpy(result, stream=stream), A, B, C=c)
    assert {"hipMallocAsync", "hipModuleLaunchKernel", "hipEventRecord"} <= raised
    # Known: where one of the calls after the launch fails, the result is given back while the kernel still writes it.
    assert early <= {"hipGetDevice", "hipStreamIsCapturing", "hipStreamWaitEvent", "hipEventRecord"}


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
