"""docs/gpu_roofline.svg: measured rates of an NVIDIA GPU against arithmetic intensity: `python bench/gpu_roofline.py`.

Read from the sections "gpu burst" and "gpu sustained" of RESULTS_GPU.md, which bench_gpu.py measured; a section without
figures has no panel, and without any there is no picture. A point is one call, of ours with its epilogue and of bare
torch.mm; intensity is operations for each byte of A, B and the result, each moved once. The lines are the figures that
NVIDIA publishes, of a GPU that is in PUBLISHED.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import results
from picture import COLOURS, notes, words
from roofline import Plane

PICTURE = results.ROOT / "docs/gpu_roofline.svg"
REGIMES = ("burst", "sustained")
ARMS = {"ours": COLOURS["bfloat16"], "mm": COLOURS["float32"]}
PUBLISHED = {"NVIDIA H200": (989e12, 4.8e12)}  # operations of bfloat16, bytes a second
WIDTH, HEIGHT, LEFT, TOP = 800, 400, 46, 92  # pixels; HEIGHT: without what was measured where
BASE = HEIGHT - 38
INTENSITIES, RATES = (0.5, 8000.0), (0.3e12, 2e15)


@dataclass(frozen=True)
class Point:
    arm: str
    intensity: float
    rate: float


def points(text: str, regime: str) -> list[Point]:
    """Of the table of a section; none: not measured."""
    section = results.section(text, f"gpu {regime}")
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    found = []
    for cells in table[2:]:
        row = dict(zip(table[0], cells, strict=True))
        m, n, k = (int(row[name]) for name in "MNK")
        for arm in ARMS:
            if row[arm] != "-":
                columns = n // 2 if arm == "ours" and row["activation"] == "swiglu" else n
                moved = 2 * (m * k + n * k + m * columns)
                found.append(Point(arm, 2 * m * n * k / moved, 2 * m * n * k / (float(row[arm]) * 1e-6)))
    return found


def source(text: str, regime: str) -> str:
    """What was measured where and when."""
    found = re.search(r"commit (.*?)\. (.*?)\.\n", results.section(text, f"gpu {regime}"))
    return f"{regime}: {found[2]}; commit {found[1]}" if found else ""


def panel(left: float, width: float, regime: str, found: list[Point], roof: tuple[float, float]) -> list[str]:
    plane = Plane(left, TOP, BASE, width, INTENSITIES, RATES, tick=1e12)
    lines = [words(left, TOP - 8, f"{regime}, Tflop/s, measured", size=12), *plane.axes(), plane.roof(*roof)]
    for point in found:
        x, y = plane.point(point.intensity, point.rate)
        lines.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{ARMS[point.arm]}"/>')
    return lines


def draw(text: str) -> str:
    """The picture of the sections of RESULTS_GPU.md that have figures; empty without any."""
    panels = {regime: found for regime in REGIMES if (found := points(text, regime))}
    if not panels:
        return ""
    name = next((name for name in PUBLISHED if all(name in source(text, regime) for regime in panels)), None)
    if name is None:
        raise ValueError(f"not measured on one of {', '.join(PUBLISHED)}, whose published figures are known here")
    compute, memory = PUBLISHED[name]
    about = f"line: published by NVIDIA, {memory / 1e12:g} TB/s and {compute / 1e12:g} Tflop/s"
    foot: list[str] = []
    for regime in panels:
        foot += notes(source(text, regime), HEIGHT + 13 * (len(foot) + 1))
    height = HEIGHT + 13 * (len(foot) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        words(12, 20, f"Rate of calls on an {name}, bfloat16, measured", size=14),
        words(12, 38, about, size=11),
    ]
    legend = ("matmul_fused, with bias and activation", "torch.mm, the product alone")
    for number, (colour, label) in enumerate(zip(ARMS.values(), legend, strict=True)):
        lines.append(f'<circle cx="{16 + 240 * number}" cy="52" r="4" fill="{colour}"/>')
        lines.append(words(25 + 240 * number, 56, label, size=11))
    share = (WIDTH - 14) / len(panels)
    for number, (regime, found) in enumerate(panels.items()):
        lines += panel(LEFT + number * share, share - LEFT, regime, found, (compute, memory))
    return "\n".join([*lines, *foot, "</svg>", ""])


def main(path: Path = results.RESULTS_GPU, picture: Path = PICTURE) -> None:
    drawn = draw(path.read_text())
    if drawn:
        picture.write_text(drawn)
    print(picture if drawn else f"{path.name} has no figures of a GPU: no picture")


if __name__ == "__main__":
    main()
