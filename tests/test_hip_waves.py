"""Whole waves of large tiles, and the columns that are left in launches of their own: every operand's own columns."""

import ml_dtypes
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, simulator  # noqa: F401
from matmul_fused.testing import force_kernel
from matmul_fused.testing.reference import assert_close, expect
from support import draw

LARGE = {"gfx942": "gemm_pingpong_staged_256x128x64_bf16", "gfx950": "gemm_pingpong_256x128x64_bf16"}
SPLIT = {
    "gfx90a": "gemm_pingpong_staged_splitk_128x256x64_bf16_nt",
    "gfx942": "gemm_pingpong_staged_splitk_128x256x64_bf16_nt",
    "gfx950": "gemm_pingpong_splitk_128x256x64_bf16_nt",
}


class Call:
    """A call with operands of every kind, whose columns are a tile more than the part has compute units."""

    def __init__(self, part, m, k, tile_n, gated):
        self.device = hipsim.Device(part)
        columns = tile_n * (self.device.properties["compute_units"] + 1)
        n = columns // 2 if gated else columns
        shapes = {"A": (m, k), "W": (columns, k), "bias": (columns,), "multiply": (m, n), "C": (m, columns)}
        self.activation = "swiglu" if gated else "silu"
        self.values = {name: draw(shape, "bfloat16", seed) for seed, (name, shape) in enumerate(shapes.items())}
        self.on_device = {name: self.device.array(one) for name, one in self.values.items()}
        self.on_device["preactivation"] = self.device.empty((m, columns), ml_dtypes.bfloat16)

    def of(self, operands):
        named = {name: one for name, one in operands.items() if name not in ("A", "W", "bias")}
        return (operands["A"], operands["W"].mT, operands["bias"], self.activation), {**named, "alpha": 0.5}

    def check(self, out):
        arguments, keywords = self.of(self.values)
        got = out, self.on_device["preactivation"]
        for one, expected in zip(got, expect(*arguments, **keywords), strict=True):
            assert_close(self.device.to_numpy(one), expected, "bfloat16")


def test_where_the_last_wave_would_be_empty():
    dev = hipsim.Device("gfx950")
    m, n, k = 8192, 5120, 13824  # 640 tiles of 256x256 for 256 units: two waves and a half
    a, w = dev.empty((m, k), ml_dtypes.bfloat16), dev.empty((n, k), ml_dtypes.bfloat16)
    found = mf.explain(a, w.mT)
    assert (found.kernel, len(found.launches)) == ("gemm_pingpong_256x256x64_bf16_nt", 2)
    assert found.launches[0] == found.kernel
    assert found.launches[1].startswith("gemm_pingpong_")
    assert found.launches[1] != found.kernel
    assert (found.workspace, found.rows_independent_of_m) == (0, True)
    assert len(mf.explain(a[:, :4096], w[:4096, :4096].mT).launches) == 1  # 512 tiles: two whole waves
    assert len(mf.explain(a[:4096, :2048], w[:4096, :2048].mT).launches) == 1  # one wave
    a, w = (dev.empty((2, *shape), ml_dtypes.bfloat16) for shape in ((m, k // 4), (n, k // 4)))
    assert len(mf.explain(a, w.mT).launches) == 1  # waves of a batch are not cut


@pytest.mark.parametrize(
    ("part", "gated", "shuffled"),
    [("gfx942", True, False), ("gfx950", False, False), ("gfx942", False, True), ("gfx950", True, True)],
)
def test_both_launches_have_their_columns(part, gated, shuffled):
    """A tile more than there are units. The general epilogue takes long, so that its wave is worth a launch."""
    call = Call(part, m=256, k=64, tile_n=128, gated=gated)
    arguments, keywords = call.of(call.on_device)
    if shuffled:
        gate = {"gate_layout": "halves"} if gated else {}
        arguments = arguments[0], mf.prepack(arguments[1], layout="preshuffle_16x16", **gate), *arguments[2:]
    with force_kernel(f"{LARGE[part]}_{'np' if shuffled else 'nt'}"):
        assert len(mf.explain(*arguments, **keywords).launches) == 2
        call.check(mf.matmul_fused(*arguments, **keywords))


def test_where_k_of_the_last_wave_is_cut():
    dev = hipsim.Device("gfx942")
    m, n, k = 8192, 5120, 13824  # 640 tiles of 256x256 for 304 units: two waves, and 32 tiles
    a, w = dev.empty((m, k), ml_dtypes.bfloat16), dev.empty((n, k), ml_dtypes.bfloat16)
    found = mf.explain(a, w.mT)
    whole, pieces, end = found.launches
    assert whole == "gemm_pingpong_staged_256x256x64_bf16_nt"
    assert (found.kernel, end) == (pieces, "reduce_splitk_16x64x1_f32_any")
    assert pieces == "gemm_pingpong_staged_splitk_128x256x64_bf16_nt"
    columns = n - 19 * 256  # 608 tiles are 19 columns of 32
    assert found.workspace % (m * columns * 4) == 0  # for each piece the sums of these columns alone
    assert not found.rows_independent_of_m
    with force_kernel(f"{pieces},gemm_pingpong_staged"):
        assert mf.explain(a, w.mT, C=1.0, beta=0.5).launches == found.launches  # a number has no columns


@pytest.mark.parametrize(("part", "gated"), [("gfx90a", True), ("gfx942", False), ("gfx950", True)])
def test_three_launches_have_their_columns(part, gated):
    """A tile more than there are units, whose K is cut in two."""
    call = Call(part, m=192, k=128, tile_n=256, gated=gated)
    arguments, keywords = call.of(call.on_device)
    with force_kernel(SPLIT[part]):
        assert len(mf.explain(*arguments, **keywords).launches) == 3
        call.check(mf.matmul_fused(*arguments, **keywords))
