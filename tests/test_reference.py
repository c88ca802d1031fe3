"""The judge is judged: rounding and bounds of matmul_fused.testing, with and without errors planted.

No kernel runs here. An honest float32 implementation in NumPy, written as a kernel would be, must pass the covering
sample; the same one with a fault must not.
"""

import math

import numpy as np
import pytest

from matmul_fused.testing import Case, covering_sample, expect, round_to, run_case, space, ulp
from matmul_fused.testing.cases import BATCHES, MASKING, TOPICS, all_cases
from matmul_fused.testing.covering import Space
from matmul_fused.testing.formulas import ACTIVATIONS, GATED, erfc, is_gated, resolve
from matmul_fused.testing.inputs import make_inputs
from matmul_fused.testing.propagate import Ball, Step
from matmul_fused.testing.reference import Expected, assert_close, bound, compare
from matmul_fused.testing.rounding import DTYPES, FORMATS, numpy_dtype, overflow_as


def rounded_once(function):
    """A function of NumPy as of a perfect libm: its own vector code for float32 is up to 4 ulp off, by CPU."""

    def apply(x):
        wide = np.longdouble if x.dtype == np.float64 else np.float64
        return function(x.astype(wide)).astype(x.dtype)

    return apply


exp, expm1, log1p, tanh = map(rounded_once, (np.exp, np.expm1, np.log1p, np.tanh))


