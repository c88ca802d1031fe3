"""Valid calls: drawing one from a world, making it, and judging everything that it did or may not have done."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import numpy as np

import matmul_fused as mf
from matmul_fused.testing import formulas
from matmul_fused.testing.rounding import numpy_dtype

from .oracle import check_bound, check_exact
from .producers import Capsule, Library, memory_of
from .world import DTYPES, Form, Output, World, pick

ACTIVATIONS: tuple[Any, ...] = (
    *((None,) * 6 + ("relu",) * 4 + (("clamp", -2, 3), ("clamp", 3.0, -3.0), ("leaky_relu", -0.5), ("relu",))),
    *(name for name, row in formulas.ACTIVATIONS.items() if name != "none" and not row.required),
    *("GELU", "gelu_new", "relu6", "identity", ("threshold", 1, -2), ("hardshrink", 2), ("xielu", 1, 0.5)),
    *(("leaky_relu", 0.25), ("elu", -2), ("elu", np.float32(0.5)), ("clamp", 0, float("inf")), ("celu", 0.5)),
    *(("threshold", np.float64(-1), 3.5), ("softshrink", 0.125), ("hardtanh", -2, 3), ("xielu", 0.25, 2, 0.5, -1e-6)),
)
GATED: tuple[Any, ...] = (
    *(name for name, row in formulas.GATED.items() if not row.required),
    *("reglu", ("swiglu_oai", 3), ("swiglu_oai", 2.5, 0), ("swiglu", 2.5), ("swiglu", 3, 1, 0.5), ("situglu", 2, 4)),
    *(("swiglustep", 1.5), ("fatreglu", 0.5), ("situglu", 3), ("SwiGLU", np.float32(4))),
)
# Names of a gated activation that mean a gate_layout, too.
NAMED = {
    "halves": ("silu_and_mul", "gelu_tanh_and_mul", ("silu_and_mul_with_clamp", 7), ("fatrelu_and_mul", 0.5)),
    "halves_up_first": ("mul_and_silu",),
    "interleaved": ("swigluoai_and_mul", ("swigluoai_and_mul", 3, 1)),
}
# In place of bias, C and multiply; exact in every dtype, powers of two or 0.
NUMBERS = (0, 1, -1, 2.0, 0.5, -0.0, np.float32(-2), np.float64(0.5), np.float16(1), np.int64(2), np.uint8(1))
WHOLE = tuple(number for number in NUMBERS if number == int(number))  # of C: beta may halve it
ALPHAS = (1, 1.0, 1.0, 2.0, -1.0, 0.5, 0, True, np.float32(-0.5), np.int64(2), np.float16(1))
BETAS = (1.0, 0.5, -1, 2, 0.0, np.float64(-0.5))
REAL_ALPHAS, REAL_BETAS = (1.0, 0.3, -1.7, 1e-3, 0.0), (1.0, -0.7, 0.0, 1e3)
INFINITE = (float("nan"), float("inf"), -float("inf"))
LAYOUTS = (None, "halves", "halves_up_first", "interleaved")


def addend(rng: Random, forms: list[Form], numbers: tuple[Any, ...] = NUMBERS) -> Form:
    """One of these, or a number."""
    if rng.random() >= 0.1:
        return pick(rng, forms)
    number = pick(rng, numbers)
    value = np.array(number, np.float64)
    return Form(number, "number", value, value, 0)


class Call:
    """One call: what is passed (arguments, keywords) and what it means."""

    def __init__(self, world: World, rng: Random) -> None:
        self.allow_tf32 = False
        self.activation: Any = pick(rng, ACTIVATIONS)
        self.a: Form = pick(rng, world.a)
        self.b: tuple[Form, ...]
        self.columns = self.z_columns = 1 if world.vector_b else world.n
        self.layout: str | None = None
        self.keywords: dict[str, Any] = {}
        gated = rng.random() < 0.3 and not world.vector_b
        if gated:
            self._draw_gate(world, rng)
        else:
            self.b = (pick(rng, [form for form in world.b if form.gate is None]),)
        self.out_dtype = pick(rng, DTYPES) if rng.random() < 0.3 else world.dtype
        self._draw_scalars(world, rng)
        self._draw_addends(world, rng)
        self._draw_outputs(world, rng)
        self._arrange(rng)

    def _draw_gate(self, world: World, rng: Random) -> None:
        self.activation = pick(rng, GATED)
        if world.n % 2 or rng.random() < 0.3:
            plain = [form for form in world.b if form.kind != "packed"]
            packed = [form for form in world.b if form.kind == "packed" and form.gate is None]
            forms = packed if packed and rng.random() < 0.3 else plain
            self.b = (pick(rng, forms), pick(rng, forms))
            self.layout, self.z_columns = "pair", 2 * world.n
            return
        self.columns //= 2
        self.b = (pick(rng, [form for form in world.b if form.kind != "packed" or form.gate]),)
        given = self.b[0].gate if self.b[0].gate and rng.random() < 0.5 else None
        if not self.b[0].gate:
            given = pick(rng, LAYOUTS)
        self.layout = given or self.b[0].gate or "halves"
        if rng.random() < 0.15:
            self.activation = pick(rng, NAMED[self.layout])
            given = given if rng.random() < 0.5 else None
        if given:
            self.keywords["gate_layout"] = given

    def _draw_scalars(self, world: World, rng: Random) -> None:
        self.alpha: Any = 1.0
        if rng.random() < 0.4:
            self.alpha = pick(rng, REAL_ALPHAS if world.real else ALPHAS)
            if not world.real and rng.random() < 0.05 and self.activation in (None, "relu"):
                self.alpha = pick(rng, INFINITE)
            self.keywords["alpha"] = self.alpha
        if rng.random() < 0.1:
            self.allow_tf32 = self.keywords["allow_tf32"] = rng.random() < 0.5
        if rng.random() < 0.03:
            self.keywords["stream"] = None

    def _dtype(self, world: World, rng: Random) -> str:
        """Of bias, C or multiply."""
        return pick(rng, (world.dtype, world.dtype, self.out_dtype, "float32"))

    def _draw_addends(self, world: World, rng: Random) -> None:
        self.bias: tuple[Form, ...] = ()
        self.c: Form | Output | None = None
        self.c_values: np.ndarray | None = None
        self.multiply: Form | None = None
        self.scale = 0.0
        if rng.random() < 0.5:
            width = world.n if self.layout == "pair" else self.z_columns
            dtypes = [self._dtype(world, rng) for _ in self.b]
            self.bias = tuple(addend(rng, world.addends(width, dtype)) for dtype in dtypes)
            if self.layout != "pair":
                self.bias = self.bias[:1]
        if rng.random() < 0.3:
            self.c = addend(rng, world.addends(self.z_columns, self._dtype(world, rng)), WHOLE)
            self.scale = 1.0
            if rng.random() < 0.6:
                self.keywords["beta"] = pick(rng, REAL_BETAS if world.real else BETAS)
                self.scale = float(self.keywords["beta"])
        if rng.random() < 0.2:
            self.multiply = addend(rng, world.factors(self.columns, self._dtype(world, rng)))

    def _draw_outputs(self, world: World, rng: Random) -> None:
        self.out: Output | None = None
        self.preactivation: Output | None = None
        if rng.random() < 0.55:
            self.out = pick(rng, world.outputs(self.columns, self.out_dtype))
            if self.c is not None and self.columns == self.z_columns and rng.random() < 0.4:
                self.c_values = world.in_place(self.columns, self.out_dtype)
                self.c = self.out
        if self.out_dtype != world.dtype if self.out is None else rng.random() < 0.1:
            self.keywords["out_dtype"] = self.out_dtype if rng.random() < 0.7 else numpy_dtype(self.out_dtype)
        if rng.random() < 0.2:
            self.preactivation = pick(rng, world.outputs(self.z_columns, pick(rng, DTYPES), "preactivation"))

    def _arrange(self, rng: Random) -> None:
        """Positional or by keyword, in any order."""

        def pair(forms: tuple[Form, ...]) -> Any:
            return forms[0].argument if len(forms) == 1 else tuple(form.argument for form in forms)

        first = [("A", self.a.argument), ("B", pair(self.b))]
        first.append(("bias", pair(self.bias) if self.bias else None))
        first.append(("activation", self.activation))
        count = int(rng.random() * 5)
        self.arguments = [value for _, value in first[:count]]
        named = self.keywords
        named.update((name, value) for name, value in first[count:] if value is not None or rng.random() < 0.1)
        for name in ("C", "multiply", "preactivation", "out"):
            form = getattr(self, name.lower())
            if form is not None:
                named[name] = form.argument
                if name == "C" and form is self.out and rng.random() < 0.3:  # the same memory by another object
                    named[name] = pick(rng, (Capsule(form.view), Capsule(form.view, versioned=False), form.view[...]))
            elif rng.random() < 0.02:
                named[name] = None
        if rng.random() < 0.2:
            items = list(named.items())
            rng.shuffle(items)
            self.keywords = dict(items)

    @property
    def outputs(self) -> list[Output]:
        return [output for output in (self.out, self.preactivation) if output is not None]

    def prepare(self) -> None:
        for output in self.outputs:
            output.prepare(self.c_values if output is self.out else None)

    @property
    def refused_by_reference(self) -> bool:
        """Does the call need what cpu_reference does not do?"""
        return any(form.kind == "packed" and form.argument.layout != "columns" for form in self.b)


def counted(arguments: list[Any], keywords: dict[str, Any]) -> list[Any]:
    """What a call may take references to."""
    items = [*arguments, *keywords.values()]
    return items + [x for item in items if type(item) is tuple for x in item]


def references(items: list[Any]) -> list[int]:
    return [sys.getrefcount(item) for item in items]


def assert_same_references(items: list[Any], before: list[int]) -> None:
    after = references(items)
    if after != before:
        rows = zip(items, before, after, strict=True)
        changed = [(type(item).__name__, b, a) for item, b, a in rows if a != b and not small(item)]
        assert not changed, f"reference counts changed (type, before, after): {changed}"


def small(item: Any) -> bool:
    """Shared by the whole process: others may take references meanwhile."""
    return item is None or isinstance(item, (bool, int, str, float, np.dtype))


def check_valid(world: World, call: Call, make: Any = None) -> None:
    """Make the call, or have it made, and judge it. AssertionError: it is wrong."""
    call.prepare()
    items = counted(call.arguments, call.keywords)
    before = references(items)
    result = (make or mf.matmul_fused)(*call.arguments, **call.keywords)
    if call.out is not None:
        assert result is call.out.argument, "out was given, but another object returned"
        del result
        assert_same_references(items, before)
        out = call.out.take()
    else:
        assert_same_references(items, before)
        assert sys.getrefcount(result) == 2, f"a new result with {sys.getrefcount(result) - 2} references too many"
        out = fresh(world, call, result)
    assert out.dtype == numpy_dtype(call.out_dtype), f"dtype {out.dtype}, not {call.out_dtype}"
    assert out.shape == world.shape(call.columns), f"shape {out.shape}, not {world.shape(call.columns)}"
    preactivation = call.preactivation.take() if call.preactivation is not None else None
    judge = check_bound if world.real else check_exact
    judge(world, call, out, preactivation)


def fresh(world: World, call: Call, result: Any) -> np.ndarray:
    """A new result as a NumPy array; its library is A's."""
    kind = call.a.kind
    wanted = {"numpy": np.ndarray, "library": Library}.get(kind, mf.Array)
    assert type(result) is wanted, f"A of kind {kind} gave a {type(result).__name__}"
    if kind == "numpy":
        assert result.flags.c_contiguous, f"a new result with strides {result.strides}"
        return result
    if kind == "library":
        return result.view
    assert result.shape == world.shape(call.columns), f"shape {result.shape}"
    values = memory_of(result, result.shape, numpy_dtype(result.dtype)).copy()
    assert np.asarray(result).tobytes() == values.tobytes(), "an Array whose values are others as a NumPy array"
    return values


