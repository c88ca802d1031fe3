"""Builds of the extension with sanitizers, the environment to run them in, and what they found.

The interpreter is the stock one: only the extension is instrumented. The sanitizer's runtime therefore comes first by
LD_PRELOAD; libstdc++ beside it, because AddressSanitizer wants to see __cxa_throw before a library brings it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitize"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--capture=sys")
FLAGS = {"address": "address,undefined", "thread": "thread"}
# Python's small objects would hide in its arenas. Its own leaks at exit are no matter of ours.
_ADDRESS = "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:detect_stack_use_after_return=0"
_THREAD = f"die_after_fork=0:halt_on_error=0:exitcode=66:suppressions={Path(__file__).parent / 'thread.supp'}"
_GPU = "-DMMF_GPU_ARCHS=sm_80"  # what the stand-in CUDA driver loads
_BENIGN = "WARNING: AddressSanitizer failed to allocate"  # a size that a test asks for on purpose


def tool(name: str) -> str:
    """A program of the virtual environment, else of the machine."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        sys.exit(f"{name} is missing; `make sanitize` installs it into the virtual environment")
    return found


def compiler() -> str:
    found = shutil.which(os.environ.get("CC", "gcc"))
    if not found:
        sys.exit("a C compiler is missing: install gcc")
    return found


def runtime(sanitizer: str) -> str:
    """LD_PRELOAD for a sanitizer."""
    name = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer]
    done = subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"{compiler()} has no {name}: install GCC with its sanitizers")
    return f"{path} libstdc++.so.6" if sanitizer == "address" else path


def run(command: Sequence[str | Path]) -> None:
    """A build step; its output is shown if it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        print(done.stdout + done.stderr)
        raise subprocess.CalledProcessError(done.returncode, [*map(str, command)])


_one_at_a_time = threading.Lock()


def gpu_code() -> Path:
    """The GPU code of all the builds, which no sanitizer looks at: compiled once."""
    out = BUILD / "gpu"
    configure = [tool("cmake"), "-S", ROOT, "-B", out, "-G", "Ninja", "-DMMF_BUILD_EXTENSION=OFF", "-DMMF_PTXAS=", _GPU]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    with _one_at_a_time:
        run(configure)
        run([tool("ninja"), "-C", out, "CMakeFiles/mmf_core.dir/device/device_objects.c.o"])
    return out / "device"


def build(sanitizer: str, root: Path = ROOT, out: Path | None = None) -> Path:
    """Build root's extension, what is not up to date of it; the folder to put on PYTHONPATH."""
    out = out or BUILD / sanitizer
    objects, site = out / "objects", out / "site"
    configure = [tool("cmake"), "-S", root, "-B", objects, "-G", "Ninja", f"-DMMF_SANITIZE={FLAGS[sanitizer]}"]
    werror = "ON" if root == ROOT else "OFF"  # the compiler may warn of a bug that was planted
    configure += [f"-DMMF_WERROR={werror}", f"-DCMAKE_C_COMPILER={compiler()}", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += ["-DMMF_BUILD_TESTS=ON", _GPU, f"-DMMF_DEVICE_OBJECTS={gpu_code()}"]
    configure += ["-DMMF_TILE_MODEL=ON"]  # else the row of AMX would run on few machines
    run([*configure, f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"])
    run([tool("ninja"), "-C", objects])
    shutil.copytree(root / "python" / "matmul_fused", site / "matmul_fused", dirs_exist_ok=True)
    shutil.copy2(objects / "_core.abi3.so", site / "matmul_fused")
    return site


def environment(site: Path, logs: Path) -> dict[str, str]:
    """Of an interpreter that runs the extension of site; findings go to files that begin with logs."""
    dropped = ("MATMUL_FUSED_", "OMP_NUM_THREADS", "PYTHON", "LD_PRELOAD")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    options = f"log_path={logs}:log_exe_name=0:"
    return {
        **clean,
        "PYTHONMALLOC": "malloc",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT / 'tests'}",
        "ASAN_OPTIONS": options + _ADDRESS,
        "UBSAN_OPTIONS": "print_stacktrace=1",  # GCC's UBSan reports to stderr, whatever log_path says
        "TSAN_OPTIONS": options + _THREAD,
        "OPENBLAS_NUM_THREADS": "1",
    }


@cache
def launcher() -> tuple[str, ...]:
    """What starts a program: sanitizers of some GCCs cannot live with much randomisation of addresses."""
    setarch = shutil.which("setarch")
    if setarch and subprocess.run([setarch, "-R", "true"], check=False, capture_output=True).returncode == 0:
        return setarch, "-R"
    return ()


def interpreter(sanitizer: str) -> tuple[str, ...]:
    """What starts Python under a sanitizer."""
    return *launcher(), "env", f"LD_PRELOAD={runtime(sanitizer)}", sys.executable


def findings(logs: Path) -> list[str]:
    """The reports that sanitizers wrote so far."""
    texts = [path.read_text(errors="replace") for path in sorted(logs.parent.glob(logs.name + "*"))]
    lines = ("\n".join(line for line in text.split("\n") if _BENIGN not in line) for text in texts)
    return [text for text in lines if text.strip()]
