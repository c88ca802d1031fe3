"""The simulated driver through ctypes: hip("hipMalloc", ...) raises HipError; settings, faults, counts, reports."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

VOID = ctypes.c_void_p
SIZE = ctypes.c_size_t
INT = ctypes.c_int
UINT = ctypes.c_uint
TEXT = ctypes.c_char_p

# Only what this package calls itself; other entry points are reached with explicit ctypes arguments.
ARGUMENTS: dict[str, list[Any]] = {
    "hipInit": [UINT],
    "hipSetDevice": [INT],
    "hipGetDevice": [VOID],
    "hipGetDeviceCount": [VOID],
    "hipGetDevicePropertiesR0600": [VOID, INT],
    "hipMalloc": [VOID, SIZE],
    "hipFree": [VOID],
    "hipFreeAsync": [VOID, VOID],
    "hipMemcpyAsync": [VOID, VOID, SIZE, INT, VOID],
    "hipMemsetAsync": [VOID, INT, SIZE, VOID],
    "hipStreamCreateWithPriority": [VOID, UINT, INT],
    "hipStreamDestroy": [VOID],
    "hipStreamSynchronize": [VOID],
    "hipStreamQuery": [VOID],
    "hipStreamWaitEvent": [VOID, VOID, UINT],
    "hipDeviceSynchronize": [],
    "hipEventCreateWithFlags": [VOID, UINT],
    "hipEventDestroy": [VOID],
    "hipEventRecord": [VOID, VOID],
    "hipEventSynchronize": [VOID],
    "hipStreamBeginCapture": [VOID, INT],
    "hipStreamEndCapture": [VOID, VOID],
    "hipGraphInstantiateWithFlags": [VOID, VOID, ctypes.c_ulonglong],
    "hipGraphLaunch": [VOID, VOID],
    "hipGraphDestroy": [VOID],
    "hipGraphExecDestroy": [VOID],
    "hipModuleLoadData": [VOID, VOID],
    "hipModuleUnload": [VOID],
    "hipModuleGetFunction": [VOID, VOID, TEXT],
    "hipModuleLaunchKernel": [VOID, *[UINT] * 7, VOID, VOID, VOID],
}


class HipError(RuntimeError):
    """A HIP call failed: code, name ("hipErrorInvalidValue"), call."""

    def __init__(self, call: str, code: int) -> None:
        self.call, self.code = call, code
        self.name = library().hipGetErrorName(code).decode()
        super().__init__(f"{call}: {self.name} ({code}): {library().hipGetErrorString(code).decode()}")


def path() -> str:
    """The library's file, as the extension gets it."""
    found = os.environ.get("MATMUL_FUSED_HIP_LIBRARY")
    if not found:
        raise RuntimeError("set MATMUL_FUSED_HIP_LIBRARY to what `python -m hipsim.build FOLDER` prints")
    return found


def find_llvm() -> None:
    """Name LLVM's disassembler of the PyPI package rocm-llvm-python, unless HIPSIM_LLVM names another. Not imported:
    that would load the whole of it."""
    package = importlib.util.find_spec("rocm")
    for place in package.submodule_search_locations or () if package else ():
        found = Path(place) / "llvm" / "librocmllvm.so"
        if found.exists():
            os.environ.setdefault("HIPSIM_LLVM", str(found))


find_llvm()


@functools.cache
def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(path())
    for name, arguments in ARGUMENTS.items():
        getattr(lib, name).argtypes = arguments
    for name in ("hipGetErrorName", "hipGetErrorString", "hipsim_problem", "hipsim_entry_point"):
        getattr(lib, name).restype = TEXT
    lib.hipsim_report.restype = VOID
    lib.hipsim_report.argtypes = [INT, INT]
    lib.hipsim_free.argtypes = [VOID]
    lib.hipsim_set.argtypes = [TEXT, TEXT]
    lib.hipsim_fail_next.argtypes = [TEXT, INT, ctypes.c_uint64]
    lib.hipsim_fault_waits.argtypes = [TEXT]
    lib.hipsim_calls.argtypes = [TEXT]
    lib.hipsim_calls.restype = ctypes.c_uint64
    lib.hipsim_instructions.argtypes = [INT, TEXT]
    lib.hipsim_instructions.restype = SIZE
    lib.hipsim_instruction.argtypes = [INT, TEXT, SIZE, VOID]
    lib.hipsim_instruction.restype = TEXT
    lib.hipsim_executed.argtypes = [INT, TEXT, VOID]
    lib.hipsim_patch.argtypes = [INT, TEXT, ctypes.c_uint64, ctypes.c_uint32, VOID]
    return lib


def try_hip(name: str, *arguments: Any) -> int:
    """Call an entry point; its code."""
    return int(getattr(library(), name)(*arguments))


def hip(name: str, *arguments: Any) -> None:
    code = try_hip(name, *arguments)
    if code:
        raise HipError(name, code)


def made(name: str, *arguments: Any) -> int:
    """Call an entry point whose first argument is where a handle or pointer goes; that handle (0 for NULL)."""
    handle = VOID()
    hip(name, ctypes.byref(handle), *arguments)
    return handle.value or 0


def entry_points() -> list[str]:
    names = []
    while name := library().hipsim_entry_point(len(names)):
        names.append(name.decode())
    return names


def calls(name: str | None = None) -> Any:
    """How often an entry point was called, or all of them that were: {name: count}."""
    if name is not None:
        return int(library().hipsim_calls(name.encode()))
    counts = {entry: int(library().hipsim_calls(entry.encode())) for entry in entry_points()}
    return {entry: count for entry, count in counts.items() if count}


def configure(**settings: Any) -> None:
    """Change settings (seed, checks, order, threads, version): see runtime/settings.c."""
    for name, value in settings.items():
        if library().hipsim_set(name.encode(), str(value).encode()):
            raise ValueError(library().hipsim_problem().decode())


def fail_next(name: str, code: int, skip: int = 0) -> None:
    """Let the next call of an entry point fail, after skip more that work; code 0 takes it back."""
    if library().hipsim_fail_next(name.encode(), code, skip):
        raise ValueError(f"{name} is not an entry point of the simulated driver")


def fault_waits(name: str) -> bool:
    return library().hipsim_fault_waits(name.encode()) == 1


def raw_report(ordinal: int, reset: bool) -> dict[str, Any]:
    text = library().hipsim_report(ordinal, int(reset))
    if not text:
        raise ValueError(f"there is no device {ordinal}")
    try:
        return json.loads(ctypes.string_at(text).decode())
    finally:
        library().hipsim_free(text)
