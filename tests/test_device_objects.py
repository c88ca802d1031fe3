"""The AMD objects of this build, from their notes and machine code: nothing spills, nothing is missing, nothing odd.

bench/amd_static.py reads the objects; these tests check them, and that the check sees planted faults.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from matmul_fused import __main__ as cli
from matmul_fused import _core

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(
    r"^MMF_GPU_(?P<kind>KERNEL|STEP)\((?P<kernel>\w+), (?P<family>\w+), (?P<operands>\w+), "
    r"(?P<m>\d+), (?P<n>\d+), (?P<k>\d+), "
    r"(?P<threads>\d+), (?P<lds>\d+), (?P<layout>\w+), (?P<targets>[\w |]+)\)$",
    re.MULTILINE,
)
KERNELS = ROOT / "csrc/gpu/kernels"
ROWS = {row["kernel"]: row.groupdict() for row in ROW.finditer((KERNELS / "common/kernels.def").read_text())}


@pytest.fixture(scope="module")
def static():
    for needed in ("elftools", "msgpack", "rocm.llvm"):
        pytest.importorskip(needed)
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        import amd_static
    finally:
        sys.path.remove(str(ROOT / "bench"))
    return amd_static


@pytest.fixture(scope="module")
def facts(static):
    objects = static.embedded()
    if not objects:
        pytest.skip("this build has no AMD objects")
    return {(arch, kernel): static.facts_of(arch, kernel, image) for arch, kernel, image in objects}


def complaints(facts):
    """What is wrong with one object."""
    row = ROWS[facts.kernel]
    few = row["family"] in ("thin", "thin_splitk", "wmma", "wmma_thin")  # the smallest tiles
    matrix_cycles = 256 if few else 512  # of a turn: 16 matrix instructions, or 32
    products = {"simt": 64, "simt_splitk": 64, "gemv": 32}.get(row["family"])  # of a turn without any
    wrong = {
        "spills registers": facts.spills > 0,
        "uses scratch": facts.scratch > 0,
        f"has {facts.forbidden}": bool(facts.forbidden),
        "has hidden arguments": facts.hidden_arguments > 0,
        "shared memory differs from kernels.def": facts.lds != int(row["lds"]),
        "threads differ from kernels.def": facts.threads != int(row["threads"]),
        "has no hot loop": row["kind"] == "KERNEL"
        and (facts.loop.products < products if products else facts.loop.matrix_cycles < matrix_cycles),
        "moves accumulators in the hot loop": facts.loop.units.get("moves", 0) > 0,
    }
    return [what for what, holds in wrong.items() if holds]


def test_no_object_spills(facts):
    found = [f"{arch} {kernel}: {what}" for (arch, kernel), f in facts.items() for what in complaints(f)]
    assert not found, "\n".join(found)


def test_every_row_has_its_objects(facts):
    archs = {arch for arch, _ in facts}
    expected = {
        (arch, kernel)
        for kernel, row in ROWS.items()
        for arch in archs
        if row["targets"] == "ALL" or arch.upper() in row["targets"].split(" | ")
    }
    assert len(ROWS) >= 12
    assert set(facts) == expected


def test_the_table_is_that_of_this_build(static, facts):
    """Line for line; another compiler may allocate otherwise, but its objects are the same ones."""
    written, archs = static.DOCUMENT.read_text(), {arch for arch, _ in facts}
    same_compiler = all(f"\n{f.compiler}. " in written for f in facts.values())

    def lines(text):
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| gfx")]
        return sorted(row if same_compiler else row[:2] for row in rows if row[0].removeprefix("| ") in archs)

    assert lines(written) == lines(static.documentation([*facts.values()])), "python bench/amd_static.py --write"


SHORT = {"FLOAT32": "f32", "FLOAT64": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16"}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_name_says_what_its_columns_say(row):
    tile, family = "x".join(row[side] for side in "mnk"), {"KERNEL": "gemm_", "STEP": ""}[row["kind"]] + row["family"]
    assert row["kernel"] == f"{family}_{tile}_{SHORT[row['operands']]}_{row['layout'].lower()}"


def test_all_objects_take_the_same_arguments(facts):
    assert len({f.arguments for f in facts.values()}) == 1


@pytest.mark.parametrize(
    "change",
    [{"spills": 1}, {"scratch": 4}, {"forbidden": ["scratch_load_dword"]}, {"lds": 1}, {"hidden_arguments": 1}],
    ids=lambda change: next(iter(change)),
)
def test_the_check_bites(facts, change):
    good = next(iter(facts.values()))
    assert complaints(good) == []
    assert len(complaints(replace(good, **change))) == 1


SPILLING = """
extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256), amdgpu_num_vgpr(32))) void spilling(float *x)
{
    float value[64];
    #pragma unroll
    for (int i = 0; i < 64; i++)
        value[i] = x[i + 64 * __builtin_amdgcn_workitem_id_x()];
    for (int turn = 0; turn < 9; turn++) {
        #pragma unroll
        for (int i = 0; i < 64; i++)
            value[i] = value[i] * value[(i + 7) % 64] + value[(i + 31) % 64];
    }
    #pragma unroll
    for (int i = 0; i < 64; i++)
        x[i + 64 * __builtin_amdgcn_workitem_id_x()] = value[i];
}
"""


def clang(*arguments):
    subprocess.run([sys.executable, "-m", "ziglang", *map(str, arguments)], check=True)


def test_a_kernel_that_spills_is_seen(static, tmp_path):
    """The same two steps as cmake/device_code.cmake, on a kernel with too few registers."""
    pytest.importorskip("ziglang")
    (tmp_path / "k.hip").write_text(SPILLING)
    how = ("-x", "hip", "--cuda-device-only", "--offload-arch=gfx942", "-nogpuinc", "-nogpulib", "-O3", "-S")
    clang("clang", *how, "-emit-llvm", tmp_path / "k.hip", "-o", tmp_path / "k.ll")
    target = ("--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-O3", "-nogpulib", "-c", "-x", "ir")
    clang("clang", *target, tmp_path / "k.ll", "-o", tmp_path / "k.o")
    clang("ld.lld", "-shared", tmp_path / "k.o", "-o", tmp_path / "k.co")
    found = static.facts_of("gfx942", "spilling", (tmp_path / "k.co").read_bytes())
    assert found.spills > 0
    assert found.scratch > 0
    assert any(name.startswith("scratch_") for name in found.forbidden)


@pytest.mark.parametrize("kernel", [kernel for kernel, row in ROWS.items() if row["family"] == "simt"])
def test_the_text_for_hiprtc_stands_alone(kernel, tmp_path):
    """As hipRTC takes it: one text, C++14, and hipRTC's own names for the attributes defined before it."""
    pytest.importorskip("ziglang")
    text = tmp_path / "gemm_simt.hip"
    source = (KERNELS / "common/gemm_simt.hip").relative_to(ROOT / "csrc")
    subprocess.run([sys.executable, ROOT / "cmake/flatten.py", ROOT / "csrc", source, text], check=True)
    assert "#include" not in text.read_text()
    names = [f"-D__{name}__=__attribute__(({name}))" for name in ("global", "device", "shared", "constant")]
    how = ("-x", "hip", "--cuda-device-only", "--offload-arch=gfx90a", "-nogpuinc", "-nogpulib", "-O3", "-std=c++14")
    clang("clang", *how, *names, f"-DMMF_KERNEL={kernel}", "-S", text, "-emit-llvm", "-o", tmp_path / "k.ll")
    assert f"amdgpu_kernel void @{kernel}(" in (tmp_path / "k.ll").read_text()


