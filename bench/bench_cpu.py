"""The CPU beside its rivals in one process: torch eager, torch.compile, NumPy.

    python bench/bench_cpu.py [--only PATTERN] [--quick] [--json FILE] [--plot FILE.png] [--results FILE] [--list]

Every way of a problem gets the same values; results are compared with float64 first. Ways take turns, round by round,
and each starts when the threads of the one before rest: libgomp's spin for some milliseconds after a call, OpenBLAS's
for a tenth of a second, and either takes a core away. Operands of more than HOT_BYTES rotate through copies that
together outgrow twice the last-level cache, smaller ones stay hot in it. The heap keeps what is freed, so that no way
pays for fresh pages by chance.

The alternating loop is what a model does: an operator of torch, then the layer, again and again without a pause, once
with our call and once with torch's.

Results are added to those of the same build and machine in the JSON file, so that a run can be made in pieces, one
group (see --list) at a time. Once it holds every problem, the section of RESULTS.md for this kind of machine (amx,
avx512 or avx2, and the cores where there are more than two) is written from it.
Needs torch and ml_dtypes; torch.compile needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import machine
import results
import rivals
from rivals import Problem

from matmul_fused.console import progress, show
from matmul_fused.testing.timing import Timing, measure, rotate, settle

ROOT = Path(__file__).resolve().parents[1]
HOT_BYTES = 512 << 10


def listed(group: str, m: int, n: int, k: int, activation: str | None = "silu") -> list[Problem]:
    """A problem that counts in the means, in the three dtypes of models."""
    return [
        Problem(group, m, n, k, dtype, activation=activation, listed=True)
        for dtype in ("float32", "bfloat16", "float16")
    ]


PROBLEMS = (
    *listed("square", 1024, 1024, 1024),
    *listed("square", 2048, 2048, 2048),
    *(p for m in (1, 16, 128, 1024) for p in listed("gpt2.fc", m, 3072, 768, "gelu_tanh")),
    *listed("bert.out", 128, 768, 3072, None),
    *(p for m in (1, 16, 256) for p in listed("llama.up", m, 8192, 2048)),
    *listed("wide", 64, 16384, 4096, "relu"),
    *listed("flat", 4096, 1024, 64, "gelu"),
    *listed("odd", 333, 777, 555),
    *(Problem("tiny", m, 64, 64, dtype, "relu") for m in (1, 16) for dtype in ("float32", "bfloat16", "float16")),
    Problem("vector", 1, 8192, 2048, layout="KN"),
    Problem("small", 8, 4096, 1024, activation="gelu"),
    Problem("small", 8, 4096, 1024, "bfloat16", activation="gelu"),
    Problem("small", 64, 1024, 1024, activation="relu"),
    Problem("small", 64, 1024, 1024, "bfloat16", activation="relu"),
    Problem("small", 128, 128, 128, activation="relu"),
    Problem("small", 128, 128, 128, "bfloat16", activation="relu"),
    *(
        Problem("mlp", m, 5632, 1024, dtype, activation="swiglu")
        for m in (1, 64, 512)
        for dtype in ("float32", "bfloat16", "float16")
    ),
    Problem("layout", 1024, 1024, 1024, layout="KN"),
    Problem("layout", 64, 1024, 1024, activation="relu", layout="KN"),
    *(
        Problem("layout", m, n, k, dtype, layout="KN")
        for m, n, k in ((16, 3072, 768), (1, 4096, 14336))
        for dtype in ("float32", "bfloat16", "float16")
    ),
    *(
        Problem("narrow", m, n, 4096, dtype, activation=None, layout=layout)
        for m, n, layout in ((16, 16, "NK"), (64, 64, "NK"), (16, 128, "KN"))
        for dtype in ("float32", "bfloat16", "float16")
    ),
    Problem("layout", 128, 128, 64, activation="relu", batch=16),
    Problem("layout", 512, 512, 512, "float64"),
    Problem("layout", 512, 512, 512, "float64", activation=None),
    *(Problem("activation", 512, 1024, 1024, activation=name) for name in (None, "relu", "gelu", "gelu_tanh", "tanh")),
)

# Wanted of the time of torch eager / ours, by machine and dtype: the geometric mean of the listed problems, the least
# of them by its upper quartile, and the mean of a prepacked weight.
GOALS: dict[str, dict[str, results.Goal]] = {
    "amx": {
        "float32": results.Goal(1.05, 0.95),
        "bfloat16": results.Goal(1.15, 0.9, prepacked=1.5),
        "float16": results.Goal(1.05, 0.9),
    },
    "avx512": {
        "float32": results.Goal(1.05, 0.95),
        "bfloat16": results.Goal(1.6, 0.9),
        "float16": results.Goal(1.05, 0.9),
    },
    "avx2": {
        "float32": results.Goal(1.2, 1),
        "bfloat16": results.Goal(6, 0.9),
        "float16": results.Goal(6, 0.9),
    },
    "portable": {},
}


def arm(timing: Timing, flops: int) -> dict[str, Any]:
    return {
        "name": timing.name,
        "median_s": timing.median,
        "quartiles_s": machine.quartiles(timing.samples),
        "best_s": timing.best,
        "gflops": flops / timing.median / 1e9,
        "calls": timing.calls,
        "samples_s": timing.samples,
    }


def run(problem: Problem, quick: bool, seconds: float = 4.0) -> dict[str, Any]:
    """Check, then time every way and the alternating loop."""
    first = rivals.Operands(problem)
    ways = rivals.ways(problem, first)
    errors = rivals.check(problem, first, ways.calls)
    hot = problem.nbytes <= HOT_BYTES
    copies = rotate(
        lambda i: rivals.Operands(problem, first) if i else first,
        problem.nbytes,
        cache_bytes=0 if hot else 2 * machine.last_level_cache(),
    )
    if quick:
        limits: dict[str, Any] = {"rounds": 3, "sample_seconds": 0.0, "warm_up_seconds": 0.0}
    else:
        limits = {"rounds": 25, "sample_seconds": 0.02, "budget_seconds": seconds, "between": settle}
    before = machine.Snapshot()

    def timed(calls: dict[str, Any]) -> list[dict[str, Any]]:
        arms = {name: [partial(call, copy) for copy in copies] for name, call in calls.items()}
        return [arm(timing, problem.flops) for timing in measure(arms, **limits)]

    return {
        "problem": {"name": problem.name, **asdict(problem)},
        "regime": "hot" if hot else "rotated",
        "copies": len(copies),
        "arms": timed(ways.calls | rivals.products(problem)),
        "loop": timed(rivals.alternating(problem)),
        "skipped": ways.skipped,
        "relative_errors": errors,
        "quick": quick,
        **before.until_now(),
    }


def merged(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The results in the file that were measured under the same conditions as those of this run."""
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {name: r for name, r in before["results"].items() if not r["quick"]} if before.get("about") == about else {}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="", help='a regular expression for "group: problem"')
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, to see that it works; RESULTS.md stays as it is"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of the rounds of all ways, and of the loops; five rounds at least"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, default=ROOT / "build/bench/cpu.json")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="also draw a picture there (needs matplotlib)")
    parser.add_argument("--results", metavar="FILE", type=Path, default=ROOT / "bench/RESULTS.md")
    parser.add_argument("--list", action="store_true", help="the problems, and no more")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None, heap: str = "is as the C library has it") -> int:
    options = parse(arguments)
    chosen = [p for p in PROBLEMS if re.search(options.only, f"{p.group}: {p.name}")]
    if options.list or not chosen:
        print("\n".join(f"{p.group}: {p.name}" for p in PROBLEMS))
        return 0 if options.list else 2
    if options.plot:
        results.load_pyplot()  # what is missing is told before the work
    start = time.perf_counter()
    about = machine.about(heap)
    found = {} if options.quick else merged(options.json, about)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for problem in progress(chosen, "bench"):
        found[problem.name] = run(problem, options.quick, options.seconds)
        options.json.write_text(json.dumps({"about": about, "results": found}, indent=1) + "\n")
    rows = [found[p.name] for p in PROBLEMS if p.name in found]
    show("time of the rival / time of matmul_fused (quartiles)", results.CPU_HEADER, results.cpu_rows(rows))
    goals = GOALS[machine.kind()]
    for line in [*results.summary(rows, goals), *results.skipped(rows)]:
        print(line)
    print(f"{machine.sentence(about)}\n{time.perf_counter() - start:.0f} s; {options.json}")
    if options.plot:
        results.plot(rows, options.plot)
    missing = [p.name for p in PROBLEMS if p.name not in found]
    name = f"cpu {machine.table()}"
    if options.quick or missing:
        why = "a quick run" if options.quick else f"{len(missing)} problems are still to be measured"
        print(f"{options.results.name} is left as it is: {why}")
    elif not results.has_section(options.results, name):
        print(f"{options.results.name} is left as it is: it has no section {name!r}")
    else:
        section = results.cpu_section(machine.sentence(about), rows, goals)
        results.write_section(options.results, name, section)
    return 0


if __name__ == "__main__":
    sys.exit(main(heap=machine.keep_heap()))
