"""The gate on instruction counts: what it reads, what it refuses, and that planted regressions do not pass it."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gate, wheel_build = load(ROOT / "bench/instructions.py"), load(ROOT / "tools/wheel_build.py")

# Two functions of the extension, one of another library, calls between them; names are given once, then by number.
PROFILE = """\
# callgrind format
positions: line
events: Ir
ob=(1) /somewhere/_core.abi3.so
fl=(1) ???
fn=(1) call
0 100
+3 20
cob=(2) /lib/libc.so.6
cfi=(2) ???
cfn=(2) memcpy
calls=4 0
0 4000
* 3
ob=(2)
fn=(2)
0 4000
ob=(1)
fn=(3) tile
-2 7
totals: 4130
"""


def test_only_the_extension_counts():
    assert gate.executed(PROFILE, "_core.abi3.so") == 100 + 20 + 3 + 7
    assert gate.executed(PROFILE, "libc.so.6") == 4000
    assert gate.executed(PROFILE, "absent.so") == 0


def test_profiles_of_calls_are_the_even_ones(tmp_path):
    for number, count in enumerate((5, 100, 5, 200), 1):
        (tmp_path / f"profile.{number}").write_text(f"ob=(1) /x/_core.abi3.so\nfn=(1) f\n0 {count}\n")
    rows = gate.between_markers(tmp_path, ["a", "b"])
    assert rows == {"cpu a": {"instructions": 100}, "cpu b": {"instructions": 200}}


FIGURES = {"cpu a": {"instructions": 1000}, "gfx942 b": {"instructions": 500, "lds_conflict_cycles": 0}}


@pytest.mark.parametrize(
    ("seen", "failures"),
    [
        ({}, []),
        ({"cpu a": {"instructions": 1030}}, []),
        ({"cpu a": {"instructions": 10}}, []),
        ({"cpu a": {"instructions": 1031}}, ["cpu a: instructions 1000 -> 1031, +3.1%"]),
        (
            {"gfx942 b": {"instructions": 500, "lds_conflict_cycles": 1}},
            ["gfx942 b: lds_conflict_cycles 0 -> 1, +100.0%"],
        ),
        ({"gfx942 b": {"instructions": 500}}, ["gfx942 b: lds_conflict_cycles was not counted"]),
        ({"cpu c": {"instructions": 1}}, ["cpu c: has no figure"]),
        ({"cpu a": None}, ["cpu a: was not counted"]),
    ],
)
def test_judgement(seen, failures):
    rows = {row: figures for row, figures in (FIGURES | seen).items() if figures}
    assert gate.judge(FIGURES, rows)[1] == failures


def test_a_failure_names_the_command_that_renews(monkeypatch, tmp_path):
    monkeypatch.setattr(gate, "FIGURES", tmp_path / "figures.json")
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    monkeypatch.setattr(gate, "count", lambda wheel: {"cpu a": {"instructions": 1031}})
    gate.FIGURES.write_text(json.dumps({"cpu a": {"instructions": 1000}}))
    monkeypatch.setattr(sys, "argv", ["instructions.py", "--wheel", "x.whl"])
    with pytest.raises(SystemExit, match=r"over 3 % worse, if meant: make instructions COUNT=--write\ncpu a: "):
        gate.main()
    monkeypatch.setattr(sys, "argv", ["instructions.py", "--wheel", "x.whl", "--write"])
    gate.main()
    assert json.loads(gate.FIGURES.read_text()) == {"cpu a": {"instructions": 1031}}
    monkeypatch.setattr(sys, "argv", ["instructions.py", "--wheel", "x.whl"])
    gate.main()


def test_figures_name_every_part_and_the_cpu():
    rows = json.loads(gate.FIGURES.read_text())
    assert {row.split()[0] for row in rows} == {"cpu", *gate.PARTS}
    assert gate.FIGURES.read_text().count("\n") == len(rows) + 2  # a line each: a change is read in the diff


# Regressions, all in one copy of the sources: file, what stands there, what is planted, the row that it makes worse
# and by how much at least: more than the others do
PLANTED = {
    "a plan that is kept is not found": (
        "csrc/plan/cache.c",
        "    if (!entry || make_key(r, key) != entry->words ||",
        "    if (!entry || entry->words || make_key(r, key) != entry->words ||",
        ("cpu small call", 1.2),
    ),
    "tiles of one panel": (
        "csrc/cpu/kernels/loops.inc",
        "const int log = T(widest_tile)(tiles, panels);",
        "const int log = 0 * T(widest_tile)(tiles, panels);",
        ("cpu one row, 512x512", 0.5),
    ),
    "a loop that is not unrolled": (
        "csrc/gpu/kernels/common/simt_products.h",
        "    MMF_UNROLL\n    for (int k = 0; k < row::tile_k; k++) {",
        '    _Pragma("clang loop unroll(disable)")\n    for (int k = 0; k < row::tile_k; k++) {',
        ("gfx942 simt float32, gelu", 0.1),
    ),
}
UNTOUCHED = ("gfx942 mfma bfloat16 nn, gelu", "cpu 64x128x256 float32 NN, cpu_blocked")


def device_objects(source, folder):
    """A folder of the GPU code of the planted sources for gfx942: gemm_simt's, whose loop is changed, is compiled; the
    rest is that of the wheel.
    """
    build, ready = folder / "build", folder / "objects/gfx942"
    settings = ["-DMMF_BUILD_EXTENSION=OFF", "-DMMF_GPU_ARCHS=gfx942", f"-DPython_EXECUTABLE={sys.executable}"]
    cmake = [sys.executable, "-m", "cmake"]
    subprocess.run([*cmake, "-G", "Ninja", "-S", source, "-B", build, *settings], check=True)
    ready.mkdir(parents=True)
    for file in wheel_build.embedded("x86_64"):
        if file.parent.name == "gfx942":
            shutil.copy(file, ready)
    planted = [f"device/gfx942/{file.name}" for file in ready.glob("gemm_simt_*")]
    assert planted
    subprocess.run([*cmake, "--build", build, "--target", *planted], check=True)
    for object_ in planted:
        shutil.copy(build / object_, ready)
    return ready.parent


@pytest.mark.slow
def test_planted_regressions_fail(tmp_path, monkeypatch):
    for module in ("scikit_build_core", "ziglang", "ninja"):
        pytest.importorskip(module)
    source = tmp_path / "source"
    for name in ("csrc", "cmake", "python", "licenses"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    for file, right, wrong, _ in PLANTED.values():
        text = (source / file).read_text()
        assert text.count(right) == 1, file
        (source / file).write_text(text.replace(right, wrong))
    objects = device_objects(source, tmp_path / "device")
    wheel = wheel_build.build("x86_64", objects, source, tmp_path / "work", tmp_path / "dist", targets="gfx942")
    seen = gate.count(wheel, ["gfx942"])
    figures = {row: figure for row, figure in json.loads(gate.FIGURES.read_text()).items() if row in seen}
    failures = gate.judge(figures, seen)[1]
    print(*failures, sep="\n")
    failed = {failure.partition(": ")[0] for failure in failures}
    for bug, (*_, (row, share)) in PLANTED.items():
        assert row in failed, bug
        assert seen[row]["instructions"] > (1 + share) * figures[row]["instructions"], bug
    assert not failed.intersection(UNTOUCHED)
