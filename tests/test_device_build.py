"""Builds with other device code: none, no compiler, some targets, ready objects; and what a change makes anew.

One build folder is configured again and again, so that only what holds the device code is compiled anew. Where it is
about the build alone, the device compiler is a stand-in that logs its arguments.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hipsim.build
import matmul_fused as mf
import stub_cuda
from hipsim.abi import fetch
from matmul_fused import __main__ as cli
from support import python
from test_device_objects import ROOT, ROWS

CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
GENERATOR = ("-G", "Unix Makefiles")  # as a target it knows a single object
OBJECTS = "device/device_objects.o"
HIPSIM = Path(os.environ["MATMUL_FUSED_HIP_LIBRARY"])  # of conftest.py

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


class Build:
    """One build folder, and the package that its latest build made."""

    def __init__(self, folder):
        self.folder, self.site = folder / "build", folder / "site"
        shutil.copytree(ROOT / "python" / "matmul_fused", self.site / "matmul_fused")

    def run(self, code, devices="gfx942,gfx1100", **environment):
        """What Python prints for this code, with the package and the stand-in drivers."""
        environment = {
            "MATMUL_FUSED_CUDA_LIBRARY": str(stub_cuda.build()),
            "MATMUL_FUSED_HIP_LIBRARY": str(HIPSIM),
            "HIPSIM_DEVICES": devices,
            "PYTHONPATH": os.pathsep.join([str(self.site), *filter(None, sys.path)]),
            **environment,
        }
        return python("-c", code, environment=environment).stdout

    def make(self, settings, **environment):
        """Configure with these settings and build; what CALLS finds."""
        settings = {"MMF_GPU_ARCHS": "gfx942;gfx1100;sm_80", "MMF_DEVICE_OBJECTS": "", "MMF_WERROR": "ON", **settings}
        options = [f"-DPython_EXECUTABLE={sys.executable}", *(f"-D{name}={value}" for name, value in settings.items())]
        cmake("-S", ROOT, "-B", self.folder, *GENERATOR, *options, **environment)
        cmake("--build", self.folder, "--parallel", "2")
        shutil.copy2(self.folder / "_core.abi3.so", self.site / "matmul_fused")
        found = json.loads(self.run(CALLS))
        assert found.pop("file").startswith(str(self.site))
        return found


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    hipsim.build.build(HIPSIM.parent)
    return Build(tmp_path_factory.mktemp("variants"))


def without_code(found, why):
    """A CPU package that says why it is no more."""
    assert found["code"] == f"none: {why}"
    assert found["objects"] == []
    for device in ("cuda", "gfx942", "gfx1100"):
        assert found[device].startswith("NotImplementedError: ")
        assert f"gemm_simt: this build has no device code: {why}" in found[device]
    assert all(text.endswith(f"; this build has no device code: {why}") for text in found["devices"].values())


def test_no_targets(build):
    without_code(build.make({"MMF_GPU_ARCHS": "none"}), "it was built with MMF_GPU_ARCHS=none")


def test_no_device_compiler(build, tmp_path):
    """ziglang cannot be imported, as in a build without isolation on a machine that does not have it."""
    (tmp_path / "ziglang.py").write_text("raise ImportError('not installed')\n")
    why = "the build found no device compiler (PyPI's ziglang, or -DMMF_DEVICE_CLANG=clang)"
    without_code(build.make({}, PYTHONPATH=str(tmp_path)), why)


def test_ready_objects_of_some_targets(build, objects):
    found = build.make({"MMF_GPU_ARCHS": "gfx942;sm_90a", "MMF_DEVICE_OBJECTS": objects})
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
        (
            {"MMF_DEVICE_OBJECTS": "/nonexistent"},
            f"MMF_DEVICE_OBJECTS: /nonexistent has no {next(iter(ROWS))} for gfx90a;",
        ),
    ],
)
def test_settings_that_cannot_be(tmp_path, settings, why):
    options = [f"-D{name}={value}" for name, value in {"MMF_BUILD_EXTENSION": "OFF", **settings}.items()]
    cmake("-S", ROOT, "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}", *options, wrong=why)


# hipRTC, for an AMD GPU that the build has no code for

ON_GFX90A = """
import hipsim, matmul_fused as mf
from support import check, draw
dev = hipsim.Device("gfx90a")
print(dict(mf.info().devices)["rocm:0"].rpartition("; ")[2])
for dtype in ("float32", "float64", "float16", "bfloat16"):
    A, B, bias = draw((70, 33), dtype), draw((33, 65), dtype), draw(65, dtype)
    y = mf.matmul_fused(dev.array(A), dev.array(B), dev.array(bias), "gelu")
    check(dev.to_numpy(y), A, B, bias, activation="gelu")
