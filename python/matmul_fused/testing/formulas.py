"""Every activation in float64 or np.longdouble, written independently of csrc/problem/activations.def.

Role: the mathematical truth of the reference. Rows here, their functions in functions.py. `lipschitz(z, e)` bounds
|f(z') - f(z)| / e for every |z' - z| <= e; where a function is piecewise linear it is the bound of the piece that z
lies in. Where a function jumps, `other(z, e)` is the branch that z is not on, but some |z' - z| <= e are: a result may
lie on either.

One row says everything that the tests know of an activation: cases.py makes cases of its name and variants, the tests
compare it with `torch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import functions
from .functions import erfc as erfc
from .rounding import Array

Spec = str | Sequence[Any] | None  # what a caller passes as activation=

# Greatest slopes: gelu at sqrt(2), gelu_tanh at 1.4185, silu at 2.3994, mish at 1.4906 (confirmed by a test).
GELU_SLOPE = 1.1289041746
GELU_TANH_SLOPE = 1.1289930687
SILU_SLOPE = 1.0998393202
MISH_SLOPE = 1.0884981613
SELU_SLOPE = 1.7580993409  # at 0 from below
LAPLACE_SLOPE = 1.4142146166  # at mu: 1 / (sigma sqrt(2 pi))
# softplus is z itself above 20 (torch's threshold): the height of the step there, log1p(exp(-20)).
SOFTPLUS_STEP = 2.0611536204e-09


class Activation(NamedTuple):
    """A row: f and lipschitz take (z, *parameters) and (z, e, *parameters), torch takes (torch, z, *parameters)."""

    f: Callable[..., Array]
    lipschitz: Callable[..., Any]
    torch: Callable[..., Any]  # the same by torch's own functions, which are no dependency of this package
    defaults: tuple[float, ...] = ()
    required: int = 0  # parameters without a default
    step: Callable[..., Any] | None = None  # height of a jump of f within [z - e, z + e], where that is tiny
    other: Callable[..., tuple[Array, Array, Any]] | None = None  # (z, e, *p): where, value and slope of another branch
    shift: float = 0.0  # a constant that z meets in the formula: what its rounding costs, z's own size cannot tell
    variants: tuple[tuple[float, ...], ...] = ()  # other parameters that the cases pass

    @property
    def usual(self) -> tuple[float, ...]:
        """The defaults, or the first variant where a parameter has none."""
        return self.complete(self.variants[0] if self.required else ())

    def complete(self, given: tuple[float, ...]) -> tuple[float, ...]:
        """All parameters of a call that gives these."""
        return given + self.defaults[len(given) - self.required :]


def _constant(slope: float) -> Callable[..., Any]:
    return lambda z, e: slope


def _hardswish_slope(z: Array, e: Array) -> Array:
    return np.where(z + e < -3, 0.0, np.where(z - e > 3, 1.0, 1.5))


def _clamp_slope(z: Array, e: Array, low: float, high: float) -> Array:
    return np.where((z + e < low) | (z - e > high), 0.0, 1.0)


def _other_threshold(z: Array, e: Array, threshold: float, value: float) -> tuple[Array, Array, Array]:
    below = z <= threshold
    return np.abs(z - threshold) <= e, np.where(below, z, z.dtype.type(value)), np.where(below, 1.0, 0.0)


def _other_hardshrink(z: Array, e: Array, lambda_: float) -> tuple[Array, Array, Array]:
    inside = np.abs(z) <= lambda_
    return np.abs(np.abs(z) - lambda_) <= e, np.where(inside, z, z * 0), np.where(inside, 1.0, 0.0)


def _xielu_slope(z: Array, e: Array, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Array:
    positive, negative = 2 * abs(alpha_p) * (np.abs(z) + e) + abs(beta), max(abs(beta), abs(beta - alpha_n))
    return np.where(np.abs(z) <= e, np.maximum(positive, negative), np.where(z > 0, positive, negative))


def _other_xielu(
    z: Array, e: Array, alpha_p: float, alpha_n: float, beta: float, eps: float
) -> tuple[Array, Array, Array]:
    value = np.where(z > 0, functions.xielu_negative(z, alpha_n, beta, eps), functions.xielu_positive(z, alpha_p, beta))
    return np.abs(z) <= e, value, _xielu_slope(z, e, alpha_p, alpha_n, beta, eps)


ACTIVATIONS: dict[str, Activation] = {
    "none": Activation(lambda z: z, _constant(1.0), lambda t, z: z),
    "relu": Activation(functions.relu, lambda z, e: np.where(z + e < 0, 0.0, 1.0), lambda t, z: t.relu(z)),
    "gelu": Activation(functions.gelu, _constant(GELU_SLOPE), lambda t, z: t.nn.functional.gelu(z)),
    "gelu_tanh": Activation(
        functions.gelu_tanh, _constant(GELU_TANH_SLOPE), lambda t, z: t.nn.functional.gelu(z, approximate="tanh")
    ),
    "silu": Activation(functions.silu, _constant(SILU_SLOPE), lambda t, z: t.nn.functional.silu(z)),
    "sigmoid": Activation(functions.sigmoid, _constant(0.25), lambda t, z: t.sigmoid(z)),
    "tanh": Activation(np.tanh, _constant(1.0), lambda t, z: t.tanh(z)),
    "relu_squared": Activation(
        functions.relu_squared,
        lambda z, e: np.where(z + e < 0, 0.0, 2 * np.maximum(z, 0) + e),
        lambda t, z: t.relu(z).square(),
    ),
    "quick_gelu": Activation(  # y sigmoid(y) / 1.702 at y = 1.702 z: silu's slope
        functions.quick_gelu, _constant(SILU_SLOPE), lambda t, z: z * t.sigmoid(1.702 * z)
    ),
    "leaky_relu": Activation(
        functions.leaky_relu,
        lambda z, e, slope: max(1.0, abs(slope)),
        lambda t, z, slope: t.nn.functional.leaky_relu(z, slope),
        (0.01,),
        variants=((0.2,), (-0.5,)),
    ),
    "elu": Activation(
        functions.elu,
        lambda z, e, alpha: max(1.0, abs(alpha)),
        lambda t, z, alpha: t.nn.functional.elu(z, alpha),
        (1.0,),
        variants=((0.5,), (2.0,)),
    ),
    "hardswish": Activation(functions.hardswish, _hardswish_slope, lambda t, z: t.nn.functional.hardswish(z)),
    "softplus": Activation(
        functions.softplus,
        _constant(1.0),
        lambda t, z: t.nn.functional.softplus(z),
        step=lambda z, e: np.where(np.abs(z - 20) <= e, SOFTPLUS_STEP, 0.0),
    ),
    "mish": Activation(functions.mish, _constant(MISH_SLOPE), lambda t, z: t.nn.functional.mish(z)),
    "clamp": Activation(  # low > high gives high, as in torch
        functions.clamp,
        _clamp_slope,
        lambda t, z, low, high: t.clamp(z, low, high),
        required=2,
        variants=((-0.5, 0.75), (0.0, 6.0), (0.75, -0.5)),
    ),
    "hardtanh": Activation(
        functions.clamp,
        _clamp_slope,
        lambda t, z, low, high: t.nn.functional.hardtanh(z, low, high),
        (-1.0, 1.0),
        variants=((-0.25, 2.0),),
    ),
    "hardsigmoid": Activation(
        functions.hardsigmoid, lambda z, e: _clamp_slope(z, e, -3, 3) / 6, lambda t, z: t.nn.functional.hardsigmoid(z)
    ),
    "selu": Activation(functions.selu, lambda z, e: np.where(z - e > 0, 1.0508, SELU_SLOPE), lambda t, z: t.selu(z)),
    "celu": Activation(
        functions.celu,
        lambda z, e, alpha: 1.0,
        lambda t, z, alpha: t.nn.functional.celu(z, alpha),
        (1.0,),
        variants=((0.5,),),
    ),
    "softsign": Activation(lambda z: z / (1 + np.abs(z)), _constant(1.0), lambda t, z: t.nn.functional.softsign(z)),
    "logsigmoid": Activation(functions.logsigmoid, _constant(1.0), lambda t, z: t.nn.functional.logsigmoid(z)),
    "threshold": Activation(
        functions.threshold,
        lambda z, e, threshold, value: np.where(z <= threshold, 0.0, 1.0),
        lambda t, z, threshold, value: t.nn.functional.threshold(z, threshold, value),
        required=2,
        variants=((0.25, -2.0),),
        other=_other_threshold,
    ),
    "softshrink": Activation(
        functions.softshrink,
        lambda z, e, lambda_: np.where(np.abs(z) + e < lambda_, 0.0, 1.0),
        lambda t, z, lambda_: t.nn.functional.softshrink(z, lambda_),
        (0.5,),
        variants=((0.125,),),
    ),
    "hardshrink": Activation(
        functions.hardshrink,
        lambda z, e, lambda_: np.where(np.abs(z) <= lambda_, 0.0, 1.0),
        lambda t, z, lambda_: t.nn.functional.hardshrink(z, lambda_),
        (0.5,),
        variants=((0.125,),),
        other=_other_hardshrink,
    ),
    "tanhshrink": Activation(functions.tanhshrink, _constant(1.0), lambda t, z: t.nn.functional.tanhshrink(z)),
    "exp": Activation(np.exp, lambda z, e: np.minimum(np.exp(z + e), np.finfo(z.dtype).max), lambda t, z: t.exp(z)),
    "gelu_10": Activation(
        functions.gelu_10,
        lambda z, e: np.where(z - e > 10.01, 0.0, GELU_SLOPE),
        lambda t, z: t.clip(t.nn.functional.gelu(z), -10, 10),
    ),
    "laplace": Activation(
        functions.laplace,
        _constant(LAPLACE_SLOPE),
        lambda t, z: 0.5 * (1 + t.erf((z - 0.707107) / (0.282095 * math.sqrt(2)))),
        shift=0.707107,
    ),
    "xielu": Activation(
        functions.xielu,
        _xielu_slope,
        lambda t, z, alpha_p, alpha_n, beta, eps: t.where(
            z > 0,
            alpha_p * z * z + beta * z,
            t.expm1(t.clamp(z, max=eps)) * alpha_n + (beta - alpha_n) * z,
        ),
        (0.8, 0.8, 0.5, -1e-6),
        variants=((0.25, 2.0, 0.5, -1e-6),),
        other=_other_xielu,
    ),
}
# Other names of one function; a gated one means a gate_layout too.
ALIASES = {
    "swish": "silu", "identity": "none", "linear": "none", "relu2": "relu_squared", "gelu_python": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"), "gelu_tanh"),
}  # fmt: skip
GATED_ALIASES = {
    "silu_and_mul": ("swiglu", "halves"), "mul_and_silu": ("swiglu", "halves_up_first"),
    "gelu_and_mul": ("geglu", "halves"), "gelu_tanh_and_mul": ("geglu_tanh", "halves"),
    "swigluoai_and_mul": ("swiglu_oai", "interleaved"), "silu_and_mul_with_clamp": ("swiglu_clamped", "halves"),
    "situ_and_mul": ("situglu", "halves"), "swiglustep_and_mul": ("swiglustep", "halves"),
    "fatrelu_and_mul": ("fatreglu", "halves"),
}  # fmt: skip
PRESETS = {"relu6": ("clamp", 0.0, 6.0)}


class Gated(NamedTuple):
    """act(gate) * up: two rows that share the parameters."""

    gate: Activation
    up: Activation
    defaults: tuple[float, ...] = ()
    variants: tuple[tuple[float, ...], ...] = ()
    required: int = 0  # parameters without a default: those before the defaults

    @property
    def usual(self) -> tuple[float, ...]:
        """The defaults, or the first variant where a parameter has none."""
        return self.complete(self.variants[0] if self.required else ())

    def complete(self, given: tuple[float, ...]) -> tuple[float, ...]:
        """All parameters of a call that gives these."""
        return given + self.defaults[len(given) - self.required :]

    def torch(self, torch: Any, g: Any, u: Any, *parameters: float) -> Any:
        return self.gate.torch(torch, g, *parameters) * self.up.torch(torch, u, *parameters)


def _gate(name: str) -> Gated:
    return Gated(ACTIVATIONS[name], ACTIVATIONS["none"])


def _torch_bounded(t: Any, x: Any, bound: float) -> Any:
    return x if bound == math.inf else bound * t.tanh(x / bound)


GATED: dict[str, Gated] = {
    "swiglu": _gate("silu"),
    "geglu": _gate("gelu"),
    "geglu_tanh": _gate("gelu_tanh"),
    "reglu": _gate("relu"),
    "glu": _gate("sigmoid"),
    "swiglu_oai": Gated(
        Activation(  # x sigmoid(a x) has silu's greatest slope for every a != 0
            functions.oai_gate,
            lambda z, e, limit, alpha: np.where(z - e > limit, 0.0, SILU_SLOPE),
            lambda t, g, limit, alpha: g.clamp(max=limit) * t.sigmoid(alpha * g.clamp(max=limit)),
        ),
        Activation(
            functions.oai_up,
            lambda z, e, limit, alpha: _clamp_slope(z, e, -limit, limit),
            lambda t, u, limit, alpha: u.clamp(-limit, limit) + 1,
        ),
        (7.0, 1.702),
        ((1.5,), (2.0, 1.0)),
    ),
    "swiglu_clamped": Gated(  # ("swiglu", limit, ...) is this
        Activation(
            lambda g, limit, alpha, beta: functions.oai_gate(g, limit, alpha),
            lambda z, e, limit, alpha, beta: np.where(z - e > limit, 0.0, SILU_SLOPE),
            lambda t, g, limit, alpha, beta: g.clamp(max=limit) * t.sigmoid(alpha * g.clamp(max=limit)),
        ),
        Activation(
            functions.clamped_up,
            lambda z, e, limit, alpha, beta: _clamp_slope(z, e, -limit, limit),
            lambda t, u, limit, alpha, beta: u.clamp(-limit, limit) + beta,
        ),
        (1.0, 0.0),
        ((1.5,), (2.0, 1.5, 0.5)),
        required=1,
    ),
    "situglu": Gated(
        Activation(  # beta tanh(g / beta) lies between g and 0: its product's slope is within silu's
            lambda g, beta, linear_beta: functions.bounded(g, beta) * functions.sigmoid(g),
            lambda z, e, beta, linear_beta: SILU_SLOPE,
            lambda t, g, beta, linear_beta: _torch_bounded(t, g, beta) * t.sigmoid(g),
        ),
        Activation(
            lambda u, beta, linear_beta: functions.bounded(u, linear_beta),
            lambda z, e, beta, linear_beta: 1.0,
            lambda t, u, beta, linear_beta: _torch_bounded(t, u, linear_beta),
        ),
        (math.inf,),
        ((4.0,), (0.5, 25.0)),
        required=1,
    ),
    "swiglustep": Gated(
        Activation(
            functions.step_gate,
            lambda z, e, limit: np.where(z - e > limit + 1, 0.0, SILU_SLOPE),
            lambda t, g, limit: t.nn.functional.silu(g).clamp(max=limit),
        ),
        Activation(
            lambda u, limit: np.clip(u, -u.dtype.type(limit), u.dtype.type(limit)),
            lambda z, e, limit: _clamp_slope(z, e, -limit, limit),
            lambda t, u, limit: u.clamp(-limit, limit),
        ),
        (7.0,),
        ((1.5,),),
    ),
    "fatreglu": Gated(
        Activation(
            functions.fat_gate,
            lambda z, e, threshold: np.where(z <= threshold, 0.0, 1.0),
            lambda t, g, threshold: t.nn.functional.threshold(g, threshold, 0.0),
            other=lambda z, e, threshold: _other_threshold(z, e, threshold, 0.0),
        ),
        Activation(lambda u, threshold: u, lambda z, e, threshold: 1.0, lambda t, u, threshold: u),
        (0.0,),
        ((0.5,),),
    ),
}


def spellings(rows: Mapping[str, Activation | Gated], after: str = "") -> tuple[str, ...]:
    """Every call of these rows, or those after one, that the cases make: "elu", "elu(0.5)", "clamp(0:6)"."""
    texts = []
    for name in list(rows)[list(rows).index(after) + 1 if after else 0 :]:
        row = rows[name]
        if not row.required:
            texts.append(name)
        texts += [f"{name}({':'.join(f'{p:g}' for p in variant)})" for variant in row.variants]
    return tuple(texts)


def resolve(activation: Spec) -> tuple[str, Activation | Gated, tuple[float, ...]]:
    """Name (an alias resolved), row and parameters of what a caller passes as activation=."""
    if activation is None:
        activation = "none"
    name, given = (activation, ()) if isinstance(activation, str) else (activation[0], tuple(activation[1:]))
    name = name.lower()
    if name in PRESETS:
        name, given = PRESETS[name][0], PRESETS[name][1:]
    name = GATED_ALIASES[name][0] if name in GATED_ALIASES else ALIASES.get(name, name)
    if name == "swiglu" and given:
        name = "swiglu_clamped"
    row: Activation | Gated | None = ACTIVATIONS.get(name) or GATED.get(name)
    if row is None:
        raise ValueError(f"unknown activation {name!r}")
    if len(given) < row.required:
        raise ValueError(f"{name} needs {row.required} parameters")
    return name, row, row.complete(tuple(float(p) for p in given))


def is_gated(activation: Spec) -> bool:
    return isinstance(resolve(activation)[1], Gated)
