"""Bugs put on purpose into a copy of the sources: each must be seen by the check that is there for its kind."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fuzz import run as fuzzing

from . import toolchain

SEED, CALLS = 1, 100_000
COPIED = ("csrc", "cmake", "python", "CMakeLists.txt", "pyproject.toml")


@dataclass(frozen=True)
class Bug:
    name: str
    sanitizer: str  # the build that must see it; address: by the fuzzer, thread: by stress.py
    file: str
    right: str
    wrong: str
    seen_as: str  # pattern of the report


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
        "csrc/binding/import_capsule.c",
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
        "            for (int x = 0; x < cols; x++)\n                z[x] += bias_line[x];",
        "            for (int x = 0; x < cols - (r == 2 && cols == 15); x++)\n                z[x] += bias_line[x];",
        r"AssertionError: (?:out|preactivation)\[",
    ),
    Bug(
        "a worker leaves a job without releasing what it wrote",
        "thread",
        "csrc/cpu/pool.c",
        "atomic_fetch_sub(&pool.state, 1);",
        "atomic_fetch_sub_explicit(&pool.state, 1, memory_order_relaxed);",
        r"data race",
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


def seen(bug: Bug) -> bool:
    """Plant the bug in a copy, build it, and look."""
    folder = toolchain.BUILD / f"planted-{bug.sanitizer}"
    root = folder / "source"
    copy_sources(root)
    path = root / bug.file
    text = path.read_text()
    assert text.count(bug.right) == 1, f"{bug.file} holds {text.count(bug.right)} times:\n{bug.right}"
    path.write_text(text.replace(bug.right, bug.wrong))
    site = toolchain.build(bug.sanitizer, root, folder)
    look = by_fuzzer if bug.sanitizer == "address" else by_threads
    return bool(re.search(bug.seen_as, look(site)))


def by_fuzzer(site: Path) -> str:
    found, _ = fuzzing.fuzz(SEED, CALLS, 1, site)
    return "\n".join(found)


def by_threads(site: Path) -> str:
    texts: list[str] = []
    for seed in range(5):
        with tempfile.TemporaryDirectory() as name:
            environment = toolchain.environment(site, Path(name) / "finding")
            command = [*toolchain.interpreter("thread"), "tests/sanitize/stress.py", str(seed)]
            subprocess.run(command, env=environment, cwd=toolchain.ROOT, capture_output=True, timeout=600, check=False)
            texts += toolchain.findings(Path(name) / "finding")
        if texts:
            break
    return "\n".join(texts)
