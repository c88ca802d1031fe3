"""Every activation through the library, point by point: |f(z) - exact| <= 8 u |exact| + 4 L u |z|.

The carrier is a product with K = 0, so that z is the bias, exactly. float32: every 4096th bit pattern, every 16th with
--full; float16 and bfloat16: all of them; float64: random ones. NaN, infinities, zeros and subnormals: torch's values.
"""

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import Case, expect
from matmul_fused.testing.cases import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from matmul_fused.testing.formulas import resolve
from matmul_fused.testing.reference import assert_close
from matmul_fused.testing.rounding import FORMATS, numpy_dtype, overflow_as, widen

NAMES = [name for name in PLAIN_ACTIVATIONS if name not in ("none", "swish")]
CHUNK = 1 << 18


def argument(name):
    return Case(1, 1, 1, activation=name).activation_argument


def through(z, name, **how):
    """The activation of a 1-D array, by a product over nothing."""
    empty = np.zeros((1, 0), z.dtype)
    return mf.matmul_fused(empty, np.zeros((0, z.size), z.dtype), z, argument(name), **how)[0]


def worst_ratio(z, name):
    """The greatest error / (8 u |exact| + 4 L u |z|) over the points, where it is, and its error in u |exact|."""
    dtype = z.dtype.name
    form = FORMATS[dtype]
    got = widen(through(z, name), np.dtype(np.longdouble if dtype == "float64" else np.float64))
    _, row, parameters = resolve(argument(name))
    with np.errstate(all="ignore"):
        wide = widen(z, got.dtype)
        exact = overflow_as(row.f(wide, *parameters), dtype)
        slope = row.lipschitz(wide, np.zeros(()), *parameters)
        allowed = 8 * form.unit * np.abs(exact) + 4 * slope * form.unit * np.abs(wide) + 4 * form.least
        error = np.abs(got - exact)
        same = (got == exact) | (np.isnan(got) & np.isnan(exact))
        ratio = np.where(same, 0, np.where(np.isfinite(error) & np.isfinite(allowed), error / allowed, np.inf))
    at = int(np.argmax(ratio))
    units = error[at] / (form.unit * abs(exact[at])) if ratio[at] else 0.0
    return float(ratio[at]), z[at], got[at], exact[at], float(units)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_float32_points(name, full_run, accounts):
    step = 16 if full_run else 4096
    worst = (0.0,)
    with np.errstate(all="ignore"):
        for start in range(0, 1 << 32, step * CHUNK):
            bits = np.arange(start, min(start + step * CHUNK, 1 << 32), step, dtype=np.uint64)
            worst = max(worst, worst_ratio(bits.astype(np.uint32).view(np.float32), name), key=lambda x: x[0])
    describe(accounts, name, "float32", worst)
    assert worst[0] <= 1, f"at z = {worst[1]!r}: got {worst[2]!r}, exact {worst[3]!r}, {worst[0]:.3g} times the bound"


def describe(accounts, name, dtype, worst):
    row = {"activation": name, "dtype": dtype, "ratio": worst[0]}
    if worst[0]:
        row |= {"z": float(worst[1]), "got": float(worst[2]), "exact": float(worst[3]), "error_in_u": worst[4]}
    accounts.record("activations", row)
    where = f" at z = {worst[1]!s}" if worst[0] else ""
    accounts.say("activations: greatest error / (8 u |exact| + 4 L u |z|)", f"{name} {dtype}: {worst[0]:.3f}{where}")


@pytest.mark.parametrize("name", NAMES)
def test_float64_points(name, accounts):
    rng = np.random.default_rng(11)
    z = np.concatenate([
        rng.integers(0, 1 << 64, 20_000, dtype=np.uint64).view(np.float64),
        rng.standard_normal(20_000) * np.exp2(rng.integers(-20, 7, 20_000)),
    ])  # fmt: skip
    worst = worst_ratio(z, name)
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


def torchs(torch, name, *arrays):
    """What torch makes of z, or of g and u."""
    _, row, parameters = resolve(argument(name))
    return row.torch(torch, *map(torch.from_numpy, arrays), *parameters).numpy()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_special_values_are_torchs(name, dtype):
    torch = pytest.importorskip("torch")
    z = np.array(SPECIAL, dtype)
    want = torchs(torch, name, z)
    got = through(z, name)
    exact = np.abs(z) > 1
    exact |= z == 0
    np.testing.assert_array_equal(got[exact | np.isnan(z)], want[exact | np.isnan(z)])
    # Subnormals: to the last unit of the format
    least = FORMATS[dtype].least if dtype == "float32" else 1e-320
    np.testing.assert_allclose(got, want, rtol=4 * FORMATS[dtype].unit, atol=least)
    far = np.array(LIMITS, dtype)
    _, row, p = resolve(argument(name))
    with np.errstate(all="ignore"):
        right = row.f(far.astype(np.longdouble), *p).astype(dtype)
    np.testing.assert_allclose(through(far, name), right, rtol=2e-6, atol=1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("name", GATED_ACTIVATIONS)
def test_special_gates_are_torchs(name):
    torch = pytest.importorskip("torch")
    values = np.float32([*SPECIAL, 1, -1, 9, -9])
    g, u = (x.ravel() for x in np.meshgrid(values, values))
    want = torchs(torch, name, g, u)
    z = np.concatenate([g, u])
    got = through(z, name)
    # torch rounds act(g) to a subnormal, or to 0, before it multiplies
    clear = ~((np.abs(g) < 1e-37) & ~(np.isfinite(u) & (np.abs(u) <= 9)) & (g != 0))
    if name in ("geglu", "geglu_tanh"):
        clear &= g != -9  # 1 + erf(-6.4), 1 + tanh(-33) are 0 in torch; the numbers are not, and may meet infinity
        meets = (g == -9) & np.isinf(u)
        np.testing.assert_array_equal(got[meets], -u[meets])
    np.testing.assert_allclose(got[clear], want[clear], rtol=1e-6, atol=3e-45)


@pytest.mark.parametrize("name", GATED_ACTIVATIONS)
def test_gates_over_their_range(name):
    rng = np.random.default_rng(12)
    z = (rng.standard_normal(200_000) * np.exp2(rng.integers(-20, 8, 200_000))).astype(np.float32)
    exact, _ = expect(np.zeros((1, 0), np.float32), np.zeros((0, z.size), np.float32), z, argument(name))
    assert_close(through(z, name)[None], exact, "float32")


def test_every_name_of_the_library_is_tested():
    known = {resolve(argument(name))[0] for name in (*PLAIN_ACTIVATIONS, *GATED_ACTIVATIONS)} | {"swish"}
    assert known - {"none"} == {*mf.activations, *mf.gated_activations} - {"none"}
