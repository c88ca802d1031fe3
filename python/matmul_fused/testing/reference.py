"""The right result of a call, and how far from it a result may lie.

Role: the judge of every kernel. `expect` computes in float64 (np.longdouble for float64 operands) on
the operands as they were rounded, with formulas of its own, an interval [low, high] that the value
BEFORE its one rounding must lie in:

    e_z = (K + 8) u S        S = |alpha| sum|a||b| + |beta C| + |bias|,  u = 2^-24 (2^-53 for float64)
    e   = L e_z              L the activation's Lipschitz constant; times |multiply|
        = |h| L_g e_g + |f(g)| L_u e_u + second order       for a gate f(g) h(u)
    low, high = ref -+ (e + 8 u |ref|)

Where a function jumps within e_z of z there are two such intervals, one of each branch, and a result lies in either.
`compare` then asks that every element of a result lie between the roundings of low and high to its
dtype, infinities included. As a rounding moves a number by at most half an ulp, this implies
|out - ref| <= ulp_out(|ref|) + L (K + 8) u S + 8 u |ref|, and it also catches a conversion that
truncates. No share of the elements may fail.

Results of RMS_FROM elements and more have to keep a rule of averages besides: their RMS error is at most that of the
last rounding plus that of sums with independent roundings (`spread`, sigma below), and what the roundings of alpha and
beta themselves add. How far the mean of squares of independent normal errors strays above its expectation is a theorem
(Laurent and Massart 2000, Lemma 1): but with probability e^-t,

    sum e^2 <= sum sigma^2 (1 + stray(n, p))    stray(n, p) = 2 sqrt(t / n) + 2 t p
    n = (sum sigma^2)^2 / sum sigma^4           the effective number of elements
    p = max sigma^2 / sum sigma^2               the share of the largest

The margins of the rule (0.3 for 0.289 ulp, every rounding taken as u of what it rounds) suit RMS_FROM elements of
one size. Where few elements carry the errors, as after relu_squared of values of many sizes, the mean may stray by
stray(n, p) - stray(RMS_FROM, 1 / RMS_FROM) more. Both come from what is allowed, never from what is observed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .formulas import Gated, Spec, resolve
from .propagate import Ball, Step, flushed, joined, magnitude
from .rounding import FORMATS, Array, round_to, ulp, widen

RMS_FROM = 4096  # elements that the RMS rule wants
RMS_ODDS = 16.0  # t: one right result of e^16 = 9 million strays further


@dataclass(frozen=True)
class Expected:
    """The right values of an array and the interval of each, all of one wide dtype and the array's shape."""

    value: Array
    low: Array
    high: Array
    spread: Array | None  # RMS error of sums with independent roundings, before the last; None: too few sums
    free: Array | None = None  # mask of elements with no right value: inf * (0 within its error), ...
    other: Expected | None = None  # the other branch of a function that jumps
    either: Array | None = None  # mask of elements that may be on it

    def reshape(self, shape: tuple[int, ...]) -> Expected:
        low, high = self.low.reshape(shape), self.high.reshape(shape)
        spread, free, either = (x if x is None else x.reshape(shape) for x in (self.spread, self.free, self.either))
        other = None if self.other is None else self.other.reshape(shape)
        return Expected(self.value.reshape(shape), low, high, spread, free, other, either)

    def _beyond(self, out: Array, dtype: str) -> Array:
        """How far each result is outside of its interval; NaN is right where it is the value, all are where free."""
        low, high = round_to(self.low, dtype), round_to(self.high, dtype)  # what overflows the dtype is infinity there
        right = (low <= out) & (out <= high)  # asked first: an infinity is in an interval that ends there
        right = right | (np.isnan(out) & np.isnan(self.value))
        if self.free is not None:
            right = right | self.free
        distance = np.maximum(low - out, out - high)
        return np.where(right, 0, np.where(np.isnan(distance), np.inf, distance))

    def nearest(self, out: Array, dtype: str) -> Expected:
        """With one interval for each element: of the branches that it may be on, that which a result is nearer to.

        dtype: of the result, out has its values.
        """
        other = self.other
        if other is None or self.either is None:
            return self
        beyond, beyond_other = self._beyond(out, dtype), other._beyond(out, dtype)
        nearer = np.abs(out - other.value) < np.abs(out - self.value)
        taken = self.either & ((beyond_other < beyond) | ((beyond_other == beyond) & nearer))

        def choose(x: Array, y: Array) -> Array:
            return np.where(taken, x, y)

        spread = None
        if self.spread is not None and other.spread is not None:
            spread = choose(other.spread, self.spread)
        free, nothing = self.free, np.zeros(taken.shape, bool)
        if self.free is not None or other.free is not None:
            free = choose(*(nothing if x is None else x for x in (other.free, self.free)))
        low, high = choose(other.low, self.low), choose(other.high, self.high)
        return Expected(choose(other.value, self.value), low, high, spread, free)


