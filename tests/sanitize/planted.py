"""Bugs put on purpose into a copy of the sources: each must be seen by the check that is there for its kind."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz import run as fuzzing

from . import toolchain

SEED, CALLS = 1, 100_000
COPIED = ("csrc", "cmake", "python", "tests/c/tile_model.h", "CMakeLists.txt", "pyproject.toml")


@dataclass(frozen=True)
class Bug:
    name: str
    sanitizer: str  # the build that must see it
    file: str
    right: str
    wrong: str
    seen_as: str  # pattern of the report
    gpu: bool = False  # seen by a test of the GPU host path; else address: by the fuzzer, thread: by stress.py


BUGS = (
    Bug(
        "packing reads one element past an edge",
        "address",
        "csrc/cpu/pack.inc",
        "T(load_line)(dtype, from + k * row * size, col, cols, panel + k * MMF_NR);",
        "T(load_line)(dtype, from + k * row * size, col, cols + (cols < MMF_NR), panel + k * MMF_NR);",
        r"heap-buffer-overflow",
    ),
    Bug(
        "a count of elements overflows",
        "address",
        "csrc/binding/import.c",
        "if (dl->shape[i] && __builtin_mul_overflow(bytes, dl->shape[i], &bytes))",
        "bytes *= dl->shape[i] ? dl->shape[i] : 1;\n        if (bytes == 0)",
        r"signed integer overflow",
    ),
    Bug(
        "an import keeps a reference",
        "address",
        "csrc/binding/libraries/dlpack.c",
        "    Py_XDECREF(method);\n",
        "",
        r"reference counts changed",
    ),
    Bug(
        "a capsule's tensor is released twice",
        "address",
        "csrc/binding/import.c",
        "    import->versioned = NULL;\n    import->legacy = NULL;\n    PyErr_Restore",
        "    if (import->versioned && import->tensor.ndim == 3)\n"
        "        import->versioned->deleter(import->versioned);\n    PyErr_Restore",
        r"heap-use-after-free|double-free",
    ),
    Bug(
        "one element of an edge gets no bias",
        "address",
        "csrc/cpu/epilogue.inc",
        "            for (int x = 0; x < cols; x++)\n                z[x] += line[x];",
        "            for (int x = 0; x < cols - (r == 2 && cols == 15); x++)\n                z[x] += line[x];",
        r"AssertionError: (?:out|preactivation)\[",
    ),
    Bug(
        "a worker leaves a job without releasing what it wrote",
        "thread",
        "csrc/cpu/pool.c",
        "atomic_fetch_sub(&pool.state, 1);\n            return true;",
        "atomic_fetch_sub_explicit(&pool.state, 1, memory_order_relaxed);\n            return true;",
        r"data race",
    ),
    Bug(
        "the facts of a GPU get the memory of a pointer",
        "address",
        "csrc/gpu/devices.c",
        "mmf_gpu *gpu = calloc(1, sizeof *gpu);",
        "mmf_gpu *gpu = calloc(1, sizeof gpu);",
        r"insufficient space for an object|heap-buffer-overflow",
        gpu=True,
    ),
)


def copy_sources(root: Path) -> None:
    """Bring root up to date; a file that is right already keeps its time, so that only what changed is built again."""
    for name in COPIED:
        top = toolchain.ROOT / name
        for source in [path for path in top.rglob("*") if path.is_file()] if top.is_dir() else [top]:
            target = root / source.relative_to(toolchain.ROOT)
            if not target.exists() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


def text_with(bug: Bug, root: Path) -> str:
    """The text of its file with the bug."""
    text = (root / bug.file).read_text()
    assert text.count(bug.right) == 1, f"{bug.file} holds {text.count(bug.right)} times:\n{bug.right}"
    return text.replace(bug.right, bug.wrong)


def seen(bug: Bug) -> bool:
    """Plant the bug in a copy, build it, and look."""
    folder = toolchain.BUILD / f"planted-{bug.sanitizer}"
    root = folder / "source"
    copy_sources(root)
    (root / bug.file).write_text(text_with(bug, root))
    site = toolchain.build(bug.sanitizer, root, folder)
    look = by_gpu_test if bug.gpu else by_fuzzer if bug.sanitizer == "address" else by_threads
    return bool(re.search(bug.seen_as, look(site)))


def reports(sanitizer: str, site: Path, command: Sequence[str]) -> list[str]:
    """What a sanitizer finds in a run of Python with these arguments."""
    with tempfile.TemporaryDirectory() as name:
        environment = toolchain.environment(site, Path(name) / "finding")
        full = [*toolchain.interpreter(sanitizer), *command]
        done = subprocess.run(full, env=environment, cwd=toolchain.ROOT, capture_output=True, timeout=600, check=False)
        of_ubsan = re.findall(r".*runtime error: .*", done.stderr.decode(errors="replace"))
        return toolchain.findings(Path(name) / "finding") + of_ubsan


def by_fuzzer(site: Path) -> str:
    found, _ = fuzzing.fuzz(SEED, CALLS, 1, site)
    return "\n".join(found)


def by_threads(site: Path) -> str:
    runs = (reports("thread", site, ["tests/sanitize/stress.py", str(seed)]) for seed in range(5))
    return "\n".join(next(filter(None, runs), []))


def by_gpu_test(site: Path) -> str:
    return "\n".join(reports("address", site, [*toolchain.PYTEST, "tests/test_gpu_host.py::test_default_stream"]))
