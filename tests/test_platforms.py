"""Where the build stops, and what it says: every platform of the README's table that is not supported, by a compiler
for it; and what an older GPU gets.
"""

import re
import sys
from pathlib import Path

import pytest

import stub_cuda
from gpu_support import PATHS
from matmul_fused import _core
from support import python as child
from test_device_build import GENERATOR, cmake

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
# zig's target, CMake's system and processor -> what is said
ELSEWHERE = {
    "Windows": ("x86_64-windows-gnu", "Windows", "AMD64", "not on Windows AMD64 (64 bits)."),
    "macOS": ("aarch64-macos", "Darwin", "arm64", "not on Darwin arm64 (64 bits)."),
    "32 bits": ("x86-linux-gnu", "Linux", "i686", "not on Linux i686 (32 bits)."),
    "32 bits on x86-64": ("x86-linux-gnu", "Linux", "x86_64", "not on Linux x86_64 (32 bits)."),
    "RISC-V": ("riscv64-linux-gnu", "Linux", "riscv64", "not on Linux riscv64 (64 bits)."),
    "musl": ("x86_64-linux-musl", "Linux", "x86_64", "with glibc, not with another C library (musl, as on Alpine)"),
}


def compiler_for(target):
    zig = Path(pytest.importorskip("ziglang").__file__).parent / "zig"
    return f"-DCMAKE_C_COMPILER={zig};cc;-target;{target}"


@pytest.mark.parametrize("platform", ELSEWHERE)
def test_the_build_stops_with_a_sentence(platform, tmp_path):
    target, system, processor, says = ELSEWHERE[platform]
    options = [f"-DCMAKE_SYSTEM_NAME={system}", f"-DCMAKE_SYSTEM_PROCESSOR={processor}", "-DMMF_GPU_ARCHS=none"]
    options += [compiler_for(target), "-DMMF_BUILD_EXTENSION=OFF", "-DCMAKE_OSX_SYSROOT="]
    # Nothing is linked: zig would make the C library of every target.
    options += ["-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", "-DCMAKE_C_FLAGS=-c"]
    cmake("-S", ROOT, "-B", tmp_path, *GENERATOR, *options, wrong=says)


OTHERS = {
    "PyPy": ("sys.implementation.name = 'pypy'", "stable ABI of CPython, {} is another Python: pypy 0."),
    "free-threaded": (
        "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1",
        "which the free-threaded {} does not have",
    ),
}


@pytest.mark.parametrize("python", OTHERS)
def test_other_pythons_are_refused(python, tmp_path):
    """A CPython that says it is another."""
    change, says = OTHERS[python]
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{change}\n")
    stand_in = tmp_path / "python"
    stand_in.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    stand_in.chmod(0o755)
    options = [f"-DPython_EXECUTABLE={stand_in}", "-DMMF_GPU_ARCHS=none"]
    cmake("-S", ROOT, "-B", tmp_path / "build", *GENERATOR, *options, wrong=says.format(stand_in))


OLD_GPU = """
import numpy as np, matmul_fused as mf, stub_cuda
x = stub_cuda.DeviceArray(np.ones((4, 4), np.float32))
try:
    mf.matmul_fused(x, x)
except NotImplementedError as error:
    print(error)
print(dict(mf.info().devices)["cuda:0"])
"""


def test_an_nvidia_gpu_before_sm_80():
    """Refused by name, where the build has GPU code. An AMD GPU without an object: test_hip_errors.py."""
    given = {"MATMUL_FUSED_CUDA_LIBRARY": str(stub_cuda.build()), "STUB_CUDA_CAPABILITY": "75", "PYTHONPATH": PATHS}
    said = child("-c", OLD_GPU, environment=given).stdout
    wanted = "this build has no gemm_simt for sm_75" if _core.device_objects() else "this build has no device code"
    assert wanted in said
    assert "sm_75" in said


def test_the_table_quotes_what_is_said():
    """Sentences in quotes stand in the sources, but for what is filled in."""
    sources = "\n".join(path.read_text() for path in (*ROOT.glob("cmake/*.cmake"), *ROOT.glob("csrc/**/*.c")))
    sources = re.sub(r'"\s*"', "", sources)
    rows = [line for line in README.splitlines() if line.startswith(("| Windows", "| musl", "| PyPy", "| older GPUs"))]
    assert len(rows) == 4
    quoted = [text for row in rows for text in re.findall(r'"([^"]+)"', row)]
    assert len(quoted) >= 5
    for text in quoted:
        pieces = [piece.strip() for piece in text.split("...") if piece.strip()]
        assert pieces
        assert all(piece in sources for piece in pieces), text
