"""The README's picture of speed, docs/cpu_speed.svg: `python bench/picture.py` draws it from bench/RESULTS.md.

The numbers are those of the CPU table there, which `make bench-cpu` measures; tests/test_bench.py compares the two.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

import results

PICTURE = results.ROOT / "docs/cpu_speed.svg"
LEFT, RIGHT, TOP, LINE = 270, 30, 64, 17  # pixels; LINE: of one problem
WIDTH, BAR = 800, 9
TICKS = (0.5, 1, 2, 4, 8, 16)
OURS, SLOWER, LOOP, INK, FAINT = "#2166ac", "#b2402a", "#e08214", "#222", "#ccc"


@dataclass(frozen=True)
class Row:
    """A problem: time of torch / ours, call after call (median and quartiles) and between torch's operators."""

    problem: str
    ratio: float
    low: float
    high: float
    alternating: float


def read(text: str) -> tuple[list[Row], str]:
    """The rows of the CPU table of RESULTS.md, and what was measured where and when."""
    section = text.split("<!-- cpu: begin -->")[1].split("<!-- cpu: end -->")[0]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    header, rows = table[0], []
    for cells in table[2:]:
        row = dict(zip(header, cells, strict=True))
        ratio, low, high = map(float, re.findall(r"[\d.]+", row["torch eager"]))
        loop = float(row["alternating"].split()[0])
        rows.append(Row(row["problem"], ratio, low, high, loop))
    commit, date, machine, torch = re.search(
        r"commit (\w+), ([\d-]+).*?\. (.*?); threads.*?(torch [\d.]+\d)", section
    ).groups()
    return rows, f"{machine}; {torch}; commit {commit}, {date}"


def place(ratio: float) -> float:
    """The x of a ratio: logarithmic, so that twice as fast and twice as slow are equally far from 1."""
    share = math.log(min(max(ratio, TICKS[0]), TICKS[-1]) / TICKS[0]) / math.log(TICKS[-1] / TICKS[0])
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def words(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">{escape(text)}</text>'


def bar(row: Row, y: int) -> list[str]:
    one, end = place(1), place(row.ratio)
    low, high, middle = place(row.low), place(row.high), y + BAR / 2
    colour = OURS if row.ratio >= 1 else SLOWER
    return [
        words(LEFT - 8, y + BAR, row.problem, "end", 11),
        f'<rect x="{min(one, end)}" y="{y}" width="{abs(end - one):.1f}" height="{BAR}" fill="{colour}"/>',
        f'<path d="M{low} {middle}H{high}" stroke="{INK}"/>',
        f'<circle cx="{place(row.alternating)}" cy="{middle}" r="3" fill="{LOOP}"/>',
    ]


def draw(rows: list[Row], source: str) -> str:
    height = TOP + LINE * len(rows) + 42
    bottom = TOP + LINE * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        words(12, 20, "Time of torch eager / time of matmul_fused: above 1 matmul_fused is faster", size=14),
        words(
            12,
            38,
            "bar: the same call again and again, line: quartiles; dot: in turn with an operator of torch",
            size=11,
        ),
    ]
    for tick in TICKS:
        x = place(tick)
        lines.append(f'<path d="M{x} {TOP - 4}V{bottom}" stroke="{INK if tick == 1 else FAINT}"/>')
        lines.append(words(x, TOP - 8, f"{tick:g}", "middle", 11))
    for number, row in enumerate(rows):
        lines += bar(row, TOP + LINE * number + 4)
    lines.append(words(12, bottom + 20, source, size=10))
    lines.append(words(12, bottom + 34, "problem: M x N x K; all figures: bench/RESULTS.md", size=10))
    return "\n".join([*lines, "</svg>", ""])


def write(source: Path = results.RESULTS, picture: Path = PICTURE) -> None:
    picture.write_text(draw(*read(source.read_text())))


if __name__ == "__main__":
    write()