def _independent(a: Array, b: Array, count: int) -> int:
    """How many of the count sums over k are different: zero strides repeat an operand's values."""
    k_repeats = a.strides[-1] == b.strides[-2:][0] == 0
    if not count or not a.shape[-1] or k_repeats:
        return 0
    count //= a.shape[-2] if a.ndim > 1 and a.strides[-2] == 0 else 1
    return count // (b.shape[-1] if b.ndim > 1 and b.strides[-1] == 0 else 1)


def _split(z: Ball, layout: str | None) -> tuple[Ball, Ball]:
    """The gate and up columns of z."""
    half = z.value.shape[-1] // 2
    first, second = slice(None, half), slice(half, None)
    if layout == "interleaved":
        first, second = slice(0, None, 2), slice(1, None, 2)
    gate, up = (second, first) if layout == "halves_up_first" else (first, second)
    return z.columns(gate), z.columns(up)


def _expected(step: Step, ball: Ball, exact: bool, statistics: bool) -> Expected:
    value = ball.value
    radius = ball.radius + (8 * step.unit) * np.abs(value) + 8 * step.tiny
    finite = np.isfinite(value)
    if exact:
        radius = np.zeros(value.shape, value.dtype)
    elif not finite.all():
        radius = np.where(finite, radius, 0)
    low, high = value - radius, value + radius
    if ball.huge is not None:  # either infinity, if the error leaves the sign open
        low = np.where(ball.huge & ((value < 0) | (low < -step.greatest)), -np.inf, low)
        high = np.where(ball.huge & ((value > 0) | (high > step.greatest)), np.inf, high)
    spread = np.where(finite, ball.spread + step.tiny, 0) if statistics else None
    other = None if ball.other is None else _expected(step, ball.other, exact, statistics)
    return Expected(value, low, high, spread, ball.free, other, ball.either)


