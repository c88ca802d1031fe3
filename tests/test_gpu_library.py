"""GPU operands of libraries whose allocator and current stream we use, on the stand-in CUDA driver.

One library speaks the C exchange API, as torch does; the other one is a stand-in for CuPy under its name.
"""

import ctypes
import types

import numpy as np
import pytest

import matmul_fused as mf
import stub_cuda
from fake_dlpack import (
    ALLOCATE,
    DELETER,
    FROM_OBJECT,
    TO_OBJECT,
    DLDevice,
    ExchangeAPI,
    P,
    Versioned,
    fill_tensor,
    new_capsule,
)
from gpu_support import A, B, Capture, Stream, balance, driver, in_child  # noqa: F401
from stub_cuda import DeviceArray, Memory, calls, clear_log, fail_next
from support import check

STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, P(ctypes.c_void_p))


class Library:
    """Arrays on cuda:1 with an exchange API. stream: its current one, or None if it fails to name one."""

    def __init__(self):
        self.stream: Stream | None = None
        self.asked = []  # (device type, ordinal) of current_work_stream
        self.allocated = []  # devices of the allocator's prototypes
        self.gives = 1  # the device that the allocator says to have taken
        self.shift = 0  # of the allocator's addresses, in bytes
        self.keep, self.made = [], {}
        library = self

        class Array:
            def __init__(self, array, memory=None, shift=0):
                size = max(array.nbytes, 1)
                self.memory = memory or Memory(1, size)
                self.view = np.ndarray(array.shape, array.dtype, self.memory.bytes(), shift)
                if memory is None:
                    self.view[...] = array

            def __dlpack__(self, **_):
                raise AssertionError("the exchange API is cheaper")

            __dlpack_device__ = __dlpack__

        def view(pointer, out):
            array = ctypes.cast(pointer, ctypes.py_object).value
            fill_tensor(out[0], array.view, library.keep)
            out[0].device = DLDevice(2, 1)
            return 0

        def allocate(prototype, out, context, set_error):
            tensor = prototype[0]
            library.allocated.append((tensor.device.device_type, tensor.device.device_id))
            shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
            blank = np.empty(shape, {16: np.float16, 32: np.float32, 64: np.float64}[tensor.dtype.bits])
            array = Array(blank, Memory(1, max(blank.nbytes, 1) + library.shift), library.shift)
            managed = Versioned(major=1, minor=3)
            fill_tensor(managed.dl_tensor, array.view, library.keep)
            managed.dl_tensor.device = DLDevice(2, library.gives)
            managed.deleter = ctypes.cast(library.deleter, ctypes.c_void_p)
            library.made[ctypes.addressof(managed)] = (array, managed)
            out[0] = ctypes.addressof(managed)
            return 0

        def to_object(pointer, out):
            array, _ = library.made.pop(pointer)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
            out[0] = id(array)
            return 0

        def stream(device_type, ordinal, out):
            library.asked.append((device_type, ordinal))
            if library.stream is None:
                return -1
            out[0] = library.stream.handle
            return 0

        self.deleter = DELETER(lambda pointer: library.made.pop(pointer, None))
        functions = [ALLOCATE(allocate), TO_OBJECT(to_object), FROM_OBJECT(view), STREAM(stream)]
        api = ExchangeAPI(major=1, minor=3)
        for name, function in zip(("allocator", "to_object", "view", "stream"), functions, strict=True):
            setattr(api, name, ctypes.cast(function, ctypes.c_void_p))
        self.keep += [functions, api]
        Array.__dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(api), b"dlpack_exchange_api")
        self.array = Array


@pytest.fixture(scope="module")
def library(driver):  # noqa: F811
    return Library()


