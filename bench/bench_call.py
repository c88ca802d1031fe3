"""Host cost of one small call: 1x64 @ 64x64 float32 with bias and relu, beside NumPy and torch in the same run.

    python bench/bench_call.py [--json FILE]
    python bench/bench_call.py --against REV [--processes N]

Arms are interleaved round by round. Shown are medians over the rounds, microseconds per call, and the quartiles.
--against builds this checkout and REV alike (tools/beside.py) and loads both extension modules into one process, as the
time of the same code differs by a few percent from process to process. It does so in N fresh processes; a ratio is the
median of theirs, and its spread the least and the greatest of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import timeit
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
OURS = {
    "NumPy": "f(A, B, b, 'relu')",
    "NumPy, out=": "f(A, B, b, 'relu', out=out)",
    "torch": "f(tA, tB, tb, 'relu')",
    "torch, out=": "f(tA, tB, tb, 'relu', out=tout)",
    "torch, W.T, out=": "f(tA, WT, tb, 'relu', out=tout)",
}
NUMPY_ALONE, NUMPY_ALL, TORCH_ALL = "NumPy A @ B alone", "NumPy maximum(A @ B + b, 0)", "torch linear + relu"
RIVALS = {NUMPY_ALONE: "A @ B", NUMPY_ALL: "maximum(A @ B + b, 0)", TORCH_ALL: "relu(linear(tA, W, tb))"}
HERE, THERE = "matmul_fused, ", "REV, "
PROCESSES, ROUNDS, CALLS = 8, 150, 2_000  # many short rounds: few of them meet what else the machine does


def operands() -> dict[str, Any]:
    """The names that the statements use, but for the call itself; those of torch where it is installed."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((1, 64), dtype=np.float32)
    b = rng.standard_normal((64, 64), dtype=np.float32)
    bias = rng.standard_normal(64, dtype=np.float32)
    names: dict[str, Any] = {"A": a, "B": b, "b": bias, "out": np.empty_like(a), "maximum": np.maximum}
    if importlib.util.find_spec("torch"):
        import torch

        weight = torch.from_numpy(b.T.copy())
        names |= {"tA": torch.from_numpy(a), "tB": torch.from_numpy(b), "tb": torch.from_numpy(bias)}
        names |= {"W": weight, "WT": weight.T, "tout": torch.empty(1, 64)}
        names |= {"linear": torch.nn.functional.linear, "relu": torch.relu}
    return names


def timers(prefix: str, call: Any, arms: dict[str, str], names: dict[str, Any]) -> dict[str, timeit.Timer]:
    """A timer for each arm that can run here."""
    names = {"f": call, **names}
    # locals of a function are the cheapest names Python has: the cost of the call is what remains
    setup = "; ".join(f"{name} = {name}_" for name in names)
    scope = {f"{name}_": value for name, value in names.items()}
    with_torch = "tA" in names
    return {
        prefix + arm: timeit.Timer(statement, setup, globals=scope)
        for arm, statement in arms.items()
        if with_torch or not arm.startswith("torch")
    }


