"""The programs of bench/ that model AMD GPUs: their own logic."""

import re
import xml.etree.ElementTree

import pytest

from test_bench import load


@pytest.fixture
def amd_origami():
    return load("amd_origami", "msgpack", "elftools")


def test_the_choice_beside_origamis(amd_origami, monkeypatch):
    """Rows are told by their tiles; a wanted tile is the one that helps most."""
    thin, square, wide = (f"gemm_{name}_bf16_nt" for name in ("thin_16x32x512", "mfma_128x128x64", "mfma_256x128x64"))
    calls = [
        {"size": (16, 512, 1024), "picked": thin, "rows": [thin, square]},
        {"size": (512, 512, 1024), "picked": square, "rows": [thin, square, wide]},
    ]
    for call in calls:
        call |= {"cuts": {}, "plan": ([call["picked"]], 0)}
    held = {(16, 32, 512): 4, (128, 128, 64): 2, (256, 128, 64): 1}
    latency = {(16, 32, 512): 30.0, (128, 128, 64): 15.0, (256, 128, 64): 12.0, (256, 256, 64): 10.0}
    answers = {"amd_origami.py": {"units": 304, "calls": calls}, "amd_rows.py": [wide]}
    monkeypatch.setattr(amd_origami, "answer", lambda arch, program, option: answers[program])
    monkeypatch.setattr(amd_origami, "workgroups", lambda arch: held)
    monkeypatch.setattr(
        amd_origami,
        "latencies",
        lambda program, arch, units, asked: [latency.get(tile, 100.0) / pieces for (_, tile, pieces), _ in asked],
    )
    part = amd_origami.Part(None, "gfx942")
    assert part.picked() == [30 / 15, 15 / 12]
    assert part.picked(16) == [30 / 15]
    assert part.grid() == [12 / 10]
    assert part.wanted() == ["256x256 (1.000)"]
    text = amd_origami.section([part], "archive")
    assert f"- gfx942: `{wide}`." in text
    assert "| all | 1.581 (missed) | 1.200 (missed) |" in text
    assert "| gfx942 | 16x512x1024 | thin 16x32x512 | mfma 128x128x64 | 2.00 |" in text


def test_rows_of_a_part():
    rows = load("amd_rows", "msgpack", "elftools").rows_of("gfx90a")
    assert "gemm_simt_64x64x16_f32_any" in rows  # of all parts
    assert "gemm_thin_16x32x512_bf16_nt" in rows
    assert not [row for row in rows if re.search("pingpong_[^s]|wmma|xf32|wgmma|reduce", row)]


def test_pieces_of_k_beside_origamis(amd_origami):
    """What a plan's workspace says of its pieces; whole waves of tiles before them have a launch of their own."""
    split, whole = ("gemm_pingpong_staged_splitk_128x256x64_bf16_nt", "gemm_pingpong_staged_256x128x64_bf16_nt")
    m, n, k = size = (512, 128 * 160 - 2, 8192)
    assert amd_origami.launches_of(size, [whole], 0, 304) == [(size, (256, 128, 64), 1)]
    assert amd_origami.launches_of(size, [split, "reduce_"], 3 * m * (n + 2) * 4, 304) == [(size, (128, 256, 64), 3)]
    columns = 128 * 152  # of 320 tiles 304
    first = ((m, columns, k), (256, 128, 64), 1)
    found = amd_origami.launches_of(size, [whole, split, "reduce_"], 5 * m * (n + 2 - columns) * 4, 304)
    assert found == [first, ((m, n - columns, k), (128, 256, 64), 5)]
    found = amd_origami.launches_of(size, [whole, whole], 0, 304)
    assert found == [first, ((m, n - columns, k), (256, 128, 64), 1)]


def test_a_call_that_memory_bounds_lies_on_the_roof():
    roofline = load("amd_roofline", "msgpack", "elftools")
    m, n, k = 16, 4096, 4096
    seconds = 2 * (m * k + n * k + m * n) / roofline.parts()["gfx942"].reached
    call = {"size": (m, n, k), "picked": "gemm_thin_16x32x512_bf16_nt", "seconds": seconds}
    root = xml.etree.ElementTree.fromstring(roofline.draw({"gfx942": [call], "gfx950": []}))
    x, y = next(
        (float(one.get("cx")), float(one.get("cy")))
        for one in root
        if one.tag.endswith("circle") and one.get("r") == "2.5"
    )
    path = next(one.get("d") for one in root if one.get("fill") == "none")
    (x0, y0), (x1, y1) = (map(float, point.split()) for point in path[1:].split("H")[0].split("L"))
    assert abs(y - (y0 + (y1 - y0) * (x - x0) / (x1 - x0))) < 0.2


def test_the_order_of_a_grid():
    """Two dies, 2 x 4 tiles at once: in turn a die has a row of tiles and all columns, in runs two of them."""
    order = load("amd_order", "msgpack", "elftools")
    rows, tiles_of = order.compiled()
    assert (rows, tiles_of(1, 8)) == (8, [*range(8)])
    assert tiles_of(2, 8) == [0, 4, 1, 5, 2, 6, 3, 7]
    size, tile, lines = (256, 512, 64), (128, 128, 64), 128 * 64 * 2
    for dies, fetched in ((1, 2 * (1 + 4)), (2, 2 * (2 + 2))):
        places = [order.place(index, 2, 4, rows) for index in tiles_of(dies, 8)]
        assert order.fetched(places, size, tile, 2, 8) == (fetched * lines, (2 + 4) * lines)


def test_what_fusing_saves():
    """Two kernels, each with a launch, and with every result read and written."""
    fusion = load("amd_fusion")
    fused = {"kernel": "gemm_thin_16x32x512_bf16_nt", "seconds": 15e-6, "launches": 1, "bytes": 3_000_000}
    call = {"layer": "QKV", "size": (16, 1000, 100), "fused": fused, "plain": fused | {"bytes": 2_000_000}}
    row = fusion.row("gfx942", call)
    moved = 2 * 2 * 16 * 1000 * 2 + 1000 * 2
    assert row[4] == "1 / 3"
    assert row[5] == f"3.00 / {(2_000_000 + moved) / 1e6:.2f}"
    assert row[8:] == (f"{25 / 15:.2f}", "1.00", "2.92")
