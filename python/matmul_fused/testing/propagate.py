"""Values in wide precision with bounds of their error, carried through the steps of a call.

Role: the arithmetic under reference.expect. A Ball holds for every element the exact value, a bound of
what a float32 kernel (float64 for float64 operands) may be off by, and the size that an error has when
roundings are independent. Step is one step of the call on balls: z, an activation, a product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .formulas import Activation
from .rounding import FORMATS, Array, overflow_as, wide_dtype


@dataclass
class Ball:
    """Values with a bound of their error (radius) and its expected size (spread)."""

    value: Array
    radius: Array
    spread: Array
    free: Array | None = None  # mask of elements with no right value: inf * (0 within its error), ...
    huge: Array | None = None  # where the accumulator may have overflowed to an infinity on the way
    other: Ball | None = None  # the other branch of a function that jumps
    either: Array | None = None  # mask of elements that may be on it

    def release(self, mask: Array) -> None:
        self.free = either(self.free, mask if mask.any() else None)

    def columns(self, index: slice) -> Ball:
        free, huge = (None if x is None else x[..., index] for x in (self.free, self.huge))
        return Ball(self.value[..., index], self.radius[..., index], self.spread[..., index], free, huge)


def either(x: Array | None, y: Array | None) -> Array | None:
    """The union of two masks; None is the empty one."""
    if x is None or y is None:
        return y if x is None else x
    return x | y


def joined(gate: Ball, up: Ball) -> Ball:
    """The columns of two balls side by side."""

    def mask(x: Array | None, y: Array | None) -> Array | None:
        if x is None and y is None:
            return None
        nothing = np.zeros(gate.value.shape, bool)
        return np.concatenate([nothing if part is None else part for part in (x, y)], -1)

    value = np.concatenate([gate.value, up.value], -1)
    radius = np.concatenate([gate.radius, up.radius], -1)
    spread = np.concatenate([gate.spread, up.spread], -1)
    return Ball(value, radius, spread, mask(gate.free, up.free), mask(gate.huge, up.huge))


def product(a: Array, b: Array) -> Array:
    """a @ b: by BLAS for finite float64; else by NumPy's own loops, which drop no inf * 0."""
    if a.dtype == np.float64 and not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.einsum("...mk,...kn->...mn", a, b)
    return a @ b


def magnitude(x: Array) -> Array:
    """|x| in float64 with 0 for what is not finite: the size of the terms of finite sums."""
    size = np.abs(x).astype(np.float64, copy=False)
    if size.size and not np.isfinite(np.max(size)):
        size[~np.isfinite(size)] = 0.0
    return size


def root_of_squares(a: Array, b: Array) -> Array:
    """sqrt(sum_k (a b)^2), without overflow of the squares."""
    a_scale, b_scale = np.max(a, initial=0) or 1.0, np.max(b, initial=0) or 1.0
    result = np.sqrt(np.square(a / a_scale) @ np.square(b / b_scale))
    result *= a_scale * b_scale
    return result


def flushed(x: Array) -> Array:
    """The part of |x| that a device which reads bfloat16 subnormals as 0 loses."""
    return np.where(np.abs(x) < FORMATS["bfloat16"].least_normal, np.abs(x), 0.0)


def cut(x: Array) -> Array:
    """What rounding to 11 bits takes at most from a subnormal |x|: those of tf32 are multiples of 2^-136."""
    return np.where(np.abs(x) < FORMATS["float32"].least_normal, np.minimum(np.abs(x), 2.0**-137), 0.0)


