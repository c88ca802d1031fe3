"""Operands on a GPU for `check --device` and the sweeps, without an array library: the GPU's own driver by ctypes.

Role: a Transfer for testing/run.py. Memory comes from the library that the extension itself has opened, so both mean
the same device. Arrays speak DLPack and nothing else; their whole buffers, guards included, are copied there and back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .inputs import Operand
from .rounding import Array, numpy_dtype

_DL_TYPES = {"cuda": 2, "rocm": 10}
_DL_CODES = {"float16": 2, "float32": 2, "float64": 2, "bfloat16": 4}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),  # none: the DeviceArray owns all of it
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_NAME = b"dltensor_versioned"
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Device:
    """A GPU by name, such as "rocm:0": its memory, through the driver that the extension uses."""

    def __init__(self, name: str) -> None:
        from matmul_fused import _core

        self.kind, _, ordinal = name.partition(":")
        if self.kind not in _DL_TYPES or not (ordinal or "0").isdigit():
            raise ValueError(f"unknown device {name!r}; it is cuda, rocm, or one of them with a number, such as rocm:1")
        self.ordinal = int(ordinal or 0)
        self.name = f"{self.kind}:{self.ordinal}"
        facts = _core.gpus()
        if self.name not in dict(facts["devices"]):
            why = "; ".join(f"{name} {state}" for name, state in facts["backends"])
            raise ValueError(f"there is no device {self.name}: {why}")
        self._library = ctypes.CDLL(facts["libraries"][self.kind])
        if self.kind == "cuda":
            self._context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.ordinal)

    @property
    def simulated(self) -> bool:
        """Is the driver a stand-in of the tests, as its symbols tell? Times mean nothing there."""
        return any(hasattr(self._library, name) for name in ("hipsim_calls", "stub_log"))

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise RuntimeError(f"{function} on {self.name} returned {code}")

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The device is this thread's current one inside of the block."""
        if self.kind == "cuda":
            self._call("cuCtxPushCurrent_v2", self._context)
        else:
            before = ctypes.c_int()
            self._call("hipGetDevice", ctypes.byref(before))
            self._call("hipSetDevice", self.ordinal)
        try:
            yield
        finally:
            if self.kind == "cuda":
                self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
            else:
                self._call("hipSetDevice", before)

    def _on_device(self, cuda: str, hip: str, *arguments: Any) -> None:
        with self._current():
            self._call(cuda if self.kind == "cuda" else hip, *arguments)

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        self._on_device("cuMemAlloc_v2", "hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        assert pointer.value
        return pointer.value

    def free(self, pointer: int) -> None:
        self._on_device("cuMemFree_v2", "hipFree", ctypes.c_void_p(pointer))

    def upload(self, pointer: int, array: Array) -> None:
        """Copy a contiguous array to the device."""
        to, what = ctypes.c_void_p(pointer), ctypes.c_void_p(array.ctypes.data)
        self._on_device("cuMemcpyHtoD_v2", "hipMemcpyHtoD", to, what, ctypes.c_size_t(array.nbytes))

    def download(self, array: Array, pointer: int) -> None:
        """Wait for the device, then copy into a contiguous array."""
        self.synchronize()
        to, what = ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p(pointer)
        if array.nbytes:
            self._on_device("cuMemcpyDtoH_v2", "hipMemcpyDtoH", to, what, ctypes.c_size_t(array.nbytes))

    def synchronize(self) -> None:
        self._on_device("cuCtxSynchronize", "hipDeviceSynchronize")

    def array(self, view: Array) -> DeviceArray:
        """A C-contiguous copy of a NumPy array on the device."""
        operand = Operand("", np.ascontiguousarray(view).reshape(-1), view.shape, _compact(view.shape), 0)
        return DeviceArray(self, operand)


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


class DeviceArray:
    """An operand's whole buffer on a GPU, and the view into it that __dlpack__ hands out."""

    def __init__(self, device: Device, operand: Operand) -> None:
        self.device, self.dtype, self.shape, self.strides = device, operand.buffer.dtype, operand.shape, operand.strides
        self.pointer = device.allocate(operand.buffer.nbytes)
        self.data = self.pointer + operand.offset * operand.buffer.itemsize
        self.streams: list[Any] = []  # streams that consumers passed
        self._keep: list[Any] = []
        if operand.buffer.nbytes:
            device.upload(self.pointer, operand.buffer.view(np.uint8))

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self.device.synchronize()
            self.device.free(self.pointer)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DL_TYPES[self.device.kind], self.device.ordinal

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **others: Any) -> Any:
        """A versioned capsule. Uploads are synchronous, so no stream has to wait."""
        self.streams.append(stream)
        rank = len(self.shape)
        managed = _Managed(major=1, minor=0)
        tensor = managed.tensor
        tensor.data = self.data
        tensor.device_type, tensor.device_id = self.__dlpack_device__()
        tensor.ndim = rank
        tensor.code, tensor.bits, tensor.lanes = _DL_CODES[self.dtype.name], self.dtype.itemsize * 8, 1
        tensor.shape = (ctypes.c_int64 * max(rank, 1))(*self.shape)
        tensor.strides = (ctypes.c_int64 * max(rank, 1))(*self.strides)
        self._keep.append(managed)
        return _new_capsule(ctypes.addressof(managed), _NAME, None)

    def numpy(self) -> Array:
        """The view's elements as they are once the device is done."""
        reach = sum(stride * (length - 1) for stride, length in zip(self.strides, self.shape, strict=True))
        if 0 in self.shape or min(self.strides, default=0) < 0:
            raise ValueError("numpy() is for arrays with elements and without negative strides")
        memory = np.empty(reach + 1, self.dtype)
        self.device.download(memory.view(np.uint8), self.data)
        size = self.dtype.itemsize
        return np.ndarray(self.shape, self.dtype, memory, 0, tuple(s * size for s in self.strides)).copy()


def to_numpy(device: Device, result: Any) -> Array:
    """The elements of an mf.Array once the device is done."""
    capsule = result.__dlpack__(max_version=(1, 0))
    tensor = _Managed.from_address(_capsule_pointer(capsule, _NAME)).tensor
    given = (tensor.device_type, tensor.device_id)
    if given != (_DL_TYPES[device.kind], device.ordinal):
        raise AssertionError(f"operands on {device.name} gave a result on DLPack device {given}")
    array = np.empty(result.shape, numpy_dtype(result.dtype))
    device.download(array, tensor.data)
    return array


class DeviceTransfer:
    """A Transfer to a GPU; results are mf.Arrays."""

    def __init__(self, device: str) -> None:
        self.device = Device(device)

    def __repr__(self) -> str:
        return f"matmul_fused.testing.DeviceTransfer({self.device.name!r})"

    def send(self, operand: Operand) -> Any:
        return DeviceArray(self.device, operand)

    def fetch(self, operand: Operand, array: Any) -> None:
        self.device.download(operand.buffer.view(np.uint8), array.pointer)

    def to_numpy(self, array: Any) -> Array:
        from matmul_fused import Array as MFArray

        if not isinstance(array, MFArray):
            raise AssertionError(f"operands of an unknown library gave a {type(array).__name__}")
        return to_numpy(self.device, array)