def check_explained(world: World, call: Call) -> None:
    """explain of the same arguments: it writes nothing and names a kernel that is not refused."""
    call.prepare()
    before = [output.raw.tobytes() for output in call.outputs]
    items = counted(call.arguments, call.keywords)
    counts = references(items)
    explanation = mf.explain(*call.arguments, **call.keywords)
    assert_same_references(items, counts)
    assert [output.raw.tobytes() for output in call.outputs] == before, "explain wrote an output"
    assert explanation.kernel not in {name for name, _ in explanation.refused}
    assert world.kernel is None or explanation.kernel in world.kernel.split(", ")
    assert str(explanation)


def check_prepacked(world: World, call: Call) -> None:
    """A fresh prepack of B gives its values back."""
    source = call.b[0]
    if source.kind == "packed" or not world.packable:
        return
    items = [source.argument]
    counts = references(items)
    gate = pick(world.rng("gate"), LAYOUTS) if world.n % 2 == 0 else None
    weight = mf.prepack(source.argument, gate_layout=gate)
    assert_same_references(items, counts)
    assert (weight.shape, weight.dtype, weight.gate_layout) == (world.b_shape, world.dtype, gate)
    array = weight.unpack()
    back = memory_of(array, world.b_shape, numpy_dtype(world.dtype))
    assert back.tobytes() == source.array.tobytes() or (np.isnan(source.values).any()), "unpack() gave other values"
