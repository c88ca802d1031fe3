"""Host cost of one small call: 1x64 @ 64x64 float32 with bias and relu, beside torch and NumPy in the same run.

    python bench/bench_call.py [--json FILE]

Arms are interleaved round by round; shown are the median over the rounds and the quartiles, microseconds per call.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import timeit
from pathlib import Path
from typing import Any

import numpy as np

import matmul_fused as mf

NUMPY_ARMS = {
    "matmul_fused, NumPy": "f(A, B, b, 'relu')",
    "matmul_fused, NumPy, out=": "f(A, B, b, 'relu', out=out)",
    "NumPy A @ B alone": "A @ B",
    "NumPy maximum(A @ B + b, 0)": "maximum(A @ B + b, 0)",
}
TORCH_ARMS = {
    "matmul_fused, torch": "f(tA, tB, tb, 'relu')",
    "matmul_fused, torch, out=": "f(tA, tB, tb, 'relu', out=tout)",
    "matmul_fused, torch, W.T, out=": "f(tA, WT, tb, 'relu', out=tout)",
    "torch linear + relu": "relu(linear(tA, W, tb))",
}


def make_names() -> tuple[dict[str, str], dict[str, Any]]:
    """The arms, and the names that their statements use."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((1, 64), dtype=np.float32)
    b = rng.standard_normal((64, 64), dtype=np.float32)
    bias = rng.standard_normal(64, dtype=np.float32)
    names = {"f": mf.matmul_fused, "A": a, "B": b, "b": bias, "out": np.empty_like(a), "maximum": np.maximum}
    if not importlib.util.find_spec("torch"):
        return NUMPY_ARMS, names
    import torch
    import torch.nn.functional as functional

    weight = torch.from_numpy(b.T.copy())
    names |= {"tA": torch.from_numpy(a), "tB": torch.from_numpy(b), "tb": torch.from_numpy(bias)}
    names |= {"W": weight, "WT": weight.T, "tout": torch.empty(1, 64)}
    names |= {"linear": functional.linear, "relu": torch.relu}
    return NUMPY_ARMS | TORCH_ARMS, names


def measure(rounds: int = 25, calls: int = 20_000) -> dict[str, list[float]]:
    """Seconds per call of every arm, one sample per round."""
    arms, names = make_names()
    # locals of a function are the cheapest names Python has: the cost of the call is what remains
    setup = "; ".join(f"{name} = {name}_" for name in names)
    scope = {f"{name}_": value for name, value in names.items()}
    timers = {arm: timeit.Timer(statement, setup, globals=scope) for arm, statement in arms.items()}
    samples: dict[str, list[float]] = {arm: [] for arm in arms}
    for timer in timers.values():
        timer.timeit(calls)
    for _ in range(rounds):
        for arm, timer in timers.items():
            samples[arm].append(timer.timeit(calls) / calls)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args()
    samples = measure()
    print(f"{'1x64 @ 64x64 float32, bias, relu':36}{'median us':>10}{'quartiles':>18}")
    for arm, values in samples.items():
        low, median, high = (1e6 * q for q in statistics.quantiles(values, n=4))
        print(f"{arm:36}{median:10.2f}{f'{low:.2f} ... {high:.2f}':>18}")
    if options.json:
        about = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
        options.json.write_text(json.dumps({**about, "seconds_per_call": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