def measure(arms: dict[str, timeit.Timer], rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds per call of every arm, one sample per round; the order turns around with every round."""
    samples: dict[str, list[float]] = {arm: [] for arm in arms}
    for timer in arms.values():
        timer.timeit(calls)
    for number in range(rounds):
        for arm in list(arms)[:: -1 if number % 2 else 1]:
            samples[arm].append(arms[arm].timeit(calls) / calls)
    return samples


def load(site: Path, name: str) -> Any:
    """The extension module of a build, whatever else is loaded."""
    (file,) = (site / "matmul_fused").glob("_core*.so")
    loader = ExtensionFileLoader(f"{name}._core", str(file))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def measure_both(sites: list[str], rounds: int, calls: int, swap: bool) -> dict[str, list[float]]:
    """The arms of both builds, and the rivals, in this process."""
    names, arms = operands(), {}
    pairs = list(zip((HERE, THERE), map(Path, sites), ("here", "there"), strict=True))
    for prefix, site, name in pairs[::-1] if swap else pairs:  # the first one may lie better in memory
        arms |= timers(prefix, load(site, name).matmul_fused, OURS, names)
    ordered = [prefix + arm for arm in OURS for prefix in (HERE, THERE) if prefix + arm in arms]
    return measure({arm: arms[arm] for arm in ordered} | timers("", None, RIVALS, names), rounds, calls)


def ratios(runs: list[dict[str, list[float]]], arm: str, base: str) -> tuple[float, float, float]:
    """Least, median, greatest over the processes of the median of arm / base in the same round."""
    each = [statistics.median(x / y for x, y in zip(run[arm], run[base], strict=True)) for run in runs]
    return min(each), statistics.median(each), max(each)


def against(revision: str, processes: int, rounds: int, calls: int) -> list[dict[str, list[float]]]:
    """Samples of every process."""
    sys.path.insert(0, str(ROOT / "tools"))
    import beside

    print(f"building this checkout and {revision}", flush=True)
    sites = [str(beside.checkout()), str(beside.revision(revision))]
    runs = []
    for number in range(processes):
        command = [sys.executable, __file__, "--sites", *sites, "--rounds", str(rounds), "--calls", str(calls)]
        command += ["--swap"] if number % 2 else []
        done = subprocess.run(command, env=beside.environment(Path(sites[0])), check=True, stdout=subprocess.PIPE)
        runs.append(json.loads(done.stdout))
        print(f"process {number + 1} of {processes}", flush=True)
    return runs


def print_against(runs: list[dict[str, list[float]]], revision: str) -> None:
    def median(arm: str) -> float:
        return 1e6 * statistics.median(value for run in runs for value in run[arm])

    print(f"\n{'1x64 @ 64x64 float32, bias, relu':34}{'here us':>9}{'REV us':>9}{'here / REV':>12}{'spread':>18}")
    for arm in (arm for arm in OURS if HERE + arm in runs[0]):
        low, middle, high = ratios(runs, HERE + arm, THERE + arm)
        line = f"{arm:34}{median(HERE + arm):9.3f}{median(THERE + arm):9.3f}{middle:12.3f}"
        print(f"{line}{f'{low:.3f} ... {high:.3f}':>18}")
    for rival in (rival for rival in RIVALS if rival in runs[0]):
        print(f"\n{rival + ', us':34}{median(rival):9.3f}")
        for arm in (arm for arm in OURS if HERE + arm in runs[0] and arm[:5] == rival[:5]):
            low, middle, high = ratios(runs, HERE + arm, rival)
            print(f"  {arm + ' / it':32}{middle:30.3f}{f'{low:.3f} ... {high:.3f}':>18}")
    print(f"\nREV is {revision}; {len(runs)} processes, {len(runs[0][NUMPY_ALONE])} rounds; the spread is theirs")


def print_alone(samples: dict[str, list[float]]) -> None:
    print(f"{'1x64 @ 64x64 float32, bias, relu':36}{'median us':>10}{'quartiles':>18}")
    for arm, values in samples.items():
        low, median, high = (1e6 * q for q in statistics.quantiles(values, n=4))
        print(f"{arm:36}{median:10.2f}{f'{low:.2f} ... {high:.2f}':>18}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the samples")
    parser.add_argument("--against", metavar="REV")
    parser.add_argument("--processes", type=int, default=PROCESSES, metavar="N")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--calls", type=int, default=CALLS, help="of an arm in a round")
    parser.add_argument("--sites", nargs=2, help=argparse.SUPPRESS)  # a child: both builds
    parser.add_argument("--swap", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    result: Any
    if options.sites:
        print(json.dumps(measure_both(options.sites, options.rounds, options.calls, options.swap)))
        return
    if options.against:
        result = against(options.against, options.processes, options.rounds, options.calls)
        print_against(result, options.against)
    else:
        import matmul_fused as mf

        names = operands()
        arms = timers(HERE, mf.matmul_fused, OURS, names) | timers("", None, RIVALS, names)
        result = measure(arms, options.rounds, options.calls)
        print_alone(result)
    if options.json:
        about = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
        options.json.write_text(json.dumps({**about, "seconds_per_call": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
