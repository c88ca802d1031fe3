"""docs/amd_roofline.svg: the modelled rate of the AMD kernels against arithmetic intensity. Nothing in it is a timing.

    python bench/amd_roofline.py

A point is a call of bench/amd_origami.py, bfloat16, a weight of (N, K): the products of the call in the time that
explain() predicts for the kernel that it picks, on a simulated part. Intensity is operations for each byte of A, B and
the result, each moved once. The full lines are what the model counts on: its memory, and the matrix cores at the clock
that full tiles leave (csrc/gpu/parts.def); the broken ones AMD's nominal figures.
"""

from __future__ import annotations

import re
from typing import Any

import amd_origami
from amd_parts import parts
from picture import words
from roofline import Plane

PICTURE = amd_origami.ROOT / "docs/amd_roofline.svg"
PARTS = {"gfx942": ("MI300X (gfx942)", 304, 1307e12), "gfx950": ("MI355X (gfx950)", 256, 2517e12)}  # units; nominal
COLOURS = {
    "16 or 32 rows": "#e08214",
    "64 rows": "#d6604d",
    "128x128": "#5aae61",
    "192 columns": "#01665e",
    "256x128, 128x256": "#2166ac",
    "256x256": "#762a83",
}
WIDTH, HEIGHT, PANEL, LEFT, TOP, BOTTOM = 800, 400, 340, 46, 92, 44  # pixels; PANEL: of one part
INTENSITIES, RATES = (0.5, 8000.0), (0.15e12, 4e15)


def group_of(kernel: str) -> str:
    m, n, _ = amd_origami.tile_of(kernel)
    if m <= 64:
        return "64 rows" if m == 64 else "16 or 32 rows"
    return "192 columns" if n == 192 else f"{m}x{n}" if m == n else "256x128, 128x256"


def panel(number: int, arch: str, calls: list[dict[str, Any]]) -> list[str]:
    (name, units, nominal), part = PARTS[arch], parts()[arch]
    left = LEFT + number * (WIDTH - PANEL - LEFT - 14)
    plane = Plane(left, TOP, HEIGHT - BOTTOM, PANEL, INTENSITIES, RATES, tick=1e12)
    lines = [words(left, TOP - 8, f"{name}, Tflop/s, modelled", size=12), *plane.axes()]
    lines.append(plane.roof(part.flops_bf16 * units * part.hertz, part.reached))
    lines.append(plane.roof(nominal, part.memory, ' stroke-dasharray="4 3"'))
    for call in calls:
        m, n, k = call["size"]
        flops = 2 * m * n * k
        x, y = plane.point(flops / (2 * (m * k + n * k + m * n)), flops / call["seconds"])
        lines.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{COLOURS[group_of(call["picked"])]}"/>')
    return lines


def legend() -> list[str]:
    lines, x = [], 12.0
    for name, colour in COLOURS.items():
        lines.append(f'<circle cx="{x + 4}" cy="52" r="4" fill="{colour}"/>')
        lines.append(words(x + 12, 56, f"tiles of {name}", size=11))
        x += 20 + 5.4 * len(f"tiles of {name}")
    return lines


def draw(calls: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        words(12, 20, "Modelled rate of the AMD kernels, bfloat16: predicted by the cost model, not measured", size=14),
        words(12, 38, "full lines: what the model counts on; broken lines: AMD's nominal figures", size=11),
        *legend(),
    ]
    for number, (arch, some) in enumerate(calls.items()):
        lines += panel(number, arch, some)
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    calls = {}
    for arch in PARTS:
        made = amd_origami.plans(arch)["calls"]
        calls[arch] = [call for call in made if not re.search("simt", call["picked"])]
    PICTURE.write_text(draw(calls))
    print(f"{PICTURE}: {', '.join(f'{len(some)} calls on {arch}' for arch, some in calls.items())}")


if __name__ == "__main__":
    main()
