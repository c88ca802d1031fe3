"""gemm_mfma_xf32 on simulated gfx942: when it runs, and that what it multiplies was rounded before.

The instruction was reported to truncate its inputs (docs/amd_gpus.md): the simulator rounds or truncates, with the same
bits.
"""

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, simulator  # noqa: F401
from matmul_fused.testing import force_kernel
from support import check, draw

TILES = ("128x128x32", "64x64x32")
LAYOUTS = ("NN", "NT", "TN", "TT")
NAN, INFINITY, GREATEST = 0x7F800000, 0x7F800000, 0x7F7FE000  # a NaN has bits beyond; greatest number of 11 bits


@pytest.fixture
def dev():
    return hipsim.Device("gfx942")


@pytest.fixture(params=["nearest", "truncate"])
def way(request):
    hipsim.configure(xf32=request.param)
    yield request.param
    hipsim.configure(xf32="nearest")


def on_device(dev, matrix, turned):
    """The matrix with stride 1 along its last axis; turned: along the one before."""
    return dev.array(np.ascontiguousarray(matrix.T)).mT if turned else dev.array(matrix)


def product(dev, tile, layout, a, b, **keywords):
    x, y = on_device(dev, a, layout[0] == "T"), on_device(dev, b, layout[1] == "T")
    with force_kernel(f"gemm_mfma_xf32_{tile}_f32_{layout.lower()}"):
        return dev.to_numpy(mf.matmul_fused(x, y, allow_tf32=True, **keywords))


def rounded(x):
    """To 11 bits, to nearest, ties to even, by arithmetic of float64; subnormals to multiples of 2^-136."""
    wide = x.astype(np.float64)
    unit = 2.0 ** (np.maximum(np.frexp(wide)[1], -125) - 11)
    return np.where(np.isfinite(wide), np.rint(wide / unit) * unit, wide)


def test_rounded_reaches_its_bounds():
    greatest = np.array((GREATEST,), np.uint32).view(np.float32)
    assert rounded(np.float32(1 + 2.0**-11)) == 1
    assert rounded(np.float32(1 + 3 * 2.0**-11)) == 1 + 2.0**-9
    assert rounded(greatest) == greatest
    assert rounded(np.finfo(np.float32).max) == 2.0**128


def patterns(rng):
    """Bits of float32: any, near ties, around the greatest number, subnormals."""
    drawn = rng.integers(0, NAN, 96, np.uint32)
    ties = (rng.integers(0, NAN >> 13, 96, np.uint32) << 13) + 0x1000 + rng.integers(-1, 2, 96).astype(np.uint32)
    top = np.uint32(GREATEST) + np.array((0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF), np.uint32)
    small = rng.integers(0, 0x800000, 60, np.uint32)
    bits = np.concatenate((drawn, ties, top, small))
    return bits | rng.integers(0, 2, bits.size, np.uint32) << 31


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_element_is_rounded(dev, way, tile, layout):
    """Times 1, in each k of a step and of the last one, which is cut."""
    x = patterns(np.random.default_rng(5)).view(np.float32)
    with np.errstate(over="ignore"):
        expected = rounded(x).astype(np.float32)
    for k in (0, 1, 6, 31, 32, 40):
        a, b = np.zeros((x.size, 41), np.float32), np.zeros((41, 3), np.float32)
        a[:, k], b[k] = x, 1
        got = product(dev, tile, layout, a, b)
        assert (got == expected[:, None]).all()
        got = product(dev, tile, layout, np.ascontiguousarray(b.T), np.ascontiguousarray(a.T))
        assert (got == expected).all()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_infinity_and_nan_stay(dev, way, tile, layout):
    """Of every payload, also of those in the low bits alone, and all ones."""
    payloads = np.array((1, 0xFFF, 0x1000, 0x1FFF, 0x400000, 0x7FF000, 0x7FFFFF), np.uint32)
    bits = np.concatenate(([INFINITY], NAN + payloads)).astype(np.uint32)
    bits = np.concatenate((bits, bits | np.uint32(1 << 31)))
    x, one = np.zeros((bits.size, 2), np.float32), np.zeros((2, 5), np.float32)
    x[:, 1], one[1] = bits.view(np.float32), 1
    turned = np.ascontiguousarray(one.T), np.ascontiguousarray(x.T)
    for got in (product(dev, tile, layout, x, one), product(dev, tile, layout, *turned).T):
        assert np.isnan(got).sum() == 2 * 7 * 5
        assert (got[0] == np.inf).all()
        assert (got[8] == -np.inf).all()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_instructions_way_changes_no_bit(dev, tile, layout):
    a, b, bias = draw((150, 75), "float32"), draw((75, 140), "float32", 1), draw(140, "float32", 2)
    a[3, 5] = b[7, 9] = np.nan
    a[4, 6] = b[8, 10] = np.inf
    results = []
    for how in ("nearest", "truncate"):
        hipsim.configure(xf32=how)
        try:
            results.append(product(dev, tile, layout, a, b, bias=dev.array(bias), activation="silu"))
        finally:
            hipsim.configure(xf32="nearest")
    assert np.isfinite(results[0]).sum() > 100 * 100
    assert (results[0].view(np.uint32) == results[1].view(np.uint32)).all()


def test_gate(dev, way):
    a, w = draw((70, 40), "float32"), draw((40, 300), "float32", 1)
    for tile in TILES:
        got = product(dev, tile, "NT", a, w, activation="swiglu")
        check(got, a, w, activation="swiglu", allow_tf32=True)


def test_where_it_runs():
    for part in ("gfx90a", "gfx942", "gfx950"):
        dev = hipsim.Device(part)
        a, b = dev.empty((2048, 2048), np.float32), dev.empty((2048, 2048), np.float32)
        for x in (a, a.mT):
            for y in (b, b.mT):
                assert (mf.explain(x, y, allow_tf32=True).family == "gemm_mfma_xf32") == (part == "gfx942")
                exact = mf.explain(x, y)
                assert exact.family != "gemm_mfma_xf32"
                reasons = {row.reason for row in exact.candidates if row.family == "gemm_mfma_xf32"}
                assert None not in reasons
                if part == "gfx942":
                    assert "rounds float32 to 11 bits, which allow_tf32 allows" in reasons
