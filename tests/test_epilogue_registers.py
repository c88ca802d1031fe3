"""The epilogue in registers on what it takes: hot activations, biases, C, whole runs of 16 bytes in cut tiles.

The sweep reaches it by chance alone: most of its cases have a feature, a size or an alignment for the general one.
"""

import functools
import itertools
import os
import re

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.report import kernels_for
from matmul_fused.testing import Case, run_case
from matmul_fused.testing.devices import Device, DeviceTransfer, to_numpy
from matmul_fused.testing.run import NumPyTransfer
from support import draw, takes_no_gate

DEVICE = os.environ["MMF_TEST_DEVICE"]
HOT = ("none", "relu", "gelu", "gelu_tanh", "silu")
HOT_GATED = ("swiglu", "geglu", "geglu_tanh")
SIZES = ((1, 8, 24), (5, 24, 0), (130, 136, 40), (70, 264, 65), (128, 128, 64))
SIZES += () if os.environ["MMF_TEST_SIMULATED"] else ((264, 136, 1096), (136, 520, 200))
CHUNKS = ((1, 8, 24), (5, 24, 8), (130, 136, 40), (70, 264, 64), (300, 128, 72))  # lines of whole 16 bytes
FEW_ROWS = ((1, 8, 24), (4, 24, 8), (2, 136, 40), (3, 264, 1032), (1, 72, 2056))
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
BIASES = (("", ""), ("row", ""), ("row", "float32"), ("column", ""), ("column", "float32"), ("scalar", ""))

OF_DEVICE = () if DEVICE == "cpu" else kernels_for("cuda" if DEVICE == "stub" else DEVICE)
# Family and tile -> the rows that have it; other dtypes and layouts are forced together.
KERNELS = {row.rsplit("_", 2)[0]: "" for row in OF_DEVICE}
KERNELS = {tile: ", ".join(row for row in OF_DEVICE if row.startswith(f"{tile}_")) for tile in KERNELS}
FORMS = ("",) if DEVICE == "cpu" else ("", ", general_epilogue")  # as the host picks; the other one

pytestmark = pytest.mark.device


@functools.cache
def transfer():
    return NumPyTransfer() if DEVICE == "cpu" else DeviceTransfer(DEVICE)


def features():
    """What the epilogue in registers takes, as keywords of a Case."""
    for activation, (bias, bias_dtype) in itertools.product(HOT, BIASES):
        yield {"activation": activation, "bias": bias, "bias_dtype": bias_dtype}
    for activation, gate_layout in itertools.product(HOT_GATED, ("halves", "halves_up_first", "pair")):
        for bias, bias_dtype in BIASES[:3]:
            yield {"activation": activation, "gate_layout": gate_layout, "bias": bias, "bias_dtype": bias_dtype}
    for c in ("full", "row", "inplace"):
        yield {"c": c, "beta": 0.7, "bias": "row"}
    for values in ("special", "large"):
        yield {"bias": "row", "values": values, "activation": "silu"}
        yield {"bias": "row", "bias_dtype": "float32", "values": values}
    yield {"batch": "2", "bias": "row", "activation": "relu"}


def in_chunks(tile):
    return any(family in tile for family in ("pingpong", "thin", "gemm_wmma"))


def cases(dtype, full, tile, seed):
    """Every feature in every size, or each in one: neighbours, which differ least, in different ones; of a family with
    several tiles each in one of them, which the seed chooses.
    """
    chunks = in_chunks(tile)
    sizes, layouts = (CHUNKS, ("NT", "NN")) if chunks else (SIZES, ("NT", "NN", "TN", "TT"))
    few = re.match(r"gemm_(?:gemv|gemv_stream|mma_thin)_(\d+)x", tile)  # of rows at most
    if few:
        of_family = FEW_ROWS if "gemv" in tile else CHUNKS
        sizes, layouts = [(min(m, int(few[1])), n, k) for m, n, k in of_family], ("NT",)
    family, of_dtype = tile.rpartition("_")[0], SHORT[dtype]
    layouts = [layout for layout in layouts if not chunks or f"{tile}_{of_dtype}_{layout.lower()}" in OF_DEVICE]
    tiles = [
        other for other in KERNELS if other.rpartition("_")[0] == family and f"{other}_{of_dtype}_" in KERNELS[other]
    ]
    if chunks and tile not in tiles:
        return
    tiles = tiles if chunks else [tile]
    for number, feature in enumerate(features()):
        taking = [other for other in tiles if not ("gate_layout" in feature and takes_no_gate(other))]
        if tile not in (taking if full else taking[(number // len(sizes) + seed) % max(len(taking), 1) :][:1]):
            continue
        for i, (m, n, k) in enumerate(sizes):
            if full or i == number % len(sizes):
                layout = layouts[i % len(layouts)]
                yield Case(m, n, k, dtype=dtype, layout=layout, alpha=(1.0, -1.25)[i % 2], **feature)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tile", KERNELS or ("",))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_epilogue_in_registers(tile, dtype, form, sweep_seed, request):
    ran = 0
    mine = [*cases(dtype, request.config.getoption("full"), tile, sweep_seed)]
    for case in mine:
        try:
            run_case(case, sweep_seed, kernel=KERNELS[tile] + form if tile else None, xp=transfer())
        except NotImplementedError:  # another GPU, another dtype
            assert not tile.startswith("gemm_simt_64"), case.id
        else:
            ran += 1
    assert ran or not tile.startswith("gemm_simt_64")
    assert ran in (0, len(mine)) or not in_chunks(tile)


def test_nan_stays_nan():
    """A NaN whose bits are all ones: rounding to bfloat16 must not carry out of it."""
    a, b = draw((9, 16), "bfloat16", 1), draw((16, 24), "bfloat16", 2)
    bias = np.zeros(24, np.float32)
    bias.view(np.uint32)[3:5] = 0x7FFFFFFF, 0xFFFFFFFF
    if DEVICE == "cpu":
        out = mf.matmul_fused(a, b, bias)
    else:
        device = Device(DEVICE)
        out = to_numpy(device, mf.matmul_fused(device.array(a), device.array(b), device.array(bias)))
    assert (np.isnan(out.astype(np.float32)) == np.isnan(bias)).all()
