"""Arrays of libraries that nobody knows, cheap enough for millions of calls: capsules, and an exchange API.

A capsule's tensor, its shape and its strides lie in one block of malloc, whose deleter is free itself: under
AddressSanitizer a second release, or a look at the tensor after its release, is a finding.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from fake_dlpack import ALLOCATE, DELETER, FROM_OBJECT, TO_OBJECT, DLTensor, ExchangeAPI, Versioned, new_capsule

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
FREE = ctypes.cast(libc.free, ctypes.c_void_p).value
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
VERSIONED, LEGACY = (ctypes.create_string_buffer(name) for name in (b"dltensor_versioned", b"dltensor"))
_TENSOR = "QiiiBBHQQQ"  # DLTensor
_PACK = {True: struct.Struct("=IIQQQ" + _TENSOR).pack, False: struct.Struct("=" + _TENSOR + "QQ").pack}
_SIZE = {True: 80, False: 64}
READ_ONLY = 1
CODES = {"float32": (2, 32), "float64": (2, 64), "float16": (2, 16), "bfloat16": (4, 16)}


class Capsule:
    """A producer over a NumPy view. fields: what its capsules say, to be edited by those who lie."""

    def __init__(self, view: np.ndarray, versioned: bool = True, compact: bool = False, offset: int = 0) -> None:
        self.view = view  # keeps the memory
        self.versioned = versioned
        self.said_device: Any = (1, 0)
        code, bits = CODES[view.dtype.name]
        self.fields: dict[str, Any] = {
            "major": 1,
            "minor": 3,
            "deleter": FREE,
            "flags": 0,
            "data": (view.__array_interface__["data"][0] - offset) % 2**64,
            "device": (1, 0),
            "ndim": view.ndim,
            "dtype": (code, bits, 1),
            "shape": view.shape,
            "strides": None if compact else tuple(s // view.itemsize for s in view.strides),
            "byte_offset": offset % 2**64,
        }

    def __dlpack_device__(self) -> Any:
        return self.said_device

    def __dlpack__(self, *, max_version: Any = None, **unused: Any) -> Any:
        f, size = self.fields, _SIZE[self.versioned]
        shape = () if f["shape"] is None else f["shape"]
        strides = () if f["strides"] is None else f["strides"]
        block = libc.malloc(size + 8 * (len(shape) + len(strides)) or 1)
        at_shape = 0 if f["shape"] is None else block + size
        at_strides = 0 if f["strides"] is None else block + size + 8 * len(shape)
        tensor = (f["data"], *f["device"], f["ndim"], *f["dtype"], at_shape, at_strides, f["byte_offset"])
        if self.versioned:
            head = _PACK[True](f["major"], f["minor"], 0, f["deleter"], f["flags"], *tensor)
        else:
            head = _PACK[False](*tensor, 0, f["deleter"])
        lengths = (*shape, *strides)
        ctypes.memmove(block, head + struct.pack(f"={len(lengths)}q", *lengths), size + 8 * len(lengths))
        return _capsule(block, VERSIONED if self.versioned else LEGACY, None)


class Keeper(Capsule):
    """A producer whose capsules have no deleter: their block is its own."""

    block: int | None = None

    def __dlpack__(self, *, max_version: Any = None, **unused: Any) -> Any:
        capsule = super().__dlpack__(max_version=max_version)
        self.__del__()
        self.block = _pointer(capsule, VERSIONED.value if self.versioned else LEGACY.value)
        return capsule

    def __del__(self) -> None:
        libc.free(ctypes.c_void_p(self.block))
        self.block = None


class Library:
    """An array of a library with a C exchange API: a borrowed view in, its own allocator for results."""

    made: ClassVar[dict[int, tuple[Library, Versioned]]] = {}  # results between allocation and object

    def __init__(self, view: np.ndarray) -> None:
        self.view = view
        code, bits = CODES[view.dtype.name]
        n = max(view.ndim, 1)
        self.lengths = (
            (ctypes.c_int64 * n)(*view.shape),
            (ctypes.c_int64 * n)(*(s // view.itemsize for s in view.strides)),
        )
        self.tensor = DLTensor(view.__array_interface__["data"][0], (1, 0), view.ndim, (code, bits, 1))
        self.tensor.shape, self.tensor.strides = (ctypes.cast(x, ctypes.POINTER(ctypes.c_int64)) for x in self.lengths)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **keywords: Any) -> Any:
        raise BufferError("this library is read through its exchange API")


def _view(pointer: int, out: Any) -> int:
    out[0] = ctypes.cast(pointer, ctypes.py_object).value.tensor
    return 0


def _allocate(prototype: Any, out: Any, context: int, set_error: int) -> int:
    tensor = prototype[0]
    code, bits = tensor.dtype.code, tensor.dtype.bits
    dtype = np.dtype(ml_dtypes.bfloat16 if code == 4 else {16: "f2", 32: "f4", 64: "f8"}[bits])
    result = Library(np.full([tensor.shape[i] for i in range(tensor.ndim)], np.nan, dtype))
    managed = Versioned(major=1, minor=3, dl_tensor=result.tensor)
    managed.deleter = _FUNCTIONS["delete"]
    address = ctypes.addressof(managed)
    Library.made[address] = result, managed
    out[0] = address
    return 0


def _delete(pointer: int) -> None:
    del Library.made[pointer]


def _to_object(pointer: int, out: Any) -> int:
    result = Library.made.pop(pointer)[0]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(result))
    out[0] = id(result)
    return 0


_CALLBACKS = {
    "allocate": ALLOCATE(_allocate),
    "delete": DELETER(_delete),
    "to_object": TO_OBJECT(_to_object),
    "view": FROM_OBJECT(_view),
}
_FUNCTIONS = {name: ctypes.cast(callback, ctypes.c_void_p).value for name, callback in _CALLBACKS.items()}
_API = ExchangeAPI(
    major=1,
    minor=3,
    allocator=_FUNCTIONS["allocate"],
    to_object=_FUNCTIONS["to_object"],
    view=_FUNCTIONS["view"],
)
Library.__dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(_API), b"dlpack_exchange_api")  # type: ignore[attr-defined]


def memory_of(array: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A NumPy view of an mf.Array (of any dtype, which np.from_dlpack is not) that does not keep it alive."""
    capsule = array.__dlpack__(max_version=(1, 0))
    tensor = Versioned.from_address(_pointer(capsule, b"dltensor_versioned")).dl_tensor
    count = 1
    for length in shape:
        count *= length
    block = (ctypes.c_char * (count * dtype.itemsize)).from_address(tensor.data)
    return np.ndarray(shape, dtype, block)
