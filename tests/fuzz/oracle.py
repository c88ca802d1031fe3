"""The right result of a drawn call, without the code under test and cheap enough for every call.

Small integers: z is exact and a multiple of 1/2, so that each activation is a table over z, with the bound that
docs/bound.md derives for one evaluation of it (8 u |f| + 8 L u |z|, the bound of the call at its smallest K and S) and
none for those that round nothing. Any other numbers: matmul_fused.testing's reference and bound.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from matmul_fused.testing import compare, expect, round_to
from matmul_fused.testing.formulas import Activation, Gated, resolve
from matmul_fused.testing.rounding import FORMATS, numpy_dtype

REACH = 2048  # |z| is less
EXACT = {"none", "relu", "relu_squared", "clamp"}  # round nothing where z is a multiple of 1/2
_Z = np.arange(-2 * REACH, 2 * REACH + 1) / np.longdouble(2)


class Table:
    """f(z) and its error by 2 (z + REACH)."""

    def __init__(self, row: Activation, parameters: tuple[float, ...], exact: bool, accumulator: str) -> None:
        unit, tiny, most = FORMATS[accumulator].unit, FORMATS[accumulator].least, float(np.finfo(accumulator).max)
        with np.errstate(all="ignore"):
            value = row.f(_Z, *parameters)
            slope = row.lipschitz(_Z, np.zeros_like(_Z), *parameters)
            # 4 u and 8 subnormal units more: the tables' own rounding, and that of the interval's ends (see rounded)
            radius = 12 * unit * np.abs(value) + 8 * unit * slope * (np.abs(_Z) + row.shift) + 20 * tiny
            self.value, self.most = value.astype(np.float64), most
            self.radius = None if exact else radius.astype(np.float64)
            self.overflows = bool(value.max() > most)
        self.finite = self.value.copy()
        if self.overflows:  # no multiple of 1/2 is so near to the edge that its rounding could decide
            self.radius[self.value > most] = 0
            self.value[self.value > most] = math.inf


@cache
def tables(activation: Any, accumulator: str) -> tuple[Table, ...]:
    """Of an activation; of gate and up where it is gated."""
    name, row, parameters = resolve(activation)
    exact = name in EXACT or (name == "leaky_relu" and parameters[0] == -0.5)
    if isinstance(row, Gated):
        up = Table(row.up, parameters, True, accumulator)
        return Table(row.gate, parameters, name == "reglu", accumulator), up
    return (Table(row, parameters, exact, accumulator),)


def rounded(values: np.ndarray, dtype: str, double: bool = False) -> np.ndarray:
    """To the dtype and back. bfloat16 goes through float32: exact, or inside of the tables' error if not double."""
    if dtype == "float64":
        return values
    if dtype == "bfloat16":
        if double:
            return round_to(values, dtype)
        values = values.astype(np.float32)
    return values.astype(numpy_dtype(dtype)).astype(np.float64)


