"""The arrays of a case: views with any strides in buffers whose other bytes are a guard pattern.

Role: between cases.py (what is called) and run.py (the call). Every element of a buffer that is not in
its view holds the guard, a NaN: a read outside of a view shows in the result, a write outside of it
shows in Operand.damage(). Outputs start as another NaN, the fill, so that an element which was never
written can be told from one that is rightly NaN.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .cases import BATCHES, Case
from .rounding import FORMATS, Array, numpy_dtype

_ALIGN = 64  # bytes: views other than "offset" start at a multiple of it
_GUARD_ITEMS = 80
_GUARD = {2: 0xFFA5, 4: 0xFFA5A5A5, 8: 0xFFA5A5A5A5A5A5A5}
_FILL = {2: 0x7FE5, 4: 0x7FE5E5E5, 8: 0x7FFDE5E5E5E5E5E5}


def sum_dtype(case: Case) -> str:
    """The dtype of the sums, which a number is rounded to."""
    return "float64" if case.dtype == "float64" else "float32"


@dataclass
class Operand:
    """A view in a guarded buffer."""

    name: str
    buffer: Array  # 1-D, dtype of the view, guard bands included
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    offset: int  # element of the buffer where index (0, ..., 0) lies
    writable: bool = False
    original: Array = field(init=False)  # the buffer as it was before the call

    def __post_init__(self) -> None:
        self.original = self.buffer

    def _view_of(self, buffer: Array) -> Array:
        size = buffer.itemsize
        strides = tuple(stride * size for stride in self.strides)
        return np.ndarray(self.shape, buffer.dtype, buffer, self.offset * size, strides)

    @property
    def view(self) -> Array:
        return self._view_of(self.buffer)

    @property
    def values(self) -> Array:
        """What the view held before the call."""
        return self._view_of(self.original)

    def freeze(self) -> None:
        """Remember the bytes that the call may not change."""
        self.original = self.buffer.copy()

    def damage(self) -> str | None:
        """Where bytes changed that may not: outside of the view, or anywhere in an input."""
        bits = np.dtype(f"u{self.buffer.itemsize}")
        changed = self.buffer.view(bits) != self.original.view(bits)
        if self.writable and changed.any():
            self._view_of(changed)[...] = False
        if not changed.any():
            return None
        at = int(np.flatnonzero(changed)[0]) - self.offset
        where = "a guard byte or an input's element" if self.writable else "an element"
        return f"{self.name}: {where} was changed, {at} elements from the view's start"

    def unwritten(self) -> Array | None:
        """The mask of the elements that still hold the fill, or None if there is none."""
        bits = np.dtype(f"u{self.buffer.itemsize}")
        left = self._view_of(self.buffer.view(bits)) == _FILL[self.buffer.itemsize]
        return left if left.any() else None


@dataclass
class Inputs:
    """The operands of one call by argument name; B and bias of a pair are B, B_up and bias, bias_up."""

    case: Case
    seed: int
    operands: dict[str, Operand]
    numbers: dict[str, float] = field(default_factory=dict)  # operands that are numbers of Python

    def values(self, name: str) -> Array | None:
        if name in self.numbers:  # rounded once, to the type of the sums
            with np.errstate(over="ignore"):
                return np.array(self.numbers[name]).astype(sum_dtype(self.case))
        operand = self.operands.get(name)
        return None if operand is None else operand.values


def _memory_order(rank: int, batch: str, transposed: bool) -> list[int]:
    """Axes from the outermost in memory to the innermost."""
    order = list(range(rank))
    if transposed and rank >= 2:
        order[-2:] = order[-1], order[-2]
    if batch == "inner" and rank == 3:
        order = [order[1], order[0], order[2]]
    return order


def embed(
    name: str,
    shape: Sequence[int],
    dtype: str,
    view: str = "plain",
    *,
    transposed: bool = False,
    batch: str = "",
    writable: bool = False,
) -> Operand:
    """An operand of this shape in a new buffer that is all guard.

    view: a value of INPUT_VIEWS or OUTPUT_VIEWS. transposed: the matrix axes are swapped in memory.
    """
    shape = tuple(shape)
    rank = len(shape)
    order = _memory_order(rank, batch, transposed or view == "transposed")
    extents = list(shape)
    if view == "zero_rows" and rank >= 2:
        extents[-2] = 1
    if view in ("zero_rows", "zero_columns") and (view == "zero_columns" or rank < 2) and rank:
        extents[-1] = 1
    strides = [0] * rank
    step = 2 if view == "sliced" else 1
    for place, axis in enumerate(reversed(order)):
        strides[axis] = step
        step *= max(extents[axis], 1)
        if view == "padded" or (view == "sliced" and place == 0):  # padded: a gap after every axis, none merges
            step += 3
    for axis in range(rank):
        if extents[axis] != shape[axis]:
            strides[axis] = 0
    start = 0
    flipped = {"negative": (-1, -2), "negative_rows": (-2,)}.get(view, ())
    for axis in (axis for axis in flipped if -axis <= rank):
        start += strides[axis] * max(shape[axis] - 1, 0)
        strides[axis] = -strides[axis]
    span = sum(abs(s) * max(n - 1, 0) for s, n in zip(strides, shape, strict=True)) + 1
    type_ = numpy_dtype(dtype)
    size = type_.itemsize
    length = span + 2 * _GUARD_ITEMS
    memory = np.empty(length * size + 2 * _ALIGN, np.uint8)
    skip = -(memory.ctypes.data + _GUARD_ITEMS * size) % _ALIGN
    skip += 3 * size if view == "offset" else 0
    buffer = memory[skip : skip + length * size].view(f"u{size}")
    buffer[:] = _GUARD[size]
    return Operand(name, buffer.view(type_), shape, tuple(strides), _GUARD_ITEMS + start, writable)


def _fill(operand: Operand) -> None:
    """Make every element of an output the fill."""
    bits = operand.buffer.view(f"u{operand.buffer.itemsize}")
    operand._view_of(bits)[...] = _FILL[operand.buffer.itemsize]


def _draw(case: Case, shape: Sequence[int], dtype: str, role: str, rng: np.random.Generator) -> Array:
    """Values of an operand in float64, before they are rounded to its dtype.

    role: "a", "b" (whose product over k is what z is made of) or "epilogue". z comes out of order 1
    where values are "normal", so that activations work where they bend.
    """
    kind = case.values
    form = FORMATS[dtype]
    if kind == "integers":
        return rng.integers(-4, 5, shape).astype(np.float64)
    if kind == "positive":
        x = rng.random(shape)
        return x * (6.0 / max(case.k, 1)) if role == "b" else x
    x = np.asarray(rng.standard_normal(shape))
    if kind == "mixed":
        x *= np.exp2(rng.integers(-7, 8, shape))
        x *= 0.05 if role == "b" else 1.0
    if role == "b":
        x *= 2.0 / math.sqrt(max(case.k, 1))
    if kind == "large":
        # z reaches past float16's greatest number, or to 1e-3 of the greatest of a wider format
        high = 4e2 if case.dtype == "float16" else 2.0 ** (FORMATS[case.dtype].emax // 2 - 5)
        x *= high if role != "epilogue" else min(high * high, form.greatest / 64)
    if kind == "subnormal":
        least = form.least_normal
        x *= {"a": least / 4, "b": 1.0, "epilogue": least / 8}[role]
    if kind == "special" and x.size:
        lines = x.size if role == "epilogue" else x.size // max(case.k, 1)
        few = min(x.size // 1000, lines // 4)  # most sums over k keep a finite value, or an infinite one that is right
        few += x.size > 20 or rng.random() < 0.3
        planted = rng.integers(0, x.size, few)
        x.ravel()[planted] = rng.choice([np.nan, np.inf, -np.inf], len(planted))
    return x


def _epilogue_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return {
        "full": shape,
        "inplace": shape,
        "row": shape[-1:],
        "column": (*shape[-2:-1], 1),
        "scalar": (),
        "number": (),
    }[kind]


def result_shape(case: Case) -> tuple[int, ...]:
    """The shape of out; that of z has twice the columns where gated."""
    a, b = BATCHES[case.batch]
    leading = np.broadcast_shapes(*(x for x in (a, b) if x != "vector"))
    return (
        *leading,
        *(() if a == "vector" else (case.m,)),
        *(() if b == "vector" else (case.n,)),
    )


def _assign(operand: Operand, values: Array | float) -> None:
    with np.errstate(over="ignore"):
        operand.view[...] = np.asarray(values).astype(operand.buffer.dtype)


def make_inputs(case: Case, seed: int) -> Inputs:
    """Random arrays for a case: inputs filled, outputs holding the fill, everything else guard.

    A and B are full of NaN where alpha is 0, C where beta is 0: they may not be read. The same case
    and seed give the same values.
    """
    rng = np.random.default_rng([seed & 0xFFFFFFFF, zlib.crc32(case.id.encode())])
    a_batch, b_batch = BATCHES[case.batch]
    shape = result_shape(case)
    z_shape = (*shape[:-1], 2 * shape[-1]) if case.gated else shape
    pair = case.gate_layout == "pair"
    columns = case.n * (2 if case.gated and not pair else 1)
    operands: dict[str, Operand] = {}
    numbers: dict[str, float] = {}

    def add(name: str, shape: tuple[int, ...], dtype: str, view: str, role: str, **how: Any) -> None:
        operand = embed(name, shape, dtype, view, batch=case.batch, **how)
        unread = case.alpha == 0 if role in ("a", "b") else name == "C" and case.beta == 0
        _assign(operand, np.nan if unread else _draw(case, shape, dtype, role, rng))
        operands[name] = operand

    def epilogue(name: str, kind: str, shape: tuple[int, ...], dtype: str) -> None:
        if kind != "number":
            add(name, shape, dtype, case.epilogue_view, "epilogue")
            return
        value = float(_draw(case, (), sum_dtype(case), "epilogue", rng))
        numbers[name] = np.nan if name == "C" and case.beta == 0 else value

    a_shape = (case.k,) if a_batch == "vector" else (*a_batch, case.m, case.k)
    b_shape = (case.k,) if b_batch == "vector" else (*b_batch, case.k, columns)
    add("A", a_shape, case.dtype, case.a_view, "a", transposed=case.layout[0] == "T")
    for name in ("B", "B_up") if pair else ("B",):
        add(name, b_shape, case.dtype, case.b_view, "b", transposed=case.layout[1] == "T")
    for name in ("bias", "bias_up") if pair else ("bias",):
        if case.bias:
            extent = _epilogue_shape(case.bias, shape if pair else z_shape)
            dtype = case.operand_dtype(case.bias_dtype)
            epilogue(name, case.bias, extent, dtype)
    if case.c and case.c != "inplace":
        dtype = case.operand_dtype(case.c_dtype)
        epilogue("C", case.c, _epilogue_shape(case.c, z_shape), dtype)
    if case.multiply:
        dtype = case.operand_dtype(case.multiply_dtype)
        extent = _epilogue_shape(case.multiply, shape)
        epilogue("multiply", case.multiply, extent, dtype)
    if case.preactivation:
        operands["preactivation"] = embed(
            "preactivation", z_shape, case.preactivation, case.preactivation_view, writable=True
        )
        _fill(operands["preactivation"])
    if case.c == "inplace":
        add("C", shape, case.result_dtype, case.out_view, "epilogue", writable=True)
        operands["out"] = operands["C"]
    elif case.out_view:
        operands["out"] = embed("out", shape, case.result_dtype, case.out_view, batch=case.batch, writable=True)
        _fill(operands["out"])
    for operand in {id(o): o for o in operands.values()}.values():
        operand.freeze()
    return Inputs(case, seed, operands, numbers)
