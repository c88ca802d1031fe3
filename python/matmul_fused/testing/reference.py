"""The right result of a call, and how far from it a result may lie.

Role: the judge of every kernel. `expect` computes in float64 (np.longdouble for float64 operands) on
the operands as they were rounded, with formulas of its own, an interval [low, high] that the value
BEFORE its one rounding must lie in:

    e_z = (K + 8) u S        S = |alpha| sum|a||b| + |beta C| + |bias|,  u = 2^-24 (2^-53 for float64)
    e   = L e_z              L the activation's Lipschitz constant; times |multiply|
        = |h| L_g e_g + |f(g)| L_u e_u + second order       for a gate f(g) h(u)
    low, high = ref -+ (e + 8 u |ref|)

`compare` then asks that every element of a result lie between the roundings of low and high to its
dtype, infinities included. As a rounding moves a number by at most half an ulp, this implies
|out - ref| <= ulp_out(|ref|) + L (K + 8) u S + 8 u |ref|, and it also catches a conversion that
truncates. No share of the elements may fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .formulas import Activation, Gated, Spec, resolve
from .rounding import FORMATS, Array, overflow_as, round_to, ulp, wide_dtype, widen

RMS_FROM = 4096  # elements that the RMS rule wants


@dataclass(frozen=True)
class Expected:
    """The right values of an array and the interval of each, all of one wide dtype and the array's shape."""

    value: Array
    low: Array
    high: Array
    spread: Array | None  # RMS error of sums with independent roundings, before the last; None: too few sums
    free: Array | None = None  # mask of elements with no right value: inf * (0 within its error), ...

    def reshape(self, shape: tuple[int, ...]) -> Expected:
        low, high = self.low.reshape(shape), self.high.reshape(shape)
        spread = None if self.spread is None else self.spread.reshape(shape)
        free = None if self.free is None else self.free.reshape(shape)
        return Expected(self.value.reshape(shape), low, high, spread, free)


@dataclass
class _Ball:
    """Values with a bound of their error (radius) and its expected size (spread)."""

    value: Array
    radius: Array
    spread: Array
    free: Array | None = None

    def release(self, mask: Array) -> None:
        if mask.any():
            self.free = mask if self.free is None else self.free | mask


def _matrix(x: Array, axis: int | None) -> Array:
    return x if axis is None else np.expand_dims(x, axis)


def _product(a: Array, b: Array) -> Array:
    """a @ b: by BLAS for finite float64; else by NumPy's own loops, which drop no inf * 0."""
    if a.dtype == np.float64 and not (np.isfinite(a).all() and np.isfinite(b).all()):
        return (a.astype(np.longdouble) @ b.astype(np.longdouble)).astype(np.float64)
    return a @ b


def _finite(x: Array) -> Array:
    """|x| in float64 with 0 for what is not finite: the size of the terms of finite sums."""
    x = np.abs(x).astype(np.float64)
    return np.where(np.isfinite(x), x, 0.0)


def _root_of_squares(a: Array, b: Array) -> Array:
    """sqrt(sum_k (a b)^2), without overflow of the squares."""
    a_scale, b_scale = np.max(a, initial=0) or 1.0, np.max(b, initial=0) or 1.0
    return a_scale * b_scale * np.sqrt(np.square(a / a_scale) @ np.square(b / b_scale))


def _flushed(x: Array) -> Array:
    """The part of |x| that a device which reads bfloat16 subnormals as 0 loses."""
    return np.where(np.abs(x) < FORMATS["bfloat16"].least_normal, np.abs(x), 0.0)


def _independent(a: Array, b: Array, count: int) -> int:
    """How many of the count sums over k are different: zero strides repeat an operand's values."""
    k_repeats = a.strides[-1] == b.strides[-2:][0] == 0
    if not count or not a.shape[-1] or k_repeats:
        return 0
    count //= a.shape[-2] if a.ndim > 1 and a.strides[-2] == 0 else 1
    return count // (b.shape[-1] if b.ndim > 1 and b.strides[-1] == 0 else 1)


