"""AMD GPUs that run another one's objects (csrc/gpu/siblings.c): may they, does the driver take them, do they compute.

May they: a row compiled for the sibling is the elder's object, byte for byte but for the names in its note, once the
compiler heeds the elder's errata and leaves out the instructions that the elder lacks. A hazard of the sibling that
the elder does not have would make another object of it.
"""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hip_support import account, in_child, simulator  # noqa: F401
from matmul_fused import _core

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    not {"gfx1100", "gfx1201"} <= {arch for arch, _, _ in _core.device_objects()},
    reason="this build has no code for gfx1100 and gfx1201",
)
SIBLINGS = {  # LLVM's features to change: + the elder's errata, or its number of registers; - what the elder cannot do
    "gfx1101": "+user-sgpr-init16-bug",
    "gfx1102": "+allocate1_5xvgprs",
    "gfx1151": "+user-sgpr-init16-bug,+valu-trans-use-hazard,+mad-intra-fwd-bug,-salu-float,-dpp-src1-sgpr",
    "gfx1200": "",
}
SAMPLE = {  # row -> source; all 37 rows were compared by hand
    "gemm_wmma_64x64x32_f16_nt": "rdna/gemm_wmma.hip",
    "gemm_gemv_1x16x1024_bf16_nt": "amd/gemm_gemv.hip",
}
CODE = {(arch, kernel): image for arch, kernel, image in _core.device_objects()}


def flags(variable):
    """Of cmake/device_code.cmake."""
    text = re.search(rf"^set\({variable} ([^)]*)\)", (ROOT / "cmake/device_code.cmake").read_text(), re.MULTILINE)[1]
    return text.replace("${CMAKE_CURRENT_SOURCE_DIR}", str(ROOT)).replace('"', "").split()


def compiled(arch, kernel, features, folder):
    """The object of a row, by the steps of cmake/device_code.cmake."""

    def run(*arguments):
        subprocess.run([sys.executable, "-m", "ziglang", *map(str, arguments)], check=True)

    ir, relocatable, linked = (folder / f"{kernel}.{arch}{suffix}" for suffix in (".ll", ".o", ".co"))
    source = ROOT / "csrc/gpu/kernels" / SAMPLE[kernel]
    front = ["clang", *flags("MMF_HIP_FLAGS"), *flags("MMF_DEVICE_FLAGS"), f"--offload-arch={arch}"]
    run(*front, f"-DMMF_KERNEL={kernel}", "-S", "-emit-llvm", source, "-o", ir)
    if features:
        ir.write_text(re.sub('("target-features"="[^"]*)"', rf'\1,{features}"', ir.read_text()))
    run("clang", *flags("MMF_AMDGPU_FLAGS"), f"-mcpu={arch}", "-c", "-x", "ir", ir, "-o", relocatable)
    run("ld.lld", "-shared", "-s", relocatable, "-o", linked)
    return linked.read_bytes()


def sections(image):
    elffile = pytest.importorskip("elftools.elf.elffile")
    return {s.name: s.data() for s in elffile.ELFFile(io.BytesIO(image)).iter_sections()}


def test_the_table():
    known = _core.device_manifest()["siblings"]
    assert known == {"gfx1101": "gfx1100", "gfx1102": "gfx1100", "gfx1151": "gfx1100", "gfx1200": "gfx1201"}
    assert known.keys() == SIBLINGS.keys()


@pytest.mark.parametrize(
    ("sibling", "kernel"),
    [*((sibling, "gemm_wmma_64x64x32_f16_nt") for sibling in SIBLINGS), ("gfx1151", "gemm_gemv_1x16x1024_bf16_nt")],
)
def test_the_elders_code_is_the_siblings(sibling, kernel, tmp_path):
    pytest.importorskip("ziglang")
    elder = _core.device_manifest()["siblings"][sibling]
    ours, theirs = sections(CODE[elder, kernel]), sections(compiled(sibling, kernel, SIBLINGS[sibling], tmp_path))
    if ours[".comment"] != theirs[".comment"]:  # another clang made this build
        ours = sections(compiled(elder, kernel, "", tmp_path))
    assert {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)} == {".note"}
    renamed = ours[".note"].replace(elder.encode(), sibling.encode())
    assert renamed == theirs[".note"]


