"""The order of the tiles of a grid, and its last wave, on AMD GPUs, into bench/AMD_MODEL.md. Counted and modelled.

    python bench/amd_order.py [--write]

Order: MI300X and MI355X deal workgroups out to their dies in turn, and a die has a cache of its own. Counted are the
bytes that these caches must fetch if every wave of workgroups that run at once finds them empty, and each keeps what
its own workgroups read: for every die and wave the rows of A and the columns of B that its tiles touch. "Of memory" are
those that a wave touches on any die, for the cache that all dies share. "In turn" is the order of workgroups as they
are numbered, "in runs" what csrc/gpu/kernels/common/deal.h makes of it, compiled here; both in the groups of rows of
csrc/gpu/kernels/common/tile.h.

Last wave: of calls of bench/amd_origami.py what stream-K in one launch would give over the picked rows, which leave the
last wave to a launch of its own where that pays (csrc/gpu/amd_waves.c), or to three with K in pieces of one length
(csrc/gpu/gemm_splitk.c). It shares the last, incomplete wave of tiles out to all units: the time of the steps over K of
rows whose tiles have a unit to themselves (what explain() predicts for as many columns as fill the waves, less what it
predicts for a shorter K) times tiles / (units * waves). Every unit puts the sums of one tile into memory, and they are
read again.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amd_origami
from amd_origami import ROOT, WEIGHTS, mean, tile_of
from amd_parts import parts
from results import markdown, write_section

DOCUMENT = Path(__file__).with_name("AMD_MODEL.md")
PARTS = {"gfx942": 8, "gfx950": 8}  # dies: docs/amd_gpus.md
SHAPES = {  # M, N, K
    "square": (4096, 4096, 4096),
    "Llama 70B, QKV": (4096, 10240, 8192),
    "Llama 8B, gate and up": (1024, 28672, 4096),
    "Qwen3 32B, output": (64, 5120, 8192),
}
ITEM = 2  # bytes of a bfloat16
SHORTER = 512  # of K, for the time of the steps
LAUNCH = 10e-6  # of another launch: csrc/plan/cost.c
SUM = 4  # bytes
ROWS = (256, 1024, 4096, 8192)  # M of the last waves
FORMS = {  # split-K?, launches
    (False, 1): "one launch",
    (False, 2): "whole waves, then the columns left",
    (True, 2): "K in pieces",
    (True, 3): "whole waves, then K of the columns left in pieces",
}
ALONE = r"gemm_pingpong(_staged)?_(256x\d+|128x(256|192))x"  # rows of 8 waves
GLUE = """#include "gpu/kernels/common/deal.h"
unsigned rows = MMF_DEAL_ROWS;
void order(unsigned dies, unsigned tiles, unsigned *to)
{
    mmf_deal deal = {0};
    if (dies > 1)
        mmf_deal_out(dies, tiles, &deal);
    for (unsigned w = 0; w < tiles; w++)
        to[w] = mmf_dealt(&deal, w);
}
"""


def compiled() -> tuple[int, Callable[[int, int], list[int]]]:
    """Rows of a group, and the tile of every workgroup of (dies, tiles), from the header that ships."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "order.c"), Path(folder, "order.so")
        source.write_text(GLUE)
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-std=c11", "-O1", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", source, "-o", library]
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(library))

    def order(dies: int, tiles: int) -> list[int]:
        to = (ctypes.c_uint * tiles)()
        loaded.order(dies, tiles, to)
        return list(to)

    return ctypes.c_uint.in_dll(loaded, "rows").value, order


def place(index: int, tiles_m: int, tiles_n: int, rows: int) -> tuple[int, int]:
    """Row and column of a tile, as find_place() has them."""
    group, within = divmod(index, rows * tiles_n)
    height = min(rows, tiles_m - group * rows)
    column, row = divmod(within, height)
    return group * rows + row, column


def fetched(places: list[tuple[int, int]], size: Any, tile: Any, dies: int, at_once: int) -> tuple[float, float]:
    """Bytes that the caches of the dies fetch, and those of memory: places are those of workgroups, in turn."""
    (m, n, k), (tile_m, tile_n, _) = size, tile

    def of(some: list[tuple[int, int]]) -> float:
        rows = sum(min(tile_m, m - row * tile_m) for row in {row for row, _ in some})
        columns = sum(min(tile_n, n - column * tile_n) for column in {column for _, column in some})
        return (rows + columns) * k * ITEM

    waves = [places[first : first + at_once] for first in range(0, len(places), at_once)]
    return sum(of(wave[die::dies]) for wave in waves for die in range(dies)), sum(map(of, waves))


