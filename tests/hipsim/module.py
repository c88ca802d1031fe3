"""Code objects and launches for tests: Module(device, image)["name"](grid, block, arguments)."""

from __future__ import annotations

import ctypes
from typing import Any

from .array import Array
from .device import Device, Stream
from .library import hip, made


class Function:
    def __init__(self, handle: int, module: Module) -> None:
        self.handle, self.module = handle, module

    def __call__(
        self, grid: Any, block: Any, *arguments: Any, stream: Stream | int | None = None, lds: int = 0
    ) -> None:
        """Launch. Arguments: arrays (their pointer), ctypes values, int (32 bits) and float (single)."""
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        self._launch(grid, block, lds, stream, pointers, None)

    def launch_buffer(
        self, grid: Any, block: Any, buffer: bytes, *, stream: Stream | None = None, lds: int = 0
    ) -> None:
        """Launch with the arguments laid out by the caller."""
        data, size = ctypes.create_string_buffer(buffer, len(buffer)), ctypes.c_size_t(len(buffer))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(data), 2, ctypes.addressof(size), 3)
        self._launch(grid, block, lds, stream, None, extra)

    def _launch(self, grid: Any, block: Any, lds: int, stream: Stream | int | None, pointers: Any, extra: Any) -> None:
        handle = stream.handle if isinstance(stream, Stream) else stream or 0
        with self.module.device.current():  # whose default stream it is
            hip("hipModuleLaunchKernel", self.handle, *_three(grid), *_three(block), lds, handle, pointers, extra)


class Module:
    """A code object loaded on a device; unload() ends it."""

    def __init__(self, device: Device, image: bytes) -> None:
        self.device = device
        with device.current():
            self.handle = made("hipModuleLoadData", image)

    def __getitem__(self, name: str) -> Function:
        with self.device.current():
            return Function(made("hipModuleGetFunction", self.handle, name.encode()), self)

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        self.unload()

    def unload(self) -> None:
        handle, self.handle = self.handle, 0
        if handle:
            hip("hipModuleUnload", handle)


def _three(sizes: Any) -> tuple[int, int, int]:
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return (*sizes, *(1,) * (3 - len(sizes)))


def _value(argument: Any) -> Any:
    if isinstance(argument, Array):
        return ctypes.c_uint64(argument.pointer)
    if isinstance(argument, int):
        return ctypes.c_int32(argument)
    return ctypes.c_float(argument) if isinstance(argument, float) else argument
