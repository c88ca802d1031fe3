"""Streams, views and graph capture of GPU calls on the simulated AMD GPUs, by HIP's own rules.

Work on a simulated device runs late and in a seeded order, so a missing dependency or memory given back too early is a
wrong result.
"""

import ctypes
import gc
import threading
import types

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import A, B, account, in_child, simulator  # noqa: F401
from support import check, draw


@pytest.fixture
def dev():
    return hipsim.Device("gfx942")


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
    z, again = dev.to_numpy(z), dev.to_numpy(again)
    check(again, A, B)
    check(z, again, B.T, activation="relu")  # y had the bits of again
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


# Views that a consumer reads on a stream of its own


def read(dev, view, stream=None):
    """A copy of a capsule's memory, made on a stream some time later, by a consumer that says nothing of it."""
    source = hipsim.array.Imported(types.SimpleNamespace(__dlpack__=lambda **_: view))
    out = dev.empty(source.shape, source.dtype)
    hipsim.hip("hipMemcpyAsync", out.pointer, source.pointer, out.nbytes, 3, stream.handle if stream else 0)
    return out


def live(dev):
    gc.collect()
    dev.synchronize()
    return dev.report(reset=False).allocations


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_memory_outlives_the_reads_of_a_consumer(dev, seed, copy):
    hipsim.configure(seed=seed)
    x, w = dev.array(A), dev.array(B)
    before = live(dev)
    reader, y = dev.stream(), mf.matmul_fused(x, w)
    view = y.__dlpack__(stream=reader.handle, copy=copy, max_version=(1, 3))
    out = read(dev, view, reader)
    del y, view
    check(dev.to_numpy(out, stream=reader), A, B)
    mf.matmul_fused(x, w, out=out, stream=reader)  # the stream is seen again
    reader.synchronize()
    del out
    assert live(dev) == before


@pytest.mark.parametrize("seed", range(20))
def test_memory_outlives_the_reads_on_several_streams(dev, seed):
    hipsim.configure(seed=seed)
    one, two, x, w = dev.stream(), dev.stream(), dev.array(A), dev.array(B)
    before = live(dev)
    y = mf.matmul_fused(x, w, stream=one)
    views = [y.__dlpack__(stream=stream.handle if stream else None) for stream in (one, two, None, one)]
    outs = [read(dev, view, stream) for view, stream in zip(views, (one, two, None), strict=False)]
    del y, views
    for stream, out in zip((one, two, None), outs, strict=True):
        check(dev.to_numpy(out, stream=stream), A, B)
    for stream, out in zip((two, one), outs, strict=False):
        mf.matmul_fused(x, w, out=out, stream=stream)
    dev.synchronize()
    del outs, out
    assert live(dev) == before


def test_a_consumer_may_destroy_its_stream(dev):
    """The stream is the consumer's own: after the export nobody else touches it (`account` sees a stale handle). The
    memory goes back when the device has none left."""
    x, w = dev.array(A), dev.array(B)
    before = live(dev)
    reader, y = dev.stream(), mf.matmul_fused(x, w)
    view = y.__dlpack__(stream=reader.handle)
    out = read(dev, view, reader)
    reader.synchronize()
    reader.destroy()
    del y, view, out
    mf.matmul_fused(x, w)
    assert live(dev) == before + 1
    hipsim.fail_next("hipMallocAsync", 2)
    synchronised = hipsim.calls("hipDeviceSynchronize")
    check(dev.to_numpy(mf.matmul_fused(x, w)), A, B)
    assert hipsim.calls("hipDeviceSynchronize") == synchronised + 1
    assert live(dev) == before
    hipsim.fail_next("hipMallocAsync", 2)
    with pytest.raises(mf.DeviceError, match="hipMallocAsync on rocm:0: hipErrorOutOfMemory"):
        mf.matmul_fused(x, w)
    assert hipsim.calls("hipDeviceSynchronize") == synchronised + 2  # one of them by live()


def test_a_captured_stream_keeps_what_it_reads(dev):
    reader, x, w, out = dev.stream(), dev.array(A), dev.array(B), dev.empty((9, 12))
    mf.matmul_fused(x, w, out=out, stream=reader)
    before = live(dev)
    y = mf.matmul_fused(x, w)
    view = y.__dlpack__(stream=reader.handle)
    dev.synchronize()
    with dev.capture(reader) as graph:
        del y, view
        mf.matmul_fused(x, w, out=out, stream=reader)
    assert live(dev) == before + 1
    mf.matmul_fused(x, w, out=out, stream=reader)
    assert live(dev) == before
    graph.destroy()


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
        text = "the stream is being captured, so no memory can be allocated; pass out="
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
    with pytest.raises(mf.DeviceError, match="captured and gemm_mfma_f32_64x64x32_f32_nn is not loaded yet; make one"):
        mf.matmul_fused(x, w, out=out, stream=stream)
assert hipsim.calls("hipModuleLoadData") == 0
mf.matmul_fused(x, w, out=out, stream=stream)
check(dev.to_numpy(out, stream=stream), A, B)
""")


def test_first_call_beside_a_capture():
    """Loading a kernel leaves alone what another thread records, in the strictest mode, and this thread's mode."""
    in_child("""
import ctypes, threading
dev = hipsim.Device(0)
stream, x, w, out = dev.stream(), dev.array(A), dev.array(B), dev.empty((9, 12))
dev.synchronize()
started, go_on = threading.Event(), threading.Event()
def record():
    with dev.capture(stream) as graph:
        started.set()
        go_on.wait(60)
        hipsim.hip("hipMemsetAsync", out.pointer, 0, 4, stream.handle)
    graph.destroy()
    results.append("whole")
results, recorder = [], threading.Thread(target=record)
recorder.start()
assert started.wait(60)
side = dev.stream()
mf.matmul_fused(x, w, out=out, stream=side)
go_on.set()
recorder.join()
assert results == ["whole"]
check(dev.to_numpy(out, stream=side), A, B)
mode = ctypes.c_int(0)
hipsim.hip("hipThreadExchangeStreamCaptureMode", ctypes.byref(mode))
assert mode.value == 0, mode
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
    stream.synchronize()  # out's memory goes back in the order of its producer's stream
    del out
    out = mf.matmul_fused(x, w, stream=stream)  # gives back what waited
    assert hipsim.calls("hipFreeAsync") >= freed + 2
    check(dev.to_numpy(out, stream=stream), A, B)
    graph.destroy()
