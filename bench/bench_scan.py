"""Random problems on the CPU beside torch eager: which calls are slower than what people have?

    python bench/bench_scan.py [--seconds S] [--seed N] [--rows M ...] [--show COUNT] [--json FILE]

The bench list of bench_cpu.py holds sizes that someone thought of; this draws M, N, K, the type, the way to store the
weight and whether operands come from memory (copies beyond twice the last-level cache) or from the caches. Shown are
the slowest calls, by time of torch / ours (the least of five samples each, in turns: holes are looked for, not means),
and for each way and type how many are below 1 and below 0.9. torch gets the same weight: W.T of (N, K), or (K, N) as it
is; beside a prepacked one it has W.T. Needs torch and ml_dtypes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import machine
import rivals

import matmul_fused as mf
from matmul_fused.console import show
from matmul_fused.testing.timing import rotate, settle

ROWS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 31, 33, 48, 50, 64, 100, 128, 200, 300)
COLUMNS = (1, 2, 4, 7, 10, 16, 33, 63, 64, 100, 128, 250, 300, 512, 777, 1000, 1024, 2000, 3072, 5000)
DEPTHS = (1, 3, 8, 16, 30, 63, 64, 65, 100, 128, 200, 256, 300, 500, 512, 784, 1000, 1024, 1500, 2048, 4000, 14336)
WAYS = ("W.T", "K x N", "prepacked")
DTYPES = ("float32", "bfloat16", "float16")
MOST_FLOPS = 6e8
HEADER = ("problem", "weight", "data", "ours", "torch / ours")


@dataclass(frozen=True)
class Row:
    problem: str
    dtype: str
    way: str
    rotated: bool
    seconds: float
    ratio: float


def draw(rng: random.Random, rows: tuple[int, ...] = ROWS) -> tuple[rivals.Problem, str, bool]:
    """A problem of at most MOST_FLOPS, the way to store its weight, and whether it is rotated."""
    while True:
        way, dtype = rng.choice(WAYS), rng.choice(DTYPES)
        sizes = rng.choice(rows), rng.choice(COLUMNS), rng.choice(DEPTHS)
        problem = rivals.Problem("scan", *sizes, dtype, "relu", layout="KN" if way == "K x N" else "NK")
        if problem.flops <= MOST_FLOPS:
            return problem, way, rng.random() < 0.5


def _ours(o: rivals.Operands, way: str) -> Any:
    return mf.matmul_fused(o.x, o.packed if way == "prepacked" else o.b, o.bias, o.problem.activation)


def _sample(calls: Iterator[Callable[[], object]], seconds: float) -> float:
    """Seconds of a call, once the other arm's threads rest and this one's are awake: to wake them may take longer than
    the call."""

    def run(least: int) -> tuple[int, float]:
        done, begin = 0, time.perf_counter()
        while done < least or time.perf_counter() - begin < seconds:
            next(calls)()
            done += 1
        return done, time.perf_counter() - begin

    if seconds:
        settle()
    run(2)
    done, spent = run(3)
    return spent / done


def run(problem: rivals.Problem, way: str, rotated: bool, rounds: int = 5, seconds: float = 0.003) -> Row:
    cache = 2 * machine.last_level_cache() if rotated else 0
    first = rivals.Operands(problem)
    copies = rotate(
        lambda i: rivals.Operands(problem, first) if i else first, problem.nbytes, cache_bytes=cache, most=400
    )
    layer = rivals.torch_layer(problem)
    ours = itertools.cycle([partial(_ours, o, way) for o in copies])
    torch = itertools.cycle([partial(layer, *o.tensors()) for o in copies])
    pairs = [(_sample(ours, seconds), _sample(torch, seconds)) for _ in range(rounds)]
    own, theirs = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    return Row(problem.name, problem.dtype, way, rotated, own, theirs / own)


def summary(rows: list[Row]) -> list[tuple[str, ...]]:
    """Of each way and type: calls, those below 1 and below 0.9, the median of the ratios."""
    lines = []
    for way in WAYS:
        for dtype in DTYPES:
            ratios = [row.ratio for row in rows if (row.way, row.dtype) == (way, dtype)]
            if ratios:
                below = (sum(ratio < bar for ratio in ratios) for bar in (1, 0.9))
                lines.append((way, dtype, str(len(ratios)), *map(str, below), f"{statistics.median(ratios):.2f}"))
    return lines


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="how long to draw problems")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, metavar="M", help="rows of A to draw from")
    parser.add_argument("--show", type=int, default=30, metavar="COUNT", help="slowest calls to show")
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write what was measured there")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None, heap: str = "is as the C library has it") -> int:
    options = parse(arguments)
    rng, rows, end = random.Random(options.seed), [], time.monotonic() + options.seconds
    while not rows or time.monotonic() < end:
        limits = {"rounds": 1, "seconds": 0.0} if options.quick else {}
        rows.append(run(*draw(rng, tuple(options.rows)), **limits))
    rows.sort(key=lambda row: row.ratio)
    cells = [
        (row.problem, row.way, "rotated" if row.rotated else "hot", f"{row.seconds * 1e6:.1f} us", f"{row.ratio:.2f}")
        for row in rows[: options.show]
    ]
    show("the slowest calls beside torch eager", HEADER, cells)
    show("all calls", ("weight", "type", "calls", "below 1", "below 0.9", "median"), summary(rows))
    about = machine.about(heap)
    print(machine.sentence(about))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(heap=machine.keep_heap()))
