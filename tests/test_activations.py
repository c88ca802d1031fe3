"""Every activation through the library, point by point: |f(z) - exact| <= 8 u |exact| + 4 L u |z|.

The carrier is a product with K = 0, so that z is the bias, exactly. float32: every 4096th bit pattern, every 16th with
--full; float16 and bfloat16: all of them; float64: random ones; then NaN, infinities, zeros and subnormals. The truth
is the formula in wide precision, which test_formulas.py proves and compares with torch.
"""

import numpy as np
import pytest

import matmul_fused as mf
from activation_points import argument, describe, worst_ratio
from matmul_fused.testing import expect
from matmul_fused.testing.cases import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from matmul_fused.testing.formulas import ALIASES, GATED, GATED_ALIASES, PRESETS, resolve
from matmul_fused.testing.propagate import magnitude
from matmul_fused.testing.reference import assert_close
from matmul_fused.testing.rounding import FORMATS, numpy_dtype

NAMES = [name for name in PLAIN_ACTIVATIONS if name != "none"]
CHUNK = 1 << 18


def through(z, name, **how):
    """The activation of a 1-D array, by a product over nothing."""
    empty = np.zeros((1, 0), z.dtype)
    return mf.matmul_fused(empty, np.zeros((0, z.size), z.dtype), z, argument(name), **how)[0]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_float32_points(name, full_run, accounts):
    step = 16 if full_run else 4096
    worst = (0.0,)
    with np.errstate(all="ignore"):
        for start in range(0, 1 << 32, step * CHUNK):
            bits = np.arange(start, min(start + step * CHUNK, 1 << 32), step, dtype=np.uint64)
            z = bits.astype(np.uint32).view(np.float32)
            worst = max(worst, worst_ratio(z, through(z, name), name), key=lambda x: x[0])
    describe(accounts, name, "float32", worst)
    assert worst[0] <= 1, f"at z = {worst[1]!r}: got {worst[2]!r}, exact {worst[3]!r}, {worst[0]:.3g} times the bound"


@pytest.mark.parametrize("name", NAMES)
def test_float64_points(name, accounts):
    rng = np.random.default_rng(11)
    z = np.concatenate([
        rng.integers(0, 1 << 64, 20_000, dtype=np.uint64).view(np.float64),
        rng.standard_normal(20_000) * np.exp2(rng.integers(-20, 7, 20_000)),
    ])  # fmt: skip
    worst = worst_ratio(z, through(z, name), name)
    describe(accounts, name, "float64", worst)
    assert worst[0] <= 1, f"at z = {worst[1]!r}: got {worst[2]!r}, exact {worst[3]!r}, {worst[0]:.3g} times the bound"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [*NAMES, "none"])
def test_all_16_bit_values(name, dtype):
    """In and out in 16 bits, in and out in float32: each rounded once."""
    z = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(numpy_dtype(dtype))
    empty, none = np.zeros((1, 0), z.dtype), np.zeros((0, z.size), z.dtype)
    exact, _ = expect(empty, none, z, argument(name))
    assert_close(through(z, name)[None], exact, dtype)
    assert_close(through(z, name, out_dtype="float32")[None], exact, "float32")


SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.1754944e-38, -1.1754944e-38,
]  # fmt: skip
LIMITS = [3.4028235e38, -3.4028235e38, 3.0, -3.0, 20.0, 20.000002, 88.8, -88.8, -104.0, 1e5, -1e5]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_special_values(name, dtype):
    """What is not finite, and zeros that stay zeros: the very value. Others: to the last units of the format."""
    _, row, parameters = resolve(argument(name))

    def exact(z):
        with np.errstate(all="ignore"):
            return row.f(z.astype(np.longdouble), *parameters).astype(dtype)

    z = np.array(SPECIAL, dtype)
    want, got = exact(z), through(z, name)
    same = ~np.isfinite(z) | ((z == 0) & (want == 0))
    np.testing.assert_array_equal(got[same], want[same])
    unit, least = FORMATS[dtype].unit, FORMATS[dtype].least if dtype == "float32" else 1e-320
    z, got, want = z[~same].astype(np.longdouble), got[~same], want[~same]
    slope = row.lipschitz(z, np.zeros(()), *parameters)
    assert (np.abs(got - want) <= 4 * unit * (np.abs(want) + slope * (np.abs(z) + row.shift)) + least).all()
    far = np.array(LIMITS, dtype)
    np.testing.assert_allclose(through(far, name), exact(far), rtol=2e-6, atol=1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("name", GATED_ACTIVATIONS)
def test_special_gates(name):
    values = np.float32([*SPECIAL, 1, -1, 9, -9])
    g, u = (x.ravel() for x in np.meshgrid(values, values))
    _, row, parameters = resolve(argument(name))
    got = through(np.concatenate([g, u]), name).astype(np.float64)
    form, g, u = FORMATS["float32"], g.astype(np.float64), u.astype(np.float64)
    with np.errstate(all="ignore"):
        gate, up = row.gate.f(g, *parameters), row.up.f(u, *parameters)
        want = gate * up
        slope = row.gate.lipschitz(g, np.zeros(()), *parameters)
        error = form.unit * (8 * np.abs(gate) + 4 * slope * magnitude(g)) + 4 * form.least
        close = np.abs(got - want) <= error * np.abs(up) + 8 * form.unit * np.abs(want) + 4 * form.least
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    # act(g) may be rounded to a subnormal, or to 0, before it meets an infinity.
    lost = np.isinf(up) & (gate != 0) & (np.abs(gate) < form.least_normal) & np.isnan(got)
    good = np.where(np.isfinite(want), close, same | lost)
    assert good.all(), [*zip(g[~good], u[~good], got[~good], want[~good], strict=True)]


@pytest.mark.parametrize("name", GATED_ACTIVATIONS)
def test_gates_over_their_range(name):
    rng = np.random.default_rng(12)
    z = (rng.standard_normal(200_000) * np.exp2(rng.integers(-20, 8, 200_000))).astype(np.float32)
    exact, _ = expect(np.zeros((1, 0), np.float32), np.zeros((0, z.size), np.float32), z, argument(name))
    assert_close(through(z, name)[None], exact, "float32")


def test_every_name_of_the_library_is_tested():
    known = {resolve(argument(name))[0] for name in (*PLAIN_ACTIVATIONS, *GATED_ACTIVATIONS)}
    names = known | {*ALIASES, *GATED_ALIASES, *PRESETS} - {name for name, meant in ALIASES.items() if meant == "none"}
    assert names - {"none"} == {*mf.activations, *mf.gated_activations}


@pytest.mark.parametrize("name", [*ALIASES, *PRESETS, *GATED_ALIASES])
def test_an_alias_is_the_same_function(name):
    """Bit by bit, in any case, in the gate layout that it means."""
    z = np.random.default_rng(13).standard_normal(2000).astype(np.float32) * 4
    for spelling in (name, name.upper()):
        meant, layout = GATED_ALIASES.get(name, (PRESETS.get(name, ALIASES.get(name)), None))
        usual = GATED[meant].usual if layout else ()
        spec = (spelling, *usual) if usual else spelling
        empty, none = np.zeros((1, 0), np.float32), np.zeros((0, z.size), np.float32)
        got = mf.matmul_fused(empty, none, z, spec)
        np.testing.assert_array_equal(
            got, mf.matmul_fused(empty, none, z, (meant, *usual) if usual else meant, gate_layout=layout)
        )
