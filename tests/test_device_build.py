"""Builds with other device code: none, no compiler, some targets, ready objects; and what a change makes anew.

One build folder is configured again and again, so that only what holds the device code is compiled anew. Where it is
about the build alone, the device compiler is a stand-in that writes down what it was asked for.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import matmul_fused as mf
from matmul_fused import __main__ as cli
from support import python
from test_device_objects import ROOT, ROWS

CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
GENERATOR = ("-G", "Unix Makefiles")  # as a target it knows a single object
OBJECTS = "device/device_objects.o"

# Reads operands of the CPU, of the stand-in CUDA driver and of the simulated AMD GPU, as far as the build has code.
CALLS = """
import json
import numpy as np
import hipsim, matmul_fused as mf, stub_cuda
from support import check, draw
A, B, bias = draw((70, 33)), draw((33, 65)), draw(65)
check(mf.matmul_fused(A, B, bias, "gelu"), A, B, bias, activation="gelu")

def attempt(send, fetch):
    try:
        got = fetch(mf.matmul_fused(send(A), send(B), activation="relu"))
    except (NotImplementedError, mf.DeviceError) as error:
        return f"{type(error).__name__}: {error}"
    check(got, A, B, activation="relu")
    return "right"

def on_hip(arch):
    dev = hipsim.Device(arch)
    return attempt(dev.array, dev.to_numpy)

print(json.dumps({
    "file": mf.__file__,
    "cuda": attempt(stub_cuda.DeviceArray, stub_cuda.fetch),
    **{arch: on_hip(arch) for arch in ("gfx942", "gfx1100")},
    "code": mf.info().device_code,
    "devices": dict(mf.info().devices),
    "objects": sorted({arch for arch, _, _ in mf._core.device_objects()}),
}))
"""


def cmake(*arguments, wrong=None, **environment):
    """Run CMake; wrong: it must fail, and say this."""
    command = [CMAKE, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | environment)
    said = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode != 0) == (wrong is not None), done.stdout + done.stderr
    assert wrong is None or wrong in said
    return said


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """The device code of the installed build, as `info --objects` writes it."""
    folder = tmp_path_factory.mktemp("objects")
    if not mf._core.device_objects():
        pytest.skip("this build has no device code")
    assert cli.main(["info", "--objects", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Configure with these settings and build; what CALLS finds there."""
    import hipsim.build
    import stub_cuda

    folder, site = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "python" / "matmul_fused", site / "matmul_fused")
    libraries = {
        "MATMUL_FUSED_CUDA_LIBRARY": str(stub_cuda.build()),
        "MATMUL_FUSED_HIP_LIBRARY": os.environ["MATMUL_FUSED_HIP_LIBRARY"],
        "HIPSIM_DEVICES": "gfx942,gfx1100",
        "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)]),
    }
    hipsim.build.build(Path(libraries["MATMUL_FUSED_HIP_LIBRARY"]).parent)

    def make(settings, **environment):
        settings = {"MMF_GPU_ARCHS": "gfx942;gfx1100;sm_80", "MMF_DEVICE_OBJECTS": "", "MMF_WERROR": "ON", **settings}
        options = [f"-D{name}={value}" for name, value in settings.items()]
        cmake("-S", ROOT, "-B", folder, *GENERATOR, f"-DPython_EXECUTABLE={sys.executable}", *options, **environment)
        cmake("--build", folder, "--parallel", "2")
        shutil.copy2(folder / "_core.abi3.so", site / "matmul_fused")
        found = json.loads(python("-c", CALLS, environment=libraries).stdout)
        assert found.pop("file").startswith(str(site))
        return found

    return make


def without_code(found, why):
    """A CPU package that says why it is no more."""
    assert found["code"] == f"none: {why}"
    assert found["objects"] == []
    for device in ("cuda", "gfx942", "gfx1100"):
        assert found[device].startswith("NotImplementedError: ")
        assert f"gemm_simt: this build has no device code: {why}" in found[device]
    assert all(text.endswith(f"; this build has no device code: {why}") for text in found["devices"].values())


def test_no_targets(build):
    without_code(build({"MMF_GPU_ARCHS": "none"}), "it was built with MMF_GPU_ARCHS=none")


def test_no_device_compiler(build, tmp_path):
    """ziglang cannot be imported, as in a build without isolation on a machine that does not have it."""
    (tmp_path / "ziglang.py").write_text("raise ImportError('not installed')\n")
    why = "the build found no device compiler (PyPI's ziglang, or -DMMF_DEVICE_CLANG=clang)"
    without_code(build({}, PYTHONPATH=str(tmp_path)), why)


