"""Matrix products on an NVIDIA GPU beside torch: bare torch.mm, with an epilogue in several ways, and one call of ours.

    python bench/bench_gpu.py [--sustained [SECONDS]] [--compile [--cache DIR]] [--json FILE] [--write]
                              [--only PATTERN] [--rows M ...] [--arms ARM ...] [--rounds N] [--budget SECONDS]
                              [--runs FILE ...]

bfloat16, weights (N, K) as nn.Linear has them, a bias but for swiglu. Each arm is a CUDA graph of calls on operands
that rotate, together larger than the last cache; the arms take turns. Burst: each sample after 40 ms in which the GPU
is idle, so clocks are high; a kernel that only waits covers the launch of the graph. --sustained: samples without idle,
after the graphs of all arms ran back to back for a time, so clocks are what power leaves. Arms, as far as the
activation and this torch have them:

    mm       torch.mm, bare cuBLAS
    linear   F.linear with the bias
    eager    F.linear, then the activation
    addmm    torch._addmm_activation: cuBLASLt's epilogue, which has relu and gelu_tanh
    compile  torch.compile(mode="max-autotune-no-cudagraphs") of eager; what it compiled is kept in the cache folder
    ours

Every arm is compared with float64 first. Shown are medians over the rounds in microseconds, the quartiles of ours / mm,
the fastest rival with an epilogue, the median SM clock that nvidia-smi gives every 20 ms (of burst mostly while idle),
the kernel that the plan chose; then the means beside the bars of the project. The JSON file keeps each row once it is
measured. What it has of the same regime, arms, GPU, torch and build is not measured again, so a run can be made in
pieces. --runs: JSON files of other runs, which the means count, too: of each call the median of its ratios in all runs.
--write: the section "gpu burst" or "gpu sustained" of RESULTS_GPU.md, once no row is missing.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_rows
import machine
import nvidia_smi
import results
import torch
from gpu_arms import Arms, arms_of

import matmul_fused as mf

WEIGHTS = (
    (16384, 4096, "relu"), (8192, 8192, "silu"), (7168, 2048, "silu"), (4096, 1024, "gelu"),
    (4096, 1024, "gelu_tanh"), (28672, 4096, "swiglu"), (51200, 5120, "swiglu"),
)  # fmt: skip
ROWS = (1, 16, 64, 256, 1024, 4096, 8192)
LAUNCHING = 400_000  # cycles of the GPU, 0.2 ms: more than the host needs to launch a graph after its rest


def captured(sets: int, arms: Arms, calls: int) -> dict[str, torch.cuda.CUDAGraph]:
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
    return graphs


def heat_up(graphs: dict[str, torch.cuda.CUDAGraph], seconds: float) -> None:
    """Replay all, again and again; the GPU has the next ones before it is through."""
    start, before = time.perf_counter(), None
    while time.perf_counter() - start < seconds:
        for graph in graphs.values():
            graph.replay()
        event = torch.cuda.Event()
        event.record()
        if before:
            before.synchronize()
        before = event


def microseconds(
    sets: int, arms: Arms, calls: int, rounds: int, heat: float = 0.0, begin_clocks: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Of one call, by round. heat: seconds of work before samples without idle; 0: each sample after 40 ms idle."""
    graphs = captured(sets, arms, calls)
    heat_up(graphs, heat / 2)
    begin_clocks()
    heat_up(graphs, heat / 2)
    names, order, samples = list(arms), random.Random(0), []
    for turn in range(rounds + 2):
        order.shuffle(names)
        for name in names:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if not heat:
                torch.cuda.synchronize()
                time.sleep(0.04)
                torch.cuda._sleep(LAUNCHING)  # or the GPU waits for the host, and that counts
            begin.record()
            graphs[name].replay()
            end.record()
            if turn > 1:  # the first ones warm up
                samples.append((name, begin, end))
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in arms}
    for name, begin, end in samples:
        times[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return times


def measured(wanted: dict[str, Any], clocks: nvidia_smi.Clocks) -> dict[str, Any]:
    """The row that is wanted."""
    m, n, k, activation = (wanted[name] for name in ("m", "n", "k", "activation"))
    before = machine.Snapshot()
    sets, arms, skipped, plan = arms_of(m, n, k, activation, tuple(wanted["arms"]))
    calls = sets * (4 if m * n * k < 1 << 36 else 1)
    times = microseconds(sets, arms, calls, wanted["rounds"], wanted["heat"], clocks.begin)
    about = before.until_now()
    return wanted | {
        "us": times,
        "skipped": skipped,
        "kernel": plan.kernel,
        "mhz": clocks.median(),
        "when": about["when"],
        "commit": about["commit"],
    }


def gpu_uuid() -> str:
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


def about() -> dict[str, Any]:
    """Of this GPU and this build."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": nvidia_smi.driver(gpu_uuid()),
        "torch": str(torch.__version__),
        "version": mf.__version__,
        "build": machine.about("")["build"],
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="2 or more")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--only", metavar="PATTERN", default="", help="of lines such as '64x8192x8192 silu'")
    parser.add_argument("--arms", choices=(*gpu_rows.COLUMNS[:4], "ours"), nargs="+", help="these alone")
    parser.add_argument("--sustained", type=float, nargs="?", const=0.5, default=0.0, metavar="SECONDS")
    parser.add_argument("--compile", action="store_true", help="with the arm compile: minutes, without its cache")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="of torch.compile; by default beside the JSON file")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--runs", type=Path, nargs="+", default=[], metavar="FILE", help="other runs that the means count"
    )
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="after it no row is begun")
    parser.add_argument("--commit", default="", help="what is measured, for a copy of the tree without git")
    parser.add_argument("--write", action="store_true", help="the section of RESULTS_GPU.md")
    parser.add_argument("--results", type=Path, default=results.RESULTS_GPU, metavar="FILE")
    options = parser.parse_args(arguments)
    for path in options.runs:
        if not path.exists() or path == options.json:
            parser.error(f"--runs takes files of other runs, got {path}")
    return options


def keep_compiled(options: argparse.Namespace) -> None:
    """Inductor and Triton ask the environment when they first compile."""
    folder = (options.json.parent if options.json else results.ROOT / "build/bench") / "compiled"
    folder = (options.cache or folder).resolve()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


def write(options: argparse.Namespace, stores: list[gpu_rows.Store], every: list[dict[str, Any]], regime: str) -> None:
    """stores: of this run and of others."""
    runs = []
    for store in stores:
        runs.append([row for one in every if (row := store.find(one))])
        missing = len(every) - len(runs[-1])
        if missing:
            print(f"{options.results.name} is left as it is: {missing} rows of {store.path} are still to be measured")
            return
    rows, others = runs[0], [row for run in runs[1:] for row in run]
    results.write_section(options.results, f"gpu {regime}", gpu_rows.section(rows, others))
    print(f"{options.results.name}: section gpu {regime}; python bench/gpu_roofline.py draws it")


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    start = time.perf_counter()
    if options.compile:
        keep_compiled(options)
    torch.manual_seed(0)
    regime = "sustained" if options.sustained else "burst"
    arms = options.arms or ["mm", "linear", "eager", "addmm", *(["compile"] if options.compile else []), "ours"]
    shared = {"regime": regime, "heat": options.sustained, "arms": arms, "rounds": options.rounds, **about()}
    store, *others = stores = [gpu_rows.Store(path) for path in (options.json, *options.runs)]
    print(f"{gpu_rows.conditions(shared)}, {regime}\n")
    titles = gpu_rows.header(arms)
    print(f"{gpu_rows.line(titles)}\n{gpu_rows.line(['---'] * len(titles))}", flush=True)

    def wanted(m: int, n: int, k: int, activation: str) -> dict[str, Any]:
        return {"m": m, "n": n, "k": k, "activation": activation, **shared}

    rows, kept, later = [], 0, 0
    with nvidia_smi.Clocks(gpu_uuid()) as clocks:
        for one in (wanted(m, *weight) for weight in WEIGHTS for m in options.rows):
            if not re.search(options.only, gpu_rows.name_of(one)):
                continue
            row = store.find(one)
            if row is None and time.perf_counter() - start > options.budget:
                later += 1
                continue
            kept += row is not None
            if row is None:
                row = measured(one, clocks)
                row["commit"] = options.commit or row["commit"]
                store.add(row)
            rows.append(row)
            print(gpu_rows.line(gpu_rows.cells(row)), flush=True)
    also = [row for other in others for one in rows if (row := other.find(one))]
    if others:
        print(f"\nThe means count {len(also)} rows of other runs, {len(rows)} calls in {len(others)} files.")
    lines = [*gpu_rows.summary([*rows, *also]), *gpu_rows.skipped(rows)]
    print("", *lines, f"{kept} rows were measured before, {later} are left for later.", sep="\n")
    print(f"{time.perf_counter() - start:.0f} s")
    if options.write:
        write(options, stores, [wanted(m, *weight) for weight in WEIGHTS for m in ROWS], regime)
    return 0


if __name__ == "__main__":
    sys.exit(main())
