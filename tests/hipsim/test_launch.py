"""Launches: arguments in both forms, hidden arguments, limits with the runtime's codes, and results on every part."""

import ctypes
import struct
import threading

import numpy as np
import pytest

import hipsim
from hipsim import HipError, Module
from hipsim.compile import ADD, object_of

ARCHS = ("gfx942", "gfx950", "gfx1100")
# Everything that a kernel can ask about its launch, in the order of `out`.
ABOUT = """
extern "C" __global__ void about(unsigned *out)
{
    extern __shared__ unsigned shared[];
    typedef __attribute__((address_space(4))) const unsigned char *constant;
    constant hidden = (constant)__builtin_amdgcn_implicitarg_ptr(), packet = (constant)__builtin_amdgcn_dispatch_ptr();
    if (item_x || __builtin_amdgcn_workitem_id_y() || group_x || __builtin_amdgcn_workgroup_id_y() ||
        __builtin_amdgcn_workgroup_id_z())
        return;
    shared[0] = 1; // so that the compiler asks for LDS
    typedef __attribute__((address_space(4))) const unsigned *word;
    typedef __attribute__((address_space(4))) const unsigned short *half;
    for (int i = 0; i < 3; i++) {
        out[i] = ((word)hidden)[i];            // workgroups
        out[3 + i] = ((half)(hidden + 12))[i]; // work items of one
        out[6 + i] = ((half)(hidden + 18))[i]; // remainder
        out[9 + i] = ((word)(packet + 12))[i]; // work items of the grid
        out[12 + i] = ((half)(packet + 4))[i];
    }
    out[15] = *(half)(hidden + 64);            // dimensions
    out[16] = *(word)(packet + 28);            // LDS bytes
}
"""


def argument_bytes(out, a, b, n):
    return struct.pack("<QQQi", out.pointer, a.pointer, b.pointer, n)


@pytest.fixture(params=ARCHS)
def part(request):
    return hipsim.Device(request.param)


@pytest.fixture
def add(part):
    with Module(part, object_of(ADD, part.arch)) as module:
        yield module["add"]


@pytest.fixture
def operands(part, rng):
    """A function, since pytest keeps what fixtures return: a, b, out, a + b."""

    def make(n=1000):
        a, b = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
        return part.array(a), part.array(b), part.empty(n), a + b

    return make


def test_add(part, add, operands):
    a, b, out, expected = operands()
    add(4, 256, out, a, b, 1000)
    assert np.array_equal(part.to_numpy(out), expected)
    report = part.assert_clean()
    assert report.counters["launches"] == 1
    assert report.counters["instructions"] > 0


def test_guard_in_the_kernel_is_needed(part, add, operands):
    a, b, out, _ = operands()
    add(4, 256, out, a, b, 1024)  # 24 elements too many
    with pytest.raises(HipError, match="hipErrorIllegalAddress"):
        part.synchronize()
    report = part.report()
    assert {v.kind for v in report.violations} == {"bounds"}
    assert "add on " + part.arch in str(report)
    part.synchronize()  # told once


def test_arguments_as_a_buffer(part, add, operands):
    a, b, out, expected = operands()
    add.launch_buffer(4, 256, argument_bytes(out, a, b, 1000))
    assert np.array_equal(part.to_numpy(out), expected)
    with pytest.raises(HipError, match="hipErrorInvalidValue"):
        add.launch_buffer(4, 256, argument_bytes(out, a, b, 1000)[:-4])
    assert "24 bytes for arguments of 28" in str(part.report())


def test_arguments_are_read_at_the_call(part, add, operands):
    a, b, out, expected = operands()
    n = ctypes.c_int32(1000)
    add(4, 256, out, a, b, n)
    n.value = 0
    assert np.array_equal(part.to_numpy(out), expected)


def test_what_a_kernel_learns_of_its_launch(part):
    with Module(part, object_of(ABOUT, part.arch)) as module:
        out = part.empty(17, np.uint32)
        module["about"]((3, 2, 5), (16, 8, 1), out, lds=256)
        words = part.to_numpy(out).tolist()
    assert words == [3, 2, 5, 16, 8, 1, 0, 0, 0, 48, 16, 5, 16, 8, 1, 3, 256]


