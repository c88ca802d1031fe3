"""`make simulate`: the tests marked device on every simulated part, a process each, one per processor at a time.

    python tests/hipsim/parts.py [--full] [PART ...]   exit code 1 or more if the tests of a part fail

Of parts that run another one's objects, a few cases alone.

A part's output goes to build/reports/hip-PART/output.txt and is printed whole if it fails; the table at the end comes
from the part's own accounts (tests/conftest.py), and goes to build/reports/simulated.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hipsim.build import build

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "build" / "reports"
PARTS = ("gfx942", "gfx950", "gfx90a", "gfx1100", "gfx1201")  # the longest first
SIBLINGS = ("gfx1101", "gfx1102", "gfx1151", "gfx1200")  # which run objects of the others: a few cases of the sweep
MUTATED = {"waits": "wait dropped", "guards": "guard of memory"}  # column of the table -> kind of mutant
COLUMNS = ("passed", "failed", "cases", "launches", "instructions", "matrix", "violations", *MUTATED, "seconds")


def figures_of(folder: Path) -> dict[str, Any]:
    """What the run of a part wrote; nothing if it did not get that far."""

    def rows(name: str) -> list[dict[str, Any]]:
        path = folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else []

    figures = dict(*rows("simulated"))
    for column, kind in MUTATED.items():
        mutants = [row for row in rows("mutants") if row["kind"] == kind]
        counted = sum(row["counted"] for row in mutants)
        figures[column] = f"{counted - sum(row.get('unseen', 0) for row in mutants)}/{counted}"
    return figures


def run(part: str, library: Path, options: list[str]) -> dict[str, Any]:
    """The tests of one part: its row of the table, and its exit code."""
    folder = REPORTS / f"hip-{part}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if part in SIBLINGS:
        options = ["tests/test_sweep.py"]
    command = [sys.executable, "-m", "pytest", "--device", f"hip:{part}", "-q", *options]
    environment = {"HIPSIM_THREADS": "1", **os.environ, "MATMUL_FUSED_HIP_LIBRARY": str(library)}
    start = time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        done = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    row = {"part": part, **figures_of(folder), "seconds": round(time.monotonic() - start), "exit": done.returncode}
    if done.returncode or row.get("violations") != 0 or not row.get("cases"):
        row["exit"] = row["exit"] or 1
        text = (folder / "output.txt").read_text(errors="replace")
        print(f"== {part}: exit code {done.returncode}\n{text[-40_000:]}\n== end of {part}", flush=True)
    else:
        print(f"== {part}: {row['passed']} passed, {row['seconds']} s", flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [("part", *COLUMNS)] + [(row["part"], *(row.get(name, "-") for name in COLUMNS)) for row in rows]
    text = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*text, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS + SIBLINGS)}; default: all")
    parser.add_argument("--full", action="store_true", help="the full list of cases, cut by size, and the slow tests")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at once")
    given = parser.parse_args()
    library = build(ROOT / "build" / "hipsim", werror=bool(os.environ.get("CI")))
    start = time.monotonic()
    options = ["--full"] if given.full else []
    with ThreadPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(lambda part: run(part, library, options), given.parts or PARTS + SIBLINGS))
    (REPORTS / "simulated.json").write_text(json.dumps(rows, indent=1) + "\n")
    print("\nwaits, guards: those of the mutated kernels without which a check is violated, of those that matter")
    print(f"Simulated AMD GPUs, all checks on; {time.monotonic() - start:.0f} s, {given.jobs} at once\n{table(rows)}")
    return max(abs(row["exit"]) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
