"""bench_microkernel.py and cpu_roofline.py: the C of every row compiles with its flags, the picture shows the tables.

Nothing here asks how fast anything is.
"""

import platform
import subprocess
import xml.etree.ElementTree

import pytest

from test_bench import BENCH, load
from test_c import configure

pytest.importorskip("torch")
TABLES = """
<!-- microkernel amx: begin -->
Read from memory: 10.0 GB/s on 1 thread, 20.0 GB/s on 2 threads.

| row | instruction | threads | inner loop, Gflop/s | bare loop, Gflop/s | inner / bare | wanted |
| --- | --- | --- | --- | --- | --- | --- |
| blocked_avx2 | FMA | 1 | 90 | 100 | 0.900 (0.890-0.910) | 0.92 missed |
| blocked_avx2 | FMA | 2 | 180 | 200 | 0.900 (0.890-0.910) | 0.92 missed |
<!-- microkernel amx: end -->
<!-- cpu amx: begin -->
| problem | data | matmul_fused | Gflop/s |
| --- | --- | --- | --- |
| 2x8x16x32 bfloat16 relu | hot | 1 us | 10 |
| 8x32x64 float32 swiglu K x N | hot | 1 us | 20 |
<!-- cpu amx: end -->
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the rows are those of x86-64")
def test_every_row_compiles_with_its_flags(tmp_path):
    bench = load("bench_microkernel")
    configure(tmp_path, "-DMMF_BUILD_EXTENSION=OFF")
    for loop in bench.LOOPS:
        subprocess.run([*bench.command(loop, tmp_path), "-fsyntax-only", "-Werror"], check=True)


def test_points_and_limits_are_those_of_the_tables():
    roofline = load("cpu_roofline")
    batch, gated = roofline.points(TABLES, "amx")
    assert batch == roofline.Point("bfloat16", 8 * 16 * 32 * 2 / (2 * (8 * 32 + 16 * 32 + 8 * 16)), 10)
    assert gated == roofline.Point("float32", 8 * 32 * 64 * 2 / (4 * (8 * 64 + 32 * 64 + 8 * 16)), 20)
    assert roofline.limits(TABLES, "amx") == roofline.Limits({"FMA": 200.0}, 20.0)
    assert roofline.limits(TABLES.replace("GB/s", ""), "amx") is None


def test_a_call_at_the_rate_of_the_bare_loop_lies_on_its_line():
    roofline = load("cpu_roofline")
    points = [roofline.Point("float32", 100.0, 200.0), roofline.Point("float16", 0.5, 10.0)]
    root = xml.etree.ElementTree.fromstring(roofline.draw(points, roofline.Limits({"FMA": 200.0}, 20.0), "here"))
    marks = [(float(r.get("cx")), float(r.get("cy"))) for r in root if r.get("r") == "3"]
    (line,) = (r.get("d") for r in root if r.tag.endswith("path") and "L" in r.get("d"))
    corner, end = line[1:].split("L")[1].split("H")
    x, y = map(float, corner.split())
    assert x < marks[0][0] < float(end)
    assert marks[0][1] == y


def test_the_pictures_show_the_tables():
    roofline, picture = load("cpu_roofline"), load("picture")
    text = (BENCH / "RESULTS.md").read_text()
    for kind in picture.KINDS:
        limit, (rows, source) = roofline.limits(text, kind), picture.read(text, kind)
        if limit and rows:
            drawn = roofline.draw(roofline.points(text, kind), limit, source)
            assert drawn == roofline.path(kind).read_text(), "run: python bench/cpu_roofline.py"