def test_the_driver_takes_them_under_their_own_name():
    """Objects changed for the sibling run its matrix instructions; the elder's it does not take."""
    code = """
from hipsim import HipError, Module
from matmul_fused.testing import force_kernel
code = {(arch, kernel): image for arch, kernel, image in mf._core.device_objects()}
a, w = draw((40, 64), "float16", seed=5), draw((24, 64), "float16", seed=6)
for arch, elder in mf._core.device_manifest()["siblings"].items():
    dev = hipsim.Device(arch)
    x = dev.array(a), dev.array(w).mT
    assert mf.explain(*x, activation="silu").family == "gemm_wmma_thin"
    with force_kernel("gemm_wmma_64x64x32_f16_nt"):
        y = mf.matmul_fused(*x, activation="silu")
    check(dev.to_numpy(y), a, w.T, activation="silu")
    line = dict(mf.info().devices)[f"rocm:{dev.ordinal}"]
    assert line.endswith(f", {arch}, {dev.properties['compute_units']} compute units, wave 32; code for {elder}"), line
    image = code[elder, "gemm_wmma_64x64x32_f16_nt"]
    half = image[:48] + MACHINES[arch] + image[49:]
    for wrong, why in ((image, "NoBinaryForGpu"), (half, "InvalidImage")):
        with pytest.raises(HipError, match=why):
            Module(dev, wrong)
    for part in image, half.replace(elder.encode(), arch.encode()):
        Module(hipsim.Device(arch if part is not image else elder), part).unload()
print("done")
"""
    machines = "MACHINES = {'gfx1101': b'\\x46', 'gfx1102': b'\\x47', 'gfx1151': b'\\x4a', 'gfx1200': b'\\x48'}"
    assert in_child(machines + code, ",".join((*SIBLINGS, "gfx1100", "gfx1201"))).strip() == "done"


def test_a_load_that_fails_is_tried_again():
    code = """
dev = hipsim.Device("gfx1102")
x = dev.array(A.astype(np.float32)), dev.array(B.astype(np.float32))
hipsim.fail_next("hipModuleLoadData", 2)
with pytest.raises(mf.DeviceError):
    mf.matmul_fused(*x)
check(dev.to_numpy(mf.matmul_fused(*x)), A.astype(np.float32), B.astype(np.float32))
print("done")
"""
    assert in_child(code, "gfx1102").strip() == "done"


def test_registers_of_a_workgroup_must_fit():
    """A SIMD of gfx1102 has two thirds of the registers of one of gfx1100: the simulator refuses what is too much."""
    pytest.importorskip("ziglang")
    code = """
from hipsim import HipError, Module
from hipsim.compile import object_of
many = "".join(f"float v{i} = x[{i} * 1024 + item_x];" for i in range(150))
keep = " ".join(f'asm volatile("" : "+v"(v{i}));' for i in range(150))
use = " + ".join(f"v{i} * v{(i * 7 + 1) % 150}" for i in range(150))
text = 'extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1024, 1024))) void k(float *x) {'
source = text + many + keep + f"x[item_x] = {use};" + "}"
for arch, fits in (("gfx1101", True), ("gfx1102", False)):
    dev = hipsim.Device(arch)
    image = object_of(source, "gfx1101")
    image = image[:48] + (b"\\x47" if arch == "gfx1102" else b"\\x46") + image[49:]
    with Module(dev, image.replace(b"--gfx1101", b"--" + arch.encode())) as module:
        x = dev.array(np.ones(150 * 1024, np.float32))
        try:
            module["k"](1, 1024, x)
            dev.synchronize()
            done = True
        except HipError:
            done = False
    assert done == fits, arch
    dev.report()
print("done")
"""
    assert in_child(code, "gfx1101,gfx1102").strip() == "done"