VALUE, CONFIGURATION, DEVICE, FAILURE, DESTROYED = 1, 9, 101, 719, 709
LIMITS = [
    ((0, 1, 1), (64, 1, 1), 0, VALUE),
    ((1, 0, 1), (64, 1, 1), 0, VALUE),
    ((1, 65537, 1), (64, 1, 1), 0, VALUE),
    ((1, 1, 65537), (64, 1, 1), 0, VALUE),
    ((2**31, 1, 1), (1, 1, 1), 0, VALUE),
    ((2**31 - 1, 1, 1), (64, 1, 1), 0, CONFIGURATION),
    ((1, 1, 1), (0, 1, 1), 0, CONFIGURATION),
    ((1, 1, 1), (64, 0, 1), 0, CONFIGURATION),
    ((1, 1, 1), (2048, 1, 1), 0, CONFIGURATION),
    ((1, 1, 1), (64, 64, 1), 0, CONFIGURATION),
    ((1, 1, 1), (512, 1, 1), 0, FAILURE),  # the kernel was compiled for 256
    ((1, 1, 1), (64, 1, 1), 2**20, VALUE),
]


@pytest.mark.parametrize(("grid", "block", "lds", "code"), LIMITS)
def test_limits(part, add, operands, grid, block, lds, code):
    a, b, out, _ = operands()
    with pytest.raises(HipError) as caught:
        add(grid, block, out, a, b, 0, lds=lds)
    assert caught.value.code == code


def test_limits_of_lds_are_the_parts_own(part, add, operands):
    a, b, out, _ = operands()
    most = part.properties["lds_bytes"]
    assert most == {"gfx942": 65536, "gfx950": 163840, "gfx1100": 65536}[part.arch]
    add(1, 64, out, a, b, 0, lds=most)
    with pytest.raises(HipError):
        add(1, 64, out, a, b, 0, lds=most + 1)


def test_missing_arguments(part, add):
    for parameters in (None, (ctypes.c_void_p * 4)()):
        with part.current(), pytest.raises(HipError, match="hipErrorInvalidValue"):
            hipsim.hip("hipModuleLaunchKernel", add.handle, 1, 1, 1, 64, 1, 1, 0, 0, parameters, None)


def test_wrong_streams(part, add, operands):
    a, b, out, _ = operands()
    other = hipsim.Device("gfx1201")
    stream = other.stream()
    with pytest.raises(HipError) as caught:
        add(1, 64, out, a, b, 0, stream=stream)
    assert caught.value.code == DEVICE
    handle = stream.handle
    stream.destroy()
    with pytest.raises(HipError) as caught:
        add(1, 64, out, a, b, 0, stream=handle)
    assert caught.value.code == DESTROYED
    assert "not a stream" in str(part.report())


def test_memory_of_another_device(part, add, operands):
    a, b, out, expected = operands()
    other = hipsim.Device("gfx1201")
    foreign = other.array(part.to_numpy(a))
    other.synchronize()
    add(4, 256, out, foreign, b, 1000)
    with pytest.raises(HipError, match="hipErrorIllegalAddress"):
        part.synchronize()
    assert part.report().violations
    with part.current():
        hipsim.hip("hipDeviceEnablePeerAccess", other.ordinal, 0)
        add(4, 256, out, foreign, b, 1000)
        assert np.array_equal(part.to_numpy(out), expected)
        hipsim.hip("hipDeviceDisablePeerAccess", other.ordinal)


def test_capture_and_replay_of_kernels(part, add, operands):
    a, b, out, expected = operands()
    stream = part.stream()
    stream.wait_for(None)
    with part.capture(stream) as graph:
        add(4, 256, out, a, b, 1000, stream=stream)
        add(4, 256, b, a, out, 1000, stream=stream)
    first = part.to_numpy(b)
    graph.launch(stream)
    second = part.to_numpy(b, stream=stream)
    assert np.array_equal(part.to_numpy(out, stream=stream), expected)
    assert np.array_equal(second, part.to_numpy(a) + expected)
    graph.launch(stream)
    assert np.array_equal(part.to_numpy(out, stream=stream), part.to_numpy(a) + second)
    assert not np.array_equal(first, second)
    graph.destroy()
    stream.destroy()


