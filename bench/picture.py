"""The pictures of CPU speed, docs/cpu_speed_KIND.svg: `python bench/picture.py` draws them from bench/RESULTS.md.

The numbers are those of the CPU tables there, one for each kind of machine, which `make bench-cpu` measures;
tests/test_bench.py compares the two.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

import results

KINDS = ("amx", "avx512", "avx2")
LEFT, RIGHT, TOP, GAP = 230, 30, 80, 7  # pixels; GAP: between problems
WIDTH, BAR, NOTE = 800, 6, 150  # NOTE: characters of a small line
TICKS = (0.5, 1, 2, 4, 8, 16)
COLOURS = {"float32": "#2166ac", "bfloat16": "#d6604d", "float16": "#4d9221", "float64": "#762a83"}
INK, FAINT = "#222", "#ccc"


@dataclass(frozen=True)
class Row:
    """A problem: time of torch / ours, call after call (median and quartiles) and between torch's operators."""

    problem: str
    dtype: str
    ratio: float
    low: float
    high: float
    alternating: float


def read(text: str, kind: str) -> tuple[list[Row], str]:
    """The rows of the CPU table of a kind of machine, and what was measured where and when; no rows: not measured."""
    section = results.section(text, f"cpu {kind}")
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    if not table:
        return [], ""
    header, rows = table[0], []
    for cells in table[2:]:
        row = dict(zip(header, cells, strict=True))
        ratio, low, high = map(float, re.findall(r"[\d.]+", row["torch eager"]))
        shape, dtype, *rest = row["problem"].split(" ")
        rows.append(Row(" ".join([shape, *rest]), dtype, ratio, low, high, float(row["alternating"].split()[0])))
    commit, date, machine, torch = re.search(
        r"commit ([\w-]+), ([\d-]+).*?\. (.*?); threads.*?(torch [\d.]+\d)", section
    ).groups()
    return rows, f"{machine}; {torch}; commit {commit}, {date}"


def place(ratio: float) -> float:
    """The x of a ratio: logarithmic, so that twice as fast and twice as slow are equally far from 1."""
    share = math.log(min(max(ratio, TICKS[0]), TICKS[-1]) / TICKS[0]) / math.log(TICKS[-1] / TICKS[0])
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def words(x: float, y: float, text: str, anchor: str = "start", size: int = 12, colour: str = INK) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def notes(text: str, y: float) -> list[str]:
    """Small lines, as many as the width needs, the first with its base at y."""
    return [words(12, y + 13 * number, line, size=9) for number, line in enumerate(wrap(text, NOTE))]


def bar(row: Row, y: int) -> list[str]:
    one, end = place(1), place(row.ratio)
    low, high, middle, colour = place(row.low), place(row.high), y + BAR / 2, COLOURS[row.dtype]
    return [
        f'<rect x="{min(one, end)}" y="{y}" width="{abs(end - one):.1f}" height="{BAR - 1}" fill="{colour}"/>',
        f'<path d="M{low} {middle}H{high}" stroke="{INK}"/>',
        f'<circle cx="{place(row.alternating)}" cy="{middle}" r="2.5" fill="#fff" stroke="{colour}"/>',
    ]


def draw(rows: list[Row], source: str) -> str:
    problems: dict[str, list[Row]] = {}
    for row in rows:
        problems.setdefault(row.problem, []).append(row)
    bottom = TOP + BAR * len(rows) + GAP * len(problems)
    foot = notes(f"{source}; problem: M x N x K; all figures: bench/RESULTS.md", bottom + 20)
    height = bottom + 16 + 13 * len(foot)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        words(12, 20, "Time of torch eager / time of matmul_fused: above 1 matmul_fused is faster", size=14),
        words(
            12,
            38,
            "bar: the same call again and again, line: quartiles; ring: in turn with torch's layer_norm",
            size=11,
        ),
    ]
    for number, (dtype, colour) in enumerate(COLOURS.items()):
        lines.append(f'<rect x="{12 + 90 * number}" y="46" width="9" height="9" fill="{colour}"/>')
        lines.append(words(25 + 90 * number, 55, dtype, size=11))
    for tick in TICKS:
        x = place(tick)
        lines.append(f'<path d="M{x} {TOP - 4}V{bottom}" stroke="{INK if tick == 1 else FAINT}"/>')
        lines.append(words(x, TOP - 8, f"{tick:g}", "middle", 11))
    y = TOP + GAP // 2
    for problem, found in problems.items():
        lines.append(words(LEFT - 8, y + BAR * len(found) // 2 + 4, problem, "end", 11))
        for row in found:
            lines += bar(row, y)
            y += BAR
        y += GAP
    return "\n".join([*lines, *foot, "</svg>", ""])


def path(kind: str) -> Path:
    return results.ROOT / f"docs/cpu_speed_{kind}.svg"


def write(source: Path = results.RESULTS) -> None:
    text = source.read_text()
    for kind in KINDS:
        rows, where = read(text, kind)
        if rows:
            path(kind).write_text(draw(rows, where))


if __name__ == "__main__":
    write()
