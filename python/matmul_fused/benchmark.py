"""Problems and rivals of `python -m matmul_fused bench`: small and large layers, beside NumPy and torch if installed.

Every arm of a problem gets the same values, a bias and an activation, with the weight stored (N, K) as torch.nn.Linear
has it. The timing protocol is that of testing/timing.py.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import get_num_threads, matmul_fused, prepack
from .report import engineering
from .testing.timing import Timing, measure, rotate

Call = Callable[[], object]
HEADER = ("problem", "arm", "time", "spread", "Gflop/s", "/ matmul_fused")


@dataclass(frozen=True)
class Problem:
    m: int
    k: int
    n: int
    dtype: str
    activation: str
    library: str  # of the operands: "numpy" or "torch"

    @property
    def name(self) -> str:
        return f"{self.library} {self.m}x{self.k} @ {self.k}x{self.n} {self.dtype} {self.activation}"


PROBLEMS = tuple(
    Problem(*shape, dtype, activation, library)
    for shape, activation in (((1, 64, 64), "relu"), ((1, 768, 3072), "silu"), ((64, 768, 3072), "silu"))
    for library, dtypes in (("numpy", ("float32",)), ("torch", ("float32", "bfloat16")))
    for dtype in dtypes
)


@dataclass(frozen=True)
class Result:
    problem: Problem
    timing: Timing

    def as_dict(self) -> dict[str, Any]:
        return {"problem": self.problem.name, **self.timing.as_dict()}


def _values(problem: Problem, seed: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    shapes = (problem.m, problem.k), (problem.n, problem.k), (problem.n,), (problem.m, problem.n)
    x, weight, bias, out = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return x, weight / np.float32(problem.k**0.5), bias, out


def _numpy_layer(x: Any, weight: Any, bias: Any, activation: str) -> Any:
    z = x @ weight.T
    z += bias
    return np.maximum(z, 0, out=z) if activation == "relu" else z / (1 + np.exp(-z))


def _rivals(problem: Problem, x: Any, weight: Any, bias: Any) -> dict[str, Call]:
    if problem.library == "numpy":
        return {"NumPy": partial(_numpy_layer, x, weight, bias, problem.activation)}
    import torch

    act = getattr(torch.nn.functional, problem.activation)
    return {"torch": lambda: act(torch.nn.functional.linear(x, weight, bias))}


def _calls(problem: Problem, seed: int) -> dict[str, Call]:
    x, weight, bias, out = _values(problem, seed)
    if problem.library == "torch":
        import torch

        x, weight, bias, out = (torch.from_numpy(a).to(getattr(torch, problem.dtype)) for a in (x, weight, bias, out))
    fused = partial(matmul_fused, bias=bias, activation=problem.activation)
    return {
        "matmul_fused": partial(fused, x, weight.T),
        "matmul_fused, out=": partial(fused, x, weight.T, out=out),
        "matmul_fused, prepacked": partial(fused, x, prepack(weight.T)),
        **_rivals(problem, x, weight, bias),
    }


def run(problem: Problem, quick: bool = False) -> list[Result]:
    """Time every arm of a problem; nothing if its library is not installed."""
    try:
        __import__(problem.library)
    except ImportError:
        return []
    nbytes = 4 * (problem.m * problem.k + problem.k * problem.n)
    hot = nbytes < 1 << 18  # small problems show the cost of the call, with data in the cache
    copies = rotate(partial(_calls, problem), nbytes, cache_bytes=0 if hot else 64 << 20)
    arms = {name: [copy[name] for copy in copies] for name in copies[0]}
    times = measure(arms, rounds=3, sample_seconds=0.001, warm_up_seconds=0.0) if quick else measure(arms)
    return [Result(problem, timing) for timing in times]


def rows(results: list[Result]) -> list[tuple[str, ...]]:
    """The lines below HEADER; a problem is named in its first line only."""
    lines: list[tuple[str, ...]] = []
    named = None
    for problem, timing in ((result.problem, result.timing) for result in results):
        gflops = 2e-9 * problem.m * problem.n * problem.k / timing.median
        figures = engineering(timing.median, "s"), f"{timing.spread:.0%}", f"{gflops:.3g}", f"{timing.ratio:.2f}"
        lines.append((problem.name if problem is not named else "", timing.name, *figures))
        named = problem
    return lines


def conditions() -> str:
    """Machine and regime, for under the table."""
    threads = [f"matmul_fused {get_num_threads()}"]
    versions = [f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    try:
        import torch
    except ImportError:
        pass
    else:
        threads.append(f"torch {torch.get_num_threads()}")
        versions.append(f"torch {torch.__version__}")
    cpu = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    load = os.getloadavg()[0]
    return f"{cpu}, {os.cpu_count()} cores, load {load:.1f}; threads: {', '.join(threads)}; {', '.join(versions)}"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def plot(results: list[Result], path: Path) -> None:
    """Bars of time relative to matmul_fused, a group for each problem."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("--plot needs matplotlib, which is not installed") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(result.timing.name for result in results))
    colours = dict(zip(names, pyplot.colormaps["tab10"].colors, strict=False))
    figure, axes = pyplot.subplots(figsize=(10, 1 + len(results) * 0.27), layout="constrained")
    ticks: dict[str, float] = {}
    place, previous = 0.0, None
    for problem, timing in ((result.problem, result.timing) for result in results):
        place += 1.0 if problem is previous else 2.0
        ticks.setdefault(problem.name, place)
        previous = problem
        label = timing.name if timing.name in names else None  # one entry of the legend for each arm
        names = [name for name in names if name != timing.name]
        bar = axes.barh(place, timing.ratio - 1, 0.8, left=1, color=colours[timing.name], label=label)
        axes.bar_label(bar, [engineering(timing.median, "s")], padding=3, fontsize=7)
    axes.set_yticks(list(ticks.values()), list(ticks))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15, y=0.02)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("time / time of matmul_fused, log scale (left of the line is faster)")
    figure.legend(loc="outside upper right", ncols=5, fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
