"""Streams and events: work runs late and in any order that the program allows, and only those."""

import ctypes
import threading

import numpy as np
import pytest

import hipsim
from hipsim import HipError, hip, made, try_hip

SEEDS = range(24)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def fill(array, value, stream=0):
    hip("hipMemsetAsync", array.pointer, value, array.nbytes, stream)


def copy(to, source, stream=0):
    hip("hipMemcpyAsync", to.pointer, source.pointer, to.nbytes, 3, stream)


def outcomes(dev, scenario):
    """What scenario(dev) ends in, over many seeds."""
    seen = set()
    for seed in SEEDS:
        hipsim.configure(seed=seed)
        seen.add(scenario(dev))
    return seen


def two_streams(dev, ordered, blocking=False):
    a, b = dev.stream(blocking=blocking), dev.stream(blocking=blocking)
    x, y = dev.empty(4, np.uint8), dev.empty(4, np.uint8)
    fill(x, 1, a.handle)
    if ordered:
        b.wait_for(a)
    copy(y, x, b.handle)
    dev.synchronize()
    value = int(dev.to_numpy(y)[0])
    a.destroy(), b.destroy()
    return value


def test_missing_order_shows_for_some_seeds(dev):
    assert outcomes(dev, lambda d: two_streams(d, ordered=False)) == {1, 255}
    assert outcomes(dev, lambda d: two_streams(d, ordered=False, blocking=True)) == {1, 255}


def test_events_order_streams(dev):
    assert outcomes(dev, lambda d: two_streams(d, ordered=True)) == {1}


def through_the_legacy_stream(dev, blocking):
    a, b = dev.stream(blocking=blocking), dev.stream(blocking=blocking)
    x, y = dev.empty(4, np.uint8), dev.empty(4, np.uint8)
    fill(x, 1, a.handle)
    copy(y, x)  # the legacy stream
    fill(x, 2, b.handle)
    dev.synchronize()
    value = int(dev.to_numpy(y)[0])
    a.destroy(), b.destroy()
    return value


def test_legacy_stream_waits_for_blocking_streams_only(dev):
    assert outcomes(dev, lambda d: through_the_legacy_stream(d, blocking=True)) == {1}
    assert len(outcomes(dev, lambda d: through_the_legacy_stream(d, blocking=False))) > 1


def test_same_seed_same_order(dev):
    def run():
        dev.synchronize()
        hipsim.configure(seed=99)
        return [two_streams(dev, ordered=False) for _ in range(12)]

    first = run()
    assert run() == first
    assert len(set(first)) == 2


def test_nothing_runs_before_a_synchronisation(dev):
    stream = dev.stream()
    ran = []
    callback = CALLBACK(lambda _: ran.append(threading.get_ident()))
    hip("hipLaunchHostFunc", ctypes.c_void_p(stream.handle), callback, None)
    assert not stream.done()
    assert ran == []
    stream.synchronize()
    assert len(ran) == 1
    assert stream.done()
    hipsim.configure(order="early")
    hip("hipLaunchHostFunc", ctypes.c_void_p(stream.handle), callback, None)
    assert len(ran) == 2
    stream.destroy()


def test_synchronising_one_stream_waits_for_what_it_needs_only(dev):
    a, b = dev.stream(), dev.stream()
    ran = []
    callbacks = [CALLBACK(lambda _, n=n: ran.append(n)) for n in "ab"]
    hip("hipLaunchHostFunc", ctypes.c_void_p(a.handle), callbacks[0], None)
    b.wait_for(a)
    hip("hipLaunchHostFunc", ctypes.c_void_p(b.handle), callbacks[1], None)
    b.synchronize()
    assert ran == ["a", "b"]
    a.destroy(), b.destroy()


def test_a_host_function_may_take_its_time(dev):
    """Another thread works on the device meanwhile; what follows in the stream waits."""
    stream = dev.stream()
    x = dev.empty(4, np.uint8)
    entered, leave = threading.Event(), threading.Event()

    def slow(_):
        entered.set()
        leave.wait(10)

    callback = CALLBACK(slow)
    hip("hipLaunchHostFunc", ctypes.c_void_p(stream.handle), callback, None)
    fill(x, 7, stream.handle)
    waiter = threading.Thread(target=stream.synchronize)
    waiter.start()
    assert entered.wait(10)
    assert (dev.to_numpy(x) == 255).all()
    leave.set()
    waiter.join(10)
    assert not waiter.is_alive()
    assert (dev.to_numpy(x) == 7).all()
    stream.destroy()


def test_stream_callback_gets_its_stream(dev):
    stream = dev.stream()
    got = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    callback = kind(lambda *arguments: got.append(arguments))
    hip("hipStreamAddCallback", ctypes.c_void_p(stream.handle), callback, ctypes.c_void_p(5), 0)
    stream.synchronize()
    assert got == [(stream.handle, 0, 5)]
    stream.destroy()


