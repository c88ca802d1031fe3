"""Compare the bits of every CPU kernel with those of another revision: `python tools/same_bits.py REV`.

Both are built beside (tools/beside.py), each runs in a process of its own on the case list of this checkout: as the
plan chooses and with every kernel forced. What the call wrote and returned is compared byte by byte, a refusal by its
type and text. Exit status 1: something differs; the first differing cases are printed.

  --sample N    N cases of the list, chosen by --seed, instead of all (44,000 cases: 15 minutes of two quiet cores)
  --rows A,B    these kernels only, "chosen" is what the plan chooses; cpu_reference takes most of the time
  --any-text    refusals may differ in their text
  --any-nan     a NaN may differ in its sign and payload
  --new         a run that REV refuses and this checkout does not is counted, not a difference
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any

import beside

CHOSEN = "chosen"
SHOWN = 10  # differing runs that are printed
REFUSED = "refused: "


def case_list() -> Any:
    """matmul_fused.testing of this checkout, whatever package this process imports as matmul_fused."""
    folder = beside.ROOT / "python/matmul_fused/testing"
    spec = importlib.util.spec_from_file_location("case_list", folder / "__init__.py")
    module = sys.modules["case_list"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chosen_cases(testing: Any, sample: int, seed: int) -> list[Any]:
    cases = testing.all_cases()
    return random.Random(seed).sample(cases, sample) if 0 < sample < len(cases) else list(cases)


def result(testing: Any, inputs: Any, row: str, any_nan: bool = False) -> str:
    """A digest of all operands and the new result after the call; or the refusal."""
    import numpy as np

    def same_nan(array: Any, before: Any = None) -> Any:
        """With any_nan: every NaN alike, but for those of guards, of fill and of inputs, which were there before."""
        if not any_nan:
            return array
        written = np.isnan(array)
        if before is not None:
            bits = f"u{array.itemsize}"
            written &= array.view(bits) != before.view(bits)
        return np.where(written, array.dtype.type(np.nan), array)

    import matmul_fused as mf

    operands = {id(operand): operand for operand in inputs.operands.values()}.values()
    for operand in operands:
        operand.buffer[...] = operand.original
    try:
        with nullcontext() if row == CHOSEN else mf.testing.force_kernel(row):
            arguments, arrays = testing.run.call_arguments(inputs, testing.run.NumPyTransfer(), mf)
            out = mf.matmul_fused(**arguments)
    except Exception as error:
        text = re.sub(rf"\w+: {row} is forced(; )?", "", str(error))  # said of every other row, new ones too
        return f"{REFUSED}{type(error).__name__}: {text}"
    digest = hashlib.blake2b(digest_size=16)
    for operand in operands:
        digest.update(same_nan(operand.buffer, operand.original).view(np.uint8))
    if "out" not in arrays:
        digest.update(f"{out.shape}{out.dtype}".encode())
        digest.update(np.ascontiguousarray(same_nan(out)).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def worker(rows: list[str], sample: int, seed: int, any_nan: bool) -> None:
    """Print one JSON object {row: result} per case."""
    import matmul_fused.testing  # noqa: F401

    testing = case_list()
    for case in chosen_cases(testing, sample, seed):
        inputs = testing.make_inputs(case, seed)
        print(json.dumps({row: result(testing, inputs, row, any_nan) for row in rows}))


def kernels(site: Path) -> list[str]:
    """The CPU kernels of a build."""
    source = "import json, matmul_fused as mf; print(json.dumps([mf.__file__, mf._core.info()['kernels']]))"
    command = [sys.executable, "-c", source]
    file, names = json.loads(subprocess.run(command, env=beside.environment(site), check=True, stdout=-1).stdout)
    if Path(file).parents[1] != site:
        raise beside.BuildError(f"{file} was imported, not the package in {site}")
    return names


def common_rows(options: argparse.Namespace, here: list[str], there: list[str]) -> list[str]:
    """The rows to compare. A kernel of REV that is gone is an error, a new one is said."""
    wanted = [row for row in options.rows.split(",") if row]
    lost = [row for row in wanted or there if row not in (CHOSEN, *here)]
    if lost:
        raise beside.BuildError(
            f"this checkout has no kernel {', '.join(lost)}; --rows takes {CHOSEN}, {', '.join(here)}"
        )
    new = [row for row in wanted or here if row not in (CHOSEN, *there)]
    if new:
        print(f"{options.revision} has no kernel {', '.join(new)}: not compared")
    return [row for row in wanted or [CHOSEN, *here] if row not in new]


def start(site: Path, options: argparse.Namespace, rows: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", "--rows", ",".join(rows)]
    command += ["--sample", str(options.sample), "--seed", str(options.seed)]
    command += ["--any-nan"] if options.any_nan else []
    # the number of threads changes no bits (tests/test_sweep.py): one leaves the other core to the other side
    environment = beside.environment(site, MATMUL_FUSED_NUM_THREADS="1")
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def compare(sides: Sequence[Iterable[str]], cases: list[Any], rows: list[str], any_text: bool, new: bool) -> list[str]:
    """The differing runs, in words. sides: the lines of two workers. Prints progress and a line per row."""
    equal, refused, added, texts = Counter(), Counter(), Counter(), Counter()
    differing = []
    began = shown = time.monotonic()
    for number, (case, *lines) in enumerate(zip_longest(cases, *sides), 1):
        if case is None or None in lines:
            return [*differing, f"{case.id if case else 'the end of the list'}: one side ended early"]
        here, there = map(json.loads, lines)
        for row in rows:
            mine, theirs = here[row], there[row]
            both_refuse = mine.startswith(REFUSED) and theirs.startswith(REFUSED)
            if mine == theirs or (both_refuse and any_text):
                (refused if both_refuse else equal)[row] += 1
                continue
            if new and theirs.startswith(REFUSED) and not mine.startswith(REFUSED):
                added[row] += 1
                continue
            differing.append(f"{row}, {case.id}\n    here  {mine}\n    there {theirs}")
            if both_refuse:
                texts[mine, theirs] += 1
        if time.monotonic() - shown > 15 or number == len(cases):
            shown = time.monotonic()
            print(f"{number} of {len(cases)} cases, {shown - began:.0f} s, {len(differing)} runs differ", flush=True)
    for row in rows:
        print(f"{row}: {equal[row]} results are the same bits, {refused[row]} refusals the same, {added[row]} new")
    for (mine, theirs), count in texts.most_common(SHOWN):
        print(f"{count} refusals differ in their text:\n    here  {mine}\n    there {theirs}")
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", metavar="REV")
    parser.add_argument("--sample", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", default="", metavar="A,B")
    parser.add_argument("--any-text", action="store_true")
    parser.add_argument("--any-nan", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.rows.split(","), options.sample, options.seed, options.any_nan)
        return 0
    if not options.revision:
        parser.error("which revision? python tools/same_bits.py REV")
    print("building", flush=True)
    sites = [beside.checkout(), beside.revision(options.revision)]
    rows = common_rows(options, *map(kernels, sites))
    sides = [start(site, options, rows) for site in sites]
    try:
        cases = chosen_cases(case_list(), options.sample, options.seed)
        differing = compare([side.stdout for side in sides], cases, rows, options.any_text, options.new)
    finally:
        for side in sides:
            side.kill()
            side.wait()
    for text in differing[:SHOWN]:
        print(text)
    verdict = f"{len(differing)} runs differ" if differing else "the same bits"
    print(f"{verdict}: {len(cases)} cases, {', '.join(rows)}, this checkout and {options.revision}")
    return bool(differing)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except beside.BuildError as error:
        sys.exit(str(error))
