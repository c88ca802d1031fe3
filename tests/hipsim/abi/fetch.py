"""Foreign statements of what hipsim stands in for, fetched into a folder and unpacked there without root: of HIP's
interface Debian's headers and runtime (5.2) and AMD's bindings (6.4, 7.2, 10), of instructions AMD's pseudo-code.
Unreachable: a sentence why not, for the test to skip with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

HEADERS = ("libamdhip64-dev",)
RUNTIME = ("libamdhip64-5", "libhsa-runtime64-1", "libamd-comgr2", "libhsakmt1", "libnuma1", "libllvm15")
BINDINGS = {
    "6.4": ("hip-python==6.4.4.555.40",),
    "7.2": ("hip-python==7.2.2.562.43",),
    "10": ("rocm-bindings-hip==10.0.0.0.1.2", "rocm-bindings-core==10.0.0.0.1.2"),
}
PSEUDOCODE = ("tinygrad==0.14.0",)
# Of the wheels, hundreds of megabytes of BLAS and FFT bindings are left out.
WANTED = ("hip/__init__.py", "hip/_", "hip/chip.", "hip/hip.c", "rocm/")
TABLES = re.compile(r"tinygrad/runtime/autogen/amd/\w+/str_pcode\.py")


class Unreachable(Exception):  # noqa: N818
    pass


def _run(*command: str, folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Unreachable(f"{' '.join(command[:4])}: {last}")


def _once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """folder, filled by the first caller."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            fill(made)
            os.replace(made, folder)
        except OSError:
            if not folder.exists():  # somebody else was faster
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _debian(packages: tuple[str, ...], folder: Path) -> Path:
    def fill(made: Path) -> None:
        _run("apt-get", "download", *packages, folder=made)
        for package in made.glob("*.deb"):
            _run("dpkg-deb", "-x", str(package), str(made), folder=made)
            package.unlink()

    return _once(folder, fill)


def headers(cache: Path) -> Path:
    """An include folder of HIP 5.2."""
    return _debian(HEADERS, cache / "headers-5.2") / "usr" / "include"


def runtime(cache: Path) -> Path:
    """A folder of shared libraries with the real runtime 5.2."""
    return _debian(RUNTIME, cache / "runtime-5.2") / "usr" / "lib" / "x86_64-linux-gnu"


def _wheels(packages: tuple[str, ...], wanted: Callable[[str], object], folder: Path) -> Path:
    def fill(made: Path) -> None:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        _run(*pip, "--only-binary", ":all:", *packages, folder=made)
        for wheel in made.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(made, [name for name in archive.namelist() if wanted(name)])
            wheel.unlink()

    return _once(folder, fill)


def bindings(version: str, cache: Path) -> Path:
    """A folder for PYTHONPATH."""
    folder = cache / f"bindings-{version}-{sys.implementation.cache_tag}"
    return _wheels(BINDINGS[version], lambda name: name.startswith(WANTED), folder)


def pseudocode(family: str, cache: Path) -> Path:
    """AMD's pseudo-code of the instructions of "cdna", "rdna3" or "rdna4": a file to parse, not to import."""
    folder = _wheels(PSEUDOCODE, TABLES.fullmatch, cache / PSEUDOCODE[0])
    return folder / "tinygrad" / "runtime" / "autogen" / "amd" / family / "str_pcode.py"


def declarations(version: str, cache: Path) -> str:
    """The Cython declarations of every function and struct."""
    folder = bindings(version, cache)
    found = next(
        (path for path in (folder / "hip/chip.pxd", folder / "rocm/bindings/cyhip.pxd") if path.exists()), None
    )
    if found is None:
        raise Unreachable(f"the bindings {version} have no declarations where they are expected")
    return found.read_text()
