"""The stand-in CUDA driver of stub_cuda.c for tests: two devices whose memory is the host's.

build() makes the library; conftest.py names it in MATMUL_FUSED_CUDA_LIBRARY before matmul_fused is imported.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from fake_dlpack import DLDevice, DLTensor, Producer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARY = ROOT / "build" / "stub_cuda" / "libcuda_stub.so"
KDLCUDA = 2


@functools.cache
def build() -> Path:
    """The library, built anew if a source is newer."""
    core = [*(ROOT / "csrc/problem" / f"{name}.c" for name in ("status", "tensor", "activation"))]
    sources = [
        *HERE.glob("*.c"),
        *core,
        *(ROOT / "csrc/cpu" / f"{name}.c" for name in ("reference", "interrupt", "pool", "team")),
    ]
    newest = max(path.stat().st_mtime for path in (*sources, *HERE.glob("*.h"), *ROOT.glob("csrc/**/*.[hid]*")))
    if not LIBRARY.exists() or LIBRARY.stat().st_mtime < newest:
        compiler = next(filter(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "cc", "clang")))
        LIBRARY.parent.mkdir(parents=True, exist_ok=True)
        made = LIBRARY.with_suffix(f".{os.getpid()}")
        flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-Bsymbolic"]
        includes = [f"-I{ROOT / 'csrc'}", f"-I{HERE}"]
        subprocess.run([compiler, *flags, *includes, *map(str, sources), "-o", str(made), "-lm"], check=True)
        made.replace(LIBRARY)
    return LIBRARY


@functools.cache
def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(build()))
    for name, result, arguments in (
        ("stub_log", ctypes.c_char_p, []),
        ("stub_fail_next", None, [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
        ("stub_stream_create", ctypes.c_void_p, [ctypes.c_int]),
        ("stub_stream_capture", None, [ctypes.c_void_p, ctypes.c_int]),
        ("stub_stream_destroy", None, [ctypes.c_void_p]),
        ("stub_stream_move", None, [ctypes.c_void_p]),
        ("stub_alloc", ctypes.c_void_p, [ctypes.c_int, ctypes.c_size_t]),
        ("stub_free", ctypes.c_int, [ctypes.c_void_p]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def log() -> list[str]:
    """The driver's calls since the last clear_log()."""
    return library().stub_log().decode().split("\n")[:-1]


def calls(*names: str) -> list[str]:
    """Those of the log whose name is one of names."""
    return [line for line in log() if line.split("(")[0] in names]


def clear_log() -> None:
    library().stub_clear_log()


def fail_next(name: str, code: int, skip: int = 0) -> None:
    """Let the (skip + 1)-th next call of a function return code."""
    library().stub_fail_next(name.encode(), code, skip)


class Memory:
    """Device memory, freed with this object; as bytes of NumPy."""

    def __init__(self, device: int, size: int) -> None:
        self.pointer = library().stub_alloc(device, size)
        assert self.pointer
        self.size = size

    def bytes(self) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.pointer))

    def __del__(self) -> None:
        library().stub_free(self.pointer)


class DeviceArray(Producer):
    """A NumPy view, copied with its whole buffer to the device; speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray, device: int = 0, **how: Any) -> None:
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        low, high = np.lib.array_utils.byte_bounds(base) if base.size else (array.ctypes.data, array.ctypes.data)
        self.memory = Memory(device, max(high - low, 1))
        self.offset = array.ctypes.data - low
        self.memory.bytes()[: high - low] = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
        pointer = self.memory.pointer + self.offset
        view = np.ndarray(array.shape, array.dtype, self.memory.bytes(), self.offset, array.strides)

        def change(tensor: DLTensor) -> None:
            tensor.device = DLDevice(KDLCUDA, device)
            tensor.data = pointer

        super().__init__(view, change=change, device=(KDLCUDA, device), **how)

    def numpy(self) -> np.ndarray:
        return self.array.copy()


def fetch(result: Any) -> np.ndarray:
    """The elements of an mf.Array on a stub's device."""
    from support import to_numpy

    return to_numpy(result)