class Honest:
    """matmul_fused in NumPy float32 (float64 for float64), with the textbook formulas and one rounding at the end."""

    def prepack(self, B, gate_layout=None):
        return np.array(B)

    def activate(self, name, z, p):
        one = z.dtype.type(1)
        if name in ("gelu", "geglu"):
            erf = 1 - erfc(z.astype(np.float64) * math.sqrt(0.5))
            return z * (one / 2 * (one + erf.astype(z.dtype)))
        if name in ("gelu_tanh", "geglu_tanh"):
            inner = z.dtype.type(math.sqrt(2 / math.pi)) * (z + z.dtype.type(0.044715) * z * z * z)
            return z / 2 * (one + tanh(inner))
        softplus = np.where(z > 20, z, log1p(exp(z)))
        textbook = {
            "relu": lambda: np.where(z < 0, 0, z),
            "silu": lambda: z / (one + exp(-z)),
            "sigmoid": lambda: one / (one + exp(-z)),
            "relu_squared": lambda: np.where(z < 0, 0, z * z),
            "quick_gelu": lambda: z / (one + exp(z.dtype.type(-1.702) * z)),
            "leaky_relu": lambda: np.where(z < 0, z.dtype.type(p[0]) * z, z),
            "elu": lambda: np.where(z < 0, z.dtype.type(p[0]) * expm1(z), z),
            "hardswish": lambda: np.where(z < -3, z * 0, np.where(z > 3, z, z * (z + 3) / 6)),
            "softplus": lambda: softplus,
            "mish": lambda: np.where(z > 20, z, z * tanh(softplus)),
        }.get(name, lambda: ACTIVATIONS[name].f(z, *p))  # where the reference has no better formula
        return textbook().astype(z.dtype)

    def gate(self, name, g, u, p):
        if name == "swiglu_oai":
            limit, alpha = (g.dtype.type(x) for x in p)
            g = np.minimum(g, limit)
            return g / (1 + exp(-alpha * g)) * (np.clip(u, -limit, limit) + 1)
        if p:  # as its reference says
            row = GATED[name]
            return (row.gate.f(g, *p) * row.up.f(u, *p)).astype(g.dtype)
        inner = {"swiglu": "silu", "reglu": "relu", "glu": "sigmoid"}.get(name, name)
        return self.activate(inner, g, ()) * u

    def product(self, a, b, alpha):
        # einsum, not BLAS: NaN and infinities go the way of the textbook, on every CPU
        rows, columns = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
        dot = a.dtype.type(alpha) * np.einsum("...mk,...kn->...mn", rows, columns)
        dot = dot[..., 0, :] if a.ndim == 1 else dot
        return dot[..., 0] if b.ndim == 1 else dot

    def columns(self, layout, width):
        half = width // 2
        return {
            "interleaved": (slice(0, None, 2), slice(1, None, 2)),
            "halves_up_first": (slice(half, None), slice(None, half)),
        }.get(layout, (slice(None, half), slice(half, None)))

    def store(self, x, dtype, out=None):
        wide = x.astype(np.longdouble if x.dtype == np.float64 and dtype != "float64" else np.float64)
        rounded = np.asarray(round_to(wide, dtype)).astype(np.float64).astype(numpy_dtype(dtype))
        if out is None:
            return np.ascontiguousarray(rounded).reshape(rounded.shape)
        out[...] = rounded
        return out

    def matmul_fused(self, **arguments):
        with np.errstate(all="ignore"):
            return self.call(**arguments)

    def call(self, A, B, bias, activation, alpha, gate_layout, allow_tf32, beta=None, C=None, multiply=None,
             preactivation=None, out=None, out_dtype=None):  # fmt: skip
        name, _, p = resolve(activation)
        pair = isinstance(B, tuple)
        real = np.dtype(np.float64 if A.dtype == np.float64 else np.float32)
        out_name = out.dtype.name if out is not None else out_dtype or A.dtype.name
        if pair:
            B = np.concatenate(B, -1)
        dot = (np.zeros(np.shape(np.matmul(np.zeros(A.shape), np.zeros(B.shape))), real) if alpha == 0
               else self.product(A.astype(real), B.astype(real), alpha))  # fmt: skip
        z = dot.astype(real)
        beta = (1 if beta is None else beta) if C is not None else 0
        if beta != 0:
            z = z + real.type(beta) * np.asarray(C).astype(real)
        if pair and bias is not None:
            half = (*z.shape[:-1], z.shape[-1] // 2)
            bias = np.concatenate([np.broadcast_to(np.asarray(x).astype(real), half) for x in bias], -1)
        if bias is not None:
            z = z + np.asarray(bias).astype(real)
        if preactivation is not None:
            self.store(z, preactivation.dtype.name, preactivation)
        if is_gated(activation):
            gate, up = self.columns(gate_layout, z.shape[-1])
            y = self.gate(name, z[..., gate], z[..., up], p)
        else:
            y = self.activate(name, z, p)
        if multiply is not None:
            y = y * np.asarray(multiply).astype(real)
        return self.store(y, out_name, out)


@pytest.mark.parametrize("name", DTYPES)
def test_round_to_is_the_cast(name):
    rng = np.random.default_rng(1)
    if name != "float64":
        bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(
            np.float32
        )  # one cast from float32 is one rounding
        with np.errstate(all="ignore"):
            want = bits.astype(numpy_dtype(name)).astype(np.float64)
            np.testing.assert_array_equal(round_to(bits.astype(np.float64), name), want)
    wide = np.longdouble(1) + np.longdouble(2) ** -(FORMATS[name].bits)  # a tie, to even
    assert round_to(np.array([wide, np.nextafter(wide, 2)]), name).tolist() == [1, 1 + 2 * FORMATS[name].unit]


@pytest.mark.parametrize("name", DTYPES)
def test_ulp_and_overflow(name):
    form = FORMATS[name]
    x = np.array([1.0, 1.5, 2.0, form.least, 0.0, form.greatest])
    one = 2 * form.unit
    want = [one, one, 2 * one, form.least, form.least, form.greatest - form.greatest / (2 - one) * (2 - 2 * one)]
    np.testing.assert_allclose(ulp(x, name), want, rtol=1e-15)
    limit = np.longdouble(form.greatest) + np.longdouble(ulp(x, name)[-1]) / 2
    below = np.nextafter(limit, np.longdouble(0))
    assert overflow_as(np.array([below, limit, -limit]), name).tolist()[1:] == [math.inf, -math.inf]
    assert round_to(np.array([below, limit, -limit]), name).tolist() == [form.greatest, math.inf, -math.inf]


def test_expect_is_the_formula():
    """One element by hand, in exact fractions where there are any."""
    A, B = np.float32([[1, 2, 3]]), np.float32([[4], [5], [6]])
    out, z = expect(
        A, B, np.float32([10]), "leaky_relu", alpha=-0.5, C=np.float32([[2]]), beta=3, multiply=np.float32(4)
    )
    assert z.value.item() == -0.5 * 32 + 6 + 10 == 0
    size, unit = 0.5 * 32 + 6 + 10, 2.0**-24
    assert z.high.item() == pytest.approx((3 + 8) * unit * size)
    assert out.high.item() == pytest.approx(4 * (3 + 8) * unit * size)
    out, _ = expect(A / 16, B, np.float32([-1]), "sigmoid")
    exact = 1 / (1 + math.exp(-1))
    assert out.value.item() == exact
    want = 0.25 * 11 * unit * 3 + 8 * unit * exact
    assert bound(out, "float16").item() == pytest.approx(2.0**-11 + want)
    out, z = expect(A, B.repeat(2, 1), None, "glu", gate_layout="halves_up_first")
    assert z.value.tolist() == [[32, 32]]
    gate, e = 1 / (1 + math.exp(-32)), 11 * unit * 32
    want = 32 * 0.25 * e + gate * e + 0.25 * e * e + 8 * unit * 32 * gate
    assert out.high.item() - out.value.item() == pytest.approx(want)


def test_longdouble_reference_of_float64():
    big = np.array([[1e16, 1.0, -1e16]])
    out, _ = expect(big, np.ones((3, 1)))
    assert out.value.dtype == np.longdouble
    assert out.value.item() == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_ulp_beyond_the_bound_is_caught(dtype):
    rng = np.random.default_rng(4)
    A, B = (rng.standard_normal(s).astype(numpy_dtype(dtype)) for s in ((16, 32), (32, 16)))
    out, _ = expect(A, B, None, "silu")
    for edge, away in ((out.high, 1), (out.low, -1)):
        good = round_to(out.value, dtype)
        assert compare(good, out, dtype).ok
        good[3, 5] = round_to(edge, dtype)[3, 5]
        assert compare(good, out, dtype).ok
        good[3, 5] += away * ulp(good, dtype)[3, 5]
        figures = compare(good, out, dtype)
        assert (figures.failures, figures.worst) == (1, (3, 5))
        with pytest.raises(AssertionError, match=r"worst is at \(3, 5\)"):
            assert_close(good, out, dtype)


def test_truncation_is_caught():
    rng = np.random.default_rng(5)
    A, B = (rng.standard_normal(s).astype(np.float16) for s in ((20, 32), (32, 20)))
    out, _ = expect(A, B)
    away = np.where(out.value < 0, 1, -1) * 0.5 * ulp(out.value, "float16")
    assert compare(round_to(out.value + away * 0.999, "float16"), out, "float16").failures


def test_special_values():
    A = np.float32([[np.inf, 1], [np.nan, 1], [1, 2], [1e20, 0]])
    B = np.float32([[1, 0], [1, 1]])
    out, _ = expect(A, B, None, "sigmoid")
    right = round_to(out.value, "float32")
    np.testing.assert_array_equal(right[:2], [[1, np.nan], [np.nan, np.nan]])
    assert compare(right, out, "float32").ok
    for at, wrong in (((0, 0), np.nan), ((0, 1), 1.0), ((0, 0), 0.99), ((2, 0), np.inf)):
        bad = right.copy()
        bad[at] = wrong
        assert compare(bad, out, "float32").failures == 1
    out, _ = expect(A[3:], B * np.float32(1e19))  # float32 overflows at the end
    assert compare(np.float32([[np.inf, 0]]), out, "float32").ok
    assert compare(np.float32([[3e38, 0]]), out, "float32").failures == 1
    huge, _ = expect(np.float16([[60000]]), np.float16([[1.0]]), np.float32([5519.97]))
    assert compare(np.float16([[65504]]), huge, "float16").ok
    assert compare(np.float16([[np.inf]]), huge, "float16").ok  # 65519.97 is within the error of 65520
    huge, _ = expect(np.float16([[60000]]), np.float16([[1.0]]), np.float32([9000]))
    assert compare(np.float16([[65504]]), huge, "float16").failures == 1
    terms = np.float32([[1e30], [-1e30 * (1 - 2**-23)]])  # their sum is within its error of 0
    for factor, either in ((1e20, True), (1e15, True), (1e10, False)):  # the error of the product overflows, or not
        huge, _ = expect(np.float32([[1, 1]]), terms, multiply=np.float32(factor))
        for infinity in (np.inf, -np.inf):
            assert compare(np.float64([[infinity]]), huge, "float64").ok == either


def test_covering_sample_covers_every_pair():
    cases = covering_sample(7)
    everything: Space = space()
    names = everything.names
    seen = set()
    for case in cases:
        items = [(name, getattr(case, name)) for name in names]
        masked = [item for item in items if item in MASKING]
        seen |= {frozenset((x, y)) for x in masked or items for y in items if x != y}
    missing = [
        ((a, u), (b, v))
        for i, a in enumerate(names) for b in names[i + 1 :]
        for u in everything.features[a] for v in everything.features[b]
        if everything.allows(a, u, b, v) and frozenset(((a, u), (b, v))) not in seen
    ]  # fmt: skip
    # What no case can have although no rule says so: two rules together.
    possible = [pair for pair in missing if not impossible(dict(pair))]
    assert possible == []


def impossible(pair):
    """A pair that only a third feature rules out."""
    empty_and_vector = False
    for name, value in pair.items():
        empty_and_vector |= name == "batch" and "vector" in BATCHES[value]
    return empty_and_vector and {"m", "n"} & set(pair) and 0 in pair.values()


def test_cases_are_stable_and_readable():
    cases = all_cases()
    assert 20_000 < len(cases) < 60_000
    assert sum(case.flops for case in cases) < 3e11
    assert len({case.id for case in cases}) == len(cases)
    for case in [*cases[::97], *covering_sample(8)]:
        assert Case.parse(case.id) == case
    for topic in TOPICS:
        assert sum(topic in case.topics for case in cases) > 1000, topic
    assert covering_sample(8) == covering_sample(8)
    assert covering_sample(8) != covering_sample(9)
    values = {(name, value) for case in covering_sample(8, 1) for name, value in vars(case).items() if name != "id"}
    assert values >= {(name, value) for name, values in space().features.items() for value in values}


def test_views_are_what_they_say():
    case = Case(
        5, 6, 7, a_view="negative", b_view="sliced", layout="NT", out_view="padded", bias="row", epilogue_view="offset"
    )
    operands = make_inputs(case, 0).operands
    assert operands["A"].view.strides == (-28, -4)
    assert operands["B"].view.strides == (8, 4 * (2 * 7 + 3))
    assert operands["out"].view.strides == (4 * 9, 4)
    assert operands["bias"].view.ctypes.data % 64 == 12
    assert np.isnan(operands["out"].view).all()
    assert operands["out"].unwritten().all()
    zero = make_inputs(Case(5, 6, 7, a_view="zero_rows", b_view="zero_columns"), 0).operands
    assert zero["A"].view.strides == (0, 4)
    assert zero["B"].view.strides == (4, 0)
    inner = make_inputs(Case(5, 6, 7, batch="inner"), 0).operands["A"].view
    assert inner.shape == (2, 5, 7)
    assert inner.strides == (28, 56, 4)
    again = make_inputs(case, 0).operands["A"].values
    np.testing.assert_array_equal(again, operands["A"].values)
    assert not np.array_equal(make_inputs(case, 1).operands["A"].values, again)


def test_honest_implementation_passes_the_sample(sweep_seed):
    """The bounds are no tighter than float32 arithmetic needs."""
    honest = Honest()
    worst = max((run_case(case, sweep_seed, library=honest) for case in covering_sample(sweep_seed)),
                key=lambda outcome: outcome.out.max_ratio)  # fmt: skip
    assert 0.01 < worst.out.max_ratio <= 1


class Unwritten(Honest):
    """Skips one element."""

    def store(self, x, dtype, out=None):
        if out is None:
            return super().store(x, dtype)
        keep = out.flat[-1]
        super().store(x, dtype, out)
        out.flat[-1] = keep
        return out


class Trespasser(Honest):
    """Writes one element past the end of out."""

    def call(self, **arguments):
        out = super().call(**arguments)
        past = np.lib.stride_tricks.as_strided(out, (out.size + 1,), (out.itemsize,), writeable=True)
        past[-1] = 0
        return out


class Scribbler(Honest):
    """Changes an input."""

    def call(self, **arguments):
        out = super().call(**arguments)
        arguments["A"][0, 0] += 1
        return out


class TanhForErf(Honest):
    def activate(self, name, z, p):
        return super().activate("gelu_tanh" if name == "gelu" else name, z, p)


class EarlyRounding(Honest):
    """Rounds the product to the output's dtype before the bias is added."""

    def product(self, a, b, alpha):
        dot = super().product(a, b, alpha)
        return round_to(dot.astype(np.float64), "bfloat16").astype(dot.dtype)


class ReadsGuard(Honest):
    """Sums one column of A too many."""

    def product(self, a, b, alpha):
        return super().product(a, b, alpha) + a[..., -1:] * b[..., -1:, :] * 0.001


class DropsNaN(Honest):
    """The relu that maps NaN to 0."""

    def activate(self, name, z, p):
        return np.where(z > 0, z, 0).astype(z.dtype) if name == "relu" else super().activate(name, z, p)


class HalvesForInterleaved(Honest):
    def columns(self, layout, width):
        return super().columns("halves", width)


class BiasPerRow(Honest):
    """Takes a 1-D bias as a column where the shapes let it."""

    def call(self, *, bias, **arguments):
        return super().call(bias=bias[:, None], **arguments)


class OtherObject(Honest):
    def call(self, **arguments):
        return super().call(**arguments)[:]


FAULTS = [
    (Unwritten, "33x17x5,out_view=sliced", "unwritten"),
    (Unwritten, "3x3x3,values=special,preactivation=float16", "unwritten"),
    (Trespasser, "33x17x5,out_view=plain", "guard"),
    (Scribbler, "33x17x5", "A: an element was changed"),
    (TanhForErf, "33x17x5,activation=gelu", "out of bounds"),
    (TanhForErf, "3x3x1,activation=gelu,dtype=float16", "out of bounds"),
    (EarlyRounding, "33x17x64,dtype=bfloat16,bias=row", "out of bounds"),
    (EarlyRounding, "2x2x2,dtype=bfloat16,bias=row,out_dtype=float32", "out of bounds"),
    (ReadsGuard, "5x5x5", "out of bounds"),
    (DropsNaN, "33x17x65,activation=relu,values=special", "out of bounds"),
    (HalvesForInterleaved, "4x6x8,activation=swiglu,gate_layout=interleaved", "out of bounds"),
    (BiasPerRow, "7x7x3,bias=row", "out of bounds"),
    (OtherObject, "7x7x3,out_view=plain", "another object"),
]


@pytest.mark.parametrize(("fault", "text", "message"), FAULTS, ids=[f"{f.__name__}-{i}" for f, i, _ in FAULTS])
def test_planted_faults_are_caught(fault, text, message):
    case = Case.parse(text)
    run_case(case, 1, library=Honest())
    with pytest.raises(AssertionError, match=message) as caught:
        run_case(case, 1, library=fault())
    assert case.id in str(caught.value)


@pytest.mark.parametrize(("got", "value"), [(-np.inf, -2.0), (0.0, 0.0), (1.0, 0.0), (-3.0, -2.0), (np.inf, 0.0)])
def test_a_jump_whose_other_branch_reaches_infinity(got, value):
    """A result is judged by the branch that it is on; an infinity may be."""
    other = Expected(*(np.array([x]) for x in (-2.0, -np.inf, -1.0)), spread=None)
    both = Expected(*(np.array([0.0]) for _ in range(3)), spread=None, other=other, either=np.array([True]))
    with np.errstate(invalid="ignore"):
        assert both.nearest(np.array([got]), "float64").value == value


@pytest.mark.parametrize(("dtype", "value"), [("float16", 7e4), ("float32", 0.0)])
def test_a_jump_to_what_overflows(dtype, value):
    """Infinity is what a value beyond the greatest float16 becomes, and no such result of float32."""
    other = Expected(*(np.array([x]) for x in (7e4, 6.9e4, 7.1e4)), spread=None)
    both = Expected(*(np.array([0.0]) for _ in range(3)), spread=None, other=other, either=np.array([True]))
    with np.errstate(invalid="ignore"):
        assert both.nearest(np.array([np.inf]), dtype).value == value


@pytest.mark.parametrize("got", [np.inf, -np.inf, np.nan])
def test_a_jump_times_infinity(got):
    """Of z that is 0 or within its error of it: 0 times infinity is NaN, the other branch has no right value."""
    gate, up = (Ball(*(np.array([x]) for x in ball)) for ball in ((-1e-9, 1e-8, 1e-8), (np.inf, 0.0, 0.0)))
    row = GATED["fatreglu"]
    step = Step("float32", None, True)
    with np.errstate(invalid="ignore"):
        y = step.times(step.apply(row.gate, gate, (0.0,)), step.apply(row.up, up, (0.0,)))
        expected = Expected(
            y.value, y.value, y.value, None, y.free, Expected(*3 * (y.other.value,), None, y.other.free), y.either
        )
        found = expected.nearest(np.array([got]), "float32")
    assert np.isnan(found.value) if np.isnan(got) else found.free


@pytest.mark.parametrize(("radius", "open_end"), [(0.5, False), (2000.0, True)])
def test_an_infinity_of_a_finite_z(radius, open_end):
    """e^z where e^(z - radius) is an infinity, too, and where it is a number: then no result is wrong."""
    z = Ball(np.array([1000.0]), np.array([radius]), np.array([radius]))
    with np.errstate(all="ignore"):
        ball = Step("float32", None, allow_tf32=False).apply(ACTIVATIONS["exp"], z, ())
    assert bool(ball.free is not None and ball.free.all()) is open_end
