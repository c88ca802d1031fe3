"""Activations as torch knows them: what the caller named, and derivatives by torch's operators.

`resolve` says which activation a name, a tuple, a function or a module of torch is. `_core` parses the same forms
itself; this is for the registered operators, whose arguments are strings and numbers, and for derivatives.
Role on the path of a call: only where gradients are recorded, or while torch.compile traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from matmul_fused import _core

aten = torch.ops.aten


class Activation(NamedTuple):
    """An activation by its first name, with all parameters, and the gate layout that its name means, if any."""

    name: str
    parameters: tuple[float, ...] = ()
    gate_layout: str | None = None

    @property
    def spec(self) -> str | tuple[Any, ...]:
        """As matmul_fused takes it."""
        return (self.name, *self.parameters) if self.parameters else self.name

    @property
    def gated(self) -> bool:
        return self.name in GATED


# --- names ---

_TABLE = {row[0]: row for row in _core.activation_table()}
_FIRST = {alias: name for name, row in _TABLE.items() for alias in (name, *row[5])}
_DEFAULTS: dict[str, tuple[float | None, ...]] = {
    name: tuple(default for _, default in row[4]) for name, row in _TABLE.items()
}
_LAYOUTS = {
    "mul_and_silu": "halves_up_first",
    "swigluoai_and_mul": "interleaved",
    **dict.fromkeys(
        ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul_with_clamp", "situ_and_mul"), "halves"
    ),
    **dict.fromkeys(("swiglustep_and_mul", "fatrelu_and_mul"), "halves"),
}

_FUNCTIONS: dict[Any, Activation] = {
    getattr(functional, name): Activation(name, tuple(x for x in _DEFAULTS[name] if x is not None))
    for name in (
        *("relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "hardswish", "softplus", "mish", "selu"),
        *("celu", "hardtanh", "hardsigmoid", "softsign", "logsigmoid", "softshrink", "hardshrink", "tanhshrink"),
    )
}
_FUNCTIONS |= {
    getattr(torch, name): Activation(name, tuple(x for x in _DEFAULTS[name] if x is not None))
    for name in ("relu", "sigmoid", "tanh", "exp", "selu", "celu", "hardshrink")
}
_FUNCTIONS[functional.relu6] = Activation("clamp", (0.0, 6.0))
_FUNCTIONS[functional.glu] = Activation("glu", (), "halves_up_first")

# Modules of torch: their activation, the attributes that hold its parameters, and those that must have one value.
_MODULES: dict[type, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    torch.nn.Identity: ("none", (), {}),
    torch.nn.ReLU: ("relu", (), {}),
    torch.nn.SiLU: ("silu", (), {}),
    torch.nn.Sigmoid: ("sigmoid", (), {}),
    torch.nn.Tanh: ("tanh", (), {}),
    torch.nn.LeakyReLU: ("leaky_relu", ("negative_slope",), {}),
    torch.nn.ELU: ("elu", ("alpha",), {}),
    torch.nn.Hardswish: ("hardswish", (), {}),
    torch.nn.Softplus: ("softplus", (), {"beta": 1, "threshold": 20}),
    torch.nn.Mish: ("mish", (), {}),
    torch.nn.SELU: ("selu", (), {}),
    torch.nn.CELU: ("celu", ("alpha",), {}),
    torch.nn.Hardtanh: ("hardtanh", ("min_val", "max_val"), {}),
    torch.nn.Hardsigmoid: ("hardsigmoid", (), {}),
    torch.nn.Softsign: ("softsign", (), {}),
    torch.nn.LogSigmoid: ("logsigmoid", (), {}),
    torch.nn.Threshold: ("threshold", ("threshold", "value"), {}),
    torch.nn.Softshrink: ("softshrink", ("lambd",), {}),
    torch.nn.Hardshrink: ("hardshrink", ("lambd",), {}),
    torch.nn.Tanhshrink: ("tanhshrink", (), {}),
    torch.nn.GLU: ("glu", (), {"dim": -1}),
}


def _of_module(module: Any) -> Activation | None:
    kind = type(module)
    if kind is torch.nn.GELU:
        return {"none": Activation("gelu"), "tanh": Activation("gelu_tanh")}.get(module.approximate)
    if kind is torch.nn.ReLU6:
        return Activation("clamp", (0.0, 6.0))
    if kind not in _MODULES:
        return None
    name, attributes, fixed = _MODULES[kind]
    if any(getattr(module, attribute) != value for attribute, value in fixed.items()):
        return None
    layout = "halves_up_first" if name == "glu" else None
    return Activation(name, tuple(float(getattr(module, attribute)) for attribute in attributes), layout)


def _of_name(name: str, given: tuple[float, ...]) -> Activation | None:
    name = name.lower()
    first = _FIRST.get(name)
    if first is None:
        return None
    if name == "relu6":
        return Activation("clamp", (0.0, 6.0)) if not given else None
    if first == "swiglu" and given:  # with a limit it is the clamped form
        first = "swiglu_clamped"
    defaults = _DEFAULTS[first]
    parameters = (*given, *defaults[len(given) :])
    if len(given) > len(defaults) or None in parameters:
        return None
    return Activation(first, tuple(float(x) for x in parameters if x is not None), _LAYOUTS.get(name))


def known(activation: Any) -> Activation | None:
    """The activation that this is, or None."""
    if activation is None:
        return Activation("none")
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        return _of_name(activation, ())
    if isinstance(activation, tuple):
        return _of_name(activation[0], activation[1:]) if activation and isinstance(activation[0], str) else None
    if isinstance(activation, torch.nn.Module):
        return _of_module(activation)
    return _FUNCTIONS.get(activation)


# Activations of transformers, by class name: (name here, attributes that must have one value).
_TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "NewGELUActivation": ("gelu_tanh", {}),
    "GELUTanh": ("gelu_tanh", {}),
    "PytorchGELUTanh": ("gelu_tanh", {}),
    "FastGELUActivation": ("gelu_tanh", {}),
    "GELUActivation": ("gelu", {}),
    "QuickGELUActivation": ("quick_gelu", {}),
    "SiLUActivation": ("silu", {}),
    "ReLUSquaredActivation": ("relu_squared", {}),
    "MishActivation": ("mish", {}),
    "ClippedGELUActivation": ("gelu_10", {"min": -10, "max": 10}),
}


def of_module(module: torch.nn.Module) -> Activation | None:
    """The activation, not a gated one, that a module of torch or transformers is, or None."""
    kind = type(module)
    if kind.__module__ == "transformers.activations" and kind.__name__ in _TRANSFORMERS:
        name, fixed = _TRANSFORMERS[kind.__name__]
        same = all(getattr(module, attribute, None) == value for attribute, value in fixed.items())
        return Activation(name) if same else None
    found = known(module)
    return None if found is None or found.name == "none" or found.gated else found


def resolve(activation: Any) -> Activation:
    """The activation that this is; else what matmul_fused says of it."""
    found = known(activation)
    if found is None:
        one = torch.ones(2, 2)
        _core.explain(one, one, None, activation)  # the error that names it and what would do
        raise NotImplementedError(f"activation {activation!r} has no derivative here and cannot be traced")
    return found


# --- derivatives: (gradient of the result, z, *parameters) -> gradient of z, by torch's operators ---


def _wide(f: Callable[..., Any]) -> Callable[..., Any]:
    """f of several operators, of which 16-bit types would round every one, in float32."""

    def wide(d: Any, kept: Any, *parameters: float) -> Any:
        if kept.dtype.itemsize > 2:
            return f(d, kept, *parameters)
        return f(d.float(), kept.float(), *parameters).to(d.dtype)

    return wide


@_wide
def _gelu_10(d: Any, z: Any) -> Any:
    return aten.gelu_backward(d, z) * (functional.gelu(z).abs() <= 10)


@_wide
def _laplace(d: Any, z: Any) -> Any:
    sigma = 0.282095
    return d * torch.exp(-(((z - 0.707107) / sigma) ** 2) / 2) / (sigma * (2 * torch.pi) ** 0.5)


@_wide
def _xielu(d: Any, z: Any, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Any:
    negative = torch.where(z <= eps, alpha_n * torch.exp(z.clamp(max=eps)), 0.0) + (beta - alpha_n)
    return d * torch.where(z > 0, 2 * alpha_p * z + beta, negative)


def _clamp(d: Any, z: Any, low: float, high: float) -> Any:
    return d * ((z >= low) & (z <= high)) if low <= high else d * 0


_SELU = (1.6732632423543772, 1.0507009873554805)

# Those that make it of the result instead of z, which is then not kept.
_OF_RESULT: dict[str, Callable[..., Any]] = {
    "relu": lambda d, y: aten.threshold_backward(d, y, 0),
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
    "exp": lambda d, y: d * y,
}
_OF_Z: dict[str, Callable[..., Any]] = {
    "gelu": aten.gelu_backward,
    "gelu_tanh": lambda d, z: aten.gelu_backward(d, z, approximate="tanh"),
    "silu": aten.silu_backward,
    "relu_squared": _wide(lambda d, z: 2 * torch.relu(z) * d),
    "quick_gelu": _wide(lambda d, z: aten.silu_backward(d, 1.702 * z)),
    "leaky_relu": lambda d, z, slope: aten.leaky_relu_backward(d, z, slope, False),
    "elu": lambda d, z, alpha: aten.elu_backward(d, alpha, 1.0, 1.0, False, z),
    "hardswish": aten.hardswish_backward,
    "softplus": lambda d, z: aten.softplus_backward(d, z, 1.0, 20.0),
    "mish": aten.mish_backward,
    "clamp": _clamp,
    "hardtanh": aten.hardtanh_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "selu": lambda d, z: aten.elu_backward(d, *_SELU, 1.0, False, z),
    "celu": lambda d, z, alpha: aten.elu_backward(d, alpha, 1.0, 1.0 / alpha, False, z),
    "softsign": _wide(lambda d, z: d / (1 + z.abs()).square()),
    "logsigmoid": _wide(lambda d, z: d * torch.sigmoid(-z)),
    "threshold": lambda d, z, threshold, value: aten.threshold_backward(d, z, threshold),
    "softshrink": aten.softshrink_backward,
    "hardshrink": aten.hardshrink_backward,
    "tanhshrink": _wide(lambda d, z: d * torch.tanh(z).square()),
    "gelu_10": _gelu_10,
    "laplace": _laplace,
    "xielu": _xielu,
}


class Gated(NamedTuple):
    """gate(g) * up(u): values and derivatives, each taking all parameters of the activation."""

    gate: Callable[..., Any]
    gate_backward: Callable[..., Any]
    up: Callable[..., Any] = lambda u, *_: u
    up_backward: Callable[..., Any] = lambda d, u, *_: d


def _bounded_swish(g: Any, limit: float, alpha: float, *_: float) -> Any:
    g = g.clamp(max=limit)
    return g * torch.sigmoid(alpha * g)


def _bounded_swish_backward(d: Any, g: Any, limit: float, alpha: float, *_: float) -> Any:
    return aten.silu_backward(d, alpha * g.clamp(max=limit)) * (g <= limit)


def _clamp_backward(d: Any, u: Any, limit: float, *_: float) -> Any:
    return d * (u.abs() <= limit)


def _bounded(x: Any, bound: float) -> Any:
    return x if bound == float("inf") else bound * torch.tanh(x / bound)


def _bounded_backward(d: Any, x: Any, bound: float) -> Any:
    return d if bound == float("inf") else d * (1 - torch.tanh(x / bound).square())


def _situ_backward(d: Any, g: Any, beta: float, _: float) -> Any:
    s = torch.sigmoid(g)
    return _bounded_backward(d * s, g, beta) + d * s * (1 - s) * _bounded(g, beta)


GATED: dict[str, Gated] = {
    "swiglu": Gated(functional.silu, _OF_Z["silu"]),
    "geglu": Gated(functional.gelu, _OF_Z["gelu"]),
    "geglu_tanh": Gated(lambda g: functional.gelu(g, approximate="tanh"), _OF_Z["gelu_tanh"]),
    "reglu": Gated(torch.relu, _OF_RESULT["relu"]),  # z and the result have one sign
    "glu": Gated(torch.sigmoid, lambda d, g: aten.sigmoid_backward(d, torch.sigmoid(g))),
    "swiglu_oai": Gated(
        _bounded_swish,
        _bounded_swish_backward,
        lambda u, limit, alpha: u.clamp(-limit, limit) + 1,
        _clamp_backward,
    ),
    "swiglu_clamped": Gated(
        _bounded_swish,
        _bounded_swish_backward,
        lambda u, limit, alpha, beta: u.clamp(-limit, limit) + beta,
        _clamp_backward,
    ),
    "situglu": Gated(
        lambda g, beta, _: _bounded(g, beta) * torch.sigmoid(g),
        _situ_backward,
        lambda u, _, bound: _bounded(u, bound),
        lambda d, u, _, bound: _bounded_backward(d, u, bound),
    ),
    "swiglustep": Gated(
        lambda g, limit: functional.silu(g).clamp(max=limit),
        lambda d, g, limit: aten.silu_backward(d, g) * (functional.silu(g) <= limit),
        lambda u, limit: u.clamp(-limit, limit),
        _clamp_backward,
    ),
    "fatreglu": Gated(
        lambda g, threshold: functional.threshold(g, threshold, 0.0),
        aten.threshold_backward,
    ),
}


def keeps(name: str) -> str:
    """What a backward pass needs of the forward pass: "result", "z", or "" (neither)."""
    if name == "none":
        return ""
    return "result" if name in _OF_RESULT else "z"


def _halves(z: Any, layout: str | None) -> tuple[Any, Any]:
    if layout == "interleaved":
        return z[..., 0::2], z[..., 1::2]
    first, second = z.chunk(2, dim=-1)
    return (second, first) if layout == "halves_up_first" else (first, second)


def derivative(d: Any, kept: Any, activation: Activation) -> Any:
    """The gradient of z, of the gradient of the result and of what `keeps` names."""
    name, parameters, layout = activation
    if name == "none":
        return d
    if name not in GATED:
        return (_OF_RESULT.get(name) or _OF_Z[name])(d, kept, *parameters)
    row = GATED[name]
    g, u = _halves(kept, layout)
    d_gate = row.gate_backward(d * row.up(u, *parameters), g, *parameters)
    d_up = row.up_backward(d * row.gate(g, *parameters), u, *parameters)
    if layout == "interleaved":
        return torch.stack((d_gate, d_up), dim=-1).flatten(-2)
    return torch.cat((d_up, d_gate) if layout == "halves_up_first" else (d_gate, d_up), dim=-1)
