"""The matrix kernels with K cut into pieces, on simulated AMD GPUs: two launches, ordered sums, one epilogue."""

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, simulator  # noqa: F401
from matmul_fused.testing import force_kernel
from support import check, draw

FAMILIES = (
    ("gemm_thin_splitk", "gfx942", "float16", 16, 256, 1100 // 8 * 8),
    ("gemm_pingpong_staged_splitk", "gfx942", "float16", 70, 256, 328),
    ("gemm_pingpong_staged_splitk", "gfx90a", "bfloat16", 70, 256, 328),
    ("gemm_pingpong_staged_splitk", "gfx90a", "float16", 70, 256, 328),
    ("gemm_pingpong_splitk", "gfx950", "float16", 130, 264, 328),
)


@pytest.fixture(params=FAMILIES, ids=lambda row: f"{row[0]}-{row[1]}")
def call(request):
    """The device, its family, and A, B^T, bias, C of NumPy; K is no multiple of the pieces."""
    family, part, dtype, m, n, k = request.param
    shapes = {"a": (m, k), "w": (n, k), "bias": (n,), "c": (m, n)}
    values = {name: draw(shape, dtype, seed) for seed, (name, shape) in enumerate(shapes.items())}
    with force_kernel(family):
        yield hipsim.Device(part), family, values


def test_epilogue_on_the_whole_sum_and_the_same_bits(call):
    dev, family, values = call
    x, w, bias, c = map(dev.array, values.values())
    keywords = {"activation": "silu", "beta": 0.5}
    found = mf.explain(x, w.mT, bias, C=c, **keywords)
    assert (found.family, len(found.launches)) == (family, 2)
    assert found.workspace > 0
    assert not found.rows_independent_of_m
    results = [dev.to_numpy(mf.matmul_fused(x, w.mT, bias, C=c, **keywords)) for _ in range(2)]
    assert (results[0].view(np.uint16) == results[1].view(np.uint16)).all()
    check(results[0], values["a"], values["w"].T, values["bias"], C=values["c"], **keywords)


def test_gated(call):
    dev, _, values = call
    y = mf.matmul_fused(dev.array(values["a"]), dev.array(values["w"]).mT, activation="swiglu")
    check(dev.to_numpy(y), values["a"], values["w"].T, activation="swiglu")


def test_few_tiles_and_a_long_k_are_split():
    dev = hipsim.Device("gfx942")
    a, w = dev.empty((256, 14336), np.float16), dev.empty((4096, 14336), np.float16)
    assert mf.explain(a, w.mT).family == "gemm_pingpong_staged_splitk"
    large = dev.empty((4096, 512), np.float16)
    assert mf.explain(large, large.mT).family == "gemm_pingpong_staged"


@pytest.mark.parametrize(("n", "cuts"), [(103 * 128, True), (208 * 128, False), (208 * 128 + 8, True)])
def test_what_fills_the_last_wave_is_not_split(n, cuts):
    """Tiles of 64 x 128 for 104 units, which have two at once."""
    dev = hipsim.Device("gfx90a")
    found = mf.explain(dev.empty((64, 4096), np.float16), dev.empty((n, 4096), np.float16).mT)
    (reason,) = {row.reason for row in found.candidates if row.name == "gemm_pingpong_staged_splitk_64x128x64_f16_nt"}
    refused = "cuts K where that takes less time: 208 tiles are for 104 compute units"
    assert reason == (None if cuts else refused)


def test_without_a_workspace_another_kernel_runs():
    """A result of more partial sums than a workspace may have."""
    dev = hipsim.Device("gfx942")
    a, w = dev.empty((1 << 16, 512), np.float16), dev.empty((1 << 13, 512), np.float16)
    found = mf.explain(a, w.mT)
    (reason,) = {row.reason for row in found.candidates if row.name.startswith("gemm_thin_splitk_16x32x512_f16")}
    assert reason.startswith("needs a workspace of ")
    assert found.workspace == 0
