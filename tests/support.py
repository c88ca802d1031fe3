"""Shared by several test files: operands, the judge of results, a plain DLPack producer, child interpreters."""

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
from fake_dlpack import Versioned
from isolated.common import Generic
from matmul_fused import _core, store
from matmul_fused.testing import assert_close, expect, force_kernel

DTYPES = ("float32", "float64", "float16", "bfloat16")
ISOLATED = Path(__file__).parent / "isolated"


def runs_on(kernel, *operands):
    """Does a row of the kernel list take these operands?"""
    try:
        with force_kernel(kernel):
            mf.explain(*operands)
    except NotImplementedError:
        return False
    return True


# Kernels that run on this CPU, best first; the reference, which does not read prepacked weights, is the last.
ONE = np.ones((1, 1), np.float32)
KERNELS = tuple(row for row in _core.info()["kernels"] if runs_on(row, ONE, ONE))


def takes_no_gate(tile):
    """A tile of gemm_pingpong or gemm_pingpong_staged with three groups of columns, or of gemm_wgmma_pingpong."""
    return (tile.startswith("gemm_pingpong") and "x192x" in tile) or "wgmma_pingpong" in tile


def dtype_of(name):
    """The NumPy dtype called name; skips the test if that takes an ml_dtypes that is not installed."""
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def draw(shape, dtype="float32", seed=0):
    """Normal random values, the same for the same shape and seed."""
    values = np.random.default_rng([seed, *np.atleast_1d(shape)]).standard_normal(shape)
    return np.asarray(values).astype(dtype_of(dtype))


def check(got, *arguments, **keywords):
    """got is what matmul_fused must give for these NumPy arguments: the float64 reference, within the derived bound."""
    expected, _ = expect(*arguments, **keywords)
    return assert_close(got, expected, got.dtype.name)


def dtype_of_row(kernel):
    """A dtype of 16 bits that the row takes: of AMX's rows the only one."""
    return "float16" if kernel == "cpu_blocked_amx_split" else "bfloat16"


def nothing_ran(kernel, refusal):
    """Skips the test, unless AMX leaves very few rows, or products, to others by design."""
    if "leaves so few" in refusal:
        assert kernel.startswith("cpu_blocked_amx"), "no other row leaves calls to others"
        return
    assert kernel not in KERNELS, "a row of this CPU takes the call"
    pytest.skip(f"{kernel} ran nothing: {refusal}")


def same_bits(x, y):
    """x and y have one dtype, one shape and the same bytes."""
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def reuse_memory():
    """Allocate what has just been freed by results of (30, 40) @ (40, 50), and fill it."""
    gc.collect()
    return [mf.matmul_fused(Generic(draw((30, 40), seed=i)), draw((40, 50))) for i in range(20)]


def to_numpy(array):
    """A NumPy copy of an mf.Array, bfloat16 too: np.from_dlpack has no such dtype."""
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = array.__dlpack__(max_version=(1, 0))
    tensor = Versioned.from_address(get_pointer(capsule, b"dltensor_versioned")).dl_tensor
    dtype = dtype_of(array.dtype)
    count = int(np.prod(array.shape, dtype=int))
    data = ctypes.string_at(tensor.data, count * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(array.shape).copy()


def python(*arguments, check=True, environment=None, timeout=300):
    """Run a child interpreter without MATMUL_FUSED_*, OMP_NUM_THREADS and tune store of this one; output as text."""
    dropped = ("MATMUL_FUSED_", "OMP_NUM_THREADS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        cwd="/",
        env={**clean, "MATMUL_FUSED_TUNE": "off", **(environment or {})},
        timeout=timeout,
    )
    if check:
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def own_store(tmp_path, monkeypatch):
    """A tune store of one test, in use."""
    made = store.Store(tmp_path / "cache")
    monkeypatch.setattr(store, "default", lambda: made)
    monkeypatch.setattr(store, "enabled", lambda: True)
    return made
