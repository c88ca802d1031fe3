"""docs/cpu_roofline_KIND.svg: measured rates of the CPU against arithmetic intensity: `python bench/cpu_roofline.py`.

Read from the sections "cpu KIND" and "microkernel KIND" of RESULTS.md, whose programs measured them; a kind of machine
that lacks one has no picture. A point is a call of bench_cpu.py on all threads; intensity is operations for each byte
of A, B and the result, each moved once. The lines are the bare loops of bench_microkernel.py on as many threads, and
its loop that reads memory. Hot operands may lie above the latter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import picture
import results
from picture import COLOURS, notes, words
from roofline import Plane

SIZES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 800, 420, 52, 84, 58  # pixels


@dataclass(frozen=True)
class Point:
    dtype: str
    intensity: float
    rate: float


@dataclass(frozen=True)
class Limits:
    """On all threads: Gflop/s of each instruction, GB/s."""

    compute: dict[str, float]
    memory: float


def points(text: str, kind: str) -> list[Point]:
    found = []
    for line in results.section(text, f"cpu {kind}").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        size = re.match(r"(?:(\d+)x)?(\d+)x(\d+)x(\d+) (\w+)", cells[0])
        if line[:1] == "|" and size:
            batch, m, n, k = (int(word or 1) for word in size.groups()[:4])
            columns = n // 2 if "swiglu" in cells[0] else n
            moved = batch * (m * k + n * k + m * columns) * SIZES[size[5]]
            found.append(Point(size[5], 2 * batch * m * n * k / moved, float(cells[3])))
    return found


def limits(text: str, kind: str) -> Limits | None:
    section = results.section(text, f"microkernel {kind}")
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    read = re.findall(r"([\d.]+) GB/s on (\d+) thread", section)
    if not table or not read:
        return None
    bandwidth, threads = read[-1]
    return Limits({row[1]: float(row[4]) for row in table[2:] if row[2] == threads}, float(bandwidth))


def draw(found: list[Point], limit: Limits, source: str) -> str:
    least, most = min(p.rate for p in found), max(limit.compute.values())
    low, high = min(p.intensity for p in found), max(p.intensity for p in found)
    span = (low / 1.5, high * 2), (least / 1.5, most * 1.5)
    plane = Plane(LEFT, TOP, HEIGHT - BOTTOM, WIDTH - LEFT - 20, *span, tick=1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        words(12, 20, "Gflop/s of calls on a CPU, measured", size=14),
        words(12, 38, "lines: bare loops of each instruction, and of loads from memory, on as many threads", size=11),
        *plane.axes(),
    ]
    for number, (dtype, colour) in enumerate(COLOURS.items()):
        lines.append(f'<circle cx="{16 + 90 * number}" cy="52" r="4" fill="{colour}"/>')
        lines.append(words(25 + 90 * number, 56, dtype, size=11))
    for name, rate in limit.compute.items():
        lines.append(plane.roof(rate, limit.memory))
        lines.append(words(WIDTH - 22, plane.point(1, rate)[1] - 3, name, "end", 10))
    for point in found:
        x, y = plane.point(point.intensity, point.rate)
        lines.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{COLOURS[point.dtype]}"/>')
    lines += notes(source, HEIGHT - 14)
    return "\n".join([*lines, "</svg>", ""])


def path(kind: str) -> Path:
    return results.ROOT / f"docs/cpu_roofline_{kind}.svg"


def main() -> None:
    text = results.RESULTS.read_text()
    for kind in picture.KINDS:
        limit = limits(text, kind)
        rows, source = picture.read(text, kind)
        if limit and rows:
            path(kind).write_text(draw(points(text, kind), limit, source))
            print(path(kind))


if __name__ == "__main__":
    main()
