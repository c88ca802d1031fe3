"""The formulas of matmul_fused.testing.formulas: the truth of every other test of an activation.

They are checked against mpmath, 40 digits wide, and at infinity against a table. torch is compared with them, not they
with torch: in float64, where its kernels are right on every CPU. Its float32 gelu is not (NaN at +inf with AVX-512).
"""

import math

import numpy as np
import pytest

from matmul_fused.testing.formulas import ACTIVATIONS, GATED, erfc

INF, NAN = math.inf, math.nan
WIDE = pytest.mark.parametrize("wide", [np.float64, np.longdouble])


def sigmoid(mp, z):
    return 1 / (1 + mp.exp(-z))


def clip(x, low, high):  # low > high: high
    return min(max(x, low), high)


# The textbook's formula of every activation for numbers of mpmath; "gate" and "up" are those of swiglu_oai.
EXACT = {
    "none": lambda mp, z: z,
    "relu": lambda mp, z: max(z, 0),
    "gelu": lambda mp, z: z * mp.erfc(-z / mp.sqrt(2)) / 2,
    "gelu_tanh": lambda mp, z: z * sigmoid(mp, 2 * mp.sqrt(2 / mp.pi) * (z + mp.mpf("0.044715") * z**3)),
    "silu": lambda mp, z: z * sigmoid(mp, z),
    "sigmoid": sigmoid,
    "tanh": lambda mp, z: mp.tanh(z),
    "relu_squared": lambda mp, z: max(z, 0) ** 2,
    "quick_gelu": lambda mp, z: z * sigmoid(mp, mp.mpf("1.702") * z),
    "leaky_relu": lambda mp, z, slope: slope * z if z < 0 else z,
    "elu": lambda mp, z, alpha: alpha * mp.expm1(z) if z < 0 else z,
    "hardswish": lambda mp, z: z * clip(z + 3, 0, 6) / 6,
    "softplus": lambda mp, z: z if z > 20 else mp.log1p(mp.exp(z)),
    "mish": lambda mp, z: z * mp.tanh(mp.log1p(mp.exp(z))),
    "clamp": lambda mp, z, low, high: clip(z, low, high),
    "gate": lambda mp, g, limit, alpha: min(g, limit) * sigmoid(mp, alpha * min(g, limit)),
    "up": lambda mp, u, limit, alpha: clip(u, -limit, limit) + 1,
}
ROWS = {**ACTIVATIONS, "gate": GATED["swiglu_oai"].gate, "up": GATED["swiglu_oai"].up}
ARGUMENTS = [(name, p) for name, row in ACTIVATIONS.items() for p in (row.usual, *row.variants)]
ARGUMENTS += [(name, p) for name in ("gate", "up") for p in (GATED["swiglu_oai"].defaults, (2.0, 1.0))]
ARGUMENTS = list(dict.fromkeys(ARGUMENTS))

# f(-inf), f(inf): every factor of the formula takes its limit, and inf * 0 is NaN.
AT_INFINITY = {
    "none": (-INF, INF), "relu": (0, INF), "gelu": (NAN, INF), "gelu_tanh": (NAN, INF), "silu": (NAN, INF),
    "sigmoid": (0, 1), "tanh": (-1, 1), "relu_squared": (0, INF), "quick_gelu": (NAN, INF), "leaky_relu": (-INF, INF),
    "elu": (-1, INF), "hardswish": (NAN, INF), "softplus": (0, INF), "mish": (NAN, INF),
}  # fmt: skip


def test_erfc_against_mpmath():
    mpmath = pytest.importorskip("mpmath")
    x = np.concatenate([np.linspace(-7, 13, 401), [0.0, 1e-300, 30.0, 100.0, -30.0]])
    wide = erfc(x.astype(np.longdouble))
    with mpmath.workdps(40):
        for value, a, b in zip(x.tolist(), erfc(x).tolist(), wide, strict=True):
            exact = mpmath.erfc(value)
            assert abs(a - exact) <= 4e-16 * exact + 1e-320
            assert abs(precise(mpmath, b) - exact) <= 6e-17 * exact + 1e-320
    assert np.isnan(erfc(np.array([np.nan], np.longdouble)))


def precise(mpmath, x):
    """A float64 or longdouble as a number of mpmath."""
    high = float(x)
    return mpmath.mpf(high) + mpmath.mpf(float(x - x.dtype.type(high)))


def points():
    """Of every size that decides something, with the places where formulas change."""
    rng = np.random.default_rng(2)
    z = rng.standard_normal(600) * np.exp2(rng.integers(-30, 8, 600))
    return np.concatenate([z, [0.0, 1e-310, -1e-310, 3, -3, 7, -7, 19.99, 20, 20.5, 49.5, 50, 50.5, 1e5, -1e5]])


