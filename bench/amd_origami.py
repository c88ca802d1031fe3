"""The plan's choice of tile beside that of Origami, AMD's analytical model, into bench/AMD_MODEL.md. Nothing is timed.

    pip download --no-deps --no-binary rocm-origami rocm-origami==0.0.3     once, by hand
    python bench/amd_origami.py rocm_origami-0.0.3.tar.gz [--write]

Origami (MIT, package rocm-origami) is compiled in a temporary folder, with a C++20 compiler, from the archive and two
files that this program writes there: the few declarations of HIP that its header names, and a loop that answers lines
of numbers. The plan is asked by explain(), on simulated parts (tests/hipsim), whose memory is neither read nor written.

Rows are the instances of kernels.def that take a call. For Origami a call is the column-major product that torch gives
to hipBLASLt: its M is our N. It has a latency for every tile, the matrix instruction that ours use, the workgroups of a
compute unit that registers and LDS leave, and as many pieces of K as our row cuts it into: one (GRID), or those of
gemm_splitk.c, whose sums Origami has added by the same launch. Where whole waves of tiles have a launch of their own
(amd_waves.c, gemm_splitk.c) the latencies are added.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import amd_static
from results import markdown, write_section

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = Path(__file__).with_name("AMD_MODEL.md")
# LDS and L2 (of a die) in bytes, most clock in kHz: docs/amd_gpus.md; K of the matrix instruction of our kernels.
PARTS = {
    "gfx942": (64 << 10, 4 << 20, 2_100_000, 16),
    "gfx950": (160 << 10, 4 << 20, 2_400_000, 32),
    "gfx90a": (64 << 10, 8 << 20, 1_700_000, 16),
}
ROWS = (1, 16, 64, 256, 1024, 4096, 8192)  # M
LARGE = 256  # M from which our rows are compared with other tiles
WEIGHTS = {  # K -> N of weights that libraries test or time: vLLM, aiter, FlyDSL, DeepGEMM
    1536: (24576,),
    2048: (576, 2816, 3072, 10944),
    2880: (5120,),
    3584: (4608, 37888),
    4096: (4096, 6144, 12288, 22016, 28672),
    5120: (7168, 15360, 27648),
    7168: (256, 2112, 4096),
    8192: (1280, 8192, 10240, 57344),
    11008: (4096,),
    13824: (5120,),
    14336: (4096,),
    28672: (8192,),
}
SIDES, STEP = range(32, 257, 32), 64  # of the tiles beside ours: rows and columns; k
BAR, WORST = 1.05, 12
HIP = """#include <cstddef>
struct hipDeviceProp_t {
    char gcnArchName[256];
    std::size_t sharedMemPerBlock;
    int multiProcessorCount, l2CacheSize, clockRate, memoryClockRate;
};
using hipError_t = int;
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t *, int) { return 1; }
inline const char *hipGetErrorString(hipError_t) { return "there is no HIP here"; }
"""
# RATE: of gfx90a Origami's table has bfloat16 at twice AMD's peak (16x16x16 in 16 cycles, which are 32 in AMD's matrix
# instruction calculator), float16 right; AMD's peaks of both are the same.
# GRID: a workgroup for every tile, as our kernels have it. A cache hint that does not suit a problem gives "never".
LOOP = """#include "origami/gemm.hpp"
#include <iostream>
#include <limits>
using namespace origami;
int main()
{
    std::string name;
    std::size_t units, lds, l2;
    int clock;
    std::cin >> name >> units >> lds >> l2 >> clock;
    const auto part = hardware_t::arch_name_to_enum(name);
    const auto device = hardware_t::get_hardware_for_arch(part, units, lds, l2, clock);
    problem_t problem;
    config_t tile;
    problem.a_transpose = transpose_t::T;
    problem.a_dtype = problem.b_dtype = problem.c_dtype = data_type_t::BFloat16;
    problem.d_dtype = data_type_t::BFloat16;
    problem.mi_dtype = part == hardware_t::architecture_t::gfx90a ? data_type_t::Half : problem.d_dtype; // RATE
    tile.grid_selection = grid_selection_t::data_parallel; // GRID
    dim3_t &size = problem.size;
    std::size_t pieces;
    while (std::cin >> size.m >> size.n >> size.k >> tile.mt.m >> tile.mt.n >> tile.mt.k >> tile.mi.k >>
           tile.occupancy >> pieces) {
        const auto tiles = (size.m + tile.mt.m - 1) / tile.mt.m * ((size.n + tile.mt.n - 1) / tile.mt.n) * pieces;
        double least = std::numeric_limits<double>::max();
        tile.mi.m = tile.mi.n = 16;
        for (int hints = 0; hints < 4; hints++) {
            tile.cache_hints_a = hints & 1 ? 4 : 0;
            tile.cache_hints_b = hints & 2 ? 4 : 0;
            const double whole = compute_total_latency(problem, device, tile, 0);
            const double piece = compute_timestep_latency(problem, device, tile, std::min(tiles, units), pieces);
            const bool never = whole == std::numeric_limits<double>::max();
            least = std::min(least, pieces == 1 || never ? whole : piece * ((tiles + units - 1) / units));
        }
        std::cout << least << "\\n";
    }
}
"""
Tile = tuple[int, int, int]
Launch = tuple[Tile, Tile, int]  # of these sizes, tiles, and pieces of K
SUM = 4  # bytes
PICKED = "picked"


def build(archive: Path, folder: Path) -> Path:
    """The program that answers for Origami."""
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    (found,) = folder.glob("*/include/origami")
    (folder / "hip").mkdir()
    (folder / "hip" / "hip_runtime.h").write_text(HIP)
    (folder / "loop.cpp").write_text(LOOP)
    program, sources = folder / "origami", sorted((found.parents[1] / "src").rglob("*.cpp"))
    options = ["-std=c++20", "-O1", "-w", f"-I{folder}", f"-I{found.parent}"]
    subprocess.run([os.environ.get("CXX", "c++"), *options, folder / "loop.cpp", *sources, "-o", program], check=True)
    return program


def tile_of(kernel: str) -> Tile:
    m, n, k = map(int, re.search(r"_(\d+)x(\d+)x(\d+)_", kernel).groups())
    return m, n, k


def planned() -> None:
    """In a process of its own, whose only device is the part: prints what the plan says of every call."""
    import ml_dtypes

    import hipsim
    import matmul_fused as mf
    from matmul_fused.testing import force_kernel

    def cut(name: str, *operands: Any) -> tuple[list[str], int]:
        with force_kernel(name):
            found = mf.explain(*operands)
        return found.launches, found.workspace

    device = hipsim.Device(0)
    memory = device.empty((1 << 29,), ml_dtypes.bfloat16)
    calls = []
    for m in ROWS:
        for k, columns in sorted(WEIGHTS.items()):
            for n in columns:
                a, weight = memory[: m * k].reshape(m, k), memory[: n * k].reshape(n, k).mT
                found = mf.explain(a, weight)
                taking = [row.name for row in found.candidates if row.seconds is not None]
                cuts = {name: cut(name, a, weight) for name in taking if "splitk" in name and "simt" not in name}
                call = {"size": (m, n, k), "picked": found.kernel, "rows": taking, "cuts": cuts}
                calls.append(call | {"seconds": found.seconds, "plan": (found.launches, found.workspace)})
    print(json.dumps({"units": device.properties["compute_units"], "calls": calls}))


def answer(arch: str, program: str, option: str) -> Any:
    """What a program of bench prints in a process whose only device is the simulated part."""
    sys.path.insert(0, str(ROOT / "tests"))
    from hipsim.build import build as build_simulator

    environment = os.environ | {
        "MATMUL_FUSED_HIP_LIBRARY": str(build_simulator(ROOT / "build" / "hipsim")),
        "HIPSIM_DEVICES": arch,
        "PYTHONPATH": str(ROOT / "tests"),
    }
    command = [sys.executable, ROOT / "bench" / program, option]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def plans(arch: str) -> dict[str, Any]:
    return answer(arch, "amd_origami.py", "--plan")


def workgroups(arch: str) -> dict[Tile, int]:
    """Of our tiles: how many a compute unit holds."""
    found = {}
    for name, kernel, image in amd_static.embedded():
        if name == arch and kernel.endswith("_bf16_nt"):
            facts = amd_static.facts_of(arch, kernel, image)
            found[tile_of(kernel)] = facts.waves_per_simd * 4 * facts.wave // facts.threads
    return found


def whole_waves(size: Tile, tile: Tile, units: int) -> int:
    """Columns in the waves before the last one: mmf_amd_whole_waves()."""
    rows, n = -(-size[0] // tile[0]), size[1]
    return (rows * -(-n // tile[1]) - 1) // units * units // rows * tile[1]


def launches_of(size: Tile, names: list[str], workspace: int, units: int) -> list[Launch]:
    """Of a plan, without the one that adds the sums of pieces: whole waves of tiles may have one of their own."""
    m, n, k = size
    tiles = [tile_of(name) for name in names if not name.startswith("reduce")]
    columns = whole_waves(size, tiles[0], units) if len(tiles) == 2 else 0
    pieces = workspace // (m * -(-(n - columns) // 4) * 4 * SUM) if workspace else 1
    last = ((m, n - columns, k), tiles[-1], pieces)
    return [((m, columns, k), tiles[0], 1), last] if columns else [last]


def latencies(program: Path, arch: str, units: int, asked: list[tuple[Launch, int]]) -> list[float]:
    """Of (launch, workgroups of a compute unit), in cycles."""
    lds, l2, clock, depth = PARTS[arch]
    lines = [f"{arch} {units} {lds} {l2} {clock}"]
    for ((m, n, k), tile, pieces), held in asked:
        lines.append(f"{n} {m} {k} {tile[1]} {tile[0]} {tile[2]} {depth} {held} {pieces}")
    done = subprocess.run([program], input="\n".join(lines), check=True, stdout=subprocess.PIPE, text=True)
    return [float(line) for line in done.stdout.split()]


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def verdict(ratios: list[float]) -> str:
    if not ratios:
        return "-"
    value = mean(ratios)
    return f"{value:.3f} ({'met' if value <= BAR else 'missed'})"


class Part:
    """What both models say of a part, of calls of layout NT."""

    def __init__(self, program: Path, arch: str) -> None:
        made = plans(arch)
        self.arch, self.units, held = arch, made["units"], workgroups(arch)
        self.idle = answer(arch, "amd_rows.py", "--idle")
        self.generic = sum("simt" in call["picked"] for call in made["calls"])
        self.calls = [call for call in made["calls"] if "simt" not in call["picked"]]
        # Of tiles that we do not have: half of a unit's registers hold 32768 sums.
        other = {(m, n, STEP): min(8, 32768 // (m * n)) or 1 for m in SIDES for n in SIDES}
        self.tiles = other | held
        asked: dict[tuple[int, Any], list[Launch]] = {}  # of a call: a row, a tile, or PICKED
        for number, call in enumerate(self.calls):
            call["size"] = tuple(call["size"])
            call["rows"] = [name for name in call["rows"] if "simt" not in name]
            asked |= {(number, tile): [(call["size"], tile, 1)] for tile in other}
            plans_of = {name: call["cuts"].get(name, ([name], 0)) for name in call["rows"]} | {PICKED: call["plan"]}
            for name, plan in plans_of.items():
                asked[number, name] = launches_of(call["size"], *plan, self.units)
        each = [launch for launches in asked.values() for launch in launches]
        found = iter(latencies(program, arch, self.units, [(launch, self.tiles[launch[1]]) for launch in each]))
        self.cycles = {key: sum(next(found) for _ in launches) for key, launches in asked.items()}
        for number, call in enumerate(self.calls):
            picked = self.cycles.pop((number, PICKED))
            call["best"] = min(call["rows"], key=lambda name: self.cycles[number, name])
            best = self.cycles[number, call["best"]]
            call["ratio"] = picked / min(picked, best)
            if call["picked"] not in call["cuts"] and len(call["plan"][0]) == 2:
                call["whole"] = best / picked

    def to_grid(self, number: int, keys: set[Any]) -> float:
        """Of these rows and tiles the best one, in relation to the best one of all."""
        every = [cycles for (call, _), cycles in self.cycles.items() if call == number]
        known = [self.cycles[number, key] for key in keys if (number, key) in self.cycles]
        return min(known) / min(every)

    def grid(self, tiles: set[Tile] = frozenset(), rows: int | None = None) -> list[float]:  # type: ignore[assignment]
        """to_grid() of our rows and these tiles, of all calls from LARGE on or those with `rows` rows."""
        return [
            self.to_grid(number, {*call["rows"], *tiles})
            for number, call in enumerate(self.calls)
            if (call["size"][0] >= LARGE if rows is None else call["size"][0] == rows)
        ]

    def wanted(self) -> list[str]:
        """Tiles that would bring our rows to the bar: each the one that helps most."""
        added: list[Tile] = []
        said = []
        while mean(self.grid(set(added))) > BAR and len(added) < 8:
            left = [tile for tile in self.tiles if tile not in added]
            scores = {tile: mean(self.grid({*added, tile})) for tile in left}
            added.append(min(scores, key=scores.__getitem__))
            said.append(f"{added[-1][0]}x{added[-1][1]} ({scores[added[-1]]:.3f})")
        return said

    def picked(self, rows: int | None = None) -> list[float]:
        return [call["ratio"] for call in self.calls if rows in (None, call["size"][0])]


def short(kernel: str) -> str:
    family, tile = re.match(r"gemm_(\w+?)_(\d+x\d+x\d+)_", kernel).groups()
    return f"{family} {tile}"


def section(parts: list[Part], archive: str) -> str:
    def line(name: str, figures: Any) -> tuple[str, ...]:
        return (name, *(verdict(ratios) for part in parts for ratios in figures(part)))

    def both(rows: int | None, part: Part) -> tuple[list[float], list[float]]:
        large = rows is None or rows >= LARGE
        return part.picked(rows), part.grid(rows=rows) if large else []

    header = (
        "M",
        *(f"{part.arch}, {what}" for part in parts for what in ("picked / best row", "best row / best tile")),
    )
    means = [line(str(rows), partial(both, rows)) for rows in ROWS]
    means.append(line("all", partial(both, None)))
    counts = []
    for part in parts:
        picked = Counter(call["picked"] for call in part.calls)
        best = Counter(call["best"] for call in part.calls)
        counts += [(part.arch, short(name), str(picked[name]), str(best[name])) for name in sorted({*picked, *best})]
    worst = []
    for part in parts:
        for call in sorted(part.calls, key=lambda call: -call["ratio"])[:WORST]:
            size, names = "x".join(map(str, call["size"])), (short(call["picked"]), short(call["best"]))
            worst.append((part.arch, size, *names, f"{call['ratio']:.2f}"))
    worst = [row for row in worst if row[-1] > "1.10"]
    wanted = [f"- {part.arch}: {', '.join(part.wanted()) or 'none'}." for part in parts]
    idle = [f"- {part.arch}: {', '.join(f'`{name}`' for name in part.idle) or 'none'}." for part in parts]
    generic = ", ".join(f"{part.generic} on {part.arch}" for part in parts if part.generic) or "none"
    sizes = sum(map(len, WEIGHTS.values()))
    cut = {part.arch: [call["whole"] for call in part.calls if "whole" in call] for part in parts}
    halves = "; ".join(f"{len(some)} on {arch}, {mean(some):.3f}" for arch, some in cut.items() if some) or "none"
    return f"""Written by `python bench/amd_origami.py {archive} --write`, whose head says how. Modelled twice, timed
