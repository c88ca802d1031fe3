"""Capture and replay: what a recording may hold, what breaks it and with which code, what a replay sees."""

import ctypes
import threading

import numpy as np
import pytest

import hipsim
from hipsim import CAPTURE_GLOBAL, CAPTURE_RELAXED, CAPTURE_THREAD_LOCAL, HipError, hip, made, try_hip

UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT = 900, 901, 902, 903, 904, 905, 906


def fill(array, value, stream):
    hip("hipMemsetAsync", array.pointer, value, array.nbytes, stream.handle)


def copy(to, source, stream):
    hip("hipMemcpyAsync", to.pointer, source.pointer, to.nbytes, 3, stream.handle)


def status(stream):
    value = ctypes.c_int(-1)
    code = try_hip("hipStreamIsCapturing", ctypes.c_void_p(stream.handle if stream else 0), ctypes.byref(value))
    return value.value if code == 0 else -code


def event():
    return made("hipEventCreateWithFlags", 2)


def begin(stream, mode=CAPTURE_GLOBAL):
    hip("hipStreamBeginCapture", stream.handle, mode)


def end(stream):
    """The code; a graph that came out is destroyed."""
    graph = ctypes.c_void_p()
    code = try_hip("hipStreamEndCapture", stream.handle, ctypes.byref(graph))
    if code == 0:
        hip("hipGraphDestroy", graph)
    return code


@pytest.fixture
def stream(dev):
    stream = dev.stream()
    yield stream
    stream.destroy()


def test_replay_sees_new_inputs(dev, stream):
    x, y = dev.empty(16, np.uint8), dev.empty(16, np.uint8)
    with dev.capture(stream) as graph:
        assert status(stream) == 1
        copy(y, x, stream)
    assert status(stream) == 0
    assert (dev.to_numpy(y, stream=stream) == 255).all()  # capturing runs nothing
    for value in (1, 2, 3):
        fill(x, value, stream)
        graph.launch(stream)
        assert (dev.to_numpy(y, stream=stream) == value).all()
    graph.destroy()


def test_pageable_bytes_are_taken_at_capture(dev, stream):
    x = dev.empty(16, np.uint8)
    host = np.full(16, 1, np.uint8)
    with dev.capture(stream) as graph:
        hip("hipMemcpyAsync", x.pointer, host.ctypes.data, 16, 1, stream.handle)
    host[:] = 2
    graph.launch(stream)
    assert (dev.to_numpy(x, stream=stream) == 1).all()
    graph.destroy()


def test_fork_and_join(dev, stream):
    """Two branches that must end before the last node: any order of the branches gives the same."""
    side = dev.stream()
    x, y, z = (dev.empty(4, np.uint8) for _ in range(3))
    with dev.capture(stream) as graph:
        fill(x, 3, stream)
        side.wait_for(stream)
        assert status(side) == 1
        copy(y, x, side)
        copy(z, x, stream)
        stream.wait_for(side)
        fill(x, 4, stream)
    assert status(side) == 0
    for seed in range(16):
        hipsim.configure(seed=seed)
        graph.launch(stream)
        assert dev.to_numpy(y, stream=stream)[0] == dev.to_numpy(z, stream=stream)[0] == 3
        assert dev.to_numpy(x, stream=stream)[0] == 4
    graph.destroy()
    side.destroy()


def test_missing_join_inside_a_graph_shows(dev, stream):
    side = dev.stream()
    x, y = dev.empty(4, np.uint8), dev.empty(4, np.uint8)
    with dev.capture(stream) as graph:
        fill(x, 3, stream)
        side.wait_for(stream)
        copy(y, x, side)
        fill(x, 4, stream)  # does not wait for the copy
        stream.wait_for(side)
    seen = set()
    for seed in range(24):
        hipsim.configure(seed=seed)
        graph.launch(stream)
        seen.add(int(dev.to_numpy(y, stream=stream)[0]))
    assert seen == {3, 4}
    graph.destroy()
    side.destroy()