print(dev.assert_clean().counters["launches"], hipsim.calls("hipModuleLoadData"))
"""
FAILS = """
import hipsim, matmul_fused as mf
from support import draw
x = hipsim.Device("gfx90a").array(draw((4, 4)))
for _ in range(2):
    try:
        mf.matmul_fused(x, x)
    except mf.DeviceError as error:
        print(error)
"""
FAILING_HIPRTC = """
#include <string.h>
int hiprtcCreateProgram(void **p, const char *source, const char *name, int count, void *headers, void *names)
{
    *p = p;
    return !strstr(source, "MMF_KERNEL");
}
int hiprtcCompileProgram(void *p, int count, const char **options)
{
    return strcmp(options[0], "--offload-arch=gfx90a") ? 1 : 6;
}
int hiprtcGetCodeSize(void *p, size_t *size) { return 1; }
int hiprtcGetCode(void *p, char *code) { return 1; }
int hiprtcGetProgramLogSize(void *p, size_t *size) { *size = 3000; return 0; }
int hiprtcGetProgramLog(void *p, char *log)
{
    memset(log, '.', 2990);
    strcpy(log + 2990, "log's end");
    return 0;
}
int hiprtcDestroyProgram(void **p) { *p = 0; return 0; }
const char *hiprtcGetErrorString(int code) { return code == 6 ? "HIPRTC_ERROR_COMPILATION" : "?"; }
"""

# Debian's ROCm 5.2: the runtime with hipRTC in it, the compiler behind that, and what they need
ROCM = (*fetch.RUNTIME, "libhiprtc-builtins5", "rocm-device-libs", "libclang-cpp15", "libelf1", "libz3-4", "libedit2")
ROCM += ("libbsd0", "libmd0", "libxml2", "libdrm2", "libdrm-amdgpu1")


@pytest.fixture(scope="module")
def rocm():
    try:
        folder = fetch._debian(ROCM, HIPSIM.parent / "abi" / "hiprtc-5.2")
    except fetch.Unreachable as reason:
        pytest.skip(f"cannot be fetched: {reason}")
    return folder / "usr" / "lib" / "x86_64-linux-gnu"


@pytest.fixture
def without_gfx90a(build, objects, tmp_path):
    """A build without code for gfx90a, and a folder where the simulated runtime finds a hipRTC beside it."""
    build.make({"MMF_GPU_ARCHS": "gfx942", "MMF_DEVICE_OBJECTS": objects})
    (tmp_path / HIPSIM.name).symlink_to(HIPSIM)
    return build, tmp_path


def test_hiprtc_compiles_the_generic_kernel(without_gfx90a, rocm):
    """Debian's hipRTC (ROCm 5.2, LLVM 15): what it makes of the embedded text runs on the simulated GPU."""
    build, folder = without_gfx90a
    (folder / "libhiprtc.so.5").symlink_to(rocm / "libamdhip64.so.5")  # of which hipRTC was a part then
    library = {"MATMUL_FUSED_HIP_LIBRARY": str(folder / HIPSIM.name), "LD_LIBRARY_PATH": str(rocm)}
    lines = build.run(ON_GFX90A, "gfx90a", **library).splitlines()
    assert lines == ["generic kernel only, compiled by hipRTC on first use", "4 4"]