never: {len(ROWS) * sizes} calls ({len(ROWS)} M x {sizes} weights of other libraries' tests and benches), bfloat16,
NT, no epilogue. Ratios are of Origami's latencies; geometric means, wanted at most {BAR:g}. Left out, for the generic
kernel is picked: {generic}.

{markdown(header, means)}

`best tile`: of ours and of all with {SIDES.start} to {SIDES.stop - 1} rows and columns in steps of {SIDES.step}, of
{STEP} k.

How often each row is picked by the plan, and is Origami's best of them:

{markdown(("part", "row", "picked", "Origami's"), counts)}

Calls whose columns behind whole waves of tiles have a launch of their own (csrc/gpu/amd_waves.c), and Origami's best
single launch in relation to the two: {halves}.

Tiles that would bring `best row / best tile` to {BAR:g}, each the one that helps most, and the mean with it:

{chr(10).join(wanted)}

Rows that no listed call picks, of any dtype and layout, gated or not (`python bench/amd_rows.py`). `gemm_simt` and
`gemm_mfma` are for calls that the others refuse, `gemm_gemv_4x16` is for 2 to 4 rows:

{chr(10).join(idle)}

Where the two disagree most:

{markdown(("part", "M x N x K", "picked", "Origami's row", "ratio"), worst)}

Why they disagree, as far as the sources say:

- A compute unit gets 26.6 bytes a cycle from the L2 in Origami on gfx942, 27.7 on gfx950: 17 TB/s at the full clock.
  The plan counts on 45 on gfx950, for AMD's own tiles were as busy there as that lets them be (128x128: 44 bytes a
  cycle), on 38 on gfx942 and 26 on gfx90a, as units share an L2. So Origami calls small tiles bound by loads,
  gemm_thin first.