class _Call:
    """The operands of one call in wide precision, and the terms of z's error."""

    def __init__(self, dtype: str, unit: float | None, allow_tf32: bool) -> None:
        self.wide = wide_dtype(dtype)
        self.flushes = dtype == "bfloat16"
        self.accumulator = "float64" if dtype == "float64" else "float32"
        self.unit = FORMATS[self.accumulator].unit if unit is None else unit
        self.tiny = FORMATS[self.accumulator].least
        self.input_unit = 2.0**-11 if allow_tf32 and dtype == "float32" else 0.0

    def z(
        self,
        a: Array,
        b: Array,
        alpha: float,
        addends: list[tuple[Array, bool]],
        shape: tuple[int, ...],
        statistics: bool,
    ) -> _Ball:
        """alpha a @ b + addends in this shape. addends: (values, whether they were bfloat16)."""
        k = 0 if alpha == 0 else a.shape[-1]
        value = np.zeros(shape, self.wide)
        size = np.zeros(shape)
        spread = noise = np.zeros(shape)
        extra = np.full(shape, (k + 8) * self.tiny * max(1.0, abs(alpha)))  # underflow
        if k:
            value = value + self.wide.type(alpha) * _product(a, b)
            a_size, b_size = _finite(a), _finite(b)
            size = size + abs(alpha) * (a_size @ b_size)
            if statistics:
                noise = noise + abs(alpha) * _root_of_squares(a_size, b_size)
            extra = extra + size * (2 * self.input_unit)
            if self.flushes and (_flushed(a_size).any() or _flushed(b_size).any()):
                lost = _flushed(a_size) @ b_size + a_size @ _flushed(b_size)
                extra = extra + abs(alpha) * lost
        if statistics:
            # Independent roundings within u of what they round. Partial sums i/K z + noise of variance
            # i/K (1 - i/K) sum (ab)^2; then two of alpha, two of beta, one for each addition.
            parts = _finite(value)
            scale = max(1.0, float(parts.max()) if self.accumulator == "float64" else 1.0)  # of squares
            variance = np.square(np.hypot(parts, noise * math.sqrt(0.5)) / scale) * (k / 9)
            variance += np.square(parts / scale) * (2 / 3)
        for addend, is_bfloat16 in addends:
            value = value + addend
            size = size + _finite(addend)
            extra = extra + (_flushed(_finite(addend)) if is_bfloat16 else 0.0)
            if statistics:
                parts = parts + _finite(addend)
                variance += np.square(parts / scale) / 3 + np.square(_finite(addend) / scale) * (2 / 3)
        if statistics:
            spread = self.unit * np.maximum(scale * np.sqrt(variance), size)
        radius = ((k + 8) * self.unit * size + extra).astype(self.wide)
        ball = _Ball(value, radius, (spread + extra).astype(self.wide))
        greatest = FORMATS[self.accumulator].greatest
        if size.size and size.max() >= greatest / 2:  # a partial sum may overflow
            certain = np.abs(value) - radius > greatest
            mixed = (size >= greatest / 2) & (np.abs(value) < size * 0.99)
            ball.release(np.isfinite(value) & ~certain & (mixed | (np.abs(value) + radius > greatest)))
            ball.value = np.where(certain, np.copysign(np.inf, value), value)
        return ball

    def apply(self, row: Activation, z: _Ball, parameters: tuple[float, ...]) -> _Ball:
        value = row.f(z.value, *parameters)
        slope = row.lipschitz(z.value, z.radius, *parameters)
        tiny = np.where(value != 0, 4 * self.tiny, 0)  # the result may underflow
        radius = slope * z.radius + tiny
        exact = ~np.isfinite(z.value)  # infinities come without an error
        spread = np.maximum(np.where(exact, 0, slope * z.spread), 2 * self.unit * np.abs(value)) + tiny
        if row.step is not None:
            radius = radius + row.step(z.value, z.radius)
        return _Ball(overflow_as(value, self.accumulator), np.where(exact, 0, radius), spread, z.free)

    def times(self, x: _Ball, y: _Ball) -> _Ball:
        value = x.value * y.value
        radius = np.abs(x.value) * y.radius + np.abs(y.value) * x.radius + x.radius * y.radius
        spread = np.abs(x.value) * y.spread + np.abs(y.value) * x.spread
        ball = _Ball(overflow_as(value, self.accumulator), radius, spread, x.free)
        if y.free is not None:
            ball.release(y.free)
        for p, q in ((x, y), (y, x)):  # inf times what may be 0 or of either sign
            ball.release(np.isinf(p.value) & (np.abs(q.value) <= q.radius) & (q.radius > 0))
        return ball

    def expected(self, ball: _Ball, exact: bool, statistics: bool) -> Expected:
        value = ball.value
        finite = np.isfinite(value)
        radius = ball.radius + (8 * self.unit) * np.abs(value) + 8 * self.tiny
        radius = np.where(finite & (not exact), radius, 0)
        low, high = value - radius, value + radius
        low, high = overflow_as(low, self.accumulator), overflow_as(high, self.accumulator)
        spread = np.where(finite, ball.spread + self.tiny, 0) if statistics else None
        return Expected(value, low, high, spread, ball.free)