def test_hiprtc_that_fails(without_gfx90a):
    build, folder = without_gfx90a
    (folder / "hiprtc.c").write_text(FAILING_HIPRTC)
    compiler = next(filter(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "cc", "clang")))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libhiprtc.so.9", folder / "hiprtc.c"], check=True)
    lines = build.run(FAILS, "gfx90a", MATMUL_FUSED_HIP_LIBRARY=str(folder / HIPSIM.name)).splitlines()
    assert lines[0] == "hipRTC did not compile the generic kernel for gfx90a: HIPRTC_ERROR_COMPILATION"
    assert lines[1].endswith("...log's end")
    assert len(lines[1]) == 1000
    assert lines[2:] == lines[:2]  # tried again


def test_the_real_runtime_finds_no_gpu(rocm):
    """Debian's HIP runtime on a machine without a device, in our words."""
    if os.path.exists("/dev/kfd"):
        pytest.skip("this machine has an AMD GPU")
    library = rocm / "libamdhip64.so.5"
    path = os.pathsep.join(filter(None, sys.path))
    environment = {"MATMUL_FUSED_HIP_LIBRARY": str(library), "LD_LIBRARY_PATH": str(rocm), "PYTHONPATH": path}
    code = "import matmul_fused as mf; print(dict(mf.info().backends)['AMD GPUs'])"
    said = python("-c", code, environment=environment).stdout
    assert said == f"off: {library} finds no AMD GPU (hipInit: hipErrorInvalidDevice)\n"


# What a change rebuilds

COMPILER = """#!/bin/sh
# A device compiler that compiles nothing: its output says which kernel it is, and its log how often it ran.
for word; do
    case "$before" in -o) out=$word;; esac
    case "$word" in -DMMF_KERNEL=*) echo "${word#*=} $*" >>"$0.log";; esac
    before=$word
done
echo "object $out" >"$out"
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources, configured and built for two targets with the stand-in compiler."""
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
    assert compiled(root) == sorted(GFX942 + SM_80)
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


GFX942 = [f"gfx942 {kernel}" for kernel, row in ROWS.items() if row["targets"] == "ALL" or "GFX942" in row["targets"]]
SM_80 = [f"sm_80 {kernel}" for kernel, row in ROWS.items() if row["targets"] == "ALL" or "SM_80" in row["targets"]]


@pytest.mark.parametrize(
    ("touched", "anew"),
    [
        (None, []),
        ("csrc/gpu/kernels/cdna/gemm_mfma.hip", sorted(name for name in GFX942 if "_mfma_128x128x64_" in name)),
        ("csrc/gpu/kernels/common/gemm_simt.hip", sorted(name for name in GFX942 + SM_80 if "_simt_64" in name)),
        ("csrc/gpu/kernels/common/reduce_splitk.hip", sorted(name for name in GFX942 + SM_80 if " reduce_" in name)),
        (
            "csrc/gpu/kernels/cdna/carrier.h",
            sorted(name for name in GFX942 if re.search("_(?:mfma|pingpong|thin)_", name)),
        ),
        ("csrc/gpu/kernels/common/epilogue_general.h", sorted(GFX942 + SM_80)),
        ("csrc/problem/activations.def", sorted(GFX942 + SM_80)),
        ("csrc/gpu/launch_plan.c", []),
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


@pytest.mark.parametrize("arch", ["gfx1100", "sm_80"])  # of each vendor, the one with the fewest objects
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
    targets = [row["targets"] for row in ROWS.values()]
    assert len(shipped) == sum(target == "ALL" or arch.upper() in target.split(" | ") for target in targets)
    for path in shipped:
        assert (tmp_path / "build/device" / arch / path.name).read_bytes() == path.read_bytes(), path.name
