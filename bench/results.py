"""RESULTS.md: figures that programs measured, each section between markers and rewritten whole by its program.

    python bench/results.py     writes "workspace" and "wheel" from build/reports (make test, make wheel)

Role: bench_cpu.py writes "cpu amx", "cpu amx 16", "cpu avx512" or "cpu avx2" by it, bench_gpu.py those of
RESULTS_GPU.md.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matmul_fused.report import engineering

ROOT = Path(__file__).resolve().parents[1]
RESULTS, REPORTS = ROOT / "bench/RESULTS.md", ROOT / "build/reports"
RESULTS_GPU = ROOT / "bench/RESULTS_GPU.md"
CPU_HEADER = (
    "problem", "data", "matmul_fused", "Gflop/s", "torch eager", "out=", "prepacked", "torch.compile", "NumPy",
    "alternating",
)  # fmt: skip


def _parts(text: str, name: str) -> tuple[str, str, str]:
    """What is before the section, the section, what is after it; markers are no part of it."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, found, rest = text.partition(begin)
    inside, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"there is no section between {begin.strip()} and {end.strip()}")
    return before + begin, inside, end + after


def section(text: str, name: str) -> str:
    return _parts(text, name)[1]


def has_section(path: Path, name: str) -> bool:
    return f"\n<!-- {name}: begin -->\n" in path.read_text()


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers of a section."""
    before, _, after = _parts(path.read_text(), name)
    path.write_text(f"{before}{text.strip()}\n{after}")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# The CPU


def ratio(rival: dict[str, Any], ours: dict[str, Any]) -> tuple[float, float, float]:
    """Median and quartiles over the rounds of the rival's time / ours: above 1 we are faster."""
    each = [x / y for x, y in zip(rival["samples_s"], ours["samples_s"], strict=True)]
    low, _, high = statistics.quantiles(each, n=4)
    return statistics.median(each), low, high


