"""Call frames of XLA made by hand, and stand-ins for XLA's own functions: its handlers run without XLA, on any GPU.

Layouts: csrc/xla/ffi_abi.h, which test_jax_ffi_abi.py compares with jaxlib's header.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from matmul_fused import _core

VOID, SIZE, INT32, INT64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int64
BUFFER, SCALAR, STRING = 1, 3, 4  # types of arguments and attributes
DTYPES = {"float16": 10, "float32": 11, "float64": 12, "bfloat16": 16}
INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL = 3, 12, 13
FUNCTIONS = (
    "new_error", "message_of", "drop_error", "register_handler", "stream", "register_type", "user_data", "set_state",
    "get_state", "allocate", "free", "schedule", "threads", "new_future", "set_available", "set_error", "run_id",
    "ordinal",
)  # fmt: skip


def struct(name: str, **fields: Any) -> type:
    """One that begins with its size and a chain of extensions."""
    return type(name, (ctypes.Structure,), {"_fields_": [("struct_size", SIZE), ("extensions", VOID), *fields.items()]})


Version = struct("Version", major=INT32, minor=INT32)
Api = struct("Api", version=Version, internal=VOID, **dict.fromkeys(FUNCTIONS, VOID))
NewError = struct("NewError", message=ctypes.c_char_p, code=INT32)
DropError = struct("DropError", error=VOID)
GetStream = struct("GetStream", context=VOID, stream=VOID)
Allocate = struct("Allocate", context=VOID, bytes=SIZE, alignment=SIZE, data=VOID)
Free = struct("Free", context=VOID, bytes=SIZE, data=VOID)
GetOrdinal = struct("GetOrdinal", context=VOID, ordinal=INT32)
BufferStruct = struct("BufferStruct", dtype=INT32, data=VOID, rank=INT64, shape=VOID)
Buffers = struct("Buffers", count=INT64, types=VOID, buffers=VOID)
Attributes = struct("Attributes", count=INT64, types=VOID, names=VOID, values=VOID)
Frame = struct("Frame", api=VOID, context=VOID, stage=INT32, arguments=Buffers, results=Buffers, attributes=Attributes)


class Span(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("length", SIZE)]


class Scalar(ctypes.Structure):
    _fields_ = [("dtype", INT32), ("value", VOID)]


class Buffer(NamedTuple):
    """A compact array in memory of the device."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str


class Error(NamedTuple):
    text: str
    code: int


@functools.cache
def handler(platform: str) -> Callable[[int], int | None]:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = VOID, [ctypes.py_object, VOID]
    return ctypes.CFUNCTYPE(VOID, VOID)(pointer(dict(_core._xla_handlers())[platform], None))


