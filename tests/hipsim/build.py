"""Build the simulated GPU: `python -m hipsim.build FOLDER`, or build(folder), runs CMake and names the library."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def cmake() -> str:
    """CMake of PATH, else of the PyPI package."""
    found = shutil.which("cmake") or shutil.which("cmake", path=str(Path(sys.executable).parent))
    if not found:
        raise FileNotFoundError("cmake is not installed: pip install cmake")
    return found


def build(folder: str | os.PathLike[str], *, sanitize: str = "") -> Path:
    """Configure and build in folder (incremental); another process that builds there is waited for.

    Those who share a folder give the same options: tests that run while the library is linked anew fail.
    """
    options = {
        "HIPSIM_SANITIZE": sanitize,
        "HIPSIM_WERROR": "ON" if os.environ.get("CI") else "OFF",
    }
    configure = [cmake(), "-S", str(HERE), "-B", str(folder), *(f"-D{name}={value}" for name, value in options.items())]
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, [cmake(), "--build", str(folder), "--parallel", "2"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return Path(folder).resolve() / "libamdhip64_sim.so"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hipsim.build", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sanitize", default="", help="for example address,undefined")
    arguments = vars(parser.parse_args())
    print(build(arguments.pop("folder"), **arguments))


if __name__ == "__main__":
    main()