@WIDE
@pytest.mark.parametrize(("name", "parameters"), ARGUMENTS)
def test_formulas_against_mpmath(name, parameters, wide):
    mpmath = pytest.importorskip("mpmath")
    z = points()
    with np.errstate(all="ignore"):
        got = ROWS[name].f(z.astype(wide), *parameters)
    unit = float(np.finfo(wide).eps) / 2
    with mpmath.workdps(40):
        for x, y in zip(z.tolist(), got, strict=True):
            exact = EXACT[name](mpmath, mpmath.mpf(x), *parameters)
            # An argument that is rounded costs u |z|.
            allowed = 16 * unit * abs(exact) + 4 * unit * abs(x) + 1e-307
            assert abs(precise(mpmath, y) - exact) <= allowed, f"f({x!r}) is {y!r}, not {mpmath.nstr(exact, 25)}"


@WIDE
@pytest.mark.parametrize(("name", "parameters"), ARGUMENTS)
def test_what_is_not_finite(name, parameters, wide):
    z = np.array([-INF, INF, NAN], wide)
    with np.errstate(all="ignore"):
        got = ROWS[name].f(z, *parameters)
    np.testing.assert_allclose(got, [*at_infinity(name, parameters), NAN], rtol=1e-15)


def at_infinity(name, parameters):
    if name == "clamp":
        low, high = parameters
        return min(low, high), high
    if name == "gate":
        limit, alpha = parameters
        return NAN, limit / (1 + math.exp(-alpha * limit))
    if name == "up":
        return 1 - parameters[0], 1 + parameters[0]
    scale = parameters[0] if name in ("leaky_relu", "elu") else 1
    low, high = AT_INFINITY[name]
    return low * scale, high


def test_every_row_has_its_formula():
    assert EXACT.keys() == ROWS.keys()
    assert AT_INFINITY.keys() | {"clamp"} == ACTIVATIONS.keys()


@pytest.mark.parametrize("name", ACTIVATIONS)
@np.errstate(all="ignore")
def test_torch_means_the_same(name):
    """torch's float64 kernels have these values; at infinity, too."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    z = np.concatenate(
        [rng.standard_normal(20_000) * np.exp2(rng.integers(-30, 8, 20_000)), points(), [-INF, INF, NAN]]
    )
    row = ACTIVATIONS[name]
    torchs = row.torch(torch, torch.from_numpy(z), *row.usual).numpy()
    exact = row.f(z, *row.usual)
    same = ~np.isfinite(z) | (z == 0)
    np.testing.assert_array_equal(torchs[same], exact[same])
    z, torchs, exact = z[~same], torchs[~same], exact[~same]
    unit = 2.0**-53  # torch's formulas cancel where ours do not: an absolute error of order u |z|
    assert (np.abs(torchs - exact) <= 16 * unit * np.abs(exact) + 4 * unit * np.abs(z) + 1e-307).all()


@pytest.mark.parametrize("name", GATED)
def test_torch_means_the_same_gates(name):
    torch = pytest.importorskip("torch")
    g, u = np.random.default_rng(3).standard_normal((2, 10_000)) * 6
    row = GATED[name]
    torchs = row.torch(torch, torch.from_numpy(g), torch.from_numpy(u), *row.defaults)
    exact = row.gate.f(g, *row.defaults) * row.up.f(u, *row.defaults)
    np.testing.assert_allclose(torchs.numpy(), exact, rtol=1e-12, atol=1e-14)
    if name == "glu":
        both = torch.from_numpy(np.stack([u, g]))
        np.testing.assert_allclose(torch.nn.functional.glu(both, 0)[0].numpy(), exact, rtol=1e-14)


LIPSCHITZ = [(name, row.usual, row) for name, row in ACTIVATIONS.items()] + [
    ("leaky_relu", (-1.5,), ACTIVATIONS["leaky_relu"]), ("elu", (3.0,), ACTIVATIONS["elu"]),
    ("gate of swiglu_oai", (7.0, 1.702), GATED["swiglu_oai"].gate),
    ("gate of swiglu_oai", (2.0, 0.5), GATED["swiglu_oai"].gate),
    ("up of swiglu_oai", (7.0, 1.702), GATED["swiglu_oai"].up),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "row"), LIPSCHITZ)
def test_lipschitz_constants_are_bounds_and_tight(name, parameters, row):
    z = np.linspace(-30, 30, 600_001)
    e = 1e-4
    slope = row.lipschitz(z, np.full(z.shape, e), *parameters)
    moved = np.maximum(np.abs(row.f(z + e, *parameters) - row.f(z, *parameters)),
                       np.abs(row.f(z - e, *parameters) - row.f(z, *parameters))) / e  # fmt: skip
    jump = 0 if row.step is None else row.step(z, e) / e
    assert (moved <= slope + jump + 1e-8).all()
    if name != "gate of swiglu_oai":  # its greatest slope may lie beyond the limit
        assert moved.max() >= np.max(slope) * (1 - 1e-4)
