"""Compile HIP kernels for tests by the clang of the PyPI package ziglang, as the extension does; cached by content.
`object_of(source, "gfx942")` gives the code object; PRELUDE defines what no vendor header is there to define."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / "build" / "hipsim" / "objects"

PRELUDE = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define GROUP(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
#define item_x __builtin_amdgcn_workitem_id_x()
#define group_x __builtin_amdgcn_workgroup_id_x()
#define group_size_x __builtin_amdgcn_workgroup_size_x()
"""

ADD = """
__device__ int counter = 7;
extern "C" __global__ void GROUP(256) add(float *out, const float *a, const float *b, int n)
{
    int i = group_x * group_size_x + item_x;
    if (i < n)
        out[i] = a[i] + b[i];
}
"""


def available() -> bool:
    return importlib.util.find_spec("ziglang") is not None


def _zig(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "ziglang", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def object_of(source: str, arch: str, *flags: str) -> bytes:
    """The code object of a HIP source (PRELUDE is put before it) for a target such as "gfx942"."""
    text = PRELUDE + source
    key = hashlib.sha256("\0".join((text, arch, *flags)).encode()).hexdigest()[:24]
    cached = CACHE / f"{key}.{arch}.co"
    if not cached.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = _compile(Path(folder), text, arch, flags)
            os.replace(made, cached)
    return cached.read_bytes()


def _compile(folder: Path, text: str, arch: str, flags: tuple[str, ...]) -> Path:
    # clang's own link step looks for a program that ziglang does not have, so each step is taken alone.
    source, ir, relocatable, linked = (folder / f"k{suffix}" for suffix in (".hip", ".ll", ".o", ".co"))
    source.write_text(text)
    device = ["-x", "hip", "--cuda-device-only", f"--offload-arch={arch}", "-nogpuinc", "-nogpulib"]
    _zig("clang", *device, "-O3", *flags, "-S", "-emit-llvm", source, "-o", ir)
    target = ["--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-O3", "-nogpulib"]
    _zig("clang", *target, "-c", "-x", "ir", ir, "-o", relocatable)
    _zig("ld.lld", "-shared", relocatable, "-o", linked)
    return linked
