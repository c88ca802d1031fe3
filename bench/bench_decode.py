"""Decoding, M = 1, beside a bare loop that reads the same bytes of the weight on as many threads, in the same run.

    python bench/bench_decode.py [--only PATTERN] [--quick] [--json FILE]

Every problem has two lines: rotated, through copies of the weight that together outgrow twice the last-level cache, and
hot, one weight again and again. Shown are GB/s of the bare loop and, for each way to store the weight, time of the bare
loop / time of the call, which is wanted to be at least 0.90: medians within a round (quartiles). The call has a bias
and silu, makes its result and starts in Python, as users' calls do; its threads and libgomp's, on which the bare loop
runs, rest before every sample. Needs torch, ml_dtypes and a C compiler `cc` with OpenMP.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import machine
import torch
from rivals import Problem

import matmul_fused as mf
from matmul_fused.console import progress, show
from matmul_fused.testing.timing import measure, rotate, settle

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "build/bench/read_loop.so"
WANTED = 0.9
SIZES = ((768, 768), (3072, 768), (5632, 1024), (8192, 2048), (16384, 4096))  # N, K
PROBLEMS = tuple(Problem("decode", 1, n, k, dtype) for n, k in SIZES for dtype in ("float32", "bfloat16", "float16"))
WAYS = ("W.T", "K x N", "prepacked")
HEADER = ("problem", "data", "read, GB/s", *WAYS)


def reader() -> Callable[[int, int, int], None]:
    """read_all of read_loop.c: address, bytes, threads."""
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    flags = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
    subprocess.run(
        [os.environ.get("CC", "cc"), *flags, str(ROOT / "bench/read_loop.c"), "-o", str(LIBRARY)], check=True
    )
    function = ctypes.CDLL(str(LIBRARY)).read_all
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], None
    return function


class Weights:
    """One weight in every way of storing it."""

    def __init__(self, problem: Problem) -> None:
        generator = torch.Generator().manual_seed(0)
        dtype = getattr(torch, problem.dtype)
        self.x, self.bias = (
            torch.randn(*shape, generator=generator).to(dtype) for shape in ((1, problem.k), (problem.n,))
        )
        weight = torch.randn(problem.n, problem.k, generator=generator).to(dtype)
        self.stored = {"W.T": weight, "K x N": weight.T.contiguous(), "prepacked": mf.prepack(weight.T)}

    def call(self, way: str) -> object:
        stored = self.stored[way]
        return mf.matmul_fused(self.x, stored.T if way == "W.T" else stored, self.bias, "silu")


def run(problem: Problem, hot: bool, read: Callable[[int, int, int], None], quick: bool) -> dict[str, Any]:
    cache = 0 if hot else 2 * machine.last_level_cache()
    copies = rotate(lambda _: Weights(problem), problem.nbytes, cache_bytes=cache, most=4 if quick else 1024)
    limits: dict[str, Any] = {"rounds": 25, "sample_seconds": 0.02, "budget_seconds": 3.0, "between": settle}
    if quick:
        limits = {"rounds": 3, "sample_seconds": 0.0, "warm_up_seconds": 0.0}
    threads = mf.explain(copies[0].x, copies[0].stored["W.T"].T, copies[0].bias, "silu").threads
    weights = [copy.stored["W.T"] for copy in copies]
    arms: dict[str, list[Callable[[], object]]] = {
        "read": [partial(read, weight.data_ptr(), weight.nbytes, threads) for weight in weights]
    }
    arms |= {way: [partial(copy.call, way) for copy in copies] for way in WAYS}
    bare, *ours = measure(arms, **limits)
    shares = {}
    for timing in ours:
        ratios = [least / time for least, time in zip(bare.samples, timing.samples, strict=True)]
        shares[timing.name] = (statistics.median(ratios), *machine.quartiles(ratios))
    rate = weights[0].nbytes / bare.median / 1e9
    return {"problem": problem.name, "regime": "hot" if hot else "rotated", "read_gb_s": rate, "shares": shares}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression for the problem's name")
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write what was measured there")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None, heap: str = "is as the C library has it") -> int:
    options = parse(arguments)
    chosen = [(p, hot) for p in PROBLEMS if re.search(options.only, p.name) for hot in (False, True)]
    read = reader()
    rows = [run(problem, hot, read, options.quick) for problem, hot in progress(chosen, "bench")]
    cells = [
        (
            row["problem"],
            row["regime"],
            f"{row['read_gb_s']:.1f}",
            *("{:.2f} ({:.2f}-{:.2f})".format(*row["shares"][way]) for way in WAYS),
        )
        for row in rows
    ]
    show("time of a bare loop that reads the weight / time of the call (quartiles)", HEADER, cells)
    for way in WAYS:
        shares = [row["shares"][way][0] for row in rows]
        met = sum(share >= WANTED for share in shares)
        print(f"{way}: {met} of {len(shares)} lines reach {WANTED:.2f}; least {min(shares):.2f}")
    about = machine.about(heap)
    print(machine.sentence(about))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(heap=machine.keep_heap()))
