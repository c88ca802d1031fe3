"""A gate on speed that no noise moves: counted instructions of fixed calls beside bench/instructions.json.

    python bench/instructions.py [--write] [--wheel FILE]

Of the wheel for x86-64 (dist/, which `python tools/wheel_build.py x86_64` writes), so that the compiler is the pinned
one. On the CPU callgrind counts what the extension executes, on the processor that valgrind shows to it (AVX2,
whatever this one has) and one thread; Python, NumPy and libc are not counted. On simulated AMD GPUs: instructions,
bytes loaded, cycles lost to bank conflicts. What is over 3 % worse than the checked-in figure fails. Not counted:
AVX-512 and AMX, which valgrind has not, and NVIDIA, which nothing here executes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "bench/instructions.json"
CALLS = ROOT / "bench/instruction_calls.py"
PARTS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
MOST = 3  # percent
RENEW = "make instructions COUNT=--write"


# Callgrind


def executed(profile, library):
    """Instructions of a library in the text of a callgrind profile, less those of what it calls."""
    names, total = {}, 0
    counts = inclusive = False
    for line in profile.splitlines():
        named = re.match(r"(c?ob)=\((\d+)\)(?: (.*))?$", line)
        if named:
            if named[3]:
                names[named[2]] = Path(named[3]).name
            if named[1] == "ob":
                counts = names[named[2]] == library
        elif line.startswith("calls="):
            inclusive = True  # the next line has the cost of the callee
        elif re.match(r"[+*\d-]", line):
            if counts and not inclusive:
                total += int(line.split()[1])
            inclusive = False
    return total


def between_markers(folder, names):
    """{row: figures}: profiles count from 1; the odd ones lie before a call, the even ones are calls."""
    rows = {}
    for number, name in enumerate(names):
        text = (folder / f"profile.{2 * number + 2}").read_text()
        rows[f"cpu {name}"] = {"instructions": executed(text, "_core.abi3.so")}
    return rows


def run(command, site, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MATMUL_FUSED_", "HIPSIM_"))}
    given = {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "tests")]), "PYTHONHASHSEED": "0"}
    given |= {"MATMUL_FUSED_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, env=kept | given)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout[-4000:]}{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def count_cpu(site):
    valgrind = subprocess.check_output(["sh", ROOT / "tools/valgrind.sh", ROOT / "build/valgrind"], text=True).split()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={folder}/profile"]
        names = run([*valgrind, *options, sys.executable, CALLS, "cpu"], site)
        return between_markers(Path(folder), names)


def count_gpu(site, part):
    sys.path.insert(0, str(ROOT / "tests"))
    from hipsim.build import build

    library = build(ROOT / "build/hipsim")
    settings = {"MATMUL_FUSED_HIP_LIBRARY": str(library), "HIPSIM_DEVICES": part, "HIPSIM_THREADS": "1"}
    return run([sys.executable, CALLS, part], site, **settings)


def count(wheel, parts=PARTS):
    """{row: {counter: figure}} of a wheel."""
    with tempfile.TemporaryDirectory() as site:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        rows = count_cpu(site)
        for part in parts:
            rows |= count_gpu(site, part)
    return rows


# The judgement


def judge(figures, seen):
    """(lines of a table, failures): every figure beside what was seen."""
    lines, failures = [], []
    for row in sorted(set(figures) | set(seen)):
        if row not in seen or row not in figures:
            failures.append(f"{row}: {'has no figure' if row in seen else 'was not counted'}")
            continue
        for counter, allowed in figures[row].items():
            now = seen[row].get(counter)
            if now is None:
                failures.append(f"{row}: {counter} was not counted")
                continue
            change = now / allowed - 1 if allowed else float(now > 0)
            lines.append(f"{row:52} {counter:20} {allowed:>10} {now:>10} {change:+8.2%}")
            if 100 * now > (100 + MOST) * allowed:
                failures.append(f"{row}: {counter} {allowed} -> {now}, {change:+.1%}")
    return lines, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="make what is seen the new figures")
    parser.add_argument("--wheel", type=Path, help="the wheel to count; default: that of dist/")
    given = parser.parse_args()
    wheels = [given.wheel] if given.wheel else list((ROOT / "dist").glob("*manylinux*_x86_64.whl"))
    if len(wheels) != 1:
        sys.exit(f"dist/ holds {len(wheels)} wheels for x86_64; python tools/wheel_build.py x86_64 builds one")
    seen = count(wheels[0])
    figures = json.loads(FIGURES.read_text()) if FIGURES.is_file() else {}
    lines, failures = judge(figures, seen)
    print(*lines, sep="\n")
    if given.write:
        text = ",\n".join(f" {json.dumps(row)}: {json.dumps(seen[row])}" for row in sorted(seen))
        FIGURES.write_text(f"{{\n{text}\n}}\n")
        print(f"{len(seen)} rows written to {FIGURES.relative_to(ROOT)}")
    elif failures:
        sys.exit("\n".join([f"over {MOST} % worse, if meant: {RENEW}", *failures]))
    else:
        print(f"{len(seen)} calls: none is over {MOST} % worse; better ones become the figures by {RENEW}")


if __name__ == "__main__":
    main()
