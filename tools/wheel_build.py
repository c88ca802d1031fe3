"""Build and check the wheels: `python tools/wheel_build.py [--installed] [x86_64 | aarch64]` writes dist/*.whl, for one
or both. --installed takes the GPU code of the installed package, which must be of the same sources, instead of
compiling it again. `python tools/wheel_build.py zig` prints where the compiler is.

zig's clang compiles for both, whatever this machine is (cmake/zig.cmake). auditwheel refuses symbols that are newer
than manylinux_2_28 and libraries that are not everywhere, abi3audit refuses what is outside the stable ABI of the tag.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK, DIST = ROOT / "build/wheel", ROOT / "dist"
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = (2, 28)  # as in cmake/zig.cmake


class RefusedError(Exception):
    """A wheel that may not be published, and why."""


def zig():
    """The compiler of the PyPI package ziglang."""
    import ziglang

    return str(Path(ziglang.__file__).parent / "zig")


def _include_folder(work):
    """Debian keeps pyconfig.h in a folder of the architecture, which a cross compiler does not search.

    What the limited API reads of it is the same on both.
    """
    headers = Path(sysconfig.get_path("include"))
    debian = headers.parent / (sysconfig.get_config_var("MULTIARCH") or "") / headers.name / "pyconfig.h"
    for architecture in ARCHITECTURES if debian.is_file() else ():
        folder = work / "include" / f"{architecture}-linux-gnu" / headers.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(debian, folder)
    return work / "include"


def build(architecture, device_objects="", source=ROOT, work=WORK, dist=DIST, targets=""):
    """The wheel of one architecture, in dist. device_objects: a folder of GPU code; empty: it is compiled, for the
    targets, which are by default all.
    """
    settings = {
        "build-dir": work / architecture,
        "cmake.toolchain-file": source / "cmake/zig.cmake",
        "cmake.define.MMF_ZIG_ARCH": architecture,
        "cmake.define.MMF_WERROR": "ON" if os.environ.get("CI") else "OFF",
        "cmake.define.MMF_DEVICE_OBJECTS": device_objects,
        "cmake.define.MMF_PTXAS": "",  # PTX only: a wheel does not depend on what the machine has of CUDA
        "install.strip": "false",  # the linker does; this machine's strip may not know the architecture
    }
    if targets:
        settings["cmake.define.MMF_GPU_ARCHS"] = targets
    environment = {
        "ZIG": zig(),
        "CFLAGS": f"-idirafter {_include_folder(work)}",
        "_PYTHON_HOST_PLATFORM": "manylinux_{}_{}-{}".format(*GLIBC, architecture),  # the tag; check() holds it true
    }
    new = work / "new"
    shutil.rmtree(new, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(new), *(f"-C{name}={value}" for name, value in settings.items()), str(source)]
    subprocess.run(command, check=True, env=os.environ | environment)
    (wheel,) = new.glob("*.whl")
    dist.mkdir(parents=True, exist_ok=True)
    return wheel.replace(dist / wheel.name)


def _tool(name, *arguments):
    command = [sys.executable, "-m", name, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def check(wheel):
    """An error unless the wheel runs wherever its tags say; what auditwheel found."""
    done = _tool("auditwheel", "show", "--json", wheel)
    found = json.loads(done.stdout or "{}")
    if done.returncode or "overall_tag" not in found:
        raise RefusedError(f"{wheel.name}: auditwheel: {found.get('error', done.stderr)}")
    tag = found["overall_tag"]  # manylinux_2_17_x86_64, or linux_x86_64: not for every machine
    family, _, version = tag.partition("_")
    if family != "manylinux" or tuple(map(int, version.split("_")[:2])) > GLIBC:
        needs = f"{found['versioned_symbols']}, {found['external_libs']}"
        raise RefusedError(f"{wheel.name}: auditwheel says {tag}: {needs}")
    done = _tool("abi3audit", "--strict", "--report", wheel)
    if done.returncode:
        raise RefusedError(f"{wheel.name}: abi3audit: {done.stdout}{done.stderr}")
    return found


def embedded(architecture, work=None):
    """The files of the GPU code in the latest build of an architecture."""
    source = ((work or WORK) / architecture / "device/device_objects.c").read_text()
    return [Path(file) for file in re.findall(r'^\w+\(mmf_object_\d+, "(.*)"\)$', source, re.MULTILINE)]


def device_code(wheel, architecture, work=None):
    """The targets of the GPU code in a wheel; an error if an object that was made for it is not in it."""
    listed = embedded(architecture, work)
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read("matmul_fused/_core.abi3.so")
    missing = [str(file) for file in listed if file.read_bytes() not in library]
    if missing or not listed:
        raise RefusedError(f"{wheel.name}: no GPU code, or not all of it: {missing}")
    return sorted({file.parent.name for file in listed})


def installed_objects(folder):
    """The GPU code of the installed package, in a new folder: what a wheel has of it, which is no cubins."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "matmul_fused", "info", "--objects", folder]
    subprocess.run(command, check=True, cwd=ROOT.anchor, stdout=subprocess.DEVNULL)
    for cubin in folder.glob("*/*.cubin"):
        cubin.unlink()
    return folder


def main(*arguments):
    architectures = [argument for argument in arguments if argument != "--installed"]
    device_objects = installed_objects(WORK / "objects") if "--installed" in arguments else ""
    for architecture in architectures or ARCHITECTURES:
        wheel = build(architecture, device_objects)
        device_objects = device_objects or WORK / architecture / "device"
        found = check(wheel)
        size = f"{wheel.stat().st_size / 1024:.0f} KiB"
        print(f"{wheel.relative_to(ROOT)}: {size}, stable ABI, {found['overall_tag']}; GPU code for", end=" ")
        print(*device_code(wheel, architecture), sep=", ")


if __name__ == "__main__":
    try:
        print(zig()) if sys.argv[1:] == ["zig"] else main(*sys.argv[1:])
    except RefusedError as refused:
        sys.exit(str(refused))
