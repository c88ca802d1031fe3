"""float32, tf32, float64 and the layouts of float16 on an NVIDIA GPU beside torch.matmul on the same views.

    python bench/bench_gpu_dtypes.py [--rounds N] [--only REGEX] [--json FILE]

No epilogue, so both compute the same. Layouts are those of BLAS: the first letter is A's, the second B's, N row-major,
T the transpose of a row-major matrix; "odd" has a row pitch of one element more than the row. Arms and clocks are those
of bench_gpu.py, but operands do not rotate. Every result is compared with float64 first. Shown are medians in
microseconds, the ratio ours / torch.matmul with its quartiles, and the kernel that the plan chose.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bench_gpu import microseconds

import matmul_fused as mf

SHAPES = ((1024, 1024, 1024), (4096, 4096, 4096), (1024, 16384, 4096), (333, 777, 555), (64, 256, 256, 256))
LAYOUTS = ("NN", "NT", "TN", "TT")
TOLERANCES = {"float32": 1e-5, "tf32": 2e-3, "float64": 1e-13, "float16": 2e-3, "float16 odd": 2e-3}


def matrix(shape: tuple[int, ...], transposed: bool, odd: bool, dtype: torch.dtype) -> torch.Tensor:
    """A random matrix, or a batch of them, as a view of the layout."""
    *batch, rows, cols = shape
    if transposed:
        rows, cols = cols, rows
    stored = torch.randn(*batch, rows, cols + odd, dtype=dtype, device="cuda")[..., :cols]
    return stored.mT if transposed else stored


def cases() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for kind in TOLERANCES:
        for shape in SHAPES:
            for layout in LAYOUTS:
                yield kind, layout, shape


def arms_of(kind: str, layout: str, shape: tuple[int, ...]) -> tuple[dict[str, Any], Any]:
    *batch, m, n, k = shape
    dtype = getattr(torch, "float32" if kind == "tf32" else kind.split()[0])
    a = matrix((*batch, m, k), layout[0] == "T", kind.endswith("odd"), dtype)
    b = matrix((*batch, k, n), layout[1] == "T", kind.endswith("odd"), dtype)
    theirs = torch.empty(*batch, m, n, dtype=dtype, device="cuda")
    ours = torch.full_like(theirs, math.nan)
    tf32 = kind == "tf32"
    arms = {
        "matmul": lambda _: torch.matmul(a, b, out=theirs),
        "ours": lambda _: mf.matmul_fused(a, b, out=ours, allow_tf32=tf32),
    }
    arms["ours"](0)
    rows = slice(0, 64)
    exact = a[..., rows, :].double() @ b.double()
    worst = ((ours[..., rows, :].double() - exact).abs().max() / exact.std()).item()
    if not worst <= TOLERANCES[kind] * math.log2(k):
        raise AssertionError(f"{kind} {layout} {shape}: an error of {worst:.3g} of the results' deviation")
    return arms, mf.explain(a, b, allow_tf32=tf32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="of lines such as 'tf32 NT 1024x1024x1024'")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, matmul_fused {mf.__version__}\n")
    print("| dtype | layout | shape | matmul | ours | ours / matmul | kernel |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    table: list[dict[str, Any]] = []
    for kind, layout, shape in cases():
        name = "x".join(map(str, shape))
        if not re.search(options.only, f"{kind} {layout} {name}"):
            continue
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        arms, plan = arms_of(kind, layout, shape)
        times = microseconds(1, arms, 4 if math.prod(shape) > 1 << 33 else 20, options.rounds)
        ratios = [ours / theirs for ours, theirs in zip(times["ours"], times["matmul"], strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        shown = " | ".join(f"{statistics.median(times[arm]):.1f}" for arm in arms)
        print(
            f"| {kind} | {layout} | {name} | {shown} | {ratio:.2f} ({low:.2f}-{high:.2f}) | {plan.kernel} |", flush=True
        )
        table.append(
            {"dtype": kind, "layout": layout, "shape": shape, "us": times, "ratio": ratio, "kernel": plan.kernel}
        )
        if options.json:
            options.json.write_text(json.dumps(table))
    for kind in TOLERANCES:
        seen = [row["ratio"] for row in table if row["dtype"] == kind]
        if seen:
            print(f"\n{kind}: geometric mean {statistics.geometric_mean(seen):.3f}, most {max(seen):.3f}", end="")
    print()


if __name__ == "__main__":
    main()