class Step:
    """The steps of one call: its types and units decide what each step may be off by."""

    def __init__(self, dtype: str, unit: float | None, allow_tf32: bool) -> None:
        self.wide = wide_dtype(dtype)
        self.flushes = dtype == "bfloat16"
        self.accumulator = "float64" if dtype == "float64" else "float32"
        self.unit = FORMATS[self.accumulator].unit if unit is None else unit
        self.tiny = FORMATS[self.accumulator].least
        self.greatest = FORMATS[self.accumulator].greatest
        self.input_unit = 2.0**-11 if allow_tf32 and dtype == "float32" else 0.0

    def lost(self, factor: float) -> float:
        """The share of alpha or beta that its one rounding to the accumulator's type moves it by."""
        with np.errstate(over="ignore"):
            rounded = float(np.dtype(self.accumulator).type(factor))
        return abs(rounded - factor) / abs(factor) if math.isfinite(rounded) and factor else 0.0

    def z(
        self,
        a: Array,
        b: Array,
        alpha: float,
        addends: list[tuple[Array, float, bool]],
        shape: tuple[int, ...],
        statistics: bool,
    ) -> Ball:
        """alpha a @ b + addends in this shape. addends: (values, the factor in them, whether they were bfloat16).

        The radius is (K + 8) u S, and what underflow, tf32 and flushed subnormals add.
        """
        k = 0 if alpha == 0 else a.shape[-1]
        extra: Array | float = (k + 8) * self.tiny * max(1.0, abs(alpha))  # underflow
        if k:
            value = product(a, b)
            value *= self.wide.type(alpha)
            a_size, b_size = magnitude(a), magnitude(b)
            size = a_size @ b_size
            size *= abs(alpha)
            if self.input_unit:
                extra = extra + size * (2 * self.input_unit)
                if cut(a_size).any() or cut(b_size).any():
                    extra = extra + abs(alpha) * (cut(a_size) @ b_size + a_size @ cut(b_size))
            if self.flushes:  # 32 products of a tile are rounded 34 times, to 0 where that is subnormal
                extra = extra + (k + 8) * (17 / 16) * FORMATS["float32"].least_normal * abs(alpha)
            if self.flushes and (flushed(a_size).any() or flushed(b_size).any()):
                extra = extra + abs(alpha) * (flushed(a_size) @ b_size + a_size @ flushed(b_size))
        else:
            value, size = np.zeros(shape, self.wide), np.zeros(shape)
        variance = None
        if statistics and k:
            noise = root_of_squares(a_size, b_size)
            noise *= abs(alpha)
            variance = Variance(self.accumulator, k, magnitude(value), noise)
            shared = self.lost(alpha) * magnitude(value)  # alike in every element, so no average makes it smaller
        for addend, factor, is_bfloat16 in addends:
            term = magnitude(addend)
            value = value + addend
            size = size + term
            if is_bfloat16 and flushed(term).any():
                extra = extra + flushed(term)
            if variance is not None:
                variance.add(term)
                shared += self.lost(factor) * term
        radius = (size * ((k + 8) * self.unit) + extra).astype(self.wide, copy=False)
        spread = radius
        if variance is not None:
            spread = (self.unit * np.maximum(variance.root(), size) + shared + extra).astype(self.wide, copy=False)
        ball = Ball(value, radius, spread)
        if size.size and size.max() >= self.greatest / 2:  # a partial sum may overflow
            mixed = (size >= self.greatest / 2) & (np.abs(value) < size * 0.99)
            ball.release(np.isfinite(value) & (mixed | (np.abs(np.abs(value) - self.greatest) <= radius)))
            self.mark_huge(ball)
        return ball

    def mark_huge(self, ball: Ball) -> Ball:
        """Note where the accumulator's type may have overflowed; a kernel may also keep wider numbers there."""
        reach = np.abs(ball.value) + ball.radius
        if reach.size and not reach.max() <= self.greatest:  # also where NaN
            over = np.isfinite(ball.value) & (reach > self.greatest)
            ball.huge = either(ball.huge, over if over.any() else None)
        return ball

    def apply(self, row: Activation, z: Ball, parameters: tuple[float, ...]) -> Ball:
        """f(z): the radius is L e."""
        value = row.f(z.value, *parameters)
        slope = row.lipschitz(z.value, z.radius, *parameters)
        tiny = np.where(value != 0, 4 * self.tiny, 0)  # the result may underflow
        shift = 8 * self.unit * row.shift  # as if the constant were a term of z
        radius = slope * (z.radius + shift) + tiny
        if row.step is not None:
            radius = radius + row.step(z.value, z.radius)
        spread = slope * (z.spread + 2 * self.unit * row.shift)
        exact = ~np.isfinite(z.value)  # infinities have no error
        if exact.any():
            radius, spread = np.where(exact, 0, radius), np.where(exact, 0, spread)
        ball = Ball(value, radius, np.maximum(spread, 2 * self.unit * np.abs(value)) + tiny, z.free)
        burst = np.isinf(value) & ~exact  # e^z, whose interval need not end there
        for end in (z.value - z.radius, z.value + z.radius) if burst.any() else ():
            there = overflow_as(row.f(end, *parameters), self.accumulator)
            ball.release(burst & (there != overflow_as(value, self.accumulator)))
        if z.huge is not None:
            limit = row.f(np.where(z.huge, np.copysign(np.inf, z.value), z.value), *parameters)
            same = overflow_as(limit, self.accumulator) == overflow_as(value, self.accumulator)
            ball.release(z.huge & ~same)
        if row.other is not None:
            ball.either, there, steep = row.other(z.value, z.radius, *parameters)
            size = np.maximum(steep * z.spread, 2 * self.unit * np.abs(there)) + tiny
            ball.other = self.mark_huge(Ball(there, steep * z.radius + tiny, size, ball.free))
        return self.mark_huge(ball)

    def times(self, x: Ball, y: Ball) -> Ball:
        """x y: the radius is |x| e_y + |y| e_x + e_x e_y."""
        x_size, y_size = np.abs(x.value), np.abs(y.value)
        radius = x_size * y.radius + y_size * x.radius + x.radius * y.radius
        spread = x_size * y.spread + y_size * x.spread
        value = x.value * y.value
        blurred = np.isnan(radius) & np.isfinite(value)  # an error without end, of e^z for one, times 0
        if blurred.any():
            radius, spread = np.where(blurred, 0, radius), np.where(blurred, 0, spread)
        ball = Ball(value, radius, spread, either(x.free, y.free), either(x.huge, y.huge))
        ball.release(blurred)
        for p, q in ((x, y), (y, x)):  # inf times what may be 0 or of either sign
            infinite = either(np.isinf(p.value), p.huge)
            if infinite is not None and infinite.any():
                ball.release(infinite & (np.abs(q.value) <= q.radius) & ((q.radius > 0) | np.isfinite(p.value)))
        if x.other is not None:
            ball.other, ball.either = self.times(x.other, y), x.either
        return self.mark_huge(ball)


class Variance:
    """The variance of z's error, in units of u^2, if every rounding is independent and within u of what it rounds.

    Roundings of the products; of partial sums, which are i/K z + noise of variance i/K (1 - i/K) sum (ab)^2; then two
    of alpha, two of beta, one for each addition.
    """

    def __init__(self, accumulator: str, k: int, dot: Array, noise: Array) -> None:
        self.scale = max(1.0, float(dot.max(initial=0))) if accumulator == "float64" else 1.0  # squares may overflow
        self.size = dot / self.scale
        noise /= self.scale
        self.total = np.square(self.size) * ((k / 3 + 0.5 + 1 / (6 * k)) / 3 + 2 / 3)
        self.total += np.square(noise) * ((k / 6 + 1) / 3)

    def add(self, term: Array) -> None:
        term = term / self.scale
        self.size = self.size + term
        self.total = self.total + np.square(self.size) / 3 + np.square(term) * (2 / 3)

    def root(self) -> Array:
        return self.scale * np.sqrt(self.total)