def _split(ball: _Ball, layout: str | None) -> tuple[_Ball, _Ball]:
    """The gate and up columns of z."""
    half = ball.value.shape[-1] // 2
    first, second = slice(None, half), slice(half, None)
    if layout == "interleaved":
        first, second = slice(0, None, 2), slice(1, None, 2)
    gate, up = (second, first) if layout == "halves_up_first" else (first, second)

    def part(columns: slice) -> _Ball:
        value, radius, spread = (x[..., columns] for x in (ball.value, ball.radius, ball.spread))
        return _Ball(value, radius, spread, None if ball.free is None else ball.free[..., columns])

    return part(gate), part(up)


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
    call = _Call(dtype, unit, allow_tf32)
    a = widen(A, call.wide)
    weights = [widen(b, call.wide) for b in bs]
    a = _matrix(a, 0 if a.ndim == 1 else None)
    vector_b = weights[0].ndim == 1
    weights = [_matrix(b, 1 if vector_b else None) for b in weights]
    leading = np.broadcast_shapes(a.shape[:-2], weights[0].shape[:-2])
    rows = () if np.ndim(A) == 1 else (a.shape[-2],)
    columns = () if vector_b else (weights[0].shape[-1],)
    full = (*leading, a.shape[-2], weights[0].shape[-1])
    statistics = alpha != 0 and _independent(np.asarray(A), np.asarray(bs[0]), math.prod(full)) >= RMS_FROM

    def addend(x: Any, factor: float, shape: tuple[int, ...]) -> tuple[Array, bool]:
        values = np.broadcast_to(call.wide.type(factor) * widen(x, call.wide), shape)
        values = values.reshape(*leading, a.shape[-2], 1 if vector_b else shape[-1])
        return values, np.asarray(x).dtype.name == "bfloat16"

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
            addends.append((c[0][..., number * width : (number + 1) * width], c[1]))
        balls.append(call.z(a, b, alpha, addends, full, statistics))
    z = balls[0] if not pair else _joined(*balls)
    if isinstance(row, Gated):
        gate, up = _split(z, gate_layout)
        y = call.times(call.apply(row.gate, gate, parameters), call.apply(row.up, up, parameters))
    else:
        y = call.apply(row, z, parameters)
    shape = (*z_shape[:-1], z_shape[-1] // 2) if isinstance(row, Gated) else z_shape
    if multiply is not None:
        factor, is_bfloat16 = addend(multiply, 1.0, shape)
        lost = _flushed(_finite(factor)) if is_bfloat16 else np.zeros(factor.shape)
        y = call.times(y, _Ball(factor, lost.astype(call.wide), lost.astype(call.wide)))
    out, preactivation = (call.expected(x, exact, statistics) for x in (y, z))
    return out.reshape(shape), preactivation.reshape(z_shape)


def _joined(gate: _Ball, up: _Ball) -> _Ball:
    arrays = ((gate.value, up.value), (gate.radius, up.radius), (gate.spread, up.spread))
    ball = _Ball(*(np.concatenate(pair, -1) for pair in arrays))
    nothing = np.zeros(gate.value.shape, bool)
    masks = [nothing if part.free is None else part.free for part in (gate, up)]
    ball.release(np.concatenate(masks, -1))
    return ball


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
    ref = expected.value
    out = widen(got, ref.dtype)
    if out.shape != ref.shape:
        raise AssertionError(f"shape {out.shape}, expected {ref.shape}")
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
            rms_allowed = rms_rounding + _rms(expected.spread[finite])
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
            f"rms(0.3 ulp) + u rms(L S)"
        )
    return Figures(ratio.size, failures, float(ratio[at]), rms_error, rms_ratio, free, at, message)


def _rms(x: Array) -> float:
    """Root of the mean square, without overflow or underflow of the squares."""
    greatest = np.max(x, initial=0)
    if greatest == 0:
        return 0.0
    return float(greatest * np.sqrt(np.mean(np.square(x / greatest))))


def assert_close(got: Any, expected: Expected, dtype: str, what: str = "out") -> Figures:
    """The figures, or AssertionError with the worst element."""
    figures = compare(got, expected, dtype)
    if not figures.ok:
        raise AssertionError(f"{what} ({dtype}): {figures.message}")
    return figures
