"""The C tests of tests/c, built by CMake as the extension is: what is below the binding, without Python."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hipsim.build import cmake

ROOT = Path(__file__).resolve().parents[1]
C_TESTS = ("-DMMF_BUILD_TESTS=ON", "-DMMF_BUILD_EXTENSION=OFF")


def run(*command):
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def configure(folder, *options):
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        pytest.skip("no C compiler")
    options += ("-DMMF_GPU_ARCHS=none", f"-DMMF_WERROR={'ON' if os.environ.get('CI') else 'OFF'}")
    run(cmake(), "-S", ROOT, "-B", folder, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options)


def test_cpu(tmp_path):
    configure(tmp_path, *C_TESTS)
    run(cmake(), "--build", tmp_path, "--parallel", 2)
    for program in ("test_cpu", "test_deal", "test_problem", "test_siblings", "test_xla"):
        assert ", 0 failed" in run(tmp_path / program)


def commands(folder, *options):
    """The compiler's command for every source below the binding."""
    configure(folder, *options)
    rows = json.loads((folder / "compile_commands.json").read_text())
    files = {Path(row["file"]): row["command"] for row in rows}
    below = [ROOT / "csrc" / layer for layer in ("problem", "plan", "cpu", "gpu", "xla")]
    return {str(file): files[file] for file in files if not {*below}.isdisjoint(file.parents)}


def test_what_is_tested_is_what_is_shipped(tmp_path):
    """The same sources and commands, flags and all, as for the extension."""
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["cmake"]
    options = [f"-D{name}={value}" for name, value in shipped.get("define", {}).items()]
    options += [f"-DCMAKE_BUILD_TYPE={shipped['build-type']}", f"-DPython_EXECUTABLE={sys.executable}"]
    tested = commands(tmp_path / "tests", *C_TESTS)
    assert tested == commands(tmp_path / "extension", *options, *shipped.get("args", []))
    assert str(ROOT / "csrc/cpu/reference.c") in tested


def test_products_are_fused_in_every_tuning(tmp_path):
    """Some tunings of GCC leave single chains of products unfused: the row's own flag comes later."""
    unfused, fused = "avoid-fma-max-bits=512", "avoid-fma-max-bits=0"
    rows = {file: command for file, command in commands(tmp_path, *C_TESTS).items() if "blocked_avx" in file}
    if not any("-fno-schedule-insns2" in command for command in rows.values()):
        pytest.skip("the C compiler is not GCC")
    tuned = commands(tmp_path / "tuned", *C_TESTS, f"-DCMAKE_C_FLAGS=--param={unfused}")
    assert all(fused in command for command in rows.values())
    assert all(0 < tuned[file].find(unfused) < tuned[file].rfind(fused) for file in rows)
