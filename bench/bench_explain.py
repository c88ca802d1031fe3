"""explain's prediction beside the time of the call, over the bench list of bench_cpu.py, on this machine.

    python bench/bench_explain.py [--only PATTERN] [--quick] [--json FILE]

What is wanted of measured / predicted: 90 % of the problems within 0.7 to 1.4, all within 0.5 to 2, the median within
0.9 to 1.1; the last lines say which of these holds here. The prediction is that of the kernel that runs, on the threads
that it takes, from data in the sources. Needs torch and ml_dtypes.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import machine
import rivals
from bench_cpu import HOT_BYTES, PROBLEMS

import matmul_fused as mf
from matmul_fused.console import progress, show
from matmul_fused.report import engineering
from matmul_fused.testing.timing import measure, rotate

HEADER = ("problem", "kernel", "threads", "predicted", "measured", "quartiles", "measured / predicted")


@dataclass(frozen=True)
class Row:
    problem: str
    kernel: str
    threads: int
    predicted: float
    measured: float
    quartiles: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted


def _call(o: rivals.Operands, function: object) -> object:
    return function(o.x, o.b, o.bias, o.problem.activation, out=o.out)  # type: ignore[operator]


def run(problem: rivals.Problem, quick: bool) -> Row:
    first = rivals.Operands(problem)
    explained = _call(first, mf.explain)
    cache = 0 if problem.nbytes <= HOT_BYTES else 2 * machine.last_level_cache()
    copies = rotate(lambda i: rivals.Operands(problem, first) if i else first, problem.nbytes, cache_bytes=cache)
    limits = {"rounds": 3, "sample_seconds": 0.0, "warm_up_seconds": 0.0} if quick else {"budget_seconds": 1.0}
    arms = {"": [partial(_call, copy, mf.matmul_fused) for copy in copies]}
    (timing,) = measure(arms, **limits)  # type: ignore[arg-type]
    return Row(
        f"{problem.group}: {problem.name}",
        explained.kernel,
        explained.threads,
        explained.seconds,
        timing.median,
        machine.quartiles(timing.samples),
    )


def verdict(ratios: list[float]) -> list[str]:
    """The bars, and whether they hold."""

    def within(low: float, high: float) -> float:
        return sum(low <= ratio <= high for ratio in ratios) / len(ratios)

    close, wide, median = within(0.7, 1.4), within(0.5, 2.0), statistics.median(ratios)
    return [
        f"within 0.7 to 1.4: {close:.0%}, wanted 90 %: {'yes' if close >= 0.9 else 'NO'}",
        f"within 0.5 to 2: {wide:.0%}, wanted all: {'yes' if wide == 1 else 'NO'}",
        f"median {median:.2f}, wanted 0.9 to 1.1: {'yes' if 0.9 <= median <= 1.1 else 'NO'}",
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="", help='a regular expression for "group: problem"')
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write what was measured there")
    options = parser.parse_args(arguments)
    chosen = [p for p in PROBLEMS if re.search(options.only, f"{p.group}: {p.name}")]
    if not chosen:
        parser.error(f'no problem matches "{options.only}"')
    rows = [run(problem, options.quick) for problem in progress(chosen, "bench")]
    cells = [
        (
            row.problem,
            row.kernel,
            str(row.threads),
            engineering(row.predicted, "s"),
            engineering(row.measured, "s"),
            " to ".join(engineering(seconds, "s") for seconds in row.quartiles),
            f"{row.ratio:.2f}",
        )
        for row in rows
    ]
    show("explain beside the clock", HEADER, cells)
    print("\n".join(verdict([row.ratio for row in rows])))
    about = machine.about("is as the C library has it")
    print(machine.sentence(about))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
