"""Producers that speak DLPack through ctypes, rightly or wrongly on purpose: what test_dlpack.py feeds the import."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

P = ctypes.POINTER


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", P(ctypes.c_int64)),
        ("strides", P(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Legacy(ctypes.Structure):
    _fields_ = [
        ("dl_tensor", DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
READ_ONLY = 1

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype = ctypes.c_char_p
_name.argtypes = [ctypes.py_object]

_kept: list[Any] = []  # capsule names must outlive their capsules


def new_capsule(pointer: int, name: bytes) -> Any:
    """A capsule without a destructor, so that whoever takes it is the only one that can free it."""
    buffer = ctypes.create_string_buffer(name)
    _kept.append(buffer)
    return _new(pointer, ctypes.cast(buffer, ctypes.c_char_p), None)


def capsule_name(capsule: Any) -> str:
    return _name(capsule).decode()


def fill_tensor(tensor: DLTensor, array: np.ndarray, keep: list[Any]) -> None:
    """Describe array; keep holds the memory of shape and strides."""
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(array.ndim, 1))(*(s // array.itemsize for s in array.strides))
    keep += [shape, strides, array]
    tensor.data = array.ctypes.data
    tensor.device = DLDevice(1, 0)
    tensor.ndim = array.ndim
    code = 4 if array.dtype.name == "bfloat16" else 2
    tensor.dtype = DLDataType(code, array.itemsize * 8, 1)
    tensor.shape = ctypes.cast(shape, P(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, P(ctypes.c_int64))
    tensor.byte_offset = 0


class Producer:
    """An array whose capsules are made by hand.

    change(tensor) edits each DLTensor before it is handed out; deleted counts the deleter's calls, handed the capsules.
    """

    def __init__(
        self,
        array: np.ndarray,
        *,
        versioned: bool = True,
        version: tuple[int, int] = (1, 3),
        flags: int = 0,
        has_deleter: bool = True,
        change: Callable[[DLTensor], None] | None = None,
        device: Any = (1, 0),
        name: bytes | None = None,
        knows_max_version: bool = True,
        raises: BaseException | None = None,
    ) -> None:
        self.array = array
        self.versioned, self.version, self.flags = versioned, version, flags
        self.has_deleter, self.change = has_deleter, change
        self.device, self.name = device, name
        self.knows_max_version, self.raises = knows_max_version, raises
        self.deleted = 0
        self.handed: list[Any] = []
        self.calls: list[dict[str, Any]] = []
        self._keep: list[Any] = []
        self._deleter = DELETER(self._delete)

    def _delete(self, pointer: int) -> None:
        self.deleted += 1

    def __dlpack_device__(self) -> Any:
        if isinstance(self.device, BaseException):
            raise self.device
        return self.device

    def __dlpack__(self, **keywords: Any) -> Any:
        self.calls.append(keywords)
        if self.raises:
            raise self.raises
        if keywords and not self.knows_max_version:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        managed = Versioned() if self.versioned else Legacy()
        self._keep.append(managed)
        fill_tensor(managed.dl_tensor, self.array, self._keep)
        if self.has_deleter:
            managed.deleter = ctypes.cast(self._deleter, ctypes.c_void_p)
        if isinstance(managed, Versioned):
            managed.major, managed.minor = self.version
            managed.flags = self.flags
        if self.change:
            self.change(managed.dl_tensor)
        default = b"dltensor_versioned" if self.versioned else b"dltensor"
        capsule = new_capsule(ctypes.addressof(managed), self.name or default)
        self.handed.append(capsule)
        return capsule


# --- the C exchange API ---

FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, P(DLTensor))
ALLOCATE = ctypes.PYFUNCTYPE(ctypes.c_int, P(DLTensor), P(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p)
TO_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, P(ctypes.c_void_p))
SET_ERROR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


class ExchangeAPI(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("view", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


def make_library(
    *,
    major: int = 1,
    has_view: bool = True,
    has_allocator: bool = True,
    has_to_object: bool = True,
    capsule: bytes = b"dlpack_exchange_api",
    on_allocate: Callable[[], None] | None = None,
    **modes: bool,
) -> type:
    """A class of arrays with an exchange API of its own, as a small library would have.

    on_allocate() runs when a result is allocated.
    modes: view_fails, allocator_fails (through set_error), allocator_silent, to_object_fails.
    """
    keep: list[Any] = []
    made: dict[int, tuple[np.ndarray, Versioned]] = {}

    class LibraryArray:
        deleted = 0

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.array.__dlpack__(**keywords)

    def view(pointer: int, out: Any) -> int:
        if modes.get("view_fails"):
            return -1
        fill_tensor(out[0], ctypes.cast(pointer, ctypes.py_object).value.array, keep)
        return 0

    def delete(pointer: int) -> None:
        LibraryArray.deleted += 1

    deleter = DELETER(delete)

    def allocate(prototype: Any, out: Any, context: int, set_error: int) -> int:
        if on_allocate:
            on_allocate()
        if modes.get("allocator_fails"):
            SET_ERROR(set_error)(context, b"MemoryError", b"pool is empty")
            return -1
        if modes.get("allocator_silent"):
            return -1
        tensor = prototype[0]
        size = {16: np.float16, 32: np.float32, 64: np.float64}[tensor.dtype.bits]
        array = np.full([tensor.shape[i] for i in range(tensor.ndim)], np.nan, size)
        managed = Versioned(major=1, minor=3)
        fill_tensor(managed.dl_tensor, array, keep)
        managed.deleter = ctypes.cast(deleter, ctypes.c_void_p)
        made[ctypes.addressof(managed)] = (array, managed)
        out[0] = ctypes.addressof(managed)
        return 0

    def to_object(pointer: int, out: Any) -> int:
        if modes.get("to_object_fails"):
            return -1
        result = LibraryArray(made[pointer][0])
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(result))
        out[0] = id(result)
        return 0

    functions = [ALLOCATE(allocate), TO_OBJECT(to_object), FROM_OBJECT(view), deleter]
    api = ExchangeAPI(major=major, minor=3)
    api.allocator = ctypes.cast(functions[0], ctypes.c_void_p) if has_allocator else None
    api.to_object = ctypes.cast(functions[1], ctypes.c_void_p) if has_to_object else None
    api.view = ctypes.cast(functions[2], ctypes.c_void_p) if has_view else None
    _kept.append((api, functions, keep))
    LibraryArray.__dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(api), capsule)
    return LibraryArray