def test_per_thread_streams_are_apart(dev):
    seen = []

    def work():
        x = dev.empty(8, np.uint8)
        fill(x, 3, 2)  # hipStreamPerThread
        hip("hipStreamSynchronize", 2)
        seen.append(int(dev.to_numpy(x)[0]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [3] * 4


def test_handles_tell_about_themselves(dev):
    other = hipsim.Device("gfx1100")
    stream = hipsim.Stream(other, priority=-7)
    value = ctypes.c_int()
    hip("hipStreamGetDevice", ctypes.c_void_p(stream.handle), ctypes.byref(value))
    assert value.value == other.ordinal
    hip("hipStreamGetPriority", ctypes.c_void_p(stream.handle), ctypes.byref(value))
    assert value.value == -1
    hip("hipStreamGetFlags", ctypes.c_void_p(stream.handle), ctypes.byref(value))
    assert value.value == 1
    stream.destroy()


@pytest.mark.parametrize("call", ["hipStreamSynchronize", "hipStreamQuery", "hipStreamDestroy"])
def test_stale_handles_are_violations(dev, call):
    stream = dev.stream()
    handle = stream.handle
    stream.destroy()
    assert try_hip(call, handle) == 709  # hipErrorContextIsDestroyed
    assert [v.kind for v in dev.report().violations] == ["handle"]


def test_work_of_a_destroyed_stream_still_runs(dev):
    stream = dev.stream()
    x = dev.empty(4, np.uint8)
    fill(x, 9, stream.handle)
    stream.destroy()
    dev.synchronize()
    assert (dev.to_numpy(x) == 9).all()


def test_event_life(dev):
    stream = dev.stream()
    event = made("hipEventCreateWithFlags", 0)
    assert try_hip("hipEventQuery", ctypes.c_void_p(event)) == 0  # never recorded
    milliseconds = ctypes.c_float()
    hip("hipEventRecord", event, stream.handle)
    assert try_hip("hipEventQuery", ctypes.c_void_p(event)) == 600  # hipErrorNotReady
    second = made("hipEventCreateWithFlags", 0)
    hip("hipEventRecord", second, stream.handle)
    arguments = (ctypes.byref(milliseconds), ctypes.c_void_p(event), ctypes.c_void_p(second))
    assert try_hip("hipEventElapsedTime", *arguments) == 600
    hip("hipEventSynchronize", second)
    hip("hipEventElapsedTime", *arguments)
    assert milliseconds.value >= 0
    hip("hipEventDestroy", event)
    assert try_hip("hipEventRecord", event, stream.handle) == 400  # hipErrorInvalidHandle
    assert len(dev.report().violations) == 1
    hip("hipEventDestroy", second)
    stream.destroy()


def test_events_belong_to_their_device(dev):
    other = hipsim.Device("gfx1100")
    event = made("hipEventCreateWithFlags", 2)
    stream = hipsim.Stream(other)
    assert try_hip("hipEventRecord", event, stream.handle) == 400
    hip("hipEventDestroy", event)
    stream.destroy()


def test_waiting_for_another_device(dev):
    other = hipsim.Device("gfx1100")
    for seed in SEEDS:
        hipsim.configure(seed=seed)
        x, y = dev.empty(64, np.uint8), other.empty(64, np.uint8)
        stream = hipsim.Stream(other)
        fill(x, 5)
        event = made("hipEventCreateWithFlags", 2)
        hip("hipEventRecord", event, 0)
        hip("hipStreamWaitEvent", stream.handle, event, 0)
        hip("hipEventDestroy", event)
        copy(y, x, stream.handle)
        assert (other.to_numpy(y, stream=stream) == 5).all()
        stream.destroy()


def test_last_error_is_of_the_thread(dev):
    with pytest.raises(HipError):
        hip("hipSetDevice", 99)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(try_hip("hipGetLastError")))
    thread.start()
    thread.join()
    assert seen == [0]
    hip("hipSetDevice", 0)
    assert try_hip("hipPeekAtLastError") == 101  # since HIP 7 a success leaves it
    assert try_hip("hipGetLastError") == 101
    assert try_hip("hipGetLastError") == 0


def test_device_is_of_the_thread(dev):
    seen = []

    def ask():
        number = ctypes.c_int(-1)
        hip("hipGetDevice", ctypes.byref(number))
        seen.append(number.value)

    with hipsim.Device(1).current():
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        ask()
    ask()
    assert seen == [0, 1, 0]


def test_threads_on_their_own_streams():
    """Everybody allocates, fills, copies, waits and frees at once, on three devices."""
    failures = []

    def work(index):
        device = hipsim.Device(index % 3)
        stream = device.stream(blocking=index % 2 == 0)
        try:
            for step in range(40):
                value = (7 * index + step) % 251
                x, y = (device.empty(1000 + step, np.uint8, stream=stream) for _ in range(2))
                fill(x, value, stream.handle)
                copy(y, x, stream.handle)
                if not (device.to_numpy(y, stream=stream) == value).all():
                    failures.append((index, step))
                del x, y
        finally:
            stream.destroy()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
