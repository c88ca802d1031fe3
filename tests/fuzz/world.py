"""A world: the operands of one problem in many guises, from which some hundred calls are drawn.

Operands hold small integers, so that every product and sum is exact in float32 and results can be compared for
equality; in one world of 64 they hold any numbers. Every array lies in a buffer of its own that ends where the array
ends (AddressSanitizer watches what is beyond) and whose other elements are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np

import matmul_fused as mf
from matmul_fused import _core
from matmul_fused.testing.rounding import numpy_dtype

from .producers import Capsule, Library, memory_of

CALLS = 192  # drawn from one world
DTYPES = ("float32", "float64", "float16", "bfloat16")
# What a row refuses, this machine's or this dtype's, the baseline takes.
KERNELS = (None, None, "cpu_reference", *(f"{row}, cpu_blocked" for row in mf.info().kernels if row != "cpu_reference"))
_M, _N = (0, 1, 1, 2, 3, 4, 5, 6, 7, 9, 13, 17), (0, 1, 2, 2, 3, 4, 6, 7, 8, 10, 15, 16, 17, 32, 34)
_K = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 25, 33, 49, 64)
_LEADS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    *((((), ()),) * 8),
    ((2,), (2,)),
    ((3,), ()),
    ((), (2,)),
    ((2, 1), (1, 2)),
    ((2, 2), (2,)),
    ((0,), ()),
    ((2,), (2, 1)),
    ((1, 2, 1, 1, 2, 1), (2, 1, 1)),
)
_PATTERNS = {2: 0x7FE5, 4: 0x7FE5E5E5, 8: 0x7FFDE5E5E5E5E5E5}  # NaNs that no operand holds


class Form(NamedTuple):
    """An operand as it is passed, and what it means."""

    argument: Any
    kind: str  # numpy, capsule, library, array, packed: decides the library of the result
    array: np.ndarray  # plain NumPy, of the operand's dtype
    values: np.ndarray  # the same in float64
    key: int  # forms with the same key have the same values
    gate: str | None = None  # what it was prepacked for
    owner: np.ndarray | None = None  # the buffer behind it
    original: bytes = b""  # of the buffer


def pick(rng: Random, items: Sequence[Any]) -> Any:
    return items[int(rng.random() * len(items))]


def lay_out(rng: Random, values: np.ndarray, dtype: np.dtype, fill: float = math.nan) -> tuple[np.ndarray, np.ndarray]:
    """A view that holds values, with random strides, and the buffer that ends with its last element."""
    shape = values.shape
    axes = list(range(len(shape)))[::-1]
    wild = rng.random() < 0.6
    if rng.random() < 0.4:
        rng.shuffle(axes)
    strides, extent = [0] * len(shape), 1
    for axis in axes:
        step = pick(rng, (1, 1, 1, 2, 3, -1, -2)) if wild else 1
        strides[axis] = extent * step
        extent = extent * max(1, shape[axis]) * abs(step) + (pick(rng, (0, 0, 0, 1, 5)) if wild else 0)
    start = pick(rng, (0, 0, 1, 3)) if wild else 0
    last = start
    for stride, length in zip(strides, shape, strict=True):
        reach = stride * max(0, length - 1)
        start, last = start + max(0, -reach), last + abs(reach)
    buffer = np.full(last + (values.size > 0), fill, dtype)
    size = dtype.itemsize
    view = np.ndarray(shape, dtype, buffer, start * size if values.size else 0, [s * size for s in strides])
    view[...] = values
    return view, buffer


class Output:
    """A place for results. raw: its whole buffer as integers; bits: the view as integers."""

    def __init__(self, rng: Random, shape: tuple[int, ...], dtype: str, kind: str) -> None:
        self.dtype, self.kind = dtype, kind
        real = numpy_dtype(dtype)
        integer = np.dtype(f"u{real.itemsize}")
        if kind == "array":
            rows, columns = ((*shape[:-1], 0), (0, *shape[-1:]))
            self.argument = mf.matmul_fused(Capsule(np.ones(rows, real)), np.ones(columns, real))
            self.view = memory_of(self.argument, shape, real)
            self.raw = self.bits = memory_of(self.argument, shape, integer)
        else:
            self.view, buffer = lay_out(rng, np.zeros(shape), real)
            self.raw = buffer.view(integer)
            start = self.view.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
            start = start if self.view.size else 0
            self.bits = np.ndarray(shape, integer, self.raw, start, self.view.strides)
            wrap = {"numpy": lambda x: x, "capsule": Capsule, "library": Library}[kind]
            self.argument = wrap(self.view)
        self.pattern = integer.type(_PATTERNS[real.itemsize])
        self.raw.fill(self.pattern)
        self.blank = self.raw.tobytes()

    def prepare(self, values: np.ndarray | None = None) -> None:
        self.raw.fill(self.pattern)
        if values is not None:
            self.view[...] = values

    def take(self) -> np.ndarray:
        """A copy of what was written, and an AssertionError if anything beside the view was."""
        got = self.view.copy()
        self.bits[...] = self.pattern
        assert self.raw.tobytes() == self.blank, "memory beside an output was written"
        return got


class World:
    def __init__(self, seed: int, number: int) -> None:
        self.seed, self.number = seed, number
        rng = self.rng("world")
        self.real = rng.random() < 1 / 64
        large = rng.random() < 1 / 400
        self.dtype = pick(rng, DTYPES)
        self.kernel = pick(rng, KERNELS)
        self.threads = pick(rng, (1, 2, 3))
        self.m, self.n, self.k = pick(rng, _M), pick(rng, _N), pick(rng, _K)
        lead_a, lead_b = pick(rng, _LEADS)
        if large:
            self.m, self.n, self.k, lead_a, lead_b = rng.randint(50, 150), 2 * rng.randint(25, 75), 60, (), ()
        elif rng.random() < 1 / 50:
            self.m, self.n, self.k = min(self.m, 4), min(self.n, 16), pick(rng, (193, 384, 385, 500, 800))
        self.greatest = 3 if self.k <= 64 else 1  # |z| stays below what the oracle tabulates
        self.vector_a, self.vector_b = rng.random() < 0.05, rng.random() < 0.05
        self.a_shape = (self.k,) if self.vector_a else (*lead_a, self.m, self.k)
        self.b_shape = (self.k,) if self.vector_b else (*lead_b, self.k, self.n)
        self.lead = np.broadcast_shapes(self.a_shape[:-2], self.b_shape[:-2])
        self.packable = len(self.b_shape) == 2
        self.pools: dict[Any, Any] = {}
        self.products: dict[tuple[int, int], np.ndarray] = {}
        self.forms: list[Form] = []
        self.keys = 0
        self.a = self.operands("a", self.a_shape, self.dtype, 5)
        self.b = self.operands("b", self.b_shape, self.dtype, 5)
        if self.packable:
            self.b += self.packed()

    def enter(self) -> None:
        mf.set_num_threads(self.threads)
        _core.force_kernel(self.kernel)

    def leave(self) -> None:
        _core.force_kernel(None)
        for form in self.forms:
            same = form.owner is None or form.owner.tobytes() == form.original
            assert same, f"an input of kind {form.kind} was written"

    def rng(self, what: Any) -> Random:
        return Random(f"{self.seed} {self.number} {what}")

    def shape(self, columns: int) -> tuple[int, ...]:
        """Of a result with so many columns."""
        rows = () if self.vector_a else (self.m,)
        return (*self.lead, *rows) if self.vector_b else (*self.lead, *rows, columns)

    def random_values(self, rng: Random, shape: tuple[int, ...], greatest: int) -> np.ndarray:
        generator = np.random.default_rng(rng.getrandbits(64))
        if self.real:
            values = generator.standard_normal(shape)
            if rng.random() < 0.2:
                values *= 2.0 ** generator.integers(-40, 40, shape)
            return values
        return generator.integers(-greatest, greatest + 1, shape).astype(np.float64)

    def form(self, rng: Random, shape: tuple[int, ...], dtype: str, values: np.ndarray, key: int) -> Form:
        real, kind = numpy_dtype(dtype), pick(rng, ("numpy",) * 12 + ("subclass", "capsule", "capsule", "library"))
        if rng.random() < 1 / 12 and values.size and values.ndim < 8:
            array = mf.matmul_fused(Capsule(values[..., None].astype(real)), np.ones(1, real))
            plain = memory_of(array, shape, real).copy()
            return self.keep(Form(array, "array", plain, plain.astype(np.float64), key))
        axes = [axis for axis in range(len(shape)) if shape[axis] > 1 and rng.random() < 0.06]
        if axes:  # zero strides: these axes repeat their first line
            index = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(len(shape)))
            view, buffer = lay_out(rng, values[index], real)
            view, key = np.broadcast_to(view, shape), self.new_key()
        else:
            view, buffer = lay_out(rng, values, real)
        plain = np.array(view)
        argument: Any = view
        if kind == "subclass":
            argument, kind = view.view(Mine), "numpy"
        elif kind == "library":
            argument = Library(view)
        elif kind == "capsule":
            compact = view.flags.c_contiguous and rng.random() < 0.5
            argument = Capsule(view, rng.random() < 0.7, compact, pick(rng, (0, 0, 8, 64, -16)))
        return self.keep(Form(argument, kind, plain, plain.astype(np.float64), key, None, buffer, buffer.tobytes()))

    def keep(self, form: Form) -> Form:
        self.forms.append(form)
        return form

    def new_key(self) -> int:
        self.keys += 1
        return self.keys

    def operands(self, what: str, shape: tuple[int, ...], dtype: str, count: int) -> list[Form]:
        rng, key = self.rng(what), self.new_key()
        values = self.random_values(rng, shape, self.greatest).astype(numpy_dtype(dtype)).astype(np.float64)
        return [self.form(rng, shape, dtype, values, key) for _ in range(count)]

    def packed(self) -> list[Form]:
        gates = (None, "halves", "halves_up_first", "interleaved") if self.n % 2 == 0 else (None,)
        forms, rng = [], self.rng("packed")
        _core.force_kernel(self.kernel)  # "auto" is a layout that it reads
        for number, gate in enumerate(gates):
            source = self.b[number % len(self.b)]
            weight = mf.prepack(source.argument, layout=pick(rng, ("auto", "panels64", "columns")), gate_layout=gate)
            forms.append(source._replace(argument=weight, kind="packed", gate=gate, owner=None))
        _core.force_kernel(None)
        return forms

    def addends(self, columns: int, dtype: str) -> list[Form]:
        """Operands that broadcast to a result with so many columns."""
        key = "addend", columns, dtype
        if key not in self.pools:
            rng, full, forms = self.rng(key), self.shape(columns), []
            for _ in range(3):
                shape = full[pick(rng, (0, 0, 0, len(full) // 2, len(full) - 1, len(full))) :] if full else ()
                shape = tuple(1 if rng.random() < 0.2 else length for length in shape)
                values = self.random_values(rng, shape, 4).astype(numpy_dtype(dtype)).astype(np.float64)
                forms.append(self.form(rng, shape, dtype, values, self.new_key()))
            self.pools[key] = forms
        return self.pools[key]

    def factors(self, columns: int, dtype: str) -> list[Form]:
        """Operands for multiply: powers of two, and zero."""
        key = "factor", columns, dtype
        if key not in self.pools:
            rng, full = self.rng(key), self.shape(columns)
            shape = full[pick(rng, (0, 0, len(full) // 2)) :]
            choice = np.random.default_rng(rng.getrandbits(64)).integers(0, 4, shape)
            values = np.array([-1.0, 0.0, 1.0, 2.0])[choice]
            self.pools[key] = [self.form(rng, shape, dtype, values, self.new_key()) for _ in range(2)]
        return self.pools[key]

    def outputs(self, columns: int, dtype: str, role: str = "out") -> list[Output]:
        key = role, columns, dtype
        if key not in self.pools:
            rng, kinds = self.rng(key), ("numpy", "numpy", "numpy", "capsule", "library", "array")
            self.pools[key] = [Output(rng, self.shape(columns), dtype, pick(rng, kinds)) for _ in range(2)]
        return self.pools[key]

    def in_place(self, columns: int, dtype: str) -> np.ndarray:
        """Values for a C that is out itself."""
        key = "in place", columns, dtype
        if key not in self.pools:
            rng = self.rng(key)
            values = self.random_values(rng, self.shape(columns), 4)
            self.pools[key] = values.astype(numpy_dtype(dtype)).astype(np.float64)
        return self.pools[key]

    def product(self, a: Form, b: Form) -> np.ndarray:
        key = a.key, b.key
        if key not in self.products:
            self.products[key] = np.matmul(a.values, b.values)
        return self.products[key]


class Mine(np.ndarray):
    """A subclass: taken as an array, the result is a plain one."""