@np.errstate(all="ignore")
def expect(
    A: Any,
    B: Any,
    bias: Any = None,
    activation: Spec = None,
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    C: Any = None,
    multiply: Any = None,
    gate_layout: str | None = None,
    allow_tf32: bool = False,
    unit: float | None = None,
    exact: bool = False,
) -> tuple[Expected, Expected]:
    """What matmul_fused must give for the same arguments: (out, preactivation).

    Operands are NumPy arrays of the four dtypes; B and bias may be pairs. unit: the unit roundoff of
    the sums, if it is not that of the accumulator. exact: no rounding happens, so no error is allowed.
    """
    pair = isinstance(B, tuple)
    bs, biases = (B if pair else (B,)), (bias if isinstance(bias, tuple) else (bias,))
    _, row, parameters = resolve(activation)
    dtype = np.asarray(A).dtype.name
    step = Step(dtype, unit, allow_tf32)
    a = widen(A, step.wide)
    weights = [widen(b, step.wide) for b in bs]
    a = a[None] if a.ndim == 1 else a
    vector_b = weights[0].ndim == 1
    weights = [b[:, None] if vector_b else b for b in weights]
    leading = np.broadcast_shapes(a.shape[:-2], weights[0].shape[:-2])
    rows = () if np.ndim(A) == 1 else (a.shape[-2],)
    columns = () if vector_b else (weights[0].shape[-1],)
    full = (*leading, a.shape[-2], weights[0].shape[-1])
    statistics = alpha != 0 and _independent(np.asarray(A), np.asarray(bs[0]), math.prod(full)) >= RMS_FROM

    def addend(x: Any, factor: float, shape: tuple[int, ...]) -> tuple[Array, float, bool]:
        values = np.broadcast_to(step.wide.type(factor) * widen(x, step.wide), shape)
        values = values.reshape(*leading, a.shape[-2], 1 if vector_b else shape[-1])
        return values, factor, np.asarray(x).dtype.name == "bfloat16"

    one = (*leading, *rows, *columns)  # of z of one weight
    z_shape = (*one[:-1], 2 * one[-1]) if pair else one
    scale = (1.0 if beta is None else beta) if C is not None else 0.0
    c = None
    if scale != 0:
        c = addend(C, scale, z_shape)
    balls = []
    for number, b in enumerate(weights):
        addends = []
        if biases[0] is not None:
            addends.append(addend(biases[number], 1.0, one))
        if c is not None:
            width = full[-1]
            addends.append((c[0][..., number * width : (number + 1) * width], *c[1:]))
        balls.append(step.z(a, b, alpha, addends, full, statistics))
    z = balls[0] if not pair else joined(*balls)
    if isinstance(row, Gated):
        gate, up = _split(z, gate_layout)
        y = step.times(step.apply(row.gate, gate, parameters), step.apply(row.up, up, parameters))
    else:
        y = step.apply(row, z, parameters)
    shape = (*z_shape[:-1], z_shape[-1] // 2) if isinstance(row, Gated) else z_shape
    if multiply is not None:
        factor, _, is_bfloat16 = addend(multiply, 1.0, shape)
        lost = flushed(magnitude(factor)) if is_bfloat16 else np.zeros(factor.shape)
        y = step.times(y, Ball(factor, lost.astype(step.wide), lost.astype(step.wide)))
    out, preactivation = (_expected(step, x, exact, statistics) for x in (y, z))
    return out.reshape(shape), preactivation.reshape(z_shape)


@np.errstate(invalid="ignore", over="ignore")
def bound(expected: Expected, dtype: str) -> Array:
    """The contract's bound of |out - ref| for each element: ulp_out(|ref|) + L (K + 8) u S + 8 u |ref|."""
    return ulp(expected.value, dtype) + (expected.high - expected.low) / 2


@dataclass(frozen=True)
class Figures:
    """How well a result fits. Ratios are of error to what is allowed: above 1 is a failure."""

    elements: int
    failures: int
    max_ratio: float
    rms_error: float  # over finite elements
    rms_ratio: float | None  # None: fewer than RMS_FROM finite elements with sums of their own
    free: int  # elements with no right value
    worst: tuple[int, ...] = ()
    message: str = ""

    @property
    def ok(self) -> bool:
        return not self.failures and (self.rms_ratio is None or self.rms_ratio <= 1)


def compare(got: Any, expected: Expected, dtype: str) -> Figures:
    """Figures of a result (a NumPy array of this dtype) against what is expected of it."""
    out = widen(got, expected.value.dtype)
    if out.shape != expected.value.shape:
        raise AssertionError(f"shape {out.shape}, expected {expected.value.shape}")
    with np.errstate(invalid="ignore"):
        expected = expected.nearest(out, dtype)
    ref = expected.value
    low, high = round_to(expected.low, dtype), round_to(expected.high, dtype)
    if dtype == "bfloat16":  # a subnormal result may be written as 0
        least = FORMATS[dtype].least_normal
        low = np.where((low > 0) & (low < least), 0, low)
        high = np.where((high < 0) & (high > -least), 0, high)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        good = (low <= out) & (out <= high) | (np.isnan(ref) & np.isnan(out))
        if expected.free is not None:
            good |= expected.free
        finite = np.isfinite(ref) & np.isfinite(out) & np.isfinite(low) & np.isfinite(high)
        if expected.free is not None:
            finite &= ~expected.free
        error = np.where(finite, np.abs(out - ref), 0)
        allowed = np.where(finite, np.maximum(ref - low, high - ref), 1)
        ratio = np.where(error > 0, error / allowed, 0)
        ratio = np.where(good, np.minimum(ratio, 1), np.where(finite, np.maximum(ratio, 1 + 1e-9), np.inf))
        count = int(np.count_nonzero(finite))
        rms_error, rms_ratio = 0.0, None
        if count:
            rms_error = _rms(error[finite])
        if count >= RMS_FROM and expected.spread is not None:
            # Where few values are distinct, their rounding errors do not average to 0.289 ulp.
            own = _rms(np.abs(round_to(ref[finite], dtype) - ref[finite]))
            rms_rounding = max(0.3 * _rms(ulp(ref[finite], dtype)), 1.04 * own)
            rms_allowed = rms_rounding + _rms(expected.spread[finite]) * math.sqrt(1 + _stray(expected.spread[finite]))
            rms_ratio = rms_error / rms_allowed if rms_error else 0.0
    failures = int(np.count_nonzero(~good))
    free = 0 if expected.free is None else int(np.count_nonzero(expected.free))
    if not ratio.size:
        return Figures(0, 0, 0.0, 0.0, None, 0)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    message = ""
    if failures:
        message = (
            f"{failures} of {ratio.size} elements are out of bounds; the worst is at {at}: got "
            f"{out[at]!s}, reference {ref[at]!s}, allowed [{low[at]!s}, {high[at]!s}], error "
            f"{float(ratio[at]):.4g} times what is allowed, bound {float(bound(expected, dtype)[at]):.4g}"
        )
    elif rms_ratio is not None and rms_ratio > 1:
        message = (
            f"RMS error {rms_error:.6g} over {count} elements is {rms_ratio:.4g} times the allowed "
            f"rms(0.3 ulp) + u rms(L S), effective elements considered"
        )
    return Figures(ratio.size, failures, float(ratio[at]), rms_error, rms_ratio, free, at, message)


def _rms(x: Array) -> float:
    """Root of the mean square, without overflow or underflow of the squares."""
    greatest = np.max(x, initial=0)
    if greatest == 0:
        return 0.0
    return float(greatest * np.sqrt(np.mean(np.square(x / greatest))))


def _stray(spread: Array) -> float:
    """How much further than that of RMS_FROM alike the mean of squares of these errors may stray, as a share of it."""
    greatest = np.max(spread, initial=0)
    if greatest == 0:
        return 0.0
    weights = np.square((spread / greatest).astype(np.float64))
    total = float(weights.sum())

    def stray(effective: float, share: float) -> float:
        return 2 * math.sqrt(RMS_ODDS / effective) + 2 * RMS_ODDS * share

    own = stray(total * total / float(np.square(weights).sum()), 1 / total)
    return max(0.0, own - stray(RMS_FROM, 1 / RMS_FROM))


def assert_close(got: Any, expected: Expected, dtype: str, what: str = "out") -> Figures:
    """The figures, or AssertionError with the worst element."""
    figures = compare(got, expected, dtype)
    if not figures.ok:
        raise AssertionError(f"{what} ({dtype}): {figures.message}")
    return figures