def test_stream_and_memory_of_the_library(library):
    library.stream, library.asked, library.allocated = Stream(1), [], []
    a, b = library.array(A), library.array(B)
    clear_log()
    out = mf.matmul_fused(a, b, activation="relu")
    assert isinstance(out, library.array)
    check(out.view.copy(), A, B, activation="relu")
    assert library.asked == library.allocated[:1] * len(library.asked) == [(2, 1)]
    assert calls("cuMemAllocAsync", "cuEventCreate", "cuEventRecord") == []
    assert calls("cuLaunchKernel") == [
        f"cuLaunchKernel(gemm_simt_64x64x16_f32_any, 1, 256, {library.stream.handle:#x})"
    ]


def test_given_stream_comes_first(library):
    library.asked, given = [], Stream(1)
    clear_log()
    mf.matmul_fused(library.array(A), library.array(B), stream=given)
    assert calls("cuLaunchKernel") == [f"cuLaunchKernel(gemm_simt_64x64x16_f32_any, 1, 256, {given.handle:#x})"]


def test_other_producers_are_waited_for_on_the_library_s_stream(library):
    library.stream = Stream(1)
    bias = DeviceArray(np.ones(6, np.float32), 1)
    out = mf.matmul_fused(library.array(A), library.array(B), bias)
    assert bias.calls == [{"max_version": (1, 3), "stream": library.stream.handle}]
    check(out.view.copy(), A, B, np.ones(6, np.float32))


def test_the_library_decides_where_it_is_a(library):
    """Else its stream and the call's wait for each other: its arrays are viewed, and their memory is its own."""
    library.stream, library.asked = Stream(1), []
    a = DeviceArray(A, 1)
    clear_log()
    out = mf.matmul_fused(a, library.array(B), library.array(np.ones(6, np.float32)))
    own = f"{library.stream.handle:#x}"
    order = calls("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel")
    launch = order.index("cuLaunchKernel(gemm_simt_64x64x16_f32_any, 1, 256, (nil))")
    assert [line for line in order[:launch] if own in line] == [f"cuEventRecord({own})"]
    assert order[order.index(f"cuEventRecord({own})") + 1] == "cuStreamWaitEvent((nil), 0)"
    assert order[-2:] == ["cuEventRecord((nil))", f"cuStreamWaitEvent({own}, 0)"]
    assert isinstance(out, mf.Array)
    assert a.calls == [{"max_version": (1, 3), "stream": 1}]
    check(stub_cuda.fetch(out), A, B, np.ones(6, np.float32))


def test_library_that_allocates_elsewhere(library):
    library.gives = 0
    try:
        with pytest.raises(BufferError, match="the allocator of A's library gave a device or strides that were not"):
            mf.matmul_fused(library.array(A), library.array(B))
    finally:
        library.gives = 1
    assert calls("cuLaunchKernel") == []


def test_captured_stream_of_the_library(library):
    a, b = library.array(A), library.array(B)
    library.stream = Stream(1)
    mf.matmul_fused(a, b)
    with Capture(1) as library.stream:
        clear_log()
        bias = DeviceArray(np.ones(6, np.float32), 1)
        out = mf.matmul_fused(a, b, bias)  # the library's allocator may serve it
        assert isinstance(out, library.array)
        assert calls("cuMemAllocAsync", "cuEventRecord", "cuStreamWaitEvent") == []
        assert bias.calls[-1]["stream"] == -1  # nobody may wait inside of a capture


def test_default_stream_beside_a_captured_one(library):
    """A driver that cannot say of the default stream whether it is captured: nobody waits, nothing breaks."""
    library.stream = types.SimpleNamespace(handle=None)
    w, out = library.array(B), library.array(np.zeros((5, 6), np.float32))
    a = DeviceArray(A, 1)
    with Capture(1) as stream:
        clear_log()
        fail_next("cuStreamIsCapturing", 906, 1)  # the second question, after that for a
        mf.matmul_fused(a, w, out=out, stream=stream)
    assert len(calls("cuLaunchKernel")) == 1
    assert calls("cuEventRecord", "cuStreamWaitEvent") == []
    assert calls("cuStreamIsCapturing")[1] == "cuStreamIsCapturing((nil))"


