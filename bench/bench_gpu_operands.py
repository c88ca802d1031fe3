"""Epilogues with more than a bias per column, on an NVIDIA GPU: C, multiply, preactivation, a bias per row.

    python bench/bench_gpu_operands.py [--rounds N] [--only REGEX] [--kernels NAME ...] [--json FILE]

bfloat16, weights (N, K) as nn.Linear has them. The rival are the steps of eager torch that compute the same. Operands
rotate, together larger than the last cache; arms and clocks are those of bench_gpu.py. The first 64 rows of every
result and preactivation are compared with float64 first. Shown are medians in microseconds, the ratios ours / eager
with its quartiles and ours / bare torch.mm, and the kernel that the plan chose. --kernels: arms beside them that are
forced to these kernels or families.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_gpu import microseconds
from gpu_arms import ABSOLUTE, CACHE, RELATIVE, wrong

import matmul_fused as mf
from matmul_fused.testing import force_kernel

functional = torch.nn.functional
SHAPES = ((256, 7168, 2048), (1024, 7168, 2048), (4096, 7168, 2048), (4096, 4096, 1024), (1024, 16384, 4096),
          (8192, 8192, 8192))  # fmt: skip
# By kind: keywords of ours (Y: a matrix like out, ROW: a column vector), and eager's steps.
KINDS: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "C": ({"C": "Y", "beta": 1.0}, lambda x, w, y, row: torch.addmm(y, x, w.t())),
    "C, silu": (
        {"C": "Y", "beta": 1.0, "activation": "silu"},
        lambda x, w, y, row: functional.silu(torch.addmm(y, x, w.t())),
    ),
    "multiply": ({"multiply": "Y"}, lambda x, w, y, row: functional.linear(x, w) * y),
    "silu, multiply": (
        {"multiply": "Y", "activation": "silu"},
        lambda x, w, y, row: functional.silu(functional.linear(x, w)) * y,
    ),
    "gelu, preactivation": (
        {"preactivation": "Z", "activation": "gelu"},
        lambda x, w, y, row: functional.gelu(functional.linear(x, w)),
    ),
    "bias per row": ({"bias": "ROW"}, lambda x, w, y, row: torch.addmm(row, x, w.t())),
    "mish": ({"activation": "mish"}, lambda x, w, y, row: functional.mish(functional.linear(x, w))),
}


def arms_of(
    kind: str, m: int, n: int, k: int, kernels: list[str], device: str = "cuda"
) -> tuple[int, dict[str, Any], Any]:
    """How many sets of operands there are, the arms by set, each compared with float64, what explain says of ours."""
    made: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    sets = max(2, min(16, CACHE // (2 * (m * k + n * k + 2 * m * n)) + 1))
    xs = [torch.randn(m, k, **made) for _ in range(sets)]
    ws = [torch.randn(n, k, **made) / k**0.5 for _ in range(sets)]
    named = {
        "Y": [torch.randn(m, n, **made) for _ in range(sets)],
        "Z": [torch.full((m, n), math.nan, **made) for _ in range(sets)],
        "ROW": [torch.randn(m, 1, **made)] * sets,
    }
    products, outs = ([torch.full((m, n), math.nan, **made) for _ in range(sets)] for _ in range(2))
    keywords, steps = KINDS[kind]

    def of_set(i: int) -> dict[str, Any]:
        mine = {name: named[value][i] if value in named else value for name, value in keywords.items()}
        return mine | {"out": outs[i]}

    def forced(kernel: str) -> Callable[[int], Any]:
        def arm(i: int) -> Any:
            with force_kernel(kernel):
                return mf.matmul_fused(xs[i], ws[i].t(), **of_set(i))

        return arm

    arms: dict[str, Callable[[int], Any]] = {
        "mm": lambda i: torch.mm(xs[i], ws[i].t(), out=products[i]),
        "eager": lambda i: steps(xs[i], ws[i], named["Y"][i], named["ROW"][i]),
        "ours": lambda i: mf.matmul_fused(xs[i], ws[i].t(), **of_set(i)),
    }
    arms |= {kernel: forced(kernel) for kernel in kernels}
    rows = slice(0, 64)
    exact = steps(xs[0][rows].double(), ws[0].double(), named["Y"][0][rows].double(), named["ROW"][0][rows].double())
    for name in [*arms][2:]:
        try:
            wrong(arms[name], exact, rows, must=True)
        except NotImplementedError:
            del arms[name]
            continue
        if "preactivation" in keywords:
            z = named["Z"][0]
            product = xs[0][rows].double() @ ws[0].double().t()
            torch.testing.assert_close(z[rows].double(), product, rtol=RELATIVE, atol=ABSOLUTE)
            z.fill_(math.nan)
    return sets, arms, mf.explain(xs[0], ws[0].t(), **of_set(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="of lines such as 'multiply 4096x4096x1024'")
    parser.add_argument("--kernels", nargs="+", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, matmul_fused {mf.__version__}\n")
    print("| epilogue | M x N x K | mm | eager | ours | ours / eager | ours / mm | kernel |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    table: list[dict[str, Any]] = []
    for kind in KINDS:
        for m, n, k in SHAPES:
            name = f"{m}x{n}x{k}"
            if not re.search(options.only, f"{kind} {name}"):
                continue
            sets, arms, plan = arms_of(kind, m, n, k, options.kernels)
            times = microseconds(sets, arms, sets * (4 if m * n * k < 1 << 36 else 1), options.rounds)
            ratios = [ours / theirs for ours, theirs in zip(times["ours"], times["eager"], strict=True)]
            low, ratio, high = statistics.quantiles(ratios, n=4)
            median = {arm: statistics.median(times[arm]) for arm in arms}
            print(
                f"| {kind} | {name} | {median['mm']:.1f} | {median['eager']:.1f} | {median['ours']:.1f} "
                f"| {ratio:.2f} ({low:.2f}-{high:.2f}) | {median['ours'] / median['mm']:.2f} | {plan.kernel} |"
                + "".join(f" {arm} {median[arm]:.1f}" for arm in [*arms][3:]),
                flush=True,
            )
            table.append({"kind": kind, "shape": (m, n, k), "us": times, "ratio": ratio, "kernel": plan.kernel})
            if options.json:
                options.json.write_text(json.dumps(table))
    for kind in KINDS:
        seen = [row["ratio"] for row in table if row["kind"] == kind]
        if seen:
            print(f"\n{kind}: geometric mean {statistics.geometric_mean(seen):.3f}, most {max(seen):.3f}", end="")
    print()


if __name__ == "__main__":
    main()
