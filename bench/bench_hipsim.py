"""Speed of the simulated GPU: a 1024^3 bfloat16 GEMM of the shipped kernel on one host thread, without and with checks.

    python bench/bench_hipsim.py [--part gfx942] [--size 1024] [--rounds 3] [--json FILE]

Processor seconds of the process, the arms in turn, the best round of each; decoding is done before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

ARMS = ("none", "waits", "races", "bounds", "hazards", "barriers", "banks", "uninitialised", "all")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", default="gfx942")
    parser.add_argument("--size", type=int, default=1024, help="M, N and K")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    from hipsim.build import build

    os.environ["MATMUL_FUSED_HIP_LIBRARY"] = str(build(ROOT / "build" / "hipsim"))
    os.environ["HIPSIM_DEVICES"], os.environ["HIPSIM_THREADS"] = given.part, "1"
    import ml_dtypes
    import numpy as np

    import hipsim
    import matmul_fused as mf

    device = hipsim.Device(0)
    rng = np.random.default_rng(0)
    shape = (given.size, given.size)
    a, b, bias = (device.array(rng.standard_normal(s).astype(ml_dtypes.bfloat16)) for s in (shape, shape, shape[:1]))
    out = device.empty(shape, ml_dtypes.bfloat16)
    kernel = mf.explain(a, b, bias, "silu").kernel
    best = dict.fromkeys(ARMS, float("inf"))
    mf.matmul_fused(a[:1], b, bias, "silu", out=out[:1])  # decodes
    for _ in range(given.rounds):
        for arm in ARMS:
            hipsim.configure(checks=arm)
            device.synchronize()
            start = time.process_time()
            mf.matmul_fused(a, b, bias, "silu", out=out)
            device.synchronize()
            best[arm] = min(best[arm], time.process_time() - start)
            device.assert_clean()
    flops = 2 * given.size**3
    rows = [
        {"checks": arm, "seconds": s, "gflops": flops / s / 1e9, "ratio": s / best["none"]} for arm, s in best.items()
    ]
    print(
        f"{kernel} on simulated {given.part}, {given.size}^3 bfloat16, bias, silu, one thread, best of {given.rounds}"
    )
    print(f"{'checks':>14} {'CPU s':>8} {'GFLOP/s':>8} {'ratio':>6}")
    for row in rows:
        print(f"{row['checks']:>14} {row['seconds']:8.3f} {row['gflops']:8.1f} {row['ratio']:6.2f}")
    if given.json:
        given.json.write_text(json.dumps({"part": given.part, "size": given.size, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
