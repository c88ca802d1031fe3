"""Every activation by jax's own operators, for derivatives: jax differentiates these functions.

Role on the path of a call: only where gradients are asked for. The forward pass never comes here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

nn = jax.nn


def _softplus(z: Any) -> Any:
    return jnp.where(z > 20, z, nn.softplus(z))  # torch's threshold


def _clamp(z: Any, low: float, high: float) -> Any:
    """A NaN comes through; low > high gives high."""
    return jnp.where(z > high, high, jnp.where(z < low, low, z)) if low <= high else jnp.full_like(z, high)


def _xielu(z: Any, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Any:
    negative = jnp.expm1(jnp.minimum(z, eps)) * alpha_n + (beta - alpha_n) * z
    return jnp.where(z > 0, alpha_p * z * z + beta * z, negative)


def _laplace(z: Any) -> Any:
    return 0.5 * (1 + jax.scipy.special.erf((z - 0.707107) / (0.282095 * math.sqrt(2))))


def _gelu(z: Any) -> Any:
    return nn.gelu(z, approximate=False)


# (z, *parameters) -> result
PLAIN: dict[str, Callable[..., Any]] = {
    "none": lambda z: z,
    "relu": nn.relu,
    "gelu": _gelu,
    "gelu_tanh": lambda z: nn.gelu(z, approximate=True),
    "silu": nn.silu,
    "sigmoid": nn.sigmoid,
    "tanh": jnp.tanh,
    "relu_squared": lambda z: jnp.square(nn.relu(z)),
    "quick_gelu": lambda z: z * nn.sigmoid(1.702 * z),
    "leaky_relu": lambda z, slope: jnp.where(z >= 0, z, slope * z),
    "elu": nn.elu,
    "hardswish": nn.hard_silu,
    "softplus": _softplus,
    "mish": lambda z: z * jnp.tanh(_softplus(z)),
    "clamp": _clamp,
    "hardtanh": _clamp,
    "hardsigmoid": nn.hard_sigmoid,
    "selu": nn.selu,
    "celu": nn.celu,
    "softsign": nn.soft_sign,
    "logsigmoid": nn.log_sigmoid,
    "threshold": lambda z, threshold, value: jnp.where(z <= threshold, value, z),
    "softshrink": lambda z, lambda_: z - _clamp(z, -lambda_, lambda_),
    "hardshrink": lambda z, lambda_: jnp.where(jnp.abs(z) <= lambda_, 0, z),
    "tanhshrink": lambda z: z - jnp.tanh(z),
    "exp": jnp.exp,
    "gelu_10": lambda z: _clamp(_gelu(z), -10.0, 10.0),
    "laplace": _laplace,
    "xielu": _xielu,
}


def _bounded(x: Any, bound: float) -> Any:
    return x if math.isinf(bound) else bound * jnp.tanh(x / bound)


def _bounded_swish(g: Any, limit: float, alpha: float) -> Any:
    g = _clamp(g, -math.inf, limit)
    return g * nn.sigmoid(alpha * g)


# (gate columns, up columns, *parameters) -> result
GATED: dict[str, Callable[..., Any]] = {
    "swiglu": lambda g, u: nn.silu(g) * u,
    "geglu": lambda g, u: _gelu(g) * u,
    "geglu_tanh": lambda g, u: nn.gelu(g, approximate=True) * u,
    "reglu": lambda g, u: nn.relu(g) * u,
    "glu": lambda g, u: nn.sigmoid(g) * u,
    "swiglu_oai": lambda g, u, limit, alpha: _bounded_swish(g, limit, alpha) * (_clamp(u, -limit, limit) + 1),
    "swiglu_clamped": lambda g, u, limit, alpha, beta: (
        _bounded_swish(g, limit, alpha) * (_clamp(u, -limit, limit) + beta)
    ),
    "situglu": lambda g, u, beta, bound: _bounded(g, beta) * nn.sigmoid(g) * _bounded(u, bound),
    "swiglustep": lambda g, u, limit: _clamp(nn.silu(g), -math.inf, limit) * _clamp(u, -limit, limit),
    "fatreglu": lambda g, u, threshold: jnp.where(g <= threshold, 0, g) * u,
}


def halves(z: Any, layout: str | None) -> tuple[Any, Any]:
    """The gate and the up columns of z; those of a pair of weights lie as in "halves"."""
    if layout == "interleaved":
        return z[..., 0::2], z[..., 1::2]
    first, second = jnp.split(z, 2, axis=-1)
    return (second, first) if layout == "halves_up_first" else (first, second)


def apply(name: str, parameters: tuple[float, ...], layout: str | None, z: Any) -> Any:
    """The activation of z, in the dtype of z."""
    if name in GATED:
        return GATED[name](*halves(z, layout), *parameters)
    return PLAIN[name](z, *parameters)
