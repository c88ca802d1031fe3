"""The check of `make wheel` refuses what a wheel may not hold: every bug is planted in a wheel of its own."""

import importlib.util
import subprocess
import zipfile
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools/wheel_build.py"
spec = importlib.util.spec_from_file_location("wheel_build", TOOL)
wheel_build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheel_build)

SOURCE = "int PyModuleDef_Init(void *); {declared} int PyInit_planted(void) {{ return PyModuleDef_Init({used}); }}"
# declaration and use -> what the refusal says; None: nothing is wrong
PLANTED = {
    "nothing": ("", "0", None),
    "glibc 2.36": ("unsigned arc4random(void);", "arc4random() ? (void *)1 : 0", "auditwheel says .*GLIBC_2.36"),
    "a library": ("void *planted_elsewhere(void);", "planted_elsewhere()", "auditwheel says linux_.*libplanted.so"),
    "private API": ("void *_PyLong_New(long);", "_PyLong_New(1)", "abi3audit: .*_PyLong_New"),
    "API of 3.13": ("void *PyDict_GetItemRef(void);", "PyDict_GetItemRef()", "abi3audit: .*PyDict_GetItemRef"),
}


def compile_shared(to, source, architecture, *libraries):
    to.with_suffix(".c").write_text(source)
    target = f"{architecture}-linux-gnu.2.36"
    command = [wheel_build.zig(), "cc", "-target", target, "-O2", "-shared", "-o", to, to.with_suffix(".c"), *libraries]
    subprocess.run(list(map(str, command)), check=True)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", wheel_build.ARCHITECTURES)
@pytest.mark.parametrize("bug", PLANTED)
def test_check_bites(bug, architecture, tmp_path):
    for module in ("abi3audit", "auditwheel", "ziglang"):
        pytest.importorskip(module)
    declared, used, refusal = PLANTED[bug]
    libraries = []
    if bug == "a library":
        libraries = [tmp_path / "libplanted.so"]
        compile_shared(libraries[0], "void *planted_elsewhere(void) { return 0; }", architecture)
    compile_shared(tmp_path / "x.abi3.so", SOURCE.format(declared=declared, used=used), architecture, *libraries)

    tag = f"cp311-abi3-manylinux_2_28_{architecture}"
    planted = tmp_path / f"planted-1-{tag}.whl"
    info = {
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "METADATA": "Metadata-Version: 2.1\nName: planted\nVersion: 1\n",
        "RECORD": "planted.abi3.so,,\n",
    }
    with zipfile.ZipFile(planted, "w") as archive:
        archive.write(tmp_path / "x.abi3.so", "planted.abi3.so")
        for name, text in info.items():
            archive.writestr(f"planted-1.dist-info/{name}", text)
    if refusal is None:
        wheel_build.check(planted)
    else:
        with pytest.raises(wheel_build.RefusedError, match=rf"(?s)^{planted.name}: {refusal}"):
            wheel_build.check(planted)


def test_a_wheel_without_its_gpu_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel_build, "WORK", tmp_path)
    device = tmp_path / "x86_64/device"
    (device / "gfx942").mkdir(parents=True)
    (device / "gfx942/k.co").write_bytes(b"the code")
    (device / "device_objects.c").write_text(f'BYTES(mmf_object_0, "{device}/gfx942/k.co")\nTEXT(other, "x")\n')
    for content in (b"...the code...", b"..."):
        wheel = tmp_path / f"planted-{len(content)}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("matmul_fused/_core.abi3.so", content)
        if b"code" in content:
            assert wheel_build.device_code(wheel, "x86_64") == ["gfx942"]
        else:
            with pytest.raises(wheel_build.RefusedError, match="no GPU code, or not all of it"):
                wheel_build.device_code(wheel, "x86_64")
