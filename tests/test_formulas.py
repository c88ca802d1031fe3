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


# The textbook's formula of every activation for numbers of mpmath, and of the halves of gated ones.
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
    "hardtanh": lambda mp, z, low, high: clip(z, low, high),
    "hardsigmoid": lambda mp, z: clip(z + 3, 0, 6) / 6,
    "selu": lambda mp, z: mp.mpf(SCALE) * (z if z >= 0 else mp.mpf(SELU_ALPHA) * mp.expm1(z)),
    "celu": lambda mp, z, alpha: z if z >= 0 else alpha * mp.expm1(z / alpha),
    "softsign": lambda mp, z: z / (1 + abs(z)),
    "logsigmoid": lambda mp, z: -mp.log1p(mp.exp(-z)),
    "threshold": lambda mp, z, threshold, value: z if z > threshold else mp.mpf(value),
    "softshrink": lambda mp, z, lambda_: z - clip(z, -lambda_, lambda_),
    "hardshrink": lambda mp, z, lambda_: z if abs(z) > lambda_ else 0 * z,
    "tanhshrink": lambda mp, z: z - mp.tanh(z),
    "exp": lambda mp, z: mp.exp(z),
    "gelu_10": lambda mp, z: clip(z * mp.erfc(-z / mp.sqrt(2)) / 2, -10, 10),
    "laplace": lambda mp, z: mp.erfc((mp.mpf("0.707107") - z) / (mp.mpf("0.282095") * mp.sqrt(2))) / 2,
    "xielu": lambda mp, z, alpha_p, alpha_n, beta, eps: (
        alpha_p * z**2 + beta * z if z > 0 else alpha_n * (mp.expm1(min(z, eps)) - z) + beta * z
    ),
    "gate of swiglu_oai": lambda mp, g, limit, alpha: min(g, limit) * sigmoid(mp, alpha * min(g, limit)),
    "up of swiglu_oai": lambda mp, u, limit, alpha: clip(u, -limit, limit) + 1,
    "gate of swiglu_clamped": lambda mp, g, limit, alpha, beta: min(g, limit) * sigmoid(mp, alpha * min(g, limit)),
    "up of swiglu_clamped": lambda mp, u, limit, alpha, beta: clip(u, -limit, limit) + beta,
    "gate of situglu": lambda mp, g, beta, linear_beta: beta * mp.tanh(g / beta) * sigmoid(mp, g),
    "up of situglu": lambda mp, u, beta, linear_beta: (
        u if linear_beta == INF else linear_beta * mp.tanh(u / linear_beta)
    ),
    "gate of swiglustep": lambda mp, g, limit: min(g * sigmoid(mp, g), limit),
    "up of swiglustep": lambda mp, u, limit: clip(u, -limit, limit),
    "gate of fatreglu": lambda mp, g, threshold: g if g > threshold else 0 * g,
    "up of fatreglu": lambda mp, u, threshold: u,
}
SCALE, SELU_ALPHA = "1.05070098735548049341933498529460", "1.67326324235437728481704299167170"
OF_GATES = {
    f"{half} of {name}": (getattr(row, half), [row.usual, *map(row.complete, row.variants)])
    for name, row in GATED.items()
    for half in ("gate", "up")
    if row.defaults or row.required
}
ROWS = {**ACTIVATIONS, **{name: row for name, (row, _) in OF_GATES.items()}}
ARGUMENTS = [(name, row.complete(p)) for name, row in ACTIVATIONS.items() for p in (row.usual, *row.variants)]
ARGUMENTS += [(name, p) for name, (_, variants) in OF_GATES.items() for p in variants]
ARGUMENTS = list(dict.fromkeys(ARGUMENTS))