# Calls that a recording forbids: (call, arguments, code)
POINTER = ctypes.byref(ctypes.c_void_p())
FORBIDDEN = {
    "malloc": ("hipMalloc", [POINTER, 64], UNSUPPORTED),
    "host malloc": ("hipHostMalloc", [POINTER, ctypes.c_size_t(64), 0], UNSUPPORTED),
    "managed": ("hipMallocManaged", [POINTER, ctypes.c_size_t(64), 1], UNSUPPORTED),
    "free": ("hipFree", [None], UNSUPPORTED),
    "device synchronise": ("hipDeviceSynchronize", [], UNSUPPORTED),
    "copy": ("hipMemcpy", [None, None, ctypes.c_size_t(4), 1], IMPLICIT),
    "fill": ("hipMemset", [None, 0, ctypes.c_size_t(4)], IMPLICIT),
    "module load": ("hipModuleLoadData", [POINTER, b"\x7fELF" + bytes(60)], UNSUPPORTED),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_calls_invalidate(stream, name):
    call, arguments, code = FORBIDDEN[name]
    mark = event()
    begin(stream)
    assert try_hip(call, *arguments) == code
    assert status(stream) == 2
    assert try_hip("hipMallocAsync", POINTER, ctypes.c_size_t(8), ctypes.c_void_p(stream.handle)) == INVALIDATED
    assert try_hip("hipEventRecord", mark, stream.handle) == INVALIDATED
    assert end(stream) == INVALIDATED
    assert status(stream) == 0
    hip("hipEventDestroy", mark)


STREAM_CALLS = ["hipStreamSynchronize", "hipStreamQuery"]


@pytest.mark.parametrize("call", STREAM_CALLS)
def test_waiting_for_the_recording_stream(stream, call):
    begin(stream)
    assert try_hip(call, stream.handle) == UNSUPPORTED
    assert end(stream) == INVALIDATED


def test_ordered_allocation_in_a_recording(dev, stream):
    begin(stream)
    assert try_hip("hipMallocAsync", POINTER, ctypes.c_size_t(8), ctypes.c_void_p(stream.handle)) == UNSUPPORTED
    assert end(stream) == INVALIDATED
    pointer = made("hipMalloc", 64)
    begin(stream)
    assert try_hip("hipFreeAsync", pointer, stream.handle) == UNSUPPORTED
    assert end(stream) == INVALIDATED
    hip("hipFree", pointer)


def test_another_stream_may_work_meanwhile(dev, stream):
    other = dev.stream()
    x = dev.empty(4, np.uint8)
    with dev.capture(stream) as graph:
        fill(x, 1, other)
        hip("hipFreeAsync", made("hipMallocAsync", ctypes.c_size_t(8), ctypes.c_void_p(other.handle)), other.handle)
    other.synchronize()
    graph.destroy()
    other.destroy()


def test_relaxed_and_thread_local_modes(dev, stream):
    begin(stream, CAPTURE_RELAXED)
    hip("hipFree", made("hipMalloc", 64))
    assert end(stream) == 0

    def allocate():
        codes.append(try_hip("hipMalloc", ctypes.byref(pointer), 64))

    for mode, expected in ((CAPTURE_THREAD_LOCAL, 0), (CAPTURE_GLOBAL, UNSUPPORTED)):
        codes, pointer = [], ctypes.c_void_p()
        begin(stream, mode)
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        assert codes == [expected]
        assert end(stream) == (INVALIDATED if expected else 0)
        if not expected:
            hip("hipFree", pointer)


def test_exchanged_mode_of_a_thread(stream):
    mode = ctypes.c_int(CAPTURE_RELAXED)
    hip("hipThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == CAPTURE_GLOBAL
    begin(stream)
    hip("hipFree", made("hipMalloc", 64))
    assert end(stream) == 0
    hip("hipThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == CAPTURE_RELAXED


def test_legacy_stream_and_blocking_recordings(dev):
    blocking = dev.stream(blocking=True)
    x = dev.empty(4, np.uint8)
    begin(blocking)
    assert status(None) == -IMPLICIT  # asking is an error but breaks nothing
    assert status(blocking) == 1
    assert try_hip("hipMemsetAsync", x.pointer, 0, 4, 0) == IMPLICIT
    assert end(blocking) == INVALIDATED
    assert try_hip("hipStreamBeginCapture", 0, 0) == UNSUPPORTED
    blocking.destroy()


def test_order_of_begin_and_end(dev, stream):
    other = dev.stream()
    assert end(stream) == 401  # hipErrorIllegalState
    assert try_hip("hipStreamBeginCapture", stream.handle, 7) == 1
    begin(stream)
    assert try_hip("hipStreamBeginCapture", stream.handle, 0) == 401
    assert end(other) == 401
    other.wait_for(stream)
    assert end(other) == UNMATCHED
    codes = []
    thread = threading.Thread(target=lambda: codes.append(end(stream)))
    thread.start()
    thread.join()
    assert codes == [908]  # hipErrorStreamCaptureWrongThread
    assert end(stream) == 0
    other.destroy()


def test_unjoined_isolated_merged(dev, stream):
    other = dev.stream()
    x = dev.empty(4, np.uint8)
    begin(stream)
    fill(x, 1, stream)
    other.wait_for(stream)
    fill(x, 2, other)
    assert end(stream) == UNJOINED
    assert status(other) == 0
    begin(stream)
    with pytest.raises(HipError) as caught:
        stream.wait_for(other)  # uncaptured work
    assert caught.value.code == ISOLATION
    assert end(stream) == INVALIDATED
    begin(stream)
    begin(other)
    with pytest.raises(HipError) as caught:
        stream.wait_for(other)
    assert caught.value.code == MERGE
    assert (end(stream), end(other)) == (INVALIDATED, INVALIDATED)
    other.destroy()


def test_events_of_a_recording(dev, stream):
    mark = event()
    begin(stream)
    hip("hipEventRecord", mark, stream.handle)
    assert try_hip("hipEventQuery", ctypes.c_void_p(mark)) == 907  # hipErrorCapturedEvent
    assert try_hip("hipEventSynchronize", mark) == 907
    assert end(stream) == 0
    assert try_hip("hipEventQuery", ctypes.c_void_p(mark)) == 0
    hip("hipEventDestroy", mark)


def test_destroying_a_recording_stream(dev):
    stream = dev.stream()
    x = dev.empty(4, np.uint8)
    begin(stream)
    fill(x, 1, stream)
    stream.destroy()
    hip("hipFree", made("hipMalloc", 64))  # nothing records any more


def test_graph_handles(dev, stream):
    x = dev.empty(4, np.uint8)
    with dev.capture(stream) as graph:
        fill(x, 1, stream)
        copy(x[:2], x[2:], stream)
    count, kind = ctypes.c_size_t(), ctypes.c_int()
    hip("hipGraphGetNodes", ctypes.c_void_p(graph.graph), None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * 3)()
    count.value = 3
    hip("hipGraphGetNodes", ctypes.c_void_p(graph.graph), nodes, ctypes.byref(count))
    assert count.value == 2
    kinds = []
    for node in nodes[:2]:
        hip("hipGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        kinds.append(kind.value)
    assert kinds == [2, 1]  # memset, memcpy
    second = made("hipGraphInstantiateWithFlags", graph.graph, 0)
    hip("hipGraphDestroy", graph.graph)
    assert try_hip("hipGraphDestroy", graph.graph) == 401
    hip("hipGraphLaunch", second, stream.handle)  # outlives its graph
    hip("hipGraphExecDestroy", second)  # while it waits in the stream
    assert try_hip("hipGraphLaunch", second, stream.handle) == 1
    assert (dev.to_numpy(x, stream=stream) == 1).all()
    hip("hipGraphExecDestroy", graph.exec)


def test_empty_graph(dev, stream):
    with dev.capture(stream) as graph:
        pass
    graph.launch(stream)
    stream.synchronize()
    graph.destroy()


def test_replay_cannot_be_captured(dev, stream):
    x = dev.empty(4, np.uint8)
    with dev.capture(stream) as graph:
        fill(x, 1, stream)
    begin(stream)
    assert try_hip("hipGraphLaunch", graph.exec, stream.handle) == UNSUPPORTED
    assert end(stream) == INVALIDATED
    graph.destroy()
