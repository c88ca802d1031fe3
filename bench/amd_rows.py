"""Rows of kernels.def that the plan picks for no call of amd_origami.py's list. Nothing is timed.

    python bench/amd_rows.py [PART ...]

Asked by explain() on simulated parts: every M and weight of the list, in all layouts and dtypes, with and without a
gate. amd_origami.py puts the answer for its parts into bench/AMD_MODEL.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amd_origami import PARTS, ROWS, WEIGHTS, answer

ROOT = Path(__file__).resolve().parents[1]
DEFINITIONS = ROOT / "csrc/gpu/kernels/common/kernels.def"
LAYOUTS = ("NT", "NN", "NP", "TN", "TT")
DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
ELEMENTS = 1 << 29  # of memory, which nobody reads or writes


def rows_of(arch: str) -> set[str]:
    """That are built for the part."""
    rows = re.findall(r"^MMF_GPU_KERNEL\((\w+), .*, ([A-Z0-9_ |]+)\)$", DEFINITIONS.read_text(), re.MULTILINE)
    return {name for name, targets in rows if targets == "ALL" or arch.upper() in targets.split(" | ")}


def weights(memory: Any, layout: str, k: int, n: int, gated: bool) -> Iterator[Any]:
    """B of that layout; none where it does not exist. A gate's two halves, of shuffled ones a pair."""
    import matmul_fused as mf
    from matmul_fused.testing.gpu_cases import PRESHUFFLE

    columns = n * (2 if gated else 1)
    if columns * k > ELEMENTS or (layout == "NP" and (n % 16 or k % 32)):
        return
    whole = memory[: columns * k]
    if layout == "NP":
        parts = [whole[i * n * k : (i + 1) * n * k] for i in range(columns // n)]
        packed = tuple(mf.as_prepacked(part, (k, n), layout=PRESHUFFLE) for part in parts)
        yield packed if gated else packed[0]
    else:
        yield whole.reshape(columns, k).mT if layout[1] == "T" else whole.reshape(k, columns)


def idle() -> None:
    """In a process of its own, whose only device is the part: prints the rows that no call runs."""
    import ml_dtypes
    import numpy as np

    import hipsim
    import matmul_fused as mf

    device, found = hipsim.Device(0), set()
    built = rows_of(os.environ["HIPSIM_DEVICES"])
    for name, short in DTYPES.items():
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
        memory = device.empty((ELEMENTS,), dtype)
        for layout in LAYOUTS:
            if layout == "NP" and not any(row.endswith(f"_{short}_np") for row in built):
                continue
            for m in ROWS:
                for k, columns in WEIGHTS.items():
                    a = memory[: m * k].reshape(m, k) if layout[0] == "N" else memory[: m * k].reshape(k, m).mT
                    for n in columns:
                        for gate in (None, "swiglu"):
                            for b in weights(memory, layout, k, n, gate is not None):
                                for rounded in (False, True) if name == "float32" else (False,):
                                    plan = mf.explain(a, b, activation=gate, allow_tf32=rounded)
                                    found |= {plan.kernel, *plan.launches}
    print(json.dumps(sorted(built - found)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", metavar="PART", nargs="*", default=[*PARTS])
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.idle:
        idle()
        return 0
    for arch in options.parts:
        print(f"{arch}: {', '.join(answer(arch, 'amd_rows.py', '--idle')) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
