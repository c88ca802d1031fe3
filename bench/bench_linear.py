"""What matmul_fused.torch.linear costs around the call: in eager code beside the bare call and torch, and recorded.

    python bench/bench_linear.py [--rounds N] [--seconds S]

float32 with bias and gelu, arms interleaved in one run (testing/timing.py). In the table of plain calls the bare one is
`mf.matmul_fused(x, weight.T, bias, "gelu")`; linear is wanted to take at most 0.4 us more. The recorded forward is that
of a training step, whose weight and bias require gradients; it is wanted to take at most torch's time from 64x1024x1024
on. Shown are medians, the median of the differences or ratios within a round, and their quartiles.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import gelu
from torch.nn.functional import linear as torchs

import matmul_fused as mf
from matmul_fused.testing.timing import Timing, measure, settle
from matmul_fused.torch import linear

SIZES = ((1, 64, 64), (16, 64, 64), (64, 1024, 1024), (256, 1024, 1024), (1024, 1024, 1024))  # M, N, K
SMALL = SIZES[:2]  # where the host's time is not lost in the product's noise
COLUMNS = ("bare", "torch", "linear")
ALLOWED_MICROSECONDS, ALLOWED_RATIO, FROM = 0.4, 1.0, 64 * 1024 * 1024


def arms_of(m: int, n: int, k: int, recorded: bool) -> dict[str, list[Callable[[], Any]]]:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((m, k), (n, k), (n,)))
    weight.requires_grad_(recorded), bias.requires_grad_(recorded)
    arms = {"torch": lambda: gelu(torchs(x, weight, bias)), "linear": lambda: linear(x, weight, bias, "gelu")}
    if not recorded:
        arms = {"bare": lambda: mf.matmul_fused(x, weight.T, bias, "gelu"), **arms}
    return {name: [call] for name, call in arms.items()}


def within(found: dict[str, Timing], base: str, by: Callable[[float, float], float]) -> tuple[float, float, float]:
    """Quartiles of linear against an arm within a round, the median in the middle."""
    pairs = zip(found["linear"].samples, found[base].samples, strict=True)
    low, middle, high = statistics.quantiles([by(ours, theirs) for ours, theirs in pairs], n=4)
    return low, middle, high


def row(size: tuple[int, int, int], recorded: bool, rounds: int, seconds: float) -> str:
    made = measure(arms_of(*size, recorded), rounds=rounds, sample_seconds=seconds, between=settle)
    found = {timing.name: timing for timing in made}
    times = (
        f"{1e6 * found[name].median:10.2f}" if name in found else f"{'':10}" for name in ("bare", "torch", "linear")
    )
    if recorded:
        low, middle, high = within(found, "torch", lambda ours, theirs: ours / theirs)
        over = middle > ALLOWED_RATIO and math.prod(size) >= FROM
    else:
        low, middle, high = within(found, "bare", lambda ours, theirs: 1e6 * (ours - theirs))
        over = middle > ALLOWED_MICROSECONDS
    words = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    return f"{'x'.join(map(str, size)):>16}{''.join(times)}  {words:>28}{'  over' if over else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a sample")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for recorded, title, last in ((False, "plain call", "linear - bare"), (True, "recorded", "linear / torch")):
        print(f"\n{f'{title}, us':>16}{''.join(f'{name:>10}' for name in COLUMNS)}{last:>30}")
        for size in SIZES if recorded else SMALL:
            print(row(size, recorded, options.rounds, options.seconds), flush=True)


if __name__ == "__main__":
    main()