# --- the manifest ---


def test_manifest_has_every_object_and_the_whole_argument(tmp_path):
    """Fields follow each other without a gap but for alignment; facts are those of kernels.def."""
    assert cli.main(["info", "--objects", str(tmp_path)]) == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
    assert {row["file"] for row in manifest["objects"]} == files
    assert len(manifest["objects"]) == len(_core.device_objects())
    for row in manifest["objects"]:
        family, tile, _, layout = row["instance"].rsplit("_", 3)
        assert (family, layout) == (row["family"], row["layout"].lower())
        assert row["gemm"] == (ROWS[row["instance"]]["kind"] == "KERNEL")
        assert [int(size) for size in tile.split("x")] == row["tile"]
        assert row["block"] % 64 == 0
        assert row["targets"] == "ALL" or row["arch"].upper() in row["targets"].split(" | ")
    end = 0
    for field in manifest["argument"]["fields"]:
        assert 0 <= field["offset"] - end < 8, field
        end = field["offset"] + field["size"]
    assert 0 <= manifest["argument"]["bytes"] - end < 8
    count = len(manifest["operands"])
    (data,) = (field for field in manifest["argument"]["fields"] if field["name"] == "data")
    assert data["size"] == 8 * count
    assert manifest["operands"][0] == "A"
    assert manifest["dtypes"][0] == "float32"
    assert manifest["activations"][:2] == ["none", "relu"]
