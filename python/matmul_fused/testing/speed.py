"""Times of every kernel of a GPU, an instance at a time: what `check --device` adds to its report.

Role: beside run.py, for machines that the project has never seen. One call of every dtype and layout, large, with few
rows and with one; each kernel that takes it is forced in turn. Times are of the host's clock around many calls, the
device waited for before and after, on operands that together outgrow the last cache; so they contain what a launch
costs where that is more than the kernel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from . import force_kernel
from .devices import Device, DeviceArray
from .inputs import Operand
from .rounding import Array, have_bfloat16, numpy_dtype
from .timing import measure, rotate

SIMULATED = "simulated: not timed"
METHOD = "median time of a call among many, on operands beyond the caches; without an epilogue"
HEADER = ("kernel", "M x N x K", "time", "Tflop/s", "GB/s", "modelled / measured")
_CACHE = 512 << 20  # bytes: twice the greatest last-level cache


@dataclass(frozen=True)
class Problem:
    m: int
    n: int
    k: int
    dtype: str
    layout: str  # of A and B, as in the kernels' names; P: B is prepacked in layout preshuffle_16x16
    allow_tf32: bool = False

    @property
    def name(self) -> str:
        tf32 = " tf32" if self.allow_tf32 else ""
        return f"{self.m}x{self.n}x{self.k} {self.dtype}{tf32} {self.layout}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def nbytes(self) -> int:
        return (self.m * self.k + self.n * self.k + self.m * self.n) * numpy_dtype(self.dtype).itemsize


def problems(large: int = 4096, few: int = 16) -> tuple[Problem, ...]:
    """Every dtype and layout that some kernel is for: large, with few rows and with one. bfloat16 needs ml_dtypes."""
    half, every = ("bfloat16", "float16") if have_bfloat16() else ("float16",), ("NT", "NN", "TN", "TT")
    wide = large // 2  # of 32 and 64 bits
    return (
        *(Problem(large, large, large, dtype, layout) for dtype in half for layout in (*every, "NP")),
        *(Problem(few, large, large, dtype, "NP") for dtype in half),
        *(Problem(few, large, large, dtype, layout) for dtype in (*half, "float32", "float64") for layout in every[:2]),
        *(Problem(1, large, large, dtype, "NT") for dtype in (*half, "float32")),
        *(Problem(wide, wide, wide, dtype, layout) for dtype in ("float32", "float64") for layout in every),
        *(Problem(wide, wide, wide, "float32", layout, allow_tf32=True) for layout in every),
    )


@dataclass(frozen=True)
class Time:
    """A kernel on a problem. Times are seconds of a call."""

    kernel: str
    problem: Problem
    seconds: float  # the median
    spread: float  # (third quartile - first) / median
    modelled: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"problem": self.problem.name}

    def row(self) -> tuple[str, ...]:
        """Below HEADER."""
        rate, bytes_rate = self.problem.flops / self.seconds, self.problem.nbytes / self.seconds
        figures = f"{rate / 1e12:.1f}", f"{bytes_rate / 1e9:.0f}", f"{self.modelled / self.seconds:.2f}"
        return self.kernel, self.problem.name, f"{self.seconds * 1e6:.1f} us", *figures


def _operand(device: Device, values: Array, rows: int, columns: int, transposed: bool) -> DeviceArray:
    """A matrix on the device, row-major or the transpose of one."""
    strides = (1, rows) if transposed else (columns, 1)
    return DeviceArray(device, Operand("", np.resize(values, rows * columns), (rows, columns), strides, 0))


def _operands(device: Device, problem: Problem, _: int) -> tuple[DeviceArray, Any, DeviceArray]:
    from matmul_fused import prepack

    rng = np.random.default_rng(0)
    values = rng.standard_normal(1 << 20, dtype=np.float32).astype(numpy_dtype(problem.dtype))
    make, (m, n, k) = partial(_operand, device, values), (problem.m, problem.n, problem.k)
    b: Any = make(k, n, problem.layout[1] == "T")
    if problem.layout[1] == "P":
        b = prepack(b, layout="preshuffle_16x16")
    return make(m, k, problem.layout[0] == "T"), b, make(m, n, False)


def _call(kernel: str, operands: tuple[DeviceArray, Any, DeviceArray], allow_tf32: bool) -> None:
    from matmul_fused import matmul_fused

    a, b, out = operands
    with force_kernel(kernel):
        matmul_fused(a, b, out=out, allow_tf32=allow_tf32)


def times_of(device: Device, problem: Problem, families: Collection[str], seconds: float = 0.01) -> list[Time]:
    """Of each kernel of these families that takes the problem. seconds: of a sample, at least; 0: one call."""
    from matmul_fused import explain

    try:
        copies = rotate(partial(_operands, device, problem), problem.nbytes, _CACHE if seconds else 0)
    except NotImplementedError:
        if problem.layout[1] != "P":
            raise
        return []  # no kernel of this GPU reads the layout
    a, b, out = copies[0]
    rows = explain(a, b, out=out, allow_tf32=problem.allow_tf32).candidates
    modelled = {row.name: row.seconds for row in rows if row.seconds is not None and row.family in families}
    arms = {name: [partial(_call, name, copy, problem.allow_tf32) for copy in copies] for name in modelled}
    if not arms:
        return []
    measured = measure(
        arms, rounds=7, sample_seconds=seconds, warm_up_seconds=5 * seconds, synchronise=device.synchronize
    )
    return [Time(one.name, problem, one.median, one.spread, modelled[one.name]) for one in measured]