class KernelParams(ctypes.Structure):
    _fields_ = [
        ("block", ctypes.c_uint32 * 3),
        ("extra", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("parameters", ctypes.c_void_p),
        ("lds", ctypes.c_uint32),
    ]


def test_update_of_an_executable_graph(part, add, operands):
    a, b, out, expected = operands()
    other = part.empty(1000)
    stream = part.stream()
    stream.wait_for(None)
    with part.capture(stream) as graph:
        add(4, 256, out, a, b, 1000, stream=stream)
    node, count = ctypes.c_void_p(), ctypes.c_size_t(1)
    hipsim.hip("hipGraphGetNodes", ctypes.c_void_p(graph.graph), ctypes.byref(node), ctypes.byref(count))
    values = [ctypes.c_uint64(x.pointer) for x in (other, a, b)] + [ctypes.c_int32(1000)]
    pointers = (ctypes.c_void_p * 4)(*map(ctypes.addressof, values))
    params = KernelParams((256, 1, 1), None, add.handle, (4, 1, 1), ctypes.addressof(pointers), 0)
    graph.launch(stream)  # keeps its arguments
    hipsim.hip("hipGraphExecKernelNodeSetParams", ctypes.c_void_p(graph.exec), node, ctypes.byref(params))
    assert np.isnan(part.to_numpy(other)).all()
    graph.launch(stream)
    assert np.array_equal(part.to_numpy(other, stream=stream), expected)
    assert np.array_equal(part.to_numpy(out, stream=stream), expected)
    graph.destroy()
    stream.destroy()


def test_replay_after_unload(part, operands):
    a, b, out, _ = operands()
    stream = part.stream()
    stream.wait_for(None)
    module = Module(part, object_of(ADD, part.arch))
    with part.capture(stream) as graph:
        module["add"](4, 256, out, a, b, 1000, stream=stream)
    module.unload()
    with pytest.raises(HipError, match="hipErrorInvalidHandle"):
        graph.launch(stream)
    assert "replayed after its module was unloaded" in str(part.report())
    graph.destroy()
    stream.destroy()


def test_a_queued_launch_outlives_its_module(part, operands):
    a, b, out, expected = operands()
    module = Module(part, object_of(ADD, part.arch))
    module["add"](4, 256, out, a, b, 1000)
    module.unload()
    assert np.array_equal(part.to_numpy(out), expected)


def test_buffer_freed_before_the_kernel_runs(part, add, operands):
    """Freed in the legacy stream, used in a stream that does not wait for it."""
    a, b, _, _ = operands()
    part.synchronize()
    wrong = 0
    for seed in range(12):
        hipsim.configure(seed=seed)
        stream = part.stream()
        scratch = part.empty(1000)
        add(4, 256, scratch, a, b, 1000, stream=stream)
        del scratch
        with part.current():
            code = hipsim.try_hip("hipDeviceSynchronize")
        report = part.report()
        assert (code == 700) == bool(report.violations)
        wrong += code == 700
        stream.destroy()
    assert 1 <= wrong <= 11


def test_early_order_gives_the_same(part, add, operands):
    hipsim.configure(order="early")
    a, b, out, expected = operands()
    add(4, 256, out, a, b, 1000)
    assert part.report().counters["launches"] == 1  # nobody waited
    assert np.array_equal(part.to_numpy(out), expected)


def test_threads_launch_on_three_parts(rng):
    """Each with its own module and stream; kernels themselves run on several threads."""
    values = rng.standard_normal((6, 2, 2000)).astype(np.float32)
    failures = []

    def work(index):
        device = hipsim.Device(ARCHS[index % 3])
        stream = device.stream()
        try:
            with Module(device, object_of(ADD, device.arch)) as module:
                for step in range(6):
                    a, b = values[index, 0] + step, values[index, 1]
                    x, y = device.array(a, stream=stream), device.array(b, stream=stream)
                    out = device.empty(2000, stream=stream)
                    module["add"](8, 256, out, x, y, 2000, stream=stream)
                    if not np.array_equal(device.to_numpy(out, stream=stream), a + b):
                        failures.append((index, step))
                    del x, y, out
        finally:
            stream.destroy()

    hipsim.configure(threads=3)
    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
