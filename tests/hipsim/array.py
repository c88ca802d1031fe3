"""Arrays in simulated device memory, and their export through DLPack.

A view is held as a NumPy array over the device address, of which NumPy only ever does the arithmetic of shapes and
strides: its memory is not accessible, so whatever reads it from the host crashes, as on a GPU."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from fake_dlpack import DELETER, READ_ONLY, DLDataType, DLDevice, DLTensor, Legacy, Versioned

from .library import hip, made, try_hip

if TYPE_CHECKING:
    from .device import Device, Stream

KDL_ROCM = 10
EVENT_NO_TIMING = 2
EXTENSION_CODES = {  # ml_dtypes
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
}
KIND_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Memory:
    """One allocation. Freed as a caching allocator does: at once for the host, in stream order for the GPU."""

    def __init__(self, device: Device, size: int, stream: Stream | None) -> None:
        self.device, self.size, self.stream = device, size, stream
        with device.current():
            self.pointer = made("hipMalloc", max(size, 1))
        self._free = weakref.finalize(self, _free, device, self.pointer, stream)
        self._free.atexit = False


def _free(device: Device, pointer: int, stream: Stream | None) -> None:
    with device.current():
        try_hip("hipFreeAsync", pointer, stream.handle if stream else 0)


class Array:
    """A strided view of device memory. Indexing by integers, slices, None and ...; mT, T, swapaxes, reshape of what
    needs no copy. `exports` records the keywords of __dlpack__; read_only and legacy_only change what it gives."""

    read_only = False
    legacy_only = False

    def __init__(self, memory: Memory, ghost: np.ndarray) -> None:
        self.memory, self._ghost = memory, ghost
        self.exports: list[dict[str, Any]] = []

    device = property(lambda self: self.memory.device)
    stream = property(lambda self: self.memory.stream)
    shape = property(lambda self: self._ghost.shape)
    dtype = property(lambda self: self._ghost.dtype)
    ndim = property(lambda self: self._ghost.ndim)
    size = property(lambda self: self._ghost.size)
    nbytes = property(lambda self: self._ghost.nbytes)
    itemsize = property(lambda self: self._ghost.itemsize)
    byte_strides = property(lambda self: self._ghost.strides)
    pointer = property(lambda self: self._ghost.ctypes.data)
    mT = property(lambda self: self.swapaxes(-1, -2))  # noqa: N815
    T = property(lambda self: self._view(self._ghost.T))

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements, as DLPack has them."""
        return tuple(s // self.itemsize for s in self._ghost.strides)

    def _view(self, ghost: np.ndarray) -> Array:
        return Array(self.memory, ghost)

    def swapaxes(self, a: int, b: int) -> Array:
        return self._view(self._ghost.swapaxes(a, b))

    def transpose(self, *axes: int) -> Array:
        return self._view(self._ghost.transpose(*axes))

    def broadcast_to(self, shape: tuple[int, ...]) -> Array:
        return self._view(np.broadcast_to(self._ghost, shape))

    def reshape(self, *shape: int) -> Array:
        return self._view(self._ghost.reshape(shape, copy=False))

    def __getitem__(self, index: Any) -> Array:
        parts = index if isinstance(index, tuple) else (index,)
        if not all(part is None or part is ... or isinstance(part, int | slice | np.integer) for part in parts):
            raise TypeError("device arrays take integers, slices, None and ...")
        if ... not in parts:
            parts = (*parts, ...)  # or NumPy would read a single element
        return self._view(self._ghost[parts])

    def __repr__(self) -> str:
        return f"hipsim.Array({self.shape}, {self.dtype}, {self.device.arch}, {self.pointer:#x})"

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("device memory is not readable from the host: Device.to_numpy copies it")

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDL_ROCM, self.device.ordinal

    def __dlpack__(self, **keywords: Any) -> Any:
        self.exports.append(keywords)
        unknown = set(keywords) - {"stream", "max_version", "dl_device", "copy"}
        if unknown:
            raise TypeError(f"__dlpack__() got unexpected keywords {sorted(unknown)}")
        if keywords.get("dl_device") not in (None, self.__dlpack_device__()) or keywords.get("copy"):
            raise BufferError("this array stays where it is and is not copied")
        self._order(keywords.get("stream"))
        newest = keywords.get("max_version") or (0, 0)
        versioned = newest[0] >= 1 and not self.legacy_only
        if self.read_only and not versioned:
            raise BufferError("a read-only array needs a versioned capsule")
        return export(self, versioned=versioned)

    def _order(self, consumer: int | None) -> None:
        """ROCm's rules: None and 0 are the default stream, -1 wants no order, 1 and 2 do not exist."""
        if consumer in (1, 2) or (consumer is not None and consumer < -1):
            raise ValueError(f"stream={consumer} is not a ROCm stream")
        own = self.stream.handle if self.stream else 0
        if consumer == -1 or (consumer or 0) == own:
            return
        make_wait(self.device, consumer or 0, own)


def make_wait(device: Device, later: int, earlier: int) -> None:
    """Later work of a stream waits for the present work of another one of this device."""
    with device.current():
        event = made("hipEventCreateWithFlags", EVENT_NO_TIMING)
        try:
            hip("hipEventRecord", event, earlier)
            hip("hipStreamWaitEvent", later, event, 0)
        finally:
            hip("hipEventDestroy", event)


def view(memory: Memory, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None, offset: int) -> Array:
    """Of the bytes of memory from offset on; strides in bytes, None: C order."""
    dtype = np.dtype(dtype)
    space = (ctypes.c_char * max(memory.size, 1)).from_address(memory.pointer)
    if strides is None and math.prod(shape) == 0:
        return Array(memory, np.ndarray(shape, dtype, space))
    return Array(memory, np.ndarray(shape, dtype, space, offset, strides))


# --- capsules ---

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_exported: dict[int, list[Any]] = {}  # address of the managed tensor: what it keeps alive
_deleted_twice: list[int] = []


@DELETER
def _delete(address: int) -> None:
    if _exported.pop(address, None) is None:
        _deleted_twice.append(address)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    """Nobody took the capsule: its tensor goes with it."""
    name = _name(capsule)
    if not name.startswith(b"used_"):
        _delete(_pointer(capsule, name))


def export(array: Array, *, versioned: bool) -> Any:
    managed = Versioned() if versioned else Legacy()
    address = ctypes.addressof(managed)
    dtype = array.dtype
    code = EXTENSION_CODES.get(dtype.name, KIND_CODES.get(dtype.kind))
    if code is None:
        raise BufferError(f"{dtype} has no DLPack type")
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(array.ndim, 1))(*array.strides)
    pointers = [ctypes.cast(values, ctypes.POINTER(ctypes.c_int64)) for values in (shape, strides)]
    managed.dl_tensor = DLTensor(
        array.pointer,
        DLDevice(*array.__dlpack_device__()),
        array.ndim,
        DLDataType(code, 8 * dtype.itemsize, 1),
        *pointers,
        0,
    )
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
    if versioned:
        managed.major, managed.minor = 1, 3
        managed.flags = READ_ONLY if array.read_only else 0
    _exported[address] = [managed, shape, strides, array]
    return _new(address, b"dltensor_versioned" if versioned else b"dltensor", ctypes.cast(_destroy, ctypes.c_void_p))