- Origami adds 500 cycles to every step of K, and has the workgroups of a unit work one after the other. In ours two
  waves of a SIMD, of one workgroup or of two, take turns, and a barrier costs what the loop's machine code says.
- Origami adds cycles where K is no multiple of a tile's depth: 50000 times the share of K beyond it. gemm_thin is 512
  deep in four slices of 128, and reads no more of the last ones than there is.
- A lone tile of 128x128 has no second one that fills its pauses: the plan counts its LDS reads beside its products, and
  prefers more and smaller tiles, or pieces of K of larger ones, where there are fewer than units. Origami has no such
  term. What AMD tuned for MI300X (ROCm/aiter, a8w8_bpreshuffle_tuned_gemm.csv, int8) has the smallest tiles that give
  no unit two, or one large tile for each: but its kernels read LDS under their products, which ours with one wave on a
  SIMD do not, so it does not say who is right here.
- Origami's table of instructions has bfloat16 on gfx90a at twice AMD's peak, which would have matrix cores wait for
  loads in small tiles. It is asked with the rate of float16, which is the peak of both.
- Rows of split-K add their sums in a launch of their own, for which the plan counts 10 us; Origami has the launch that
  brings the sums add them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, nargs="?", help="Origami's source archive")
    parser.add_argument("--write", action="store_true", help=f"write the section of {DOCUMENT.name}, too")
    parser.add_argument("--plan", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        planned()
        return 0
    if not options.archive:
        parser.error("which archive of Origami?")
    with tempfile.TemporaryDirectory() as folder:
        program = build(options.archive, Path(folder))
        text = section([Part(program, arch) for arch in PARTS], options.archive.name)
    print(text)
    if options.write:
        write_section(DOCUMENT, "origami", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