class Xla:
    """XLA on one stream of one GPU. Its functions note what they are asked for.

    ordinal: None is a table that ends before that question; refuses: names of functions, which return XLA's own errors.
    """

    CONTEXT = 0xC0

    def __init__(self, platform: str, stream: int | None, ordinal: int | None = 0) -> None:
        self.platform, self.stream, self.ordinal = platform, stream, ordinal
        self.allocate: Callable[[int], int] = lambda size: 0  # bytes -> address
        self.free: Callable[[int], None] = lambda address: None
        self.refuses: tuple[str, ...] = ()
        self.lacks: tuple[str, ...] = ()
        self.asked: list[str] = []
        self.memory: dict[int, int] = {}  # address of what was not given back: its bytes
        self.errors: dict[int, Error] = {}
        self.keep: list[Any] = []

    # XLA's functions

    def _new_error(self, text: str, code: int) -> int:
        number = len(self.errors) + 1
        self.errors[number] = Error(text, code)
        return number

    def _functions(self) -> dict[str, Any]:
        def function(name: str, kind: type, answer: Callable[[Any], Any]) -> Any:
            def called(address: int) -> int:
                given = kind.from_address(address)
                last = kind._fields_[-1][0]
                assert given.struct_size == getattr(kind, last).offset + getattr(kind, last).size
                assert name.endswith("error") or given.context == self.CONTEXT
                self.asked.append(name)
                if name in self.refuses:
                    return self._new_error(f"XLA's own of {name}", 8)
                return answer(given) or 0

            return ctypes.CFUNCTYPE(VOID, VOID)(called)

        def allocate(given: Any) -> None:
            assert given.alignment == 16
            given.data = self.allocate(given.bytes)
            self.memory[given.data] = given.bytes

        def free(given: Any) -> None:
            assert self.memory.pop(given.data) == given.bytes
            self.free(given.data)

        return {
            "new_error": function("new_error", NewError, lambda e: self._new_error(e.message.decode(), e.code)),
            "drop_error": function("drop_error", DropError, lambda e: self.errors.pop(e.error) and None),
            "stream": function("stream", GetStream, lambda s: setattr(s, "stream", self.stream)),
            "allocate": function("allocate", Allocate, allocate),
            "free": function("free", Free, free),
            "ordinal": function("ordinal", GetOrdinal, lambda o: setattr(o, "ordinal", self.ordinal)),
        }

    def _api(self) -> Any:
        size = Api.ordinal.offset if self.ordinal is None else ctypes.sizeof(Api)
        api = Api(struct_size=size, version=Version(ctypes.sizeof(Version), None, 0, 3))
        for name, function in self._functions().items():
            if name not in self.lacks:
                self.keep.append(function)
                setattr(api, name, ctypes.cast(function, VOID))
        return api

    # frames

    def _hold(self, value: Any) -> int:
        self.keep.append(value)
        return ctypes.addressof(value)

    def _pointers(self, addresses: list[int]) -> int:
        return self._hold((VOID * max(len(addresses), 1))(*addresses))

    def _buffers(self, buffers: list[Buffer]) -> Any:
        made = []
        for one in buffers:
            shape = self._hold((INT64 * max(len(one.shape), 1))(*one.shape))
            size = ctypes.sizeof(BufferStruct)
            made.append(self._hold(BufferStruct(size, None, DTYPES[one.dtype], one.pointer, len(one.shape), shape)))
        types = self._hold((INT32 * max(len(made), 1))(*[BUFFER] * len(made)))
        return Buffers(ctypes.sizeof(Buffers), None, len(made), types, self._pointers(made))

    def _span(self, text: str) -> int:
        return self._hold(Span(text.encode(), len(text)))

    def _attributes(self, values: dict[str, str | float]) -> Any:
        types, names, made = [], [], []
        for name, value in sorted(values.items()):
            names.append(self._span(name))
            if isinstance(value, str):
                types.append(STRING)
                made.append(self._span(value))
            else:
                types.append(SCALAR)
                made.append(self._hold(Scalar(DTYPES["float64"], self._hold(ctypes.c_double(value)))))
        kinds = self._hold((INT32 * len(types))(*types))
        return Attributes(
            ctypes.sizeof(Attributes), None, len(types), kinds, self._pointers(names), self._pointers(made)
        )

    def call(
        self,
        operands: dict[str, Buffer],
        *results: Buffer,
        activation: str | tuple[Any, ...] = "none",
        **attributes: str | float,
    ) -> Error | None:
        """One call: names ("B", "B.T") and buffers of the operands; out, and z if it is asked for."""
        name, *parameters = (activation,) if isinstance(activation, str) else activation
        values: dict[str, str | float] = {"alpha": 1.0, "beta": float("C" in operands), "gate_layout": ""}
        values |= {"operands": ",".join(operands), "activation": name, **attributes}
        values |= {f"p{i}": float(value) for i, value in enumerate(parameters)}
        frame = Frame(
            ctypes.sizeof(Frame),
            None,
            self._hold(self._api()),
            self.CONTEXT,
            3,
            self._buffers(list(operands.values())),
            self._buffers(list(results)),
            self._attributes(values),
        )
        number = handler(self.platform)(ctypes.addressof(frame))
        self.keep.clear()
        return self.errors[number] if number else None


def axes(array: np.ndarray, rank: int = 2) -> np.ndarray:
    """With leading axes of 1, up to rank."""
    return np.ascontiguousarray(array.reshape((1,) * (rank - array.ndim) + array.shape))