def test_ready_objects_of_some_targets(build, objects):
    found = build({"MMF_GPU_ARCHS": "gfx942;sm_90a", "MMF_DEVICE_OBJECTS": objects})
    assert found["code"] == "gfx942, sm_90a"
    assert found["objects"] == ["gfx942", "sm_90a"]
    assert found["cuda"] == found["gfx942"] == "right"
    why = "DeviceError: this build has no code for gfx1100 (AMD Radeon RX 7900 XTX), and hipRTC, which could compile it"
    assert found["gfx1100"].startswith(why)
    assert found["devices"]["rocm:1"].endswith("; generic kernel only, compiled by hipRTC on first use")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"MMF_GPU_ARCHS": "gfx942;mi300"}, 'MMF_GPU_ARCHS: "mi300" is no GPU target (gfx942, sm_90a) and not "none"'),
        ({"MMF_GPU_ARCHS": ""}, 'MMF_GPU_ARCHS is empty; it names GPU targets (gfx942;sm_90a), or is "none"'),
        ({"MMF_DEVICE_OBJECTS": "/nonexistent"}, "MMF_DEVICE_OBJECTS: /nonexistent has no gemm_simt_f32 for gfx90a;"),
    ],
)
def test_settings_that_cannot_be(tmp_path, settings, why):
    options = [f"-D{name}={value}" for name, value in {"MMF_BUILD_EXTENSION": "OFF", **settings}.items()]
    cmake("-S", ROOT, "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}", *options, wrong=why)


# What a change makes anew

COMPILER = """#!/bin/sh
# A device compiler that compiles nothing: its output says which kernel it is, and its log how often it was asked.
for word; do
    case "$before" in -o) out=$word;; esac
    case "$word" in -DMMF_KERNEL=*) echo "${word#*=} $*" >>"$0.log";; esac
    before=$word
done
echo "object $out" >"$out"
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources, configured for two targets with the stand-in compiler."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("csrc", "cmake"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy2(ROOT / name, root)
    for name in ("clang", "ld.lld"):
        (root / name).write_text(COMPILER)
        (root / name).chmod(0o755)
    settings = ["-DMMF_BUILD_EXTENSION=OFF", "-DMMF_GPU_ARCHS=gfx942,sm_80", "-DMMF_PTXAS="]
    settings += [f"-DMMF_DEVICE_CLANG={root / 'clang'}", f"-DPython_EXECUTABLE={sys.executable}"]
    cmake("-S", root, "-B", root / "build", *GENERATOR, *settings)
    return root


def compiled(tree):
    """Build the device code; the kernels that were compiled for it."""
    log = tree / "clang.log"
    log.write_text("")
    cmake("--build", tree / "build", "--parallel", "2", "--target", OBJECTS)
    lines = [line.split() for line in log.read_text().splitlines()]
    names = sorted(f"{next(w for w in line if 'arch=' in w).split('=')[1]} {line[0]}" for line in lines)
    assert len(set(names)) == len(names)
    return names


GFX942 = [f"gfx942 {kernel}" for kernel in ROWS]
SM_80 = [f"sm_80 {kernel}" for kernel, row in ROWS.items() if row["targets"] == "ALL"]


@pytest.mark.parametrize(
    ("touched", "anew"),
    [
        (None, sorted(GFX942 + SM_80)),
        (None, []),
        ("csrc/gpu/kernels/gemm_mfma.hip", sorted(name for name in GFX942 if "_mfma_" in name)),
        ("csrc/gpu/kernels/gemm_simt.hip", sorted(name for name in GFX942 + SM_80 if "_simt_" in name)),
        ("csrc/gpu/kernels/epilogue.h", sorted(GFX942 + SM_80)),
        ("csrc/problem/activations.def", sorted(GFX942 + SM_80)),
        ("csrc/gpu/launch.c", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "" if value is None else str(len(value)),
)
def test_only_what_changed_is_compiled(tree, touched, anew):
    if touched:
        (tree / touched).touch()
    assert compiled(tree) == anew


def test_an_object_is_embedded_anew(tree):
    """The stand-in's objects say where they were made: each is in the object file of the host."""
    compiled(tree)
    (found,) = (tree / "build").rglob("device_objects.c.o")
    text = found.read_bytes()
    for name in GFX942:
        assert f"object {tree}/build/device/{name.replace(' ', '/')}.co\n".encode() in text


@pytest.mark.parametrize("arch", ["gfx90a", "sm_80"])
def test_another_clang_makes_the_same_objects(objects, arch, tmp_path):
    """MMF_DEVICE_CLANG names a program; here it is ziglang's clang again, so every byte is the same."""
    ziglang = pytest.importorskip("ziglang")
    zig = Path(ziglang.__file__).parent / "zig"
    for name in ("clang", "ld.lld"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec "{zig}" {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    settings = ["-DMMF_BUILD_EXTENSION=OFF", f"-DMMF_GPU_ARCHS={arch}", f"-DMMF_DEVICE_CLANG={tmp_path / 'clang'}"]
    cmake("-S", ROOT, "-B", tmp_path / "build", *GENERATOR, *settings, f"-DPython_EXECUTABLE={sys.executable}")
    cmake("--build", tmp_path / "build", "--parallel", "2", "--target", OBJECTS)
    shipped = [path for path in (objects / arch).iterdir() if path.suffix != ".cubin"]
    assert len(shipped) == len(SM_80)
    for path in shipped:
        assert (tmp_path / "build/device" / arch / path.name).read_bytes() == path.read_bytes(), path.name