def live_exports() -> int:
    """Tensors handed out whose deleter has not run. AssertionError if one ran twice."""
    assert not _deleted_twice, f"a DLPack deleter ran twice: {_deleted_twice}"
    return len(_exported)


class Imported:
    """What any DLPack producer on a ROCm device says of itself, for to_numpy; releases the capsule at once."""

    def __init__(self, producer: Any) -> None:
        capsule = producer.__dlpack__(max_version=(1, 3), stream=-1)
        address = id(capsule)
        name = _name(address)
        kind = Versioned if name == b"dltensor_versioned" else Legacy
        tensor = kind.from_address(_pointer(address, name)).dl_tensor
        self.device = (tensor.device.device_type, tensor.device.device_id)
        self.pointer = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        bits = tensor.dtype.bits
        self.dtype = _dtype(tensor.dtype.code, bits)
        steps = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else None
        if steps is None:
            steps = [math.prod(self.shape[i + 1 :]) for i in range(tensor.ndim)]
        self.byte_strides = tuple(step * bits // 8 for step in steps)


def _dtype(code: int, bits: int) -> np.dtype:
    for name, value in EXTENSION_CODES.items():
        if value == code:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, name))
    kind = next(kind for kind, value in KIND_CODES.items() if value == code)
    return np.dtype(bool) if kind == "b" else np.dtype(f"{kind}{bits // 8}")
