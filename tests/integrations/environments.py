"""The virtual environments of `make test-integrations`: one for each host, since the hosts pin different versions.

Each lies in build/integrations/HOST and sees what .venv has (torch, pytest, matmul_fused itself) through a .pth file,
so that nothing large is installed twice. Big wheels come without their dependencies, which would be GPU libraries of
gigabytes; what a layer on the CPU needs of them is listed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "integrations"

# host -> (what is installed with its dependencies, what is installed alone)
RECIPES = {
    "vllm": (
        "transformers==5.20.2 kernels==0.17.2 fastapi>=0.133,<0.137 aiohttp cachetools requests msgspec cloudpickle "
        "einops psutil pyzmq pillow six cbor2 openai oss-harmony==0.0.11 pybase64 uvloop py-cpuinfo prometheus_client "
        "loguru partial-json-parser llguidance",
        "vllm==0.33.0 xgrammar==0.2.8 apache-tvm-ffi==0.1.11 compressed-tensors==0.17.0",
    ),
    "sglang": (
        "transformers==5.19.0 orjson psutil pybase64 requests aiohttp pydantic msgspec fastapi pyzmq pillow einops "
        "IPython openai==2.8.0 dill sentencepiece loguru gguf partial-json-parser",
        "sglang==0.5.23 apache-tvm-ffi==0.1.11 compressed-tensors==0.17.0",
    ),
}
# What pip says where a package cannot be had. Any other failure is one of the recipe.
_NOT_FETCHED = re.compile(
    r"No matching distribution found.*|.*(?:ConnectionError|NewConnectionError|ReadTimeoutError|Max retries exceeded"
    r"|HTTP error|ProxyError|SSLError|Connection broken|timed out).*"
)


class NotFetched(Exception):  # noqa: N818  # the one reason for which a host may be skipped
    pass


def _pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    done = subprocess.run([*command, "--quiet", *arguments], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return
    missing = _NOT_FETCHED.search(done.stderr)
    if missing:
        raise NotFetched(f"cannot be fetched: {missing[0].strip()[:200]}")
    raise RuntimeError(f"pip install {' '.join(arguments)} failed:\n{done.stderr[-4000:]}")


def make(host: str) -> Path:
    """The Python of the environment of a host; made if it is not there as its recipe says."""
    import torch

    folder = FOLDER / host
    python, stamp = folder / "bin" / "python", folder / "recipe.txt"
    with_needs, alone = RECIPES[host]
    recipe = f"{sys.executable}\ntorch {torch.__version__}\n{with_needs}\n{alone}\n"
    if stamp.is_file() and stamp.read_text() == recipe:
        return python
    venv.create(folder, clear=True, symlinks=True)
    names = {"base": str(folder), "platbase": str(folder)}
    (Path(sysconfig.get_path("purelib", "venv", names)) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    constraint = folder / "constraints.txt"
    constraint.write_text(f"torch=={torch.__version__}\n")  # an open one means the GPU build
    _pip(python, "--constraint", str(constraint), *with_needs.split())
    _pip(python, "--no-deps", *alone.split())
    stamp.write_text(recipe)
    return python
