"""Modelled quantities of the AMD matrix kernels that ship, into bench/AMD_KERNELS.md. Nothing in it is a timing.

    python bench/amd_model.py [--write]

The main loop, from the machine code (bench/amd_static.py finds it): q2 waves on a SIMD, q3 matrix cycles M of a wave in
a turn, q4 = M / (4 n) for n instructions, q5 instructions beside each matrix instruction, q6 = LDS cycles / matrix
cycles of a compute unit, q8 = the share of cycles in which the matrix cores are busy if two waves of a SIMD go through
the phases of reading and of products in turns: a phase takes its issue, LDS or matrix cycles, whichever are most.
Kernels without such phases have no q8. Tiles of 4 waves have the second wave of a SIMD in another workgroup, which no
barrier keeps in turn. gemm_thin has neither phases nor LDS in its loop, which is for loads and not for products. q9:
the share in which the loads of the unit's tiles, with 44 KB on their way for 1000 cycles, keep up with the matrix
cores. q1: spills, scratch and accumulator moves.

From the simulator: wave instructions beside the loop over K for each 64 results, of 512 x 512 (split-K: 128 x 256), of
one of a tile's dtypes, bfloat16 if it has that: what is left at K = 0 of the line through K = 256 and 1024. LDS
conflicts of K = 1024. "-": refused. Needs what amd_static.py needs, and tests/hipsim.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import amd_static
from amd_static import Instruction, matrix_cycles
from results import write_section

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = Path(__file__).with_name("AMD_KERNELS.md")
READ_BYTES = {"gfx90a": 128, "gfx942": 128, "gfx950": 256}  # of LDS, a clock and compute unit
WRITE_BYTES = 128  # assumed for all
SHORT = {"gfx90a": 1024, "gfx942": 2048, "gfx950": 4096}  # operations of 16 bits, a clock and compute unit
FLOPS = {"f16": SHORT, "bf16": SHORT, "f32": dict.fromkeys(SHORT, 256), "f64": dict.fromkeys(SHORT, 256)}
FLOPS["f16"] = FLOPS["f16"] | {"gfx90a": 256}  # multiplied as float32
FLOPS["f64"] = FLOPS["f64"] | {"gfx950": 128}
FLOPS["xf32"] = {"gfx942": 1024}
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}  # the first of a tile is counted
FLIGHT_BYTES, FLIGHT_CYCLES = 44 << 10, 1000  # of a compute unit's loads
EPILOGUES = {
    "none": {},
    "bias": {"bias": True},
    "relu": {"bias": True, "activation": "relu"},
    "silu": {"bias": True, "activation": "silu"},
    "gelu": {"bias": True, "activation": "gelu"},
    "swiglu": {"bias": True, "activation": "swiglu"},
}
WIDTHS = {"b128": 16, "b96": 12, "b64": 8, "b32": 4, "dwordx4": 16, "dwordx3": 12, "dword": 4}


def lds_cycles(arch: str, body: list[Instruction]) -> float:
    """Of four waves, one on each SIMD."""
    cycles = 0.0
    for instruction in body:
        name = instruction.name
        if not name.startswith("ds_") and not re.search(r"\blds\b", instruction.text):
            continue
        width = next((size for key, size in WIDTHS.items() if re.search(rf"{key}(?:_|$)", name)), None)
        if width is None:
            raise ValueError(f"{instruction.text}: how many bytes?")
        cycles += 4 * 64 * width / (READ_BYTES[arch] if name.startswith("ds_read") else WRITE_BYTES)
    return cycles


def share_of_turns(arch: str, body: list[Instruction]) -> float:
    """q8: while one wave is in a phase, the other one is in the phase before."""
    phases: list[list[Instruction]] = [[]]
    for instruction, after in zip(body, [*body[1:], body[0]], strict=True):
        phases[-1].append(instruction)
        products_end = instruction.text.startswith("s_setprio 0") and after.name != "s_barrier"
        if instruction.name == "s_barrier" or products_end:
            phases.append([])
    phases[0] = phases.pop() + phases[0]
    times = []
    for phase in phases:
        others = sum(not i.name.startswith("v_mfma") for i in phase)
        cycles = matrix_cycles(arch, phase)
        busy = cycles + 4 * others if cycles else 0
        times.append(max(4 * len(phase), lds_cycles(arch, phase), busy))
    return 2 * matrix_cycles(arch, body) / sum(max(t, times[i - 1]) for i, t in enumerate(times))


def share_of_loads(arch: str, kernel: str) -> float:
    """q9, for a step of k with one tile on the unit."""
    *sizes, operands = re.search(r"_(\d+)x(\d+)x(\d+)_(\w+)_", kernel).groups()
    m, n, k = map(int, sizes)
    rate = FLOPS["xf32" if "_xf32_" in kernel else operands][arch]
    cycles = 2 * m * n * k / rate
    return min(1.0, cycles * FLIGHT_BYTES / ((m + n) * k * BYTES[operands] * FLIGHT_CYCLES))


def loop_row(arch: str, kernel: str, image: bytes) -> list[str]:
    facts = amd_static.facts_of(arch, kernel, image)
    body = amd_static.hot_body(arch, amd_static.code_of(arch, image))
    cycles, matrix = matrix_cycles(arch, body), facts.loop.units["matrix"]
    turns = f"{share_of_turns(arch, body):.3f}" if "pingpong" in kernel else "-"
    return [
        arch, kernel, str(facts.spills + facts.scratch + facts.loop.units.get("moves", 0)), str(facts.waves_per_simd),
        str(cycles), f"{cycles / (4 * len(body)):.2f}", f"{(len(body) - matrix) / matrix:.2f}",
        f"{lds_cycles(arch, body) / cycles:.2f}", turns, f"{share_of_loads(arch, kernel):.3f}",
    ]  # fmt: skip


def counted(tile: str) -> None:
    """In a process of its own, whose only device is the part: prints a line for each of NT, NN and NP that there is."""
    import ml_dtypes
    import numpy as np

    import hipsim
    import matmul_fused as mf
    from matmul_fused.testing import force_kernel
    from matmul_fused.testing.gpu_cases import PRESHUFFLE

    device, rng = hipsim.Device(0), np.random.default_rng(0)
    results = (128, 256) if "splitk" in tile else (512, 512)
    rows = [row for row in mf.info().gpu_kernels if row.startswith(f"{tile}_")]
    operands = next(short for short in DTYPES if any(row.startswith(f"{tile}_{short}_") for row in rows))
    dtype = ml_dtypes.bfloat16 if operands == "bf16" else DTYPES[operands]

    def counters(k: int, layout: str, bias: bool = False, activation: str | None = None) -> dict[str, int]:
        m, half = results
        n = half * (2 if activation == "swiglu" else 1)
        a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k), n))
        weight: Any = device.array(np.ascontiguousarray(b.T)) if layout == "NN" else device.array(b).mT
        added: Any = device.array(c) if bias else None
        if layout == "NP" and n > half:  # a gate's weights are packed one by one
            weight = tuple(mf.prepack(part, layout=PRESHUFFLE) for part in (weight[:, :half], weight[:, half:]))
            added = (added[:half], added[half:])
        elif layout == "NP":
            weight = mf.prepack(weight, layout=PRESHUFFLE)
        device.synchronize()
        device.report()
        with force_kernel(f"{tile}_{operands}_{layout.lower()}"):
            mf.matmul_fused(device.array(a), weight, added, activation, allow_tf32="xf32" in tile)
        device.synchronize()
        return device.report().counters

    for layout in ("NT", "NN", "NP"):
        if f"{tile}_{operands}_{layout.lower()}" not in rows:
            continue
        row, conflicts = [], 0
        for keywords in EPILOGUES.values():
            try:
                short, long = (counters(k, layout, **keywords) for k in (256, 1024))
            except NotImplementedError:
                row.append("-")
                continue
            slope = (long["instructions"] - short["instructions"]) / 768
            row.append(f"{(short['instructions'] - 256 * slope) / (math.prod(results) / 64):.1f}")
            conflicts = max(conflicts, long["lds_conflict_cycles"])
        print("|", " | ".join([layout, *row, str(conflicts)]), "|")


def counts(arch: str, tile: str) -> list[str]:
    sys.path.insert(0, str(ROOT / "tests"))
    from hipsim.build import build

    library = build(ROOT / "build" / "hipsim")
    environment = os.environ | {
        "MATMUL_FUSED_HIP_LIBRARY": str(library),
        "HIPSIM_DEVICES": arch,
        "HIPSIM_CHECK": "banks",
        "PYTHONPATH": str(ROOT / "tests"),
    }
    command = [sys.executable, __file__, "--count", tile]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [f"| {arch} | {tile} {line}" for line in done.stdout.splitlines()]


def table(columns: tuple[str, ...], rows: list[str]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "| --- | --- |" + " ---: |" * (len(columns) - 2), *rows]
    return "\n".join(lines)


def section() -> str:
    objects = [one for one in amd_static.embedded() if one[0] in READ_BYTES and re.search("mfma|pingpong|thin", one[1])]
    loops = ["| " + " | ".join(loop_row(*one)) + " |" for one in objects]
    tiles = sorted({(arch, kernel.rsplit("_", 2)[0]) for arch, kernel, _ in objects})
    epilogues = [line for arch, tile in tiles for line in counts(arch, tile)]
    return f"""Written by `python bench/amd_model.py --write`, whose head says what the columns are.

## Main loops

{table(("arch", "kernel", "q1", "q2 waves", "q3 M", "q4 M/4n", "q5 other/M", "q6 LDS/M", "q8 busy", "q9 loads"), loops)}

## Wave instructions beside the loop over K for each 64 results, and LDS conflicts

{table(("arch", "kernel", "layout", *EPILOGUES, "conflicts"), epilogues)}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the section of {DOCUMENT.name}, too")
    parser.add_argument("--count", metavar="TILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        counted(options.count)
        return 0
    text = section()
    print(text)
    if options.write:
        write_section(DOCUMENT, "kernels", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