# f(-inf), f(inf): every factor of the formula takes its limit, and inf * 0 is NaN.
AT_INFINITY = {
    "none": (-INF, INF), "relu": (0, INF), "gelu": (NAN, INF), "gelu_tanh": (NAN, INF), "silu": (NAN, INF),
    "sigmoid": (0, 1), "tanh": (-1, 1), "relu_squared": (0, INF), "quick_gelu": (NAN, INF), "leaky_relu": (-INF, INF),
    "elu": (-1, INF), "hardswish": (NAN, INF), "softplus": (0, INF), "mish": (NAN, INF), "hardsigmoid": (0, 1),
    "selu": (-1.7580993408473768599, INF), "celu": (-1, INF), "softsign": (NAN, NAN), "logsigmoid": (-INF, 0),
    "softshrink": (-INF, INF), "hardshrink": (-INF, INF), "tanhshrink": (-INF, INF), "exp": (0, INF),
    "gelu_10": (NAN, 10), "laplace": (0, 1), "xielu": (INF, INF),
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
            if np.isinf(y):  # of exp alone
                assert exact > mpmath.mpf(2) ** np.finfo(wide).maxexp
                continue
            # An argument that is rounded costs u |z|.
            allowed = 16 * unit * abs(exact) + 4 * unit * (abs(x) + ROWS[name].shift) + 1e-307
            if name == "exp":
                allowed += 4 * unit * abs(x) * exact
            assert abs(precise(mpmath, y) - exact) <= allowed, f"f({x!r}) is {y!r}, not {mpmath.nstr(exact, 25)}"


@WIDE
@pytest.mark.parametrize(("name", "parameters"), ARGUMENTS)
def test_what_is_not_finite(name, parameters, wide):
    z = np.array([-INF, INF, NAN], wide)
    with np.errstate(all="ignore"):
        got = ROWS[name].f(z, *parameters)
    np.testing.assert_allclose(got, [*at_infinity(name, parameters), NAN], rtol=1e-15)


def at_infinity(name, parameters):
    half, _, gated = name.partition(" of ")
    first, *rest = parameters or (INF,)
    if name in ("clamp", "hardtanh"):
        return min(first, rest[0]), rest[0]
    if name == "threshold":
        return rest[0], INF
    if gated in ("swiglu_oai", "swiglu_clamped"):
        above = 1 if gated == "swiglu_oai" else rest[1]
        return (NAN, first / (1 + math.exp(-rest[0] * first))) if half == "gate" else (above - first, above + first)
    if gated == "situglu":
        return (0, first) if half == "gate" else (-rest[0], rest[0])
    if gated == "swiglustep":
        return (NAN, first) if half == "gate" else (-first, first)
    if gated == "fatreglu":
        return (0, INF) if half == "gate" else (-INF, INF)
    scale = first if name in ("leaky_relu", "elu", "celu") else 1
    low, high = AT_INFINITY[name]
    return low * scale, high


def test_every_row_has_its_formula():
    assert EXACT.keys() == ROWS.keys()
    assert AT_INFINITY.keys() | {"clamp", "hardtanh", "threshold"} == ACTIVATIONS.keys()


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
    same = ~np.isfinite(z) | ((z == 0) & (row.shift == 0)) | ~np.isfinite(exact)
    np.testing.assert_array_equal(torchs[same], exact[same])
    z, torchs, exact = z[~same], torchs[~same], exact[~same]
    unit = 2.0**-53  # torch's formulas cancel where ours do not: an absolute error of order u |z|
    near = np.abs(torchs - exact) <= 16 * unit * np.abs(exact) + 4 * unit * (np.abs(z) + row.shift) + 1e-307
    assert near.all(), [*zip(z[~near], torchs[~near], exact[~near], strict=True)][:5]


@pytest.mark.parametrize("name", GATED)
def test_torch_means_the_same_gates(name):
    torch = pytest.importorskip("torch")
    g, u = np.random.default_rng(3).standard_normal((2, 10_000)) * 6
    row = GATED[name]
    torchs = row.torch(torch, torch.from_numpy(g), torch.from_numpy(u), *row.usual)
    exact = row.gate.f(g, *row.usual) * row.up.f(u, *row.usual)
    np.testing.assert_allclose(torchs.numpy(), exact, rtol=1e-12, atol=1e-14)
    if name == "glu":
        both = torch.from_numpy(np.stack([u, g]))
        np.testing.assert_allclose(torch.nn.functional.glu(both, 0)[0].numpy(), exact, rtol=1e-14)


LIPSCHITZ = [(name, row.usual, row) for name, row in ACTIVATIONS.items()] + [
    ("leaky_relu", (-1.5,), ACTIVATIONS["leaky_relu"]), ("elu", (3.0,), ACTIVATIONS["elu"]),
    ("gate of swiglu_oai", (2.0, 0.5), GATED["swiglu_oai"].gate),
    ("xielu", (0.25, 2.0, 0.5, -1e-6), ACTIVATIONS["xielu"]),
    *((name, variants[0], row) for name, (row, variants) in OF_GATES.items()),
]  # fmt: skip
LOOSE = ("gate of swiglu_oai", "gate of swiglu_clamped", "gate of swiglustep", "gate of situglu")


@pytest.mark.parametrize(("name", "parameters", "row"), LIPSCHITZ)
def test_lipschitz_constants_are_bounds_and_tight(name, parameters, row):
    z = np.linspace(-30, 30, 600_001)
    e = 1e-4
    slope = row.lipschitz(z, np.full(z.shape, e), *parameters)
    moved = np.maximum(np.abs(row.f(z + e, *parameters) - row.f(z, *parameters)),
                       np.abs(row.f(z - e, *parameters) - row.f(z, *parameters))) / e  # fmt: skip
    jump = 0 if row.step is None else row.step(z, e) / e
    good = moved <= slope * (1 + 1e-6) + jump + 1e-8
    if row.other is not None:  # what moved onto the other branch lies near its value here
        either, there, steep = row.other(z, np.full(z.shape, e), *parameters)
        for moved_to in (row.f(z + e, *parameters), row.f(z - e, *parameters)):
            near = np.abs(moved_to - there) <= e * steep + 1e-12
            good |= either & near
        assert (either & (np.abs(z) < 29)).sum() <= 6
    assert good.all(), z[~good]
    if name not in LOOSE:  # the greatest slope may lie beyond the limit
        assert np.max(moved[good & (moved < 1e3 if row.other else True)]) >= np.max(slope) * (1 - 1e-4)
