"""Builds of this package beside the installed one: what tools/same_bits.py and bench/bench_call.py compare.

checkout() builds the working tree, revision() a commit. Both compile CPU code only, with the same flags, into
build/beside/NAME: cmake/ is kept, so that a second build compiles only what changed; site/ goes into PYTHONPATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/beside"


class BuildError(Exception):
    """A build that cannot be made, and why."""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _install(source: Path, folder: Path) -> Path:
    """Build the package of source into folder/site."""
    site = folder / "new"
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(site)]
    command += ["-C", f"build-dir={folder / 'cmake'}", "-C", "cmake.define.MMF_GPU_ARCHS=none", str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        needs = "scikit-build-core, cmake, ninja, numpy" if "scikit_build_core" in done.stderr else ""
        advice = f"\n{sys.executable} -m pip install {needs.replace(',', '')} may help" if needs else ""
        raise BuildError(f"the build of {source} failed:\n{done.stdout}{done.stderr}{advice}")
    shutil.rmtree(folder / "site", ignore_errors=True)
    return site.rename(folder / "site")


def checkout() -> Path:
    """The site folder of the working tree as it is now."""
    folder = FOLDER / "checkout"
    folder.mkdir(parents=True, exist_ok=True)
    return _install(ROOT, folder)


def revision(name: str) -> Path:
    """The site folder of a commit; built once."""
    folder = FOLDER / git("rev-parse", "--verify", "--short=12", f"{name}^{{commit}}")
    site, source = folder / "site", folder / "source"
    if site.is_dir():
        return site
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    git("archive", "--output", str(archive), folder.name)
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="data")
    archive.unlink()
    return _install(source, folder)


def environment(site: Path, **variables: str) -> dict[str, str]:
    """For a process that imports the package of site, without the variables that change what it does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MATMUL_FUSED_")}
    return {**kept, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **variables}