def split(z: np.ndarray, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """The gate and up columns of z."""
    if layout == "interleaved":
        return z[..., 0::2], z[..., 1::2]
    half = z.shape[-1] // 2
    first, second = z[..., :half], z[..., half:]
    return (second, first) if layout == "halves_up_first" else (first, second)


def exact_z(world: Any, call: Any) -> np.ndarray:
    """alpha A @ B + beta C + bias in float64, where nothing rounds."""
    alpha = float(call.alpha)
    pair = len(call.b) == 2
    parts = []
    for number, b in enumerate(call.b):
        product = world.product(call.a, b)
        z = alpha * product if alpha != 0 and world.k else np.zeros(product.shape)
        if call.bias:
            z = z + call.bias[number].values
        parts.append(z)
    z = np.concatenate(parts, -1) if pair else parts[0]
    if call.c is not None and call.scale != 0:
        z = z + call.scale * (call.c_values if call.c_values is not None else call.c.values)
    return z


def check_exact(world: Any, call: Any, out: np.ndarray, preactivation: np.ndarray | None) -> None:
    z = exact_z(world, call)
    if preactivation is not None:
        assert_equal("preactivation", preactivation, rounded(z, call.preactivation.dtype))
    accumulator = "float64" if world.dtype == "float64" else "float32"
    dtype = call.out_dtype
    if not math.isfinite(call.alpha):
        _, row, parameters = resolve(call.activation)
        value = row.f(z, *parameters)
        assert_equal("out", out, rounded(value if call.multiply is None else value * call.multiply.values, dtype))
        return
    table, *up = tables(call.activation, accumulator)
    unit = FORMATS[accumulator].unit
    radius: Any = None
    if up:
        gate, second = split(z, call.layout)
        at, at_up = (2 * gate).astype(np.intp) + 2 * REACH, (2 * second).astype(np.intp) + 2 * REACH
        factor = up[0].value[at_up]
        value = table.value[at] * factor
        if table.radius is not None:
            radius = table.radius[at] * np.abs(factor) + 8 * unit * np.abs(value)
    else:
        at = (2 * z).astype(np.intp) + 2 * REACH
        value = table.value[at]
        radius = None if table.radius is None else table.radius[at]
    if call.multiply is not None:
        value = value * call.multiply.values
        radius = None if radius is None else radius * np.abs(call.multiply.values)
        if table.overflows:  # in the accumulator, before the result is rounded
            value = np.where(np.abs(value) > table.most, np.copysign(math.inf, value), value)
    if radius is None:
        assert_equal("out", out, rounded(value, dtype))
        return
    got = out.astype(np.float64)
    double = accumulator == "float64"
    good = (rounded(value - radius, dtype, double) <= got) & (got <= rounded(value + radius, dtype, double))
    if table.overflows:  # the baseline evaluates exp in float64: its value is finite, and 0 times it is 0
        finite = table.finite[at] * (1.0 if call.multiply is None else call.multiply.values)
        good |= np.isinf(value) & (np.abs(got - finite) <= 1e-12 * np.abs(finite))
        good |= np.isnan(value) & (np.isnan(got) | (got == 0))
    if not good.all():
        at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(good))[0])
        wanted, radius = np.atleast_1d(value)[at], np.atleast_1d(radius)[at]
        raise AssertionError(f"out{list(at)} is {np.atleast_1d(got)[at]!r}, not {wanted!r} within {radius:.3g}")


def assert_equal(name: str, got: np.ndarray, wanted: np.ndarray) -> None:
    wide = got.astype(np.float64)
    if wide.shape == wanted.shape and (wide == wanted).all():
        return
    assert wide.shape == wanted.shape, f"{name} has shape {wide.shape}, not {wanted.shape}"
    good = np.atleast_1d((wide == wanted) | (np.isnan(wide) & np.isnan(wanted)))
    if not good.all():
        at = tuple(int(i) for i in np.argwhere(~good)[0])
        raise AssertionError(f"{name}{list(at)} is {np.atleast_1d(wide)[at]!r}, not {np.atleast_1d(wanted)[at]!r}")


def check_bound(world: Any, call: Any, out: np.ndarray, preactivation: np.ndarray | None) -> None:
    """By the reference and its derived bound."""

    def pair(forms: Any) -> Any:
        return None if not forms else forms[0].array if len(forms) == 1 else tuple(form.array for form in forms)

    c = None if call.c is None else call.c_values if call.c_values is not None else call.c.array
    expected, expected_z = expect(
        call.a.array,
        pair(call.b),
        pair(call.bias),
        call.activation,
        alpha=float(call.alpha),
        beta=None if call.c is None else call.scale,
        C=c,
        multiply=None if call.multiply is None else call.multiply.array,
        gate_layout=call.layout,
        allow_tf32=call.allow_tf32,
    )
    for name, got, right in (("out", out, expected), ("preactivation", preactivation, expected_z)):
        if got is not None:
            figures = compare(got, right, got.dtype.name)
            assert not figures.failures, f"{name} ({got.dtype.name}): {figures.message}"
