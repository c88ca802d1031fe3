"""Every activation in float64 or np.longdouble, written independently of csrc/problem/activations.def.

Role: the mathematical truth of the reference. Formulas avoid the cancellation that the usual ones have (erfc in place
of 1 + erf, a sigmoid without overflow), so that small results are right to the last digits. NaN comes through, values
at +-inf are torch's. `lipschitz(z, e)` bounds |f(z') - f(z)| / e for every |z' - z| <= e; where a function is
piecewise linear it is the bound of the piece that z lies in.

One row says everything that the tests know of an activation: cases.py makes cases of its name and variants, the tests
compare it with `torch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .rounding import Array

Scalar = float
Spec = str | Sequence[Any] | None  # what a caller passes as activation=

# Greatest slopes: gelu at sqrt(2), gelu_tanh at 1.4185, silu at 2.3994, mish at 1.4906 (confirmed by a test).
GELU_SLOPE = 1.1289041746
GELU_TANH_SLOPE = 1.1289930687
SILU_SLOPE = 1.0998393202
MISH_SLOPE = 1.0884981613
# softplus is z itself above 20 (torch's threshold): the height of the step there, log1p(exp(-20)).
SOFTPLUS_STEP = 2.0611536204e-09


def erfc(x: Array) -> Array:
    """1 - erf(x), with small relative error also where it is tiny (x: float64 or longdouble; the result alike)."""
    if x.dtype != np.longdouble:
        return np.fromiter(map(math.erfc, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)
    a = np.minimum(np.abs(x), np.longdouble(120))
    near = a < 2
    s = np.where(near, a, 0)  # erf(s) = 2/sqrt(pi) exp(-s^2) sum_n 2^n s^(2n+1) / (2n+1)!!, all terms positive
    term, total = s.copy(), s.copy()
    for n in range(1, 60):
        term = term * (2 * s * s / (2 * n + 1))
        total = total + term
    root_pi = np.sqrt(np.longdouble("3.14159265358979323846264338327950288"))
    small = 1 - 2 / root_pi * np.exp(-s * s) * total
    t = np.where(near, 2, a)  # erfc(t) = exp(-t^2)/sqrt(pi) / (t + 1/2/(t + 1/(t + 3/2/(t + ...))))
    fraction = t.copy()
    for n in range(160, 0, -1):
        fraction = t + n / np.longdouble(2) / fraction
    positive = np.where(near, small, np.exp(-t * t) / root_pi / fraction)
    return np.where(np.isnan(x), x, np.where(x < 0, 2 - positive, positive))


def sigmoid(z: Array) -> Array:
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1, e) / (1 + e)


def _relu(z: Array) -> Array:
    return np.maximum(z, 0)


def _relu_squared(z: Array) -> Array:
    return np.square(np.maximum(z, 0))


def _gelu(z: Array) -> Array:
    return z * (erfc(z * -np.sqrt(z.dtype.type(0.5))) / 2)


def _gelu_tanh(z: Array) -> Array:
    # 1 + tanh(y) = 2 sigmoid(2y)
    two = z.dtype.type(2)
    pi = z.dtype.type("3.14159265358979323846264338327950288")
    return z * sigmoid(two * np.sqrt(two / pi) * z * (1 + z.dtype.type("0.044715") * z * z))


def _silu(z: Array) -> Array:
    return z * sigmoid(z)


def _quick_gelu(z: Array) -> Array:
    return z * sigmoid(z.dtype.type("1.702") * z)


def _leaky_relu(z: Array, slope: Scalar) -> Array:
    return np.where(z < 0, z.dtype.type(slope) * z, z)


def _elu(z: Array, alpha: Scalar) -> Array:
    return np.maximum(z, 0) + z.dtype.type(alpha) * np.expm1(np.minimum(z, 0))


def _hardswish(z: Array) -> Array:
    return z * (np.clip(z + 3, 0, 6) / 6)


def _softplus(z: Array) -> Array:
    return np.where(z > 20, z, np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))))


def _mish(z: Array) -> Array:
    # tanh(log(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1)
    e = np.exp(np.minimum(z, 50))
    return np.where(z > 50, z, z * (e * (e + 2) / (e * (e + 2) + 2)))


def _clamp(z: Array, low: Scalar, high: Scalar) -> Array:
    return np.minimum(np.maximum(z, z.dtype.type(low)), z.dtype.type(high))


class Activation(NamedTuple):
    """A row: f and lipschitz take (z, *parameters) and (z, e, *parameters), torch takes (torch, z, *parameters)."""

    f: Callable[..., Array]
    lipschitz: Callable[..., Any]
    torch: Callable[..., Any]  # the same by torch's own functions, which are no dependency of this package
    defaults: tuple[float, ...] = ()
    required: int = 0  # parameters without a default
    step: Callable[..., Any] | None = None  # height of a jump of f within [z - e, z + e]
    variants: tuple[tuple[float, ...], ...] = ()  # other parameters that the cases pass

    @property
    def usual(self) -> tuple[float, ...]:
        """The defaults, or the first variant where a parameter has none."""
        return self.variants[0] if self.required else self.defaults


def _constant(slope: float) -> Callable[..., Any]:
    return lambda z, e: slope


def _hardswish_slope(z: Array, e: Array) -> Array:
    return np.where(z + e < -3, 0.0, np.where(z - e > 3, 1.0, 1.5))


def _clamp_slope(z: Array, e: Array, low: float, high: float) -> Array:
    return np.where((z + e < low) | (z - e > high), 0.0, 1.0)


ACTIVATIONS: dict[str, Activation] = {
    "none": Activation(lambda z: z, _constant(1.0), lambda t, z: z),
    "relu": Activation(_relu, lambda z, e: np.where(z + e < 0, 0.0, 1.0), lambda t, z: t.relu(z)),
    "gelu": Activation(_gelu, _constant(GELU_SLOPE), lambda t, z: t.nn.functional.gelu(z)),
    "gelu_tanh": Activation(
        _gelu_tanh, _constant(GELU_TANH_SLOPE), lambda t, z: t.nn.functional.gelu(z, approximate="tanh")
    ),
    "silu": Activation(_silu, _constant(SILU_SLOPE), lambda t, z: t.nn.functional.silu(z)),
    "sigmoid": Activation(sigmoid, _constant(0.25), lambda t, z: t.sigmoid(z)),
    "tanh": Activation(np.tanh, _constant(1.0), lambda t, z: t.tanh(z)),
    "relu_squared": Activation(
        _relu_squared,
        lambda z, e: np.where(z + e < 0, 0.0, 2 * np.maximum(z, 0) + e),
        lambda t, z: t.relu(z).square(),
    ),
    "quick_gelu": Activation(  # y sigmoid(y) / 1.702 at y = 1.702 z: silu's slope
        _quick_gelu, _constant(SILU_SLOPE), lambda t, z: z * t.sigmoid(1.702 * z)
    ),
    "leaky_relu": Activation(
        _leaky_relu,
        lambda z, e, slope: max(1.0, abs(slope)),
        lambda t, z, slope: t.nn.functional.leaky_relu(z, slope),
        (0.01,),
        variants=((0.2,), (-0.5,)),
    ),
    "elu": Activation(
        _elu,
        lambda z, e, alpha: max(1.0, abs(alpha)),
        lambda t, z, alpha: t.nn.functional.elu(z, alpha),
        (1.0,),
        variants=((0.5,), (2.0,)),
    ),
    "hardswish": Activation(_hardswish, _hardswish_slope, lambda t, z: t.nn.functional.hardswish(z)),
    "softplus": Activation(
        _softplus,
        _constant(1.0),
        lambda t, z: t.nn.functional.softplus(z),
        step=lambda z, e: np.where(np.abs(z - 20) <= e, SOFTPLUS_STEP, 0.0),
    ),
    "mish": Activation(_mish, _constant(MISH_SLOPE), lambda t, z: t.nn.functional.mish(z)),
    "clamp": Activation(  # low > high gives high, as in torch
        _clamp,
        _clamp_slope,
        lambda t, z, low, high: t.clamp(z, low, high),
        required=2,
        variants=((-0.5, 0.75), (0.0, 6.0), (0.75, -0.5)),
    ),
}
ALIASES = {"swish": "silu"}


class Gated(NamedTuple):
    """act(gate) * up: two rows that share the parameters."""

    gate: Activation
    up: Activation
    defaults: tuple[float, ...] = ()
    variants: tuple[tuple[float, ...], ...] = ()

    def torch(self, torch: Any, g: Any, u: Any, *parameters: float) -> Any:
        return self.gate.torch(torch, g, *parameters) * self.up.torch(torch, u, *parameters)


def _gate(name: str) -> Gated:
    return Gated(ACTIVATIONS[name], ACTIVATIONS["none"])


def _oai_gate(g: Array, limit: Scalar, alpha: Scalar) -> Array:
    g = np.minimum(g, g.dtype.type(limit))
    return g * sigmoid(g.dtype.type(alpha) * g)


def _oai_up(u: Array, limit: Scalar, alpha: Scalar) -> Array:
    return np.clip(u, -u.dtype.type(limit), u.dtype.type(limit)) + 1


GATED: dict[str, Gated] = {
    "swiglu": _gate("silu"),
    "geglu": _gate("gelu"),
    "geglu_tanh": _gate("gelu_tanh"),
    "reglu": _gate("relu"),
    "glu": _gate("sigmoid"),
    "swiglu_oai": Gated(
        Activation(  # x sigmoid(a x) has silu's greatest slope for every a != 0
            _oai_gate,
            lambda z, e, limit, alpha: np.where(z - e > limit, 0.0, SILU_SLOPE),
            lambda t, g, limit, alpha: g.clamp(max=limit) * t.sigmoid(alpha * g.clamp(max=limit)),
        ),
        Activation(
            _oai_up,
            lambda z, e, limit, alpha: _clamp_slope(z, e, -limit, limit),
            lambda t, u, limit, alpha: u.clamp(-limit, limit) + 1,
        ),
        (7.0, 1.702),
        ((1.5,), (2.0, 1.0)),
    ),
}


def spellings(rows: Mapping[str, Activation | Gated]) -> tuple[str, ...]:
    """Every call of these rows that the cases make: "elu", "elu(0.5)", "clamp(0:6)", and aliases."""
    texts = []
    for name, row in rows.items():
        if isinstance(row, Gated) or not row.required:
            texts.append(name)
        texts += [f"{name}({':'.join(f'{p:g}' for p in variant)})" for variant in row.variants]
        texts += [alias for alias, meant in ALIASES.items() if meant == name]
    return tuple(texts)


def resolve(activation: Spec) -> tuple[str, Activation | Gated, tuple[float, ...]]:
    """Name (an alias resolved), row and parameters of what a caller passes as activation=."""
    if activation is None:
        activation = "none"
    name, given = (activation, ()) if isinstance(activation, str) else (activation[0], tuple(activation[1:]))
    name = ALIASES.get(name, name)
    row: Activation | Gated | None = ACTIVATIONS.get(name) or GATED.get(name)
    if row is None:
        raise ValueError(f"unknown activation {name!r}")
    parameters = tuple(float(p) for p in given) + row.defaults[len(given) :]
    if isinstance(row, Activation) and len(parameters) < row.required:
        raise ValueError(f"{name} needs {row.required} parameters")
    return name, row, parameters


def is_gated(activation: Spec) -> bool:
    return isinstance(resolve(activation)[1], Gated)
