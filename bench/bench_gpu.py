"""Matrix products on an NVIDIA GPU beside torch: bare torch.mm, linear then activation, and one call of ours.

    python bench/bench_gpu.py [--rounds N] [--rows M ...] [--json FILE]

bfloat16, weights (N, K) as nn.Linear has them, a bias but for swiglu. Each arm is a CUDA graph of calls on operands
that rotate, together larger than the last cache; the arms take turns, each after 40 ms in which the GPU is idle, so
clocks are high (burst). Every result is compared with float64 first. Shown are medians over the rounds in microseconds,
the quartiles of ours / mm, and the kernel that the plan chose.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import matmul_fused as mf

functional = torch.nn.functional

WEIGHTS = (
    (16384, 4096, "relu"), (8192, 8192, "silu"), (7168, 2048, "silu"), (4096, 1024, "gelu"), (28672, 4096, "swiglu"),
)  # fmt: skip
ROWS = (1, 16, 64, 256, 1024, 4096, 8192)
CACHE = 256 << 20  # bytes, more than the last cache of an H200


def swiglu(z: torch.Tensor) -> torch.Tensor:
    gate, up = z.chunk(2, -1)
    return functional.silu(gate) * up


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu, "silu": functional.silu, "gelu": functional.gelu, "swiglu": swiglu,
}  # fmt: skip


def arms_of(m: int, n: int, k: int, activation: Any) -> tuple[int, dict[str, Callable[[int], Any]], Any]:
    """How many sets of operands there are, the arms by set, and what explain says of ours."""
    size = 2 * (m * k + n * k + m * n)
    sets = max(2, min(16, CACHE // size + 1))
    gated = activation == "swiglu"
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    xs = [torch.randn(m, k, **kind) for _ in range(sets)]
    ws = [torch.randn(n, k, **kind) / k**0.5 for _ in range(sets)]
    bias = None if gated else torch.randn(n, **kind)
    products = [torch.empty(m, n, **kind) for _ in range(sets)]
    outs = [torch.full((m, n // 2 if gated else n), math.nan, **kind) for _ in range(sets)]
    function = ACTIVATIONS[activation]
    arms: dict[str, Callable[[int], Any]] = {
        "mm": lambda i: torch.mm(xs[i], ws[i].t(), out=products[i]),
        "eager": lambda i: function(functional.linear(xs[i], ws[i], bias)),
        "ours": lambda i: mf.matmul_fused(xs[i], ws[i].t(), bias, activation, out=outs[i]),
    }
    arms["ours"](0)
    rows = slice(0, 64)
    z = xs[0][rows].double() @ ws[0].double().t()
    exact = function(z if bias is None else z + bias)
    torch.testing.assert_close(outs[0][rows].double(), exact, rtol=1e-2, atol=1e-2)
    return sets, arms, mf.explain(xs[0], ws[0].t(), bias, activation)


def microseconds(sets: int, arms: dict[str, Callable[[int], Any]], calls: int, rounds: int) -> dict[str, list[float]]:
    graphs, stream = {}, torch.cuda.Stream()
    for name, arm in arms.items():
        with torch.cuda.stream(stream):
            for i in range(sets):
                arm(i)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], stream=stream):
            for i in range(calls):
                arm(i % sets)
    times: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(rounds + 2):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            time.sleep(0.04)
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if turn > 1:  # the first ones warm up
                times[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, matmul_fused {mf.__version__}\n")
    print("| M | N | K | activation | mm | eager | ours | ours / mm | ours / eager | kernel |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    table = []
    for n, k, activation in WEIGHTS:
        for m in options.rows:
            sets, arms, plan = arms_of(m, n, k, activation)
            calls = sets * (4 if m * n * k < 1 << 36 else 1)
            times = microseconds(sets, arms, calls, options.rounds)
            median = {name: statistics.median(values) for name, values in times.items()}
            ratios = [ours / mm for ours, mm in zip(times["ours"], times["mm"], strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            to_mm, to_eager = (median["ours"] / median[name] for name in ("mm", "eager"))
            shown = " | ".join(f"{median[name]:.1f}" for name in arms)
            print(
                f"| {m} | {n} | {k} | {activation} | {shown} | {to_mm:.2f} ({low:.2f}-{high:.2f}) | {to_eager:.2f} | "
                f"{plan.kernel} |",
                flush=True,
            )
            table.append({"m": m, "n": n, "k": k, "activation": activation, "us": times, "kernel": plan.kernel})
            if options.json:
                options.json.write_text(json.dumps(table))
    means = {
        rival: statistics.geometric_mean(
            statistics.median(row["us"]["ours"]) / statistics.median(row["us"][rival]) for row in table
        )
        for rival in ("mm", "eager")
    }
    print(f"\ngeometric mean, ours / mm {means['mm']:.3f}, ours / eager {means['eager']:.3f}")


if __name__ == "__main__":
    main()
