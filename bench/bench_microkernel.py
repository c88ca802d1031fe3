"""The inner loop of every CPU kernel that runs here, in the first cache, beside a bare loop of the same instruction.

    python bench/bench_microkernel.py [--threads N] [--rounds N] [--results FILE]

Wanted of inner / bare: 0.92 of loops of fused multiply-adds, 0.70 of AMX, whose tiles are loaded between products. The
rows are compiled as the package compiles them (bench/microkernel.c). With N threads, N processes run at once, each on a
core of its own. Writes the section "microkernel KIND" of RESULTS.md, and from it and the table of bench_cpu.py the
roofline docs/cpu_roofline_KIND.svg: `python bench/cpu_roofline.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import machine
import results

from matmul_fused.console import progress, show

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/bench/microkernel"
READ_BYTES = 256 << 20
HEADER = ("row", "instruction", "threads", "inner loop, Gflop/s", "bare loop, Gflop/s", "inner / bare", "wanted")


@dataclass(frozen=True)
class Loop:
    """A row: what its sums are made by, and the share of the bare loop's rate that is wanted."""

    row: str
    instruction: str
    feature: str  # of info().cpu_features
    wanted: float


LOOPS = (
    Loop("blocked_avx2", "float32 FMA, 32 bytes", "avx2", 0.92),
    Loop("blocked_avx512", "float32 FMA, 64 bytes", "avx512", 0.92),
    Loop("blocked_avx512_bf16", "VDPBF16PS", "avx512_bf16", 0.92),
    Loop("blocked_amx", "TDPBF16PS", "amx_bf16", 0.70),
    Loop("blocked_amx_split", "TDPBF16PS, all four", "amx_bf16", 0.70),
)


def _run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def command(loop: Loop, folder: Path) -> list[str]:
    """The compiler, and what it is given for the row's source in a build folder, for bench/microkernel.c instead."""
    source = str(ROOT / f"csrc/cpu/kernels/{loop.row}.c")
    commands = {row["file"]: row["command"] for row in json.loads((folder / "compile_commands.json").read_text())}
    words = shlex.split(commands[source])
    flags = [word for word in words[: words.index("-o")] if word != "-Werror"]
    return [*flags, f'-DMICROKERNEL_SOURCE="cpu/kernels/{loop.row}.c"', str(ROOT / "bench/microkernel.c")]


def build(loop: Loop, folder: Path = BUILD) -> Path:
    """The program of a row, compiled with the flags that the package compiles the row with."""
    cmake = shutil.which("cmake") or shutil.which("cmake", path=str(Path(sys.executable).parent))
    options = ("-DMMF_BUILD_EXTENSION=OFF", "-DMMF_GPU_ARCHS=none", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    _run(cmake, "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", *options)
    _run(cmake, "--build", folder, "--target", "mmf_core", "--parallel", os.cpu_count() or 1)
    program = folder / loop.row
    libraries = ("-lpthread", "-lm", "-ldl")
    _run(*command(loop, folder), "-o", program, folder / "libmmf_core.a", *libraries)
    return program


def measure(program: Path, threads: int, rounds: int) -> list[tuple[float, float, float]]:
    """Of each round the sums over the threads: Gflop/s of the inner loop, of the bare loop, GB/s read."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    words = [str(program), str(machine.first_cache()), str(READ_BYTES), str(rounds)]
    ran = []
    for core in cores:
        ran.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        os.sched_setaffinity(ran[-1].pid, {core})
    outputs = [process.communicate()[0] for process in ran]
    if any(process.returncode for process in ran):
        raise RuntimeError(f"{shlex.join(words)} ended with {[process.returncode for process in ran]}")
    lines = [[tuple(map(float, line.split())) for line in output.splitlines()] for output in outputs]
    return [tuple(map(sum, zip(*of_a_round, strict=True))) for of_a_round in zip(*lines, strict=True)]


def row_of(loop: Loop, threads: int, rounds: list[tuple[float, float, float]]) -> tuple[str, ...]:
    inner, bare = (statistics.median(column) for column in list(zip(*rounds, strict=True))[:2])
    low, _, high = statistics.quantiles([r[0] / r[1] for r in rounds], n=4)
    share = statistics.median(r[0] / r[1] for r in rounds)
    verdict = f"{loop.wanted:.2f} {'met' if share >= loop.wanted else 'missed'}"
    figures = f"{inner:.0f}", f"{bare:.0f}", f"{share:.3f} ({low:.3f}-{high:.3f})"
    return (loop.row, loop.instruction, str(threads), *figures, verdict)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--results", metavar="FILE", type=Path, default=results.RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    about = machine.about("is as the C library has it")
    loops = [loop for loop in LOOPS if loop.feature in about["cpu_features"].split()]
    counts = sorted({1, options.threads})
    rows, reads = [], {}
    for loop in progress(loops, "bench"):
        program = build(loop)
        for threads in counts:
            rounds = measure(program, threads, options.rounds)
            rows.append(row_of(loop, threads, rounds))
            reads[threads] = statistics.median(r[2] for r in rounds)
    show("the inner loops of this machine's rows", HEADER, rows)
    read = ", ".join(f"{reads[n]:.1f} GB/s on {n} thread{'s' if n > 1 else ''}" for n in counts)
    text = f"`python bench/bench_microkernel.py`, {machine.sentence(about)}. Medians and quartiles of "
    text += f"{options.rounds} rounds of 20 ms of processor time each. Read from memory: {read}."
    print(text)
    name = f"microkernel {machine.table()}"
    if results.has_section(options.results, name):
        results.write_section(options.results, name, f"{text}\n\n{results.markdown(HEADER, rows)}")
    else:
        print(f"{options.results.name} is left as it is: it has no section {name!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