def _ratios(row: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    arms = {arm["name"]: arm for arm in row["arms"]}
    loop = {arm["name"]: arm for arm in row["loop"]}
    pairs = {
        "torch eager": ("torch eager", "matmul_fused"),
        "out=": ("torch eager", "matmul_fused, out="),
        "prepacked": ("torch eager", "matmul_fused, prepacked"),
        "torch.compile": ("torch.compile", "matmul_fused"),
        "NumPy": ("NumPy", "matmul_fused"),
        "NumPy, product alone": ("NumPy, product alone", "matmul_fused"),
    }
    found = {
        name: ratio(arms[rival], arms[ours]) for name, (rival, ours) in pairs.items() if {rival, ours} <= arms.keys()
    }
    found["alternating"] = ratio(loop["layer_norm, torch eager"], loop["layer_norm, matmul_fused"])
    return found


def name_of(row: dict[str, Any]) -> str:
    return str(row["problem"]["name"])


def cpu_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The lines below CPU_HEADER."""
    lines = []
    for row in rows:
        ratios, ours = _ratios(row), row["arms"][0]
        cells = {name: f"{median:.2f} ({low:.2f}-{high:.2f})" for name, (median, low, high) in ratios.items()}
        figures = engineering(ours["median_s"], "s"), f"{ours['gflops']:.3g}"
        columns = (cells.get(name, "-") for name in CPU_HEADER[4:10])
        lines.append((name_of(row), row["regime"], *figures, *columns))
    return lines


@dataclass(frozen=True)
class Goal:
    """Wanted of the time of torch eager / ours over the listed problems of a dtype."""

    mean: float
    least: float  # by the upper quartile
    prepacked: float | None = None  # the mean with a prepacked weight


def _verdict(value: float, wanted: float) -> str:
    return f"{value:.2f} ({wanted:g} {'met' if value >= wanted else 'missed'})"


def summary(rows: Sequence[dict[str, Any]], goals: dict[str, Goal]) -> list[str]:
    """What the project asks for on this kind of machine, and whether these rows have it."""
    lines = []
    for dtype, goal in goals.items():
        found = {name_of(r): _ratios(r) for r in rows if r["problem"]["listed"] and r["problem"]["dtype"] == dtype}
        if not found:
            continue
        least = min(found, key=lambda name: found[name]["torch eager"][2])
        text = _verdict(statistics.geometric_mean(r["torch eager"][0] for r in found.values()), goal.mean)
        packed = statistics.geometric_mean(r["prepacked"][0] for r in found.values())
        lines.append(
            f"{dtype}, {len(found)} listed problems, torch eager: mean {text}, least by its upper quartile "
            f"{_verdict(found[least]['torch eager'][2], goal.least)}, {least}; prepacked: mean "
            f"{f'{packed:.2f}' if goal.prepacked is None else _verdict(packed, goal.prepacked)}."
        )
    ratios = [_ratios(r) for r in rows]
    products = [r["NumPy, product alone"] for r in ratios if "NumPy, product alone" in r]
    if products:
        mean = _verdict(statistics.geometric_mean(median for median, _, _ in products), 1)
        least = _verdict(min(high for _, _, high in products), 0.9)
        lines.append(
            f"float32, {len(products)} listed problems, NumPy's product alone / our call with its bias and activation: "
            f"mean {mean}, least by its upper quartile {least}."
        )
    gated = [r for r, row in zip(ratios, rows, strict=True) if row["problem"]["activation"] == "swiglu"]
    if gated:
        means = (
            f"{rival}: mean {_verdict(statistics.geometric_mean(r[rival][0] for r in gated if rival in r), 1.4)}"
            for rival in ("torch eager", "torch.compile")
            if any(rival in r for r in gated)
        )
        lines.append(f"swiglu, {len(gated)} problems, {', '.join(means)}.")
    tiny = [r["torch eager"][0] for r, row in zip(ratios, rows, strict=True) if row["problem"]["group"] == "tiny"]
    if tiny:
        mean = _verdict(statistics.geometric_mean(tiny), 1.5)
        lines.append(f"Tiny problems, torch eager: mean {mean}, least {_verdict(min(tiny), 1)}.")
    return lines


def skipped(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What could not run, why, and where."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for row in rows:
        for way, why in row["skipped"].items():
            ways, names = found.setdefault(why, ({}, {}))
            ways[way] = names[name_of(row)] = None
    return [f"Not run: {'; '.join(ways)}; {why}: {', '.join(names)}." for why, (ways, names) in found.items()]


def cpu_section(conditions: str, rows: Sequence[dict[str, Any]], goals: dict[str, Goal]) -> str:
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    first, last = min(row["when"] for row in rows), max(row["when"] for row in rows)
    clocks = sorted({mhz for row in rows for mhz in row["clocks_mhz"]})
    others, steal = (max(row[f"{what}_share"] for row in rows) for what in ("others_cpu", "steal"))
    return "\n\n".join(
        [
            f"`python bench/bench_cpu.py`, commit {commits}, {first} to {last}. {conditions}; clocks "
            f"{f'{clocks[0]} to {clocks[-1]} MHz' if clocks else 'not readable'} (a virtual machine shows a nominal "
            f"figure); at most {others:.0%} of the cores' time went to other processes, {steal:.0%} was stolen.",
            "Columns 5 to 10 are times of the rival / ours in the same round, median (quartiles); above 1 we are "
            "faster. matmul_fused takes W.T of the (N, K) weight and allocates its result; `out=` and `prepacked` "
            "are torch eager / our call with a result given, with a prepacked weight. `alternating`: layer_norm and "
            "the layer in a loop without pauses, all torch / with our call (the layer_norm is in both). "
            "M x N x K; of swiglu N counts gate and up. rotated: operands come from memory, hot: from the caches.",
            markdown(CPU_HEADER, cpu_rows(rows)),
            *summary(rows, goals),
            *skipped(rows),
        ]
    )


def load_pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("--plot needs matplotlib, which is not installed") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars of the rivals' times / ours, a group for each problem."""
    pyplot = load_pyplot()
    names = ("torch eager", "torch.compile", "NumPy", "alternating")
    figure, axes = pyplot.subplots(figsize=(10, 1.5 + 0.6 * len(rows)), layout="constrained")
    for number, name in enumerate(names):
        found = [(place, _ratios(row)[name]) for place, row in enumerate(rows) if name in _ratios(row)]
        places = [place + 0.2 * number for place, _ in found]
        medians = [median for _, (median, _, _) in found]
        errors = [[m - low for _, (m, low, _) in found], [high - m for _, (m, _, high) in found]]
        lengths = [median - 1 for median in medians]
        axes.barh(places, lengths, 0.18, left=1, xerr=errors, label=name, error_kw={"linewidth": 0.7})
    axes.set_yticks([place + 0.3 for place in range(len(rows))], [name_of(row) for row in rows], fontsize=8)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("time of the rival / time of matmul_fused, log scale (right of the line we are faster)")
    figure.legend(loc="outside upper right", ncols=4, fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


# Measured by other programs


def workspace_section(rows: Sequence[dict[str, Any]]) -> str:
    header = ("kernel", "threads", "calls", "most of a call", "allowed", "at")
    lines = [
        (
            row["kernel"],
            str(row["threads"]),
            str(row["calls"]),
            f"{row['bytes'] / 2**20:.2f} MiB",
            f"{row['allowed'] / 2**20:.0f} MiB",
            row["at"],
        )
        for row in rows
    ]
    return (
        "`make test` (tests/test_memory.py): the greatest peak of the heap during a call with `out=`.\n\n"
        + markdown(header, lines)
    )


def wheel_section(report: dict[str, Any]) -> str:
    header = ("CPython", "install, s", "with NumPy, s", "import, ms", "tests passed")
    lines = [
        (
            name.split(" ")[0],
            f"{row['install_s']:.1f}",
            f"{row['install_with_numpy_s']:.1f}",
            f"{row['import_ms']:.1f}",
            str(row["passed"]),
        )
        for name, row in report["pythons"].items()
    ]
    size = f"`make wheel`: {report['wheel']}, {report['bytes'] / 1024:.0f} KiB."
    return f"{size}\n\n{markdown(header, lines)}"


SECTIONS = {"workspace": workspace_section, "wheel": wheel_section}


def main(results: Path = RESULTS, reports: Path = REPORTS) -> int:
    for name, section in SECTIONS.items():
        report = reports / f"{name}.json"
        if report.is_file():
            write_section(results, name, section(json.loads(report.read_text())))
        print(f"{name}: {'written' if report.is_file() else f'left as it is, there is no {report}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
