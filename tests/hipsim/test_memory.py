"""Device memory: life and death of allocations, what copies may touch, what pointers are known to be."""

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hipsim
from hipsim import HipError, hip, made, try_hip

TESTS = Path(__file__).resolve().parents[1]


def code_of(call, *arguments):
    with pytest.raises(HipError) as caught:
        hip(call, *arguments)
    return caught.value.name


def test_round_trip(dev, rng):
    values = rng.standard_normal((37, 129)).astype(np.float32)
    assert np.array_equal(dev.to_numpy(dev.array(values)), values)


def test_fresh_memory_is_poisoned(dev):
    for dtype in (np.float16, np.float32, np.float64):
        assert np.isnan(dev.to_numpy(dev.empty((5, 7), dtype))).all()


def test_addresses_are_not_used_twice(dev):
    seen = []
    for size in (1, 4096, 100000) * 20:
        pointer = made("hipMalloc", size)
        hip("hipFree", pointer)
        seen.append(pointer)
    assert len(set(seen)) == len(seen)
    assert all(pointer % 256 == 0 for pointer in seen)


def test_host_cannot_read_device_memory():
    script = """
import ctypes, hipsim
pointer = hipsim.made("hipMalloc", 4096)
print("reads", flush=True)
ctypes.string_at(pointer, 1)
print("still here", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=TESTS, check=False)
    assert done.returncode == -11, done.stderr  # SIGSEGV
    assert done.stdout == "reads\n"


def test_more_than_4_gb_of_which_some_rows_are_touched(dev, rng):
    rows, columns = 70000, 20000  # 5.6 GB
    x = dev.empty((rows, columns))
    for row in (0, 1, 53688, rows - 1):  # 53688 lies beyond 2^32 bytes
        values = rng.standard_normal(columns).astype(np.float32)
        source = np.ascontiguousarray(values)
        hip("hipMemcpyAsync", x[row].pointer, source.ctypes.data, source.nbytes, 1, 0)
        assert np.array_equal(dev.to_numpy(x[row]), values)
    assert x[53688].pointer - x.pointer > 2**32
    assert (dev.to_numpy(x[30000]) == 0).all()


def test_out_of_memory_is_the_parts_own():
    small = hipsim.Device("gfx1100")
    total = small.properties["memory_bytes"]
    with small.current():
        most = made("hipMalloc", total - 4096)
        assert code_of("hipMalloc", ctypes.byref(ctypes.c_void_p()), 8192) == "hipErrorOutOfMemory"
        hip("hipFree", most)
        hip("hipFree", made("hipMalloc", 8192))


def test_bad_frees(dev):
    pointer = made("hipMalloc", 100)
    assert code_of("hipFree", pointer + 16) == "hipErrorInvalidValue"
    hip("hipFree", pointer)
    assert code_of("hipFree", pointer) == "hipErrorInvalidValue"
    assert code_of("hipFreeAsync", pointer, 0) == "hipErrorInvalidValue"
    assert code_of("hipFree", 0x1234) == "hipErrorInvalidValue"
    hip("hipFree", None)


def test_zero_bytes(dev):
    assert made("hipMalloc", 0) == 0
    assert dev.to_numpy(dev.empty((0, 3))).shape == (0, 3)
    assert dev.to_numpy(dev.array(np.zeros((4, 0), np.float32))).shape == (4, 0)


def test_copies_stay_inside_their_allocations(dev):
    x = dev.empty(100)
    host = np.zeros(200, np.float32)
    assert code_of("hipMemcpyAsync", x.pointer, host.ctypes.data, 404, 1, 0) == "hipErrorInvalidValue"
    assert code_of("hipMemcpyAsync", host.ctypes.data, x.pointer + 4, 400, 2, 0) == "hipErrorInvalidValue"
    assert code_of("hipMemcpyAsync", x.pointer, host.ctypes.data, 400, 9, 0) == "hipErrorInvalidMemcpyDirection"
    assert code_of("hipMemcpyAsync", None, host.ctypes.data, 400, 1, 0) == "hipErrorInvalidValue"
    assert code_of("hipMemcpyAsync", x.pointer, host.ctypes.data, 400, 2, 0) == "hipErrorInvalidValue"
    hip("hipMemcpyAsync", x.pointer, host.ctypes.data, 400, 4, 0)
    assert (dev.to_numpy(x) == 0).all()


def test_fills(dev):
    x = dev.empty(10, np.uint8)
    hip("hipMemsetAsync", x.pointer + 2, 0x1AB, 3, 0)
    assert dev.to_numpy(x).tolist() == [255, 255, 0xAB, 0xAB, 0xAB, 255, 255, 255, 255, 255]
    y = dev.empty(4, np.uint32)
    assert try_hip("hipMemsetD32", ctypes.c_void_p(y.pointer), 0x01020304, ctypes.c_size_t(3)) == 0
    assert dev.to_numpy(y).tolist() == [0x01020304] * 3 + [0xFFFFFFFF]
    assert try_hip("hipMemsetD16", ctypes.c_void_p(y.pointer), 7, ctypes.c_size_t(9)) == 1
    assert try_hip("hipMemsetD16", ctypes.c_void_p(y.pointer + 1), 7, ctypes.c_size_t(2)) == 1


def test_pageable_memory_is_read_at_the_call(dev):
    x = dev.empty(100)
    host = np.ones(100, np.float32)
    hip("hipMemcpyAsync", x.pointer, host.ctypes.data, 400, 1, 0)
    host[:] = 2
    assert (dev.to_numpy(x) == 1).all()


def test_pinned_memory_is_read_when_the_stream_gets_there(dev):
    x = dev.empty(100)
    pinned = made("hipHostMalloc", ctypes.c_size_t(400), 0)
    host = np.ctypeslib.as_array((ctypes.c_float * 100).from_address(pinned))
    host[:] = 1
    hip("hipMemcpyAsync", x.pointer, pinned, 400, 1, 0)
    host[:] = 2
    assert (dev.to_numpy(x) == 2).all()
    hip("hipHostFree", ctypes.c_void_p(pinned))


class Attributes(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("device_pointer", ctypes.c_void_p),
        ("host_pointer", ctypes.c_void_p),
        ("managed", ctypes.c_int),
        ("flags", ctypes.c_uint),
    ]


def attributes(pointer):
    found = Attributes()
    code = try_hip("hipPointerGetAttributes", ctypes.byref(found), ctypes.c_void_p(pointer))
    return code, found


def test_pointer_attributes():
    other = hipsim.Device("gfx1100")
    x = other.empty(1000)
    code, found = attributes(x[10].pointer)
    assert (code, found.type, found.device, found.host_pointer) == (0, 2, other.ordinal, None)
    pinned = made("hipHostMalloc", ctypes.c_size_t(64), 0)
    code, found = attributes(pinned)
    assert (code, found.type, found.host_pointer) == (0, 1, pinned)
    hip("hipHostFree", ctypes.c_void_p(pinned))
    managed = made("hipMallocManaged", ctypes.c_size_t(64), 1)
    code, found = attributes(managed)
    assert (code, found.type, found.managed) == (0, 3, 1)
    ctypes.memset(managed, 1, 64)
    hip("hipFree", managed)
    host = np.zeros(4)
    assert attributes(host.ctypes.data)[0] == 0
    assert attributes(host.ctypes.data)[1].type == 0
    hipsim.configure(version=60443484)
    assert attributes(host.ctypes.data)[0] == 1  # before HIP 7


def test_ordered_allocation_is_not_there_before_its_stream_is(dev):
    """Used in another stream without order between them, it is there for some seeds only."""
    wrong = 0
    host = np.ones(100, np.float32)
    for seed in range(16):
        hipsim.configure(seed=seed)
        stream = dev.stream()
        pointer = made("hipMallocAsync", ctypes.c_size_t(400), ctypes.c_void_p(stream.handle))
        hip("hipMemcpyAsync", pointer, host.ctypes.data, 400, 1, 0)
        hip("hipStreamSynchronize", 0)
        wrong += [v.kind for v in dev.report().violations] == ["memory"]
        hip("hipMemcpyAsync", pointer, host.ctypes.data, 400, 1, stream.handle)
        hip("hipFreeAsync", pointer, stream.handle)
        stream.synchronize()
        assert code_of("hipFree", pointer) == "hipErrorInvalidValue"
        stream.destroy()
    assert 2 <= wrong <= 14


def test_use_after_an_ordered_free_elsewhere(dev):
    """The free waits in one stream, the use in another: some seeds order them wrongly, and that is reported."""
    wrong = 0
    for seed in range(16):
        hipsim.configure(seed=seed)
        a, b = dev.stream(), dev.stream()
        pointer = made("hipMalloc", 4000)
        hip("hipMemsetAsync", pointer, 0, 4000, a.handle)
        hip("hipFreeAsync", pointer, b.handle)
        dev.synchronize()
        wrong += bool(dev.report().violations)
        a.destroy(), b.destroy()
    assert 2 <= wrong <= 14


def test_free_waits_for_the_device(dev):
    stream = dev.stream()
    for _ in range(8):
        pointer = made("hipMalloc", 4000)
        hip("hipMemsetAsync", pointer, 0, 4000, stream.handle)
        hip("hipFree", pointer)
    stream.destroy()


def test_leaks_are_counted(dev):
    pointer = made("hipMalloc", 1234)
    report = dev.report()
    assert (report.allocations, report.allocated_bytes) == (1, 1234)
    hip("hipFree", pointer)


def test_memory_information(dev):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    pointer = made("hipMalloc", 1 << 30)
    hip("hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    assert total.value == dev.properties["memory_bytes"]
    assert total.value - free.value >= 1 << 30
    base, size = ctypes.c_void_p(), ctypes.c_size_t()
    hip("hipMemGetAddressRange", ctypes.byref(base), ctypes.byref(size), ctypes.c_void_p(pointer + 12345))
    assert (base.value, size.value) == (pointer, 1 << 30)
    hip("hipFree", pointer)
    assert code_of("hipMemGetAddressRange", ctypes.byref(base), ctypes.byref(size), ctypes.c_void_p(pointer)) == (
        "hipErrorNotFound"
    )