def test_library_that_names_no_stream(library):
    library.stream = None
    with pytest.raises(BufferError, match="A: its library named no current stream"):
        mf.matmul_fused(library.array(A), library.array(B))
    with pytest.raises(BufferError, match="B: its library named no current stream"):
        mf.matmul_fused(DeviceArray(A, 1), library.array(B))
    library.stream = Stream(1)


def test_cupy_stands_in():
    """CuPy's arrays: its current stream, its memory, its device, nobody waits for itself."""
    in_child("""
        import sys, types
        cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
        state = types.SimpleNamespace(device=0, stream=Stream(1), used=[], asked=[])
        class ndarray(DeviceArray):
            data = property(lambda self: types.SimpleNamespace(ptr=self.memory.pointer))
        class Device:
            def __init__(self, ordinal):
                self.ordinal = ordinal
            def use(self):
                state.device = self.ordinal
                state.used.append(self.ordinal)
        def get_current_stream(ordinal):
            state.asked.append(ordinal)
            return types.SimpleNamespace(ptr=state.stream.handle)
        cupy.ndarray, cupy.cuda = ndarray, cuda
        cupy.empty = lambda shape, dtype: ndarray(np.full(shape, np.nan, dtype), state.device)
        cuda.Device, cuda.get_current_stream = Device, get_current_stream
        cuda.runtime = types.SimpleNamespace(getDevice=lambda: state.device)
        sys.modules.update({"cupy": cupy, "cupy.cuda": cuda})

        a, b, bias = ndarray(A, 1), ndarray(B, 1), DeviceArray(np.ones(6, np.float32), 1)
        out = mf.matmul_fused(a, b, bias)
        assert isinstance(out, ndarray)
        check(out.numpy(), A, B, np.ones(6, np.float32))
        assert state.used == [1, 0] and state.device == 0 and state.asked == [1], state
        assert a.calls == b.calls == [{"max_version": (1, 3), "stream": -1}]
        assert bias.calls == [{"max_version": (1, 3), "stream": state.stream.handle}]
        assert calls("cuMemAllocAsync") == []
        state.device = 1
        out = mf.matmul_fused(a, b, out_dtype="bfloat16")
        assert out.array.dtype.name == "bfloat16" and state.used == [1, 0]
        given = Stream(1)
        mf.matmul_fused(a, b, stream=given)
        assert a.calls[-1]["stream"] == given.handle
        def no_memory(shape, dtype):
            raise MemoryError("cupy")
        cupy.empty, state.device = no_memory, 0
        with pytest.raises(MemoryError, match="cupy"):
            mf.matmul_fused(a, b)
        assert state.device == 0
    """)


def test_given_stream_and_the_library_s_wait_for_each_other(library):
    """The library hands out memory in the order of its own stream: before the launch and after it."""
    library.stream, given = Stream(1), Stream(1)
    own, other = f"{library.stream.handle:#x}", f"{given.handle:#x}"
    a, b = library.array(A), library.array(B)
    out = library.array(np.zeros((5, 6), np.float32))
    clear_log()
    mf.matmul_fused(a, b, stream=given)
    before, after = (
        [f"cuEventRecord({own})", f"cuStreamWaitEvent({other}, 0)"],
        [
            f"cuEventRecord({other})",
            f"cuStreamWaitEvent({own}, 0)",
        ],
    )
    launch = [f"cuLaunchKernel(gemm_simt_64x64x16_f32_any, 1, 256, {other})"]
    assert calls("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel") == before + launch + after
    clear_log()
    mf.matmul_fused(a, b, out=out, stream=given)
    assert calls("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel") == before + launch + after
    clear_log()
    mf.matmul_fused(a, b, stream=library.stream)
    assert calls("cuEventCreate", "cuStreamWaitEvent") == []
