"""What fusing bias and SiLU saves on AMD GPUs, in the layers of FlyDSL's claim, into bench/AMD_MODEL.md, modelled.

    python bench/amd_fusion.py [--write]

FlyDSL (ROCm/FlyDSL, pull request 404) claims 2.73x over "hipBLAS + bias + SiLU" on MI300X by fusing, 3.25x for an
output projection, 2.92x for QKV, 3.33x for the down projection of a mixture of experts. Its test has 16x5120x8192, the
output projection of Qwen3 32B: QKV here is that model's, the down projection DeepSeek V3's.

Launches and bytes of our calls are counted by the simulator (tests/hipsim), which runs them whole: bytes that lanes
load and store, so A and B once a tile, and the bias once a row of it, whichever cache they come from. Calls that would
take it too long are counted on paper: A and B once a tile, bias once a tile, results once, sums of pieces of K written
and read. The unfused form is our own call without an epilogue and two kernels that we do not have: one adds the bias,
one applies SiLU, each reads and writes every result once; theirs are counted on paper. Times are those of explain(),
and of the two kernels what csrc/plan/cost.c has for a call, csrc/gpu/parts.def for bytes. Kernels of a graph start
without a host: there the call's fixed time is left out, of all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from amd_origami import SUM, launches_of, tile_of
from amd_parts import parts
from results import markdown, write_section

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = Path(__file__).with_name("AMD_MODEL.md")
PARTS = {"gfx942": "MI300X", "gfx950": "MI355X"}
LAYERS = {"O-proj": (5120, 8192), "QKV": (10240, 5120), "MoE-down": (7168, 2048)}  # N, K
CLAIMED = {"O-proj": 3.25, "QKV": 2.92, "MoE-down": 3.33}  # on MI300X
ROWS, ON_PAPER = (1, 16, 64), (1024, 4096)  # M
CALL = 5e-6  # csrc/plan/cost.c
SEPARATE = 2  # kernels of the unfused epilogue
ITEM = 2  # bytes of a bfloat16


def on_paper(size: Any, names: Any, workspace: int, units: int, bias: bool) -> int:
    """Bytes of a plan's launches."""
    moved = size[0] * size[1] * ITEM
    for (m, n, k), (tile_m, tile_n, _), pieces in launches_of(size, names, workspace, units):
        rows, columns = -(-m // tile_m), -(-n // tile_n)
        moved += (columns * m * k + rows * n * k) * ITEM
        if pieces > 1:
            moved += 2 * pieces * m * n * SUM
            rows = -(-m // tile_of(names[-1])[0])
        moved += rows * n * ITEM if bias else 0
    return moved


def counted() -> None:
    """In a process of its own, whose only device is the part: prints what was counted and modelled for every call."""
    import ml_dtypes
    import numpy as np

    import hipsim
    import matmul_fused as mf

    device, rng, calls = hipsim.Device(0), np.random.default_rng(0), []
    for layer, (n, k) in LAYERS.items():
        values = rng.standard_normal((n, k), dtype=np.float32).astype(ml_dtypes.bfloat16)
        weight, bias = device.array(values).mT, device.array(values[0, :1].repeat(n))
        for m in (*ROWS, *ON_PAPER):
            a, call = device.array(values[:m]), {"layer": layer, "size": (m, n, k)}
            for name, epilogue in (("fused", (bias, "silu")), ("plain", ())):
                found = mf.explain(a, weight, *epilogue)
                if m in ROWS:
                    device.report()
                    mf.matmul_fused(a, weight, *epilogue)
                    device.synchronize()
                    of = device.report().counters
                    launches, moved = of["launches"], of["bytes_loaded"] + of["bytes_stored"]
                else:
                    units, launches = device.properties["compute_units"], len(found.launches)
                    moved = on_paper((m, n, k), found.launches, found.workspace, units, bool(epilogue))
                call[name] = {"kernel": found.kernel, "seconds": found.seconds, "launches": launches, "bytes": moved}
            calls.append(call)
    print(json.dumps(calls))


def counts(arch: str) -> list[dict[str, Any]]:
    sys.path.insert(0, str(ROOT / "tests"))
    from hipsim.build import build

    environment = os.environ | {
        "MATMUL_FUSED_HIP_LIBRARY": str(build(ROOT / "build" / "hipsim")),
        "HIPSIM_DEVICES": arch,
        "HIPSIM_CHECK": "banks",
        "PYTHONPATH": str(ROOT / "tests"),
    }
    done = subprocess.run(
        [sys.executable, __file__, "--count"], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def row(arch: str, call: dict[str, Any]) -> tuple[str, ...]:
    m, n, k = call["size"]
    fused, plain = call["fused"], call["plain"]
    separate = SEPARATE * 2 * m * n * ITEM + n * ITEM
    least = (m * k + n * k + m * n + n) * ITEM
    apart = plain["seconds"] + SEPARATE * CALL + separate / parts()[arch].reached
    in_graph = (apart - (1 + SEPARATE) * CALL) / (fused["seconds"] - CALL)
    claim, paper = f"{CLAIMED[call['layer']]:.2f}" if arch == "gfx942" else "-", " (paper)" if m in ON_PAPER else ""
    return (
        PARTS[arch], call["layer"], f"{m}x{n}x{k}", fused["kernel"].removeprefix("gemm_").removesuffix("_bf16_nt"),
        f"{fused['launches']} / {plain['launches'] + SEPARATE}",
        f"{fused['bytes'] / 1e6:.2f} / {(plain['bytes'] + separate) / 1e6:.2f}{paper}",
        f"{least / 1e6:.2f} / {(least + separate) / 1e6:.2f}",
        f"{fused['seconds'] * 1e6:.1f} / {apart * 1e6:.1f}", f"{apart / fused['seconds']:.2f}", f"{in_graph:.2f}",
        claim,
    )  # fmt: skip


def section() -> str:
    header = (
        "GPU", "layer", "M x N x K", "kernel", "launches, fused / unfused", "MB counted, fused / unfused",
        "MB of arrays, fused / unfused", "us, modelled", "speed-up, modelled", "in a graph, modelled", "FlyDSL's claim",
    )  # fmt: skip
    rows = [row(arch, call) for arch in PARTS for call in counts(arch)]
    counted_on = " and ".join(f"{parts()[arch].reached / 1e12:g} TB/s of {name}" for arch, name in PARTS.items())
    return f"""Written by `python bench/amd_fusion.py --write`, whose head says what was counted and what is modelled.

{markdown(header, rows)}

With few rows fusing saves two launches of {CALL * 1e6:g} us each, and the bytes hardly matter; with many it saves the
bytes of four passes over the results, also in a graph. Nowhere does the model have 3x for it: what is left of that
claim would be a slower product in the unfused arm. The plan counts on {counted_on}."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the section of {DOCUMENT.name}, too")
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        counted()
        return 0
    text = section()
    print(text)
    if options.write:
        write_section(DOCUMENT, "fusion", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
