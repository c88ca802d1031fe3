"""Seconds from a signal to KeyboardInterrupt in the middle of a long call on the CPU: median and worst for each way.

    python bench/bench_interrupt.py [--samples 50] [--threads N] [WAY ...]

The calls are those of tests/isolated/interrupt.py, each in a process of its own. Exit code 1 if one took LIMIT seconds.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import matmul_fused as mf

LIMIT = 0.2
SCRIPT = Path(__file__).resolve().parents[1] / "tests" / "isolated" / "interrupt.py"
WAYS = ("tiles", "tiles of bfloat16", "a batch of small ones", "dots", "lines", "prepack of W.T")


def measure(way, samples, threads):
    command = [sys.executable, SCRIPT, "latency", "", str(threads), way, str(samples)]
    output = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout
    *lines, last = output.splitlines()
    assert last == "done"
    return [float(line) for line in lines]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("ways", nargs="*", default=WAYS, metavar="WAY", help=f"default: {', '.join(WAYS)}")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--threads", type=int, default=mf.get_num_threads())
    options = parser.parse_args(arguments)
    worst = 0.0
    print(f"{'way':24} {'samples':>7} {'median':>9} {'worst':>9}   ({options.threads} threads)")
    for way in options.ways:
        seconds = measure(way, options.samples, options.threads)
        worst = max(worst, *seconds)
        median = statistics.median(seconds)
        print(f"{way:24} {len(seconds):7} {1e3 * median:6.1f} ms {1e3 * max(seconds):6.1f} ms", flush=True)
    return 1 if worst >= LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
