"""Rows of bench_gpu.py: the JSON file that keeps them, their table, the means beside the bars of the project.

A row is one call in one regime: what was asked for (KEY), microseconds of every arm, which arms were left out and why,
the median clock, the kernel. Role: knows neither torch nor a GPU, so that gpu_roofline.py reads what this writes.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results

# Equal of two rows: either may stand for the other. rounds: see Store.find.
KEY = ("m", "n", "k", "activation", "regime", "heat", "arms", "gpu", "torch", "version", "build")
EPILOGUES = ("eager", "addmm", "compile")  # the rivals that compute what ours does
COLUMNS = ("mm", "linear", *EPILOGUES, "ours")
EXPLAINED = {
    "mm": "torch.mm",
    "linear": "F.linear",
    "eager": "linear, then the activation",
    "addmm": "torch._addmm_activation, which has relu and gelu_tanh",
    "compile": "torch.compile of eager, max-autotune-no-cudagraphs",
}


def _key(row: dict[str, Any]) -> list[Any]:
    return [row.get(name) for name in KEY]


class Store:
    """The rows of a JSON file, those of other regimes, GPUs and builds too; without a path they are kept here only."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text()) if path and path.exists() else []

    def find(self, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """A row of the same key, measured in as many rounds or more."""
        same = (row for row in self.rows if _key(row) == _key(wanted) and row["rounds"] >= wanted["rounds"])
        return next(same, None)

    def add(self, row: dict[str, Any]) -> None:
        self.rows = [other for other in self.rows if _key(other) != _key(row)] + [row]
        if self.path:
            # A run that is ended here leaves the old file or the new one, never a part.
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(self.path.name + ".part")
            part.write_text(json.dumps(self.rows))
            os.replace(part, self.path)


# What a row says


def name_of(row: dict[str, Any]) -> str:
    return f"{row['m']}x{row['n']}x{row['k']} {row['activation']}"


def median(row: dict[str, Any], arm: str) -> float | None:
    return statistics.median(row["us"][arm]) if arm in row["us"] else None


def best(row: dict[str, Any]) -> str | None:
    """The fastest rival with an epilogue."""
    found = [arm for arm in EPILOGUES if arm in row["us"]]
    return min(found, key=lambda arm: statistics.median(row["us"][arm])) if found else None


def ratio(row: dict[str, Any], rival: str | None) -> float | None:
    if rival not in row["us"]:
        return None
    ours, others = (statistics.median(row["us"][arm]) for arm in ("ours", rival))
    return float(ours / others)


def to_mm(row: dict[str, Any]) -> float | None:
    return ratio(row, "mm")


def to_best(row: dict[str, Any]) -> float | None:
    return ratio(row, best(row))


# The table


def header(arms: Sequence[str]) -> tuple[str, ...]:
    shown = [arm for arm in COLUMNS if arm in arms]
    return ("M", "N", "K", "activation", *shown, "ours / mm", "ours / best", "MHz", "kernel")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Below the header of the row's arms."""
    times = []
    for arm in COLUMNS:
        if arm in row["arms"]:
            value = median(row, arm)
            times.append("-" if value is None else f"{value:.1f}")
    mm, rival = "-", best(row)
    if (middle := to_mm(row)) is not None:
        each = [ours / other for ours, other in zip(row["us"]["ours"], row["us"]["mm"], strict=True)]
        low, _, high = statistics.quantiles(each, n=4)
        mm = f"{middle:.2f} ({low:.2f}-{high:.2f})"
    shape = str(row["m"]), str(row["n"]), str(row["k"]), row["activation"]
    to_rival = f"{to_best(row):.2f} ({rival})" if rival else "-"
    return *shape, *times, mm, to_rival, "-" if row["mhz"] is None else str(row["mhz"]), row["kernel"]


def line(row: Sequence[str]) -> str:
    return f"| {' | '.join(row)} |"


# The bars


@dataclass(frozen=True)
class Bar:
    """Wanted of a ratio of times, ours / the rival's: bars of the geometric mean (`mean`) and of every row (`most`)."""

    what: str
    rows: Callable[[dict[str, Any]], bool]
    ratio: Callable[[dict[str, Any]], float | None]
    mean: float | None = None
    most: float | None = None


def _of(*activations: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["activation"] in activations


BARS = (
    Bar("relu, silu and gelu, ours / mm", _of("relu", "silu", "gelu"), to_mm, 1.00, 1.10),
    Bar("relu, silu and gelu, ours / best of {epilogues}", _of("relu", "silu", "gelu"), to_best, 0.90, 1.05),
    Bar("gelu_tanh, ours / best of {epilogues}", _of("gelu_tanh"), to_best, None, 1.05),
    Bar("swiglu, ours / mm", _of("swiglu"), to_mm, 1.02),
    Bar("swiglu, ours / best of {epilogues}", _of("swiglu"), to_best, None, 1.05),
    Bar("all, ours / best of {epilogues}", lambda row: True, to_best, 0.90, 1.05),
)


def _verdict(value: float, wanted: float | None) -> str:
    if wanted is None:
        return f"{value:.3f}"
    return f"{value:.3f} (at most {wanted:.2f} {'met' if value <= wanted else 'missed'})"


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A call with rows of several runs counts once, by the median of its ratios."""
    epilogues = ", ".join(arm for arm in EPILOGUES if any(arm in row["us"] for row in rows))
    lines = []
    for bar in BARS:
        runs: dict[str, list[float]] = {}
        for row in rows:
            if bar.rows(row) and (value := bar.ratio(row)) is not None:
                runs.setdefault(name_of(row), []).append(value)
        if runs:
            found = {name: statistics.median(values) for name, values in runs.items()}
            worst = max(found, key=lambda name: found[name])
            mean = _verdict(statistics.geometric_mean(found.values()), bar.mean)
            lines.append(
                f"{bar.what.format(epilogues=epilogues)}, {len(found)} calls: geometric mean {mean}, "
                f"largest {_verdict(found[worst], bar.most)}, {worst}."
            )
    return lines


def skipped(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The arms that were left out, why, and where."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for arm, why in row["skipped"].items():
            found.setdefault((arm, why), []).append(name_of(row))
    return [f"Left out: {arm}; {why}: {', '.join(names)}." for (arm, why), names in found.items()]


# RESULTS_GPU.md


def conditions(row: dict[str, Any]) -> str:
    """What all rows of a section share."""
    return (
        f"{row['gpu']}, driver {row['driver']}, torch {row['torch']}, matmul_fused {row['version']}, "
        f"build {row['build']}"
    )


def section(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]] = ()) -> str:
    """The table of a run, and the means beside the bars, which count the rows of other runs, too."""
    first = rows[0]
    sustained, compiled = first["regime"] == "sustained", "compile" in first["arms"]
    command = f"python bench/bench_gpu.py{' --sustained' if sustained else ''}{' --compile' if compiled else ''}"
    clocks = (
        f"samples without idle after {first['heat']:g} s of all arms back to back, so at the clock that power leaves"
        if sustained
        else "each sample after 40 ms idle, so at the clock of a burst"
    )
    arms = "; ".join(f"{arm}: {what}" for arm, what in EXPLAINED.items() if arm in first["arms"])
    rivals = ", ".join(arm for arm in EPILOGUES if arm in first["arms"])
    runs = 1 + len(others) // len(rows)
    several = (
        [f"The means below are of the median of {runs} runs for each call; the table is one of them."] if others else []
    )
    of_all = [*rows, *others]
    commits, when = ", ".join(sorted({row["commit"] for row in of_all})), sorted(row["when"] for row in of_all)
    return "\n\n".join(
        [
            f"`{command}`, commit {commits}, {when[0]} to {when[-1]}. {conditions(first)}.",
            f"Microseconds of one call, bfloat16, medians of {min(row['rounds'] for row in rows)} rounds: CUDA graphs, "
            f"operands beyond the last cache, arms in turns, {clocks}. Weights are (N, K), with a bias but for swiglu. "
            f"{arms}. ours / mm: ratio of the medians (quartiles of the rounds' ratios); ours / best: the fastest of "
            f"{rivals}. Below 1 we are faster. MHz: median SM clock that nvidia-smi gave every 20 ms.",
            results.markdown(header(first["arms"]), [cells(row) for row in rows]),
            *several,
            *summary(of_all),
            *skipped(rows),
        ]
    )