def asked() -> None:
    """In a process of its own, whose only device is the part: prints what explain() says of every call."""
    import ml_dtypes

    import hipsim
    import matmul_fused as mf

    device, calls = hipsim.Device(0), []
    units, memory = device.properties["compute_units"], device.empty((1 << 32,), ml_dtypes.bfloat16)

    def explained(m: int, n: int, k: int) -> Any:
        return mf.explain(memory[: m * k].reshape(m, k), memory[: n * k].reshape(n, k).mT)

    def seconds(name: str, m: int, n: int, k: int) -> float:
        return next(row.seconds for row in explained(m, n, k).candidates if row.name == name)

    listed = [(m, n, k) for m in ROWS for k, columns in sorted(WEIGHTS.items()) for n in columns]
    for m, n, k in [*SHAPES.values(), *listed]:
        found, rows = explained(m, n, k), {}
        for row in found.candidates:
            if row.seconds is None or not re.match(ALONE, row.name):
                continue
            tile_m, tile_n, _ = tile_of(row.name)
            rows_of_tiles = -(-m // tile_m)
            waves = -(-rows_of_tiles * -(-n // tile_n) // units)
            full = waves * units // rows_of_tiles * tile_n
            whole = seconds(row.name, m, full, k)
            rows[row.name] = (whole, (whole - seconds(row.name, m, full, k - SHORTER)) * k / SHORTER)
        form = FORMS["splitk" in found.kernel, len(found.launches)]
        calls.append({"size": (m, n, k), "picked": found.kernel, "seconds": found.seconds, "rows": rows, "form": form})
    print(json.dumps({"units": units, "calls": calls}))


def answers(arch: str) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "tests"))
    from hipsim.build import build

    environment = os.environ | {
        "MATMUL_FUSED_HIP_LIBRARY": str(build(ROOT / "build" / "hipsim")),
        "HIPSIM_DEVICES": arch,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, __file__, "--ask"]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def order_rows(arch: str, made: dict[str, Any], held: dict[Any, int]) -> list[tuple[str, ...]]:
    rows_of_group, order = compiled()
    lines = []
    for name, call in zip(SHAPES, made["calls"], strict=False):
        size, tile = tuple(call["size"]), tile_of(call["picked"])
        tiles_m, tiles_n = (-(-length // edge) for length, edge in zip(size[:2], tile[:2], strict=True))
        at_once, tiles = made["units"] * held[tile], tiles_m * tiles_n
        found = []
        for dies in (1, PARTS[arch]):
            places = [place(index, tiles_m, tiles_n, rows_of_group) for index in order(dies, tiles)]
            found.append(fetched(places, size, tile, PARTS[arch], at_once))
        (turn, turn_memory), (run, run_memory) = found
        figures = (turn / 1e6, run / 1e6, turn / run, turn_memory / 1e6, run_memory / 1e6)
        shown = (f"{figure:.{2 if figure is figures[2] else 0}f}" for figure in figures)
        shape = f"{name}: {'x'.join(map(str, size))}"
        lines.append((arch, shape, amd_origami.short(call["picked"]), f"{tiles} / {at_once}", *shown))
    return lines


def gain(call: dict[str, Any], units: int, reached: float) -> float:
    """The picked row's time in relation to the best row's with its last wave shared out."""
    m, n, _ = call["size"]
    best = call["seconds"]
    for name, (seconds, steps) in call["rows"].items():
        tile_m, tile_n, _ = tile_of(name)
        tiles = -(-m // tile_m) * -(-n // tile_n)
        if tiles % units:
            shared = tiles / units / math.ceil(tiles / units)
            best = min(best, seconds - steps * (1 - shared) + 2 * SUM * tile_m * tile_n * units / reached)
    return call["seconds"] / best


def last_wave_rows(arch: str, made: dict[str, Any], reached: float) -> list[tuple[str, ...]]:
    calls, lines = made["calls"][len(SHAPES) :], []
    for m in (*ROWS, None):
        some = [call for call in calls if m in (None, call["size"][0])]
        gains = [gain(call, made["units"], reached) for call in some]
        most = max(range(len(some)), key=gains.__getitem__)
        size = "x".join(map(str, some[most]["size"]))
        lines.append((arch, "all" if m is None else str(m), f"{mean(gains):.3f}", f"{gains[most]:.2f}", size))
    return lines


def section() -> str:
    orders, waves, forms = [], [], []
    for arch in PARTS:
        made = answers(arch)
        count = Counter(call["form"] for call in made["calls"][len(SHAPES) :])
        forms.append((arch, *(str(count[form]) for form in FORMS.values())))
        orders += order_rows(arch, made, amd_origami.workgroups(arch))
        waves += last_wave_rows(arch, made, parts()[arch].reached)
    header = (
        "part", "M x N x K", "kernel", "tiles / at once", "MB of the dies' caches, in turn", "in runs", "ratio",
        "MB of memory, in turn", "in runs",
    )  # fmt: skip
    return f"""Written by `python bench/amd_order.py --write`, whose head says what is counted.

{markdown(header, orders)}

Runs are for the caches of the dies: neighbours in the order of groups lie on one die.

How many calls of M >= {min(ROWS)} are given to the units in which form:

{markdown(("part", *FORMS.values()), forms)}

What stream-K in one launch would give over them, modelled: the mean by M, and the most of a call.

{markdown(("part", "M", "mean", "most", "of"), waves)}

It would do so because it saves the launches of {LAUNCH * 1e6:g} us that the others need."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the section of {DOCUMENT.name}, too")
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        asked()
        return 0
    text = section()
    print(text)
    if options.write:
        write_section(DOCUMENT, "order", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
