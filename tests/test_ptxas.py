"""NVIDIA's assembler on every PTX object of this build: no stack, no spills, no serialised wgmma.

It is the machine's, else that of nvidia-cuda-nvcc-cu12 from PyPI.
"""

import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, files

import pytest

from matmul_fused import _core


@pytest.fixture(scope="module")
def ptxas():
    try:
        found = [str(file.locate()) for file in files("nvidia-cuda-nvcc-cu12") or () if file.name == "ptxas"]
    except PackageNotFoundError:
        found = []
    path = shutil.which("ptxas") or (found or [None])[0]
    if path is None:
        pytest.skip("no ptxas: it comes with CUDA, and with nvidia-cuda-nvcc-cu12 from PyPI")
    return path


@pytest.fixture(scope="module")
def objects():
    images = [row for row in _core.device_objects() if row[0].startswith("sm_") and row[2].startswith(b".version")]
    found = {(target, name): image for target, name, image in images}
    if not found:
        pytest.skip("this build has no NVIDIA objects")
    return found


def complaints(ptxas, target, image, folder):
    """What is wrong with one object. C75xx: wgmma is serialised."""
    source = folder / "kernel.ptx"
    source.write_bytes(image.rstrip(b"\0"))
    command = [ptxas, "-v", f"-arch={target}", source, "-o", folder / "kernel.cubin"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    memory = re.findall(r"(\d+) bytes (stack frame|spill stores|spill loads)", done.stdout)
    assert done.returncode == 0, done.stdout
    assert memory, done.stdout
    return [f"{count} bytes {what}" for count, what in memory if count != "0"] + re.findall(r"C75\d+", done.stdout)


def test_no_object_spills(ptxas, objects, tmp_path):
    found = {of: complaints(ptxas, of[0], image, tmp_path) for of, image in objects.items()}
    assert not any(found.values()), {of: faults for of, faults in found.items() if faults}


def test_planted_faults_are_seen(ptxas, objects, tmp_path):
    waits = re.compile(rb"wgmma\.wait_group\.sync\.aligned\s+\d+;")
    image, count = waits.subn(b"", objects["sm_90a", "gemm_wgmma_64x128x64_bf16_nt"])
    assert count
    found = complaints(ptxas, "sm_90a", image, tmp_path)
    assert any(fault.startswith("C75") for fault in found), found
    image = objects["sm_80", "gemm_simt_64x64x16_f32_any"].replace(b".minnctapersm 1", b".maxnreg 32")
    found = complaints(ptxas, "sm_80", image, tmp_path)
    assert any("spill" in fault for fault in found), found
