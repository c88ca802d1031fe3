"""The functions that formulas.py makes its rows of, in float64 or np.longdouble.

Role: the mathematics alone. Formulas avoid the cancellation that the usual ones have (erfc in place of 1 + erf, a
sigmoid without overflow), so that small results are right to the last digits. NaN comes through, values at +-inf are
torch's.
"""

from __future__ import annotations

import math

import numpy as np

from .rounding import Array

Scalar = float


def erfc(x: Array) -> Array:
    """1 - erf(x), with small relative error also where it is tiny (x: float64 or longdouble; the result alike)."""
    if x.dtype != np.longdouble:
        return np.fromiter(map(math.erfc, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)
    a = np.minimum(np.abs(x), np.longdouble(120))
    near = a < 1.5
    s = np.where(near, a, 0)  # erf(s) = 2/sqrt(pi) exp(-s^2) sum_n 2^n s^(2n+1) / (2n+1)!!, all terms positive
    term, total = s.copy(), s.copy()
    for n in range(1, 60):
        term = term * (2 * s * s / (2 * n + 1))
        total = total + term
    root_pi = np.sqrt(np.longdouble("3.14159265358979323846264338327950288"))
    small = 1 - 2 / root_pi * np.exp(-s * s) * total
    t = np.where(near, 1.5, a)  # erfc(t) = exp(-t^2)/sqrt(pi) / (t + 1/2/(t + 1/(t + 3/2/(t + ...))))
    fraction = t.copy()
    for n in range(160, 0, -1):
        fraction = t + n / np.longdouble(2) / fraction
    positive = np.where(near, small, np.exp(-t * t) / root_pi / fraction)
    return np.where(np.isnan(x), x, np.where(x < 0, 2 - positive, positive))


def sigmoid(z: Array) -> Array:
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1, e) / (1 + e)


def relu(z: Array) -> Array:
    return np.maximum(z, 0)


def relu_squared(z: Array) -> Array:
    return np.square(np.maximum(z, 0))


def gelu(z: Array) -> Array:
    return z * (erfc(z * -np.sqrt(z.dtype.type(0.5))) / 2)


def gelu_tanh(z: Array) -> Array:
    # 1 + tanh(y) = 2 sigmoid(2y)
    two = z.dtype.type(2)
    pi = z.dtype.type("3.14159265358979323846264338327950288")
    return z * sigmoid(two * np.sqrt(two / pi) * z * (1 + z.dtype.type("0.044715") * z * z))


def silu(z: Array) -> Array:
    return z * sigmoid(z)


def quick_gelu(z: Array) -> Array:
    return z * sigmoid(z.dtype.type("1.702") * z)


def leaky_relu(z: Array, slope: Scalar) -> Array:
    return np.where(z < 0, z.dtype.type(slope) * z, z)


def elu(z: Array, alpha: Scalar) -> Array:
    return np.maximum(z, 0) + z.dtype.type(alpha) * np.expm1(np.minimum(z, 0))


def hardswish(z: Array) -> Array:
    return z * (np.clip(z + 3, 0, 6) / 6)


def softplus(z: Array) -> Array:
    return np.where(z > 20, z, np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))))


def mish(z: Array) -> Array:
    # tanh(log(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1)
    e = np.exp(np.minimum(z, 50))
    return np.where(z > 50, z, z * (e * (e + 2) / (e * (e + 2) + 2)))


def clamp(z: Array, low: Scalar, high: Scalar) -> Array:
    return np.minimum(np.maximum(z, z.dtype.type(low)), z.dtype.type(high))


def hardsigmoid(z: Array) -> Array:
    return np.clip(z + 3, 0, 6) / 6


def selu(z: Array) -> Array:
    alpha, scale = z.dtype.type("1.6732632423543772848"), z.dtype.type("1.0507009873554804934")
    return scale * (np.maximum(z, 0) + alpha * np.expm1(np.minimum(z, 0)))


def celu(z: Array, alpha: Scalar) -> Array:
    a = z.dtype.type(alpha)
    return np.maximum(z, 0) + a * np.expm1(np.minimum(z, 0) / a)


def logsigmoid(z: Array) -> Array:
    return np.minimum(z, 0) - np.log1p(np.exp(-np.abs(z)))


def threshold(z: Array, threshold: Scalar, value: Scalar) -> Array:
    return np.where(z <= threshold, z.dtype.type(value), z)


def softshrink(z: Array, lambda_: Scalar) -> Array:
    return np.where(np.abs(z) > lambda_, z - np.copysign(z.dtype.type(lambda_), z), z * 0)


def hardshrink(z: Array, lambda_: Scalar) -> Array:
    return np.where(np.abs(z) > lambda_, z, z * 0)


def tanhshrink(z: Array) -> Array:
    """z - tanh(z); near 0, where that cancels, (z cosh z - sinh z) / cosh z by its series."""
    near = np.abs(z) < 0.5
    s = np.where(near, z, 0)
    term, total = s, np.zeros_like(s)
    for n in range(1, 14):  # z cosh z - sinh z = sum_n 2n z^(2n+1) / (2n+1)!
        term = term * s * s / (2 * n * (2 * n + 1))
        total = total + 2 * n * term
    return np.where(near, total / np.cosh(s), z - np.tanh(z))


def gelu_10(z: Array) -> Array:
    return np.clip(gelu(z), -10, 10)


def laplace(z: Array) -> Array:
    mu, sigma = z.dtype.type("0.707107"), z.dtype.type("0.282095")
    return erfc((mu - z) / (sigma * np.sqrt(z.dtype.type(2)))) / 2


def xielu_positive(z: Array, alpha_p: Scalar, beta: Scalar) -> Array:
    return z.dtype.type(alpha_p) * z * z + z.dtype.type(beta) * z


def xielu_negative(z: Array, alpha_n: Scalar, beta: Scalar, eps: Scalar) -> Array:
    a, b = z.dtype.type(alpha_n), z.dtype.type(beta)
    return a * np.expm1(np.minimum(z, z.dtype.type(eps))) + (b - a) * z


def xielu(z: Array, alpha_p: Scalar, alpha_n: Scalar, beta: Scalar, eps: Scalar) -> Array:
    return np.where(z > 0, xielu_positive(z, alpha_p, beta), xielu_negative(z, alpha_n, beta, eps))


def oai_gate(g: Array, limit: Scalar, alpha: Scalar) -> Array:
    g = np.minimum(g, g.dtype.type(limit))
    return g * sigmoid(g.dtype.type(alpha) * g)


def oai_up(u: Array, limit: Scalar, alpha: Scalar) -> Array:
    return np.clip(u, -u.dtype.type(limit), u.dtype.type(limit)) + 1


def clamped_up(u: Array, limit: Scalar, alpha: Scalar, beta: Scalar) -> Array:
    return np.clip(u, -u.dtype.type(limit), u.dtype.type(limit)) + u.dtype.type(beta)


def bounded(x: Array, bound: Scalar) -> Array:
    return x if bound == math.inf else x.dtype.type(bound) * np.tanh(x / x.dtype.type(bound))


def step_gate(g: Array, limit: Scalar) -> Array:
    return np.minimum(silu(g), g.dtype.type(limit))


def fat_gate(g: Array, least: Scalar) -> Array:
    return threshold(g, least, 0.0)
