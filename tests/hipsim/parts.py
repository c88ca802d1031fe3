"""`make simulate`: the tests marked device on every simulated part, a process each, one per processor at a time.

    python tests/hipsim/parts.py [--full] [--shards N [--resume]] [PART ...]

The exit code is 1 or more if the tests of a part fail. Of parts that run another one's objects, a few cases alone.

With --shards N a part's tests are shared out to N processes; --resume goes on where a run was cut off.

A part's output goes to build/reports/hip-PART/output.txt (of a shard, to hip-PART/IofN/output.txt) and is printed whole
if it fails; the table at the end comes from the part's own accounts (tests/conftest.py), and goes to
build/reports/simulated.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
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
DONE = "done.json"  # of a shard: exit code, seconds
COLUMNS = ("passed", "failed", "cases", "launches", "instructions", "matrix", "violations", *MUTATED, "seconds")


def figures_of(folders: list[Path]) -> dict[str, Any]:
    """What the shards of a part wrote; nothing of one that did not get that far."""

    def rows(name: str) -> list[dict[str, Any]]:
        paths = [folder / f"{name}.json" for folder in folders]
        return [row for path in paths if path.exists() for row in json.loads(path.read_text())]

    figures: Counter[str] = Counter()
    for row in rows("simulated"):
        figures.update(row)
    mutated = {}
    for column, kind in MUTATED.items():
        mutants = [row for row in rows("mutants") if row["kind"] == kind]
        counted = sum(row["counted"] for row in mutants)
        mutated[column] = f"{counted - sum(row.get('unseen', 0) for row in mutants)}/{counted}"
    return {**figures, **mutated}


def run(part: str, shard: int, shards: int, library: Path, options: list[str]) -> tuple[int, int]:
    """One shard of the tests of a part: its exit code and seconds, which its folder keeps."""
    folder = folder_of(part, shard, shards)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if part in SIBLINGS:
        options = ["tests/test_sweep.py"]
    where = ["--device", f"hip:{part}", "--shard", f"{shard}/{shards}"]
    command = [sys.executable, "-m", "pytest", "-q", *where, *options]
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
    seconds, figures, code = round(time.monotonic() - start), figures_of([folder]), done.returncode
    name = part if shards == 1 else f"{part} {shard}/{shards}"
    if code or figures.get("violations") != 0 or not figures.get("cases"):
        code = code or 1
        text = (folder / "output.txt").read_text(errors="replace")
        print(f"== {name}: exit code {done.returncode}\n{text[-40_000:]}\n== end of {name}", flush=True)
    else:
        print(f"== {name}: {figures['passed']} passed, {seconds} s", flush=True)
    (folder / DONE).write_text(json.dumps((code, seconds)) + "\n")
    return code, seconds


def folder_of(part: str, shard: int, shards: int) -> Path:
    """As tests/conftest.py has it."""
    folder = REPORTS / f"hip-{part}"
    return folder if shards == 1 else folder / f"{shard}of{shards}"


def passed_before(folder: Path) -> tuple[int, int] | None:
    path = folder / DONE
    if not path.exists():
        return None
    code, seconds = json.loads(path.read_text())
    return None if code else (code, seconds)


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
    parser.add_argument("--shards", type=int, default=1, help="processes of a part, each with a share of the tests")
    parser.add_argument("--resume", action="store_true", help="leave out the shards that passed before")
    given = parser.parse_args()
    library = build(ROOT / "build" / "hipsim")
    start = time.monotonic()
    options = ["--full"] if given.full else []
    parts, shards = given.parts or PARTS + SIBLINGS, range(1, given.shards + 1)

    def outcome(part: str, shard: int) -> tuple[int, int]:
        before = passed_before(folder_of(part, shard, given.shards)) if given.resume else None
        return before or run(part, shard, given.shards, library, options)

    with ThreadPoolExecutor(given.jobs) as pool:
        running = {part: [pool.submit(outcome, part, shard) for shard in shards] for part in parts}
        outcomes = {part: [one.result() for one in ones] for part, ones in running.items()}
    rows = [
        {
            "part": part,
            **figures_of([folder_of(part, shard, given.shards) for shard in shards]),
            "seconds": sum(seconds for _, seconds in ones),
            "exit": max(abs(code) for code, _ in ones),
        }
        for part, ones in outcomes.items()
    ]
    (REPORTS / "simulated.json").write_text(json.dumps(rows, indent=1) + "\n")
    print("\nwaits, guards: those of the mutated kernels without which a check is violated, of those that matter")
    print(f"Simulated AMD GPUs, all checks on; {time.monotonic() - start:.0f} s, {given.jobs} at once\n{table(rows)}")
    return max(row["exit"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
