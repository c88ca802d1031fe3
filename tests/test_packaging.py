"""Builds of docs/build.md from the sdist: without network, and the steps of packaging/, run one by one."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from test_device_build import objects  # noqa: F401  (a fixture)

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "packaging/Dockerfile").read_text()
RECIPE = (ROOT / "packaging/conda/recipe.yaml").read_text()
SDIST = "from scikit_build_core import build; import sys; build.build_sdist(sys.argv[1])"
TRY = """
import json, numpy as np, matmul_fused as mf
x = np.eye(8, dtype=np.float32)
assert (mf.matmul_fused(x, 2 * x) == 2 * x).all()
print(json.dumps([mf.__file__, mf.info().device_code, sorted({arch for arch, *_ in mf._core.device_objects()})]))
"""


def run(*command, cwd=None, **environment):
    done = subprocess.run(
        list(map(str, command)), check=False, capture_output=True, text=True, cwd=cwd, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", SDIST, folder, cwd=ROOT)
    (archive,) = folder.iterdir()
    return archive


def offline():
    """How to start a command that has no network: a namespace of its own, where the kernel allows one."""
    start = ["unshare", "--map-root-user", "--net"]
    allowed = shutil.which("unshare") and subprocess.run([*start, "true"], check=False).returncode == 0
    return start if allowed else []


@pytest.fixture
def system_clang(tmp_path):
    """A folder bin with clang and ld.lld, as a distribution has them."""
    zig = Path(pytest.importorskip("ziglang").__file__).parent / "zig"
    (tmp_path / "bin").mkdir()
    for name in ("clang", "ld.lld"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec "{zig}" {name} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def built(site):
    """(what info says of the GPU code, its targets) of the package in a folder."""
    file, code, targets = json.loads(run(sys.executable, "-c", TRY, cwd="/", PYTHONPATH=str(site)))
    assert file.startswith(str(site))
    return code, targets


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["no GPU code", "ready objects", "system clang"])
def test_without_network(kind, sdist, objects, system_clang, tmp_path):  # noqa: F811
    ziglang_is_not_there = tmp_path / "empty"
    ziglang_is_not_there.mkdir()
    (ziglang_is_not_there / "ziglang.py").write_text("raise ImportError('not installed')\n")
    settings, code, targets = {
        "no GPU code": (["MMF_GPU_ARCHS=none"], "none: it was built with MMF_GPU_ARCHS=none", []),
        "ready objects": ([f"MMF_DEVICE_OBJECTS={objects}", "MMF_GPU_ARCHS=gfx942"], "gfx942", ["gfx942"]),
        "system clang": (
            [f"MMF_DEVICE_CLANG={system_clang}/bin/clang", "MMF_GPU_ARCHS=gfx90a"],
            "gfx90a",
            ["gfx90a"],
        ),
    }[kind]
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation"]
    settings = [f"-Ccmake.define.{setting}" for setting in settings]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    site = tmp_path / "site"
    run(*offline(), *pip, "--target", site, sdist, *settings, PYTHONPATH=str(ziglang_is_not_there), **nowhere)
    assert built(site) == (code, targets)


@pytest.mark.slow
def test_steps_of_the_dockerfile(sdist, tmp_path):
    """All but apt-get, with the folders of the image below another one."""
    (tmp_path / "build").mkdir()
    shutil.copy(sdist, tmp_path / "build")
    steps = [step for step in re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE) if not step.startswith("apt-get")]
    assert len(steps) == 5
    for step in steps:
        said = run("sh", "-ec", re.sub(r"(?<= )/(?=build|opt)|^/", f"{tmp_path}/", step), cwd="/")
    assert re.search(r"^ *all +\d+ .* 0$", said, re.MULTILINE)


@pytest.mark.slow
def test_script_of_the_recipe(sdist, system_clang, tmp_path):
    """In a Python that has what the recipe lists; one GPU target, as all take minutes."""
    (script,) = re.findall(r"^ +- (\$PYTHON -m pip .*) \.$", RECIPE, re.MULTILINE)
    run("tar", "-x", "-f", sdist, "-C", tmp_path)
    (source,) = tmp_path.glob("matmul_fused-*")
    site = tmp_path / "site"
    command = f"{script} -C cmake.define.MMF_GPU_ARCHS=gfx90a --target {site} ."
    run(*offline(), "sh", "-ec", command, cwd=source, PYTHON=sys.executable, BUILD_PREFIX=str(system_clang))
    assert built(site) == ("gfx90a", ["gfx90a"])


def test_packaging_is_of_this_version():
    assert re.findall(r'^ +version: "(.*)"$', RECIPE, re.MULTILINE) == [PROJECT["version"]]
    assert re.findall(r"^# +rattler-build .* version=(\S+)$", RECIPE, re.MULTILINE) == [PROJECT["version"]]
    assert f"license: {PROJECT['license']}\n" in RECIPE
    assert re.findall(r"^    - (\S+)$", RECIPE.partition("license_file:")[2], re.MULTILINE) == PROJECT["license-files"]
    for need in (*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"):
        assert need.replace(">=", " >=") in RECIPE


def test_build_settings_are_documented():
    text = (ROOT / "docs/build.md").read_text()
    cmake = "\n".join(path.read_text() for path in [ROOT / "CMakeLists.txt", *ROOT.glob("cmake/*.cmake")])
    settings = re.findall(r"^(?:set\((MMF_\w+) .* CACHE |option\((MMF_\w+) )", cmake, re.MULTILINE)
    names = [first or second for first, second in settings]
    assert {"MMF_GPU_ARCHS", "MMF_DEVICE_CLANG", "MMF_WERROR"} <= set(names)
    assert [name for name in names if f"`{name}`" not in text] == []
