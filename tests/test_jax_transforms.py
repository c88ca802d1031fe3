"""jax.grad, jax.vmap and what is made of them: matmul_fused.jax beside the same program by jax's own operators."""

import functools

import numpy as np
import pytest

from matmul_fused.testing.formulas import ACTIVATIONS, GATED
from support import draw

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from matmul_fused.jax import activations, matmul_fused  # noqa: E402

x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # jax 0.5
PLAIN = [(name, *row.usual) for name, row in ACTIVATIONS.items()]
PLAIN += [(name, *row.complete(variant)) for name, row in ACTIVATIONS.items() for variant in row.variants]
GATES = [(name, *row.usual) for name, row in GATED.items()]
GATES += [(name, *row.complete(variant)) for name, row in GATED.items() for variant in row.variants]


@pytest.fixture
def double():
    with x64(True):
        yield


def unfused(A, B, bias=None, activation=None, *, alpha=1.0, beta=1.0, C=None, multiply=None, gate_layout=None):
    """The call by jax's own operators; B and bias may be pairs."""
    name, *parameters = activation or ("none",)
    layout = gate_layout or "halves"
    if isinstance(B, tuple):
        z = jnp.concatenate([alpha * (A @ b) for b in B], axis=-1)
        bias = None if bias is None else jnp.concatenate(bias, axis=-1)
    else:
        z = alpha * (A @ B)
    z = z if C is None else z + beta * C
    z = z if bias is None else z + bias
    y = activations.apply(name, tuple(parameters), layout, z)
    return y if multiply is None else y * multiply


# --- derivatives of the activations: jax's forms against the formulas of the tests, by differences ---

POINTS = np.concatenate([np.linspace(-6, 6, 241) + 1e-3, [-40.0, -21.0, 19.0, 21.0, 40.0]])
STEP = np.longdouble(1e-6)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("activation", PLAIN, ids=str)
def test_derivatives_are_those_of_the_formulas(activation):
    """A central difference in extended precision errs by h^2 |f'''| / 6 + eps |f| / h: with |f'''| < 60 below 1e-11.
    Formulas that compute constants in float64 (xielu's eps) stay within eps / h = 2e-10."""
    name, *parameters = activation
    f = ACTIVATIONS[name].f
    z = POINTS[POINTS < 20] if name == "exp" else POINTS
    value, pull = jax.vjp(lambda z: activations.apply(name, tuple(parameters), None, z), jnp.asarray(z))
    got = np.asarray(pull(jnp.ones_like(value))[0])
    wide = z.astype(np.longdouble)
    want = (f(wide + STEP, *parameters) - f(wide - STEP, *parameters)) / (2 * STEP)
    scale = 1 + np.abs(f(wide, *parameters))
    np.testing.assert_array_less(np.abs(np.asarray(value) - f(wide, *parameters)), 1e-14 * (scale + np.abs(wide)))
    np.testing.assert_array_less(np.abs(got - want), 3e-10 * scale)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("activation", GATES, ids=str)
def test_derivatives_of_gates_are_those_of_the_formulas(activation):
    """As above; two differences, one for each stream."""
    name, *parameters = activation
    row = GATED[name]
    g, u = (draw((300,), "float64", seed=seed) * 3 for seed in (1, 2))

    def formula(g, u):
        return row.gate.f(g, *parameters) * row.up.f(u, *parameters)

    value, pull = jax.vjp(lambda g, u: activations.GATED[name](g, u, *parameters), jnp.asarray(g), jnp.asarray(u))
    got = [np.asarray(x) for x in pull(jnp.ones_like(value))]
    g, u = g.astype(np.longdouble), u.astype(np.longdouble)
    scale = 30 * (1 + np.abs(g)) * (1 + np.abs(u))
    np.testing.assert_array_less(np.abs(np.asarray(value) - formula(g, u)), 1e-15 * scale)
    np.testing.assert_array_less(
        np.abs(got[0] - (formula(g + STEP, u) - formula(g - STEP, u)) / (2 * STEP)), 3e-11 * scale
    )
    np.testing.assert_array_less(
        np.abs(got[1] - (formula(g, u + STEP) - formula(g, u - STEP)) / (2 * STEP)), 3e-11 * scale
    )


# --- gradients ---


def bounds(arrays, d, alpha=1.0, beta=1.0, **_):
    """First-order bounds, for each operand, of what two orders of the same float64 sums may differ by.

    A gradient is a chain of at most n = sizes of all axes + 40 sums and products, each off by eps of the sum of
    magnitudes. With Z the greatest sum of magnitudes of z, and every slope, second derivative and value / (1 + |z|) of
    the activations here at most 10: z is off by n eps Z, so dz by n eps Z of its own bound 100 (1 + Z)^2 |d multiply|,
    where one factor (1 + Z) is a gate's other stream. exp alone is its own slope, e^Z.
    """
    peak = {name: max(np.abs(x).max() for x in jax.tree.leaves(value)) for name, value in arrays.items()}
    shapes = [x.shape for value in arrays.values() for x in jax.tree.leaves(value)]
    n = sum(sum(shape) for shape in shapes) + 40
    depth = np.shape(arrays["A"])[-1]
    z = 1 + abs(alpha) * depth * peak["A"] * peak["B"] + abs(beta) * peak.get("C", 0) + peak.get("bias", 0)
    dz = 100 * z**2 * np.abs(d).max() * peak.get("multiply", 1)
    unit = 2 * n * z * np.finfo(np.float64).eps
    terms = {"A": n * abs(alpha) * peak["B"], "B": n * abs(alpha) * peak["A"], "bias": n, "C": n * abs(beta)}
    return {name: unit * dz * terms.get(name, z) for name in arrays}


def compare(arrays, activation, **keywords):
    """Gradients of every array of the call, beside jax's own of the unfused program."""
    arrays = {name: value for name, value in arrays.items() if value is not None}

    def ours(arrays):
        return matmul_fused(**arrays, activation=activation, **keywords)

    def theirs(arrays):
        return unfused(**arrays, activation=activation, **keywords)

    d = draw(jax.eval_shape(theirs, arrays).shape, "float64", seed=9)
    (wanted,) = jax.jit(lambda arrays, d: jax.vjp(theirs, arrays)[1](d))(arrays, d)
    bound = bounds(arrays, d, **keywords)
    (got,) = jax.jit(lambda arrays, d: jax.vjp(ours, arrays)[1](d))(arrays, d)
    assert set(got) == set(arrays)
    for name in arrays:
        for x, y in zip(jax.tree.leaves(got[name]), jax.tree.leaves(wanted[name]), strict=True):
            assert x.shape == y.shape
            assert x.dtype == y.dtype
            np.testing.assert_array_less(np.abs(np.asarray(x - y)), bound[name], err_msg=name)


KEEPING = [("none",), ("relu",), ("gelu",), ("xielu", 0.8, 0.8, 0.5, -1e-6)]  # nothing, the result, z


def operands(a, b, z, out=None, **changes):
    shapes = {"A": a, "B": b, "bias": z[-1:], "C": z, "multiply": out or z}
    arrays = {name: draw(shape, "float64", seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return arrays | changes


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("activation", KEEPING, ids=str)
def test_gradients(activation):
    arrays = operands((5, 7), (7, 6), (5, 6))
    compare(arrays, activation, alpha=-0.5, beta=2.0)
    compare(arrays | {"multiply": None}, activation)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("activation", "layout"),
    [
        (("swiglu",), "halves"),
        (("swiglu",), "halves_up_first"),
        (("swiglu",), "interleaved"),
        (("situglu", 4.0, 2.0), None),
    ],
    ids=str,
)
def test_gradients_of_gates(activation, layout):
    compare(operands((5, 7), (7, 12), (5, 12), (5, 6)), activation, gate_layout=layout)


@pytest.mark.usefixtures("double")
def test_gradients_of_pairs():
    gates = tuple(draw((7, 6), "float64", seed=i) for i in (1, 2))
    biases = tuple(draw((6,), "float64", seed=i) for i in (1, 2))
    arrays = operands((5, 7), (7, 6), (5, 12), (5, 6), B=gates, bias=biases)
    compare(arrays, ("swiglu",), alpha=0.5)
    compare(arrays | {"A": draw((3, 5, 7), "float64"), "multiply": None, "C": None}, ("geglu",))


BROADCAST = [
    ((3, 5, 7), (7, 6), (3, 5, 6)),
    ((5, 7), (3, 7, 6), (3, 5, 6)),
    ((2, 1, 5, 7), (3, 7, 6), (2, 3, 5, 6)),
    ((2, 1, 5, 7), (1, 1, 7, 6), (1, 1, 1, 6)),
    ((7,), (7, 6), (6,)),
    ((7,), (3, 7, 6), (3, 6)),
]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("shapes", BROADCAST, ids=str)
def test_gradients_where_operands_broadcast(shapes):
    compare(operands(*shapes), ("gelu",))


@pytest.mark.usefixtures("double")
def test_gradients_of_numbers_and_of_z():
    A, B = draw((5, 7), "float64"), draw((7, 6), "float64")
    d, dz = draw((5, 6), "float64", seed=1), draw((5, 6), "float64", seed=2)
    (y, z), pull = jax.vjp(lambda A, b, m: matmul_fused(A, B, b, "tanh", multiply=m, preactivation=True), A, 0.25, 2.0)
    (want_y, want_z), want = jax.vjp(lambda A, b, m: (jnp.tanh(A @ B + b) * m, A @ B + b), A, 0.25, 2.0)
    np.testing.assert_allclose(y, want_y, rtol=1e-14)
    np.testing.assert_allclose(z, want_z, rtol=1e-12)
    for x, y in zip(pull((d, dz)), want((d, dz)), strict=True):
        assert jnp.shape(x) == jnp.shape(y)
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)  # 30 terms of size 10: 30 * 10 * 2e-16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("activation", [("relu",), ("gelu",), ("silu",), ("swiglu",)], ids=str)
def test_gradients_are_as_precise_as_jaxs(activation, dtype):
    """RMS error against float64, beside that of the unfused program in the same dtype."""
    columns = 1024 if activation[0] in GATED else 512
    values = [draw(shape, dtype, seed=3) * 0.3 for shape in ((40, 64), (64, columns), (columns,))]
    values = [value.astype(draw((1,), dtype).dtype) for value in values]
    d = draw((40, 512), dtype, seed=4)

    def gradients(f, values, d):
        return jax.jit(lambda values, d: jax.vjp(lambda *t: f(*t, activation), *values)[1](d))(values, d)

    with x64(True):
        wide = [np.asarray(value, np.float64) for value in (*values, d)]
        exact = [np.asarray(x) for x in gradients(unfused, wide[:3], wide[3])]
    ours, theirs = gradients(matmul_fused, values, d), gradients(unfused, values, d)
    for got, beside, want in zip(ours, theirs, exact, strict=True):
        assert got.dtype == beside.dtype == jnp.dtype(dtype)
        error, other = (np.sqrt(np.mean((np.asarray(x, np.float64) - want) ** 2)) for x in (got, beside))
        assert error <= 1.10 * other


@pytest.mark.usefixtures("double")
def test_second_derivatives():
    """A gradient of a gradient: the products of the first one, one of them with a transposed operand, are derived."""
    operands = [draw(shape, "float64", seed=i) for i, shape in enumerate([(2, 4, 5), (5, 3), (3,), (2, 4, 3)])]
    directions = [draw(x.shape, "float64", seed=9) for x in operands]

    def of(f):
        def first(*operands):
            A, B, bias, multiply = operands
            return jnp.sum(jnp.sin(f(A, B, bias, ("gelu",), multiply=multiply)))

        def along(*operands):
            gradients = jax.grad(first, (0, 1, 2, 3))(*operands)
            return sum(jnp.vdot(x, y) for x, y in zip(gradients, directions, strict=True))

        return jax.jit(jax.grad(along, (0, 1, 2, 3)))(*operands)

    for x, y in zip(of(matmul_fused), of(unfused), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)  # sums of 400 terms of size 100 and less: 400 * 2e-14
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda A: matmul_fused(A, operands[1]), operands[:1], operands[:1])


# --- vmap ---


def count(f, *arguments):
    """How many calls of XLA's FFI a program makes, those inside its parts too."""
    return str(jax.make_jaxpr(f)(*arguments)).count("ffi_call[")


AXES = [
    {"A": 0}, {"B": 0}, {"bias": 0}, {"C": 0}, {"multiply": 0}, {"A": 0, "B": 0}, {"A": 1, "B": 2, "bias": 1},
    {"A": 2, "multiply": 1}, {"A": 0, "B": 1, "bias": 0, "C": 2, "multiply": 0},
]  # fmt: skip


def mapped(arrays, axes, size=3):
    """The operands that are mapped get another axis."""
    return {
        name: np.stack([value * (1 + 0.25 * i) for i in range(size)], axes[name]) if name in axes else value
        for name, value in arrays.items()
    }


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_vmap_is_one_call(axes, batch):
    arrays = mapped(operands((*batch, 5, 7), (7, 6), (*batch, 5, 6)), axes)
    in_axes = ({name: axes.get(name) for name in arrays},)

    def each(f):
        return jax.vmap(lambda arrays: f(**arrays, activation=("silu",)), in_axes)

    assert count(each(matmul_fused), arrays) == 1
    got, want = (jax.jit(each(f))(arrays) for f in (matmul_fused, unfused))
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("double")
def test_vmap_of_vmap_and_of_pairs():
    A = draw((2, 5, 7, 3), "float64")
    B = tuple(draw((3, 7, 6), "float64", seed=i) for i in (1, 2))

    def each(f):
        inner = jax.vmap(lambda a, b: f(a, b, None, ("swiglu",)), (2, (0, 0)))
        return jax.vmap(inner, (0, None), 1)

    assert count(each(matmul_fused), A, B) == 1
    np.testing.assert_allclose(each(matmul_fused)(A, B), each(unfused)(A, B), rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_grad_of_vmap_and_vmap_of_grad(axes):
    arrays = mapped(operands((5, 7), (7, 6), (5, 6)), axes)
    in_axes = ({name: axes.get(name) for name in arrays},)

    def total(f, arrays):
        return jnp.sum(jnp.sin(f(**arrays, activation=("gelu",))))

    def grad_of_vmap(f):
        return jax.grad(lambda arrays: jnp.sum(jax.vmap(functools.partial(total, f), in_axes)(arrays)))

    def vmap_of_grad(f):
        return jax.vmap(jax.grad(functools.partial(total, f)), in_axes)

    for form in (grad_of_vmap, vmap_of_grad):
        got, want = (jax.jit(form(f))(arrays) for f in (matmul_fused, unfused))
        for name in arrays:
            # sums of at most 3 * 5 * 7 terms of size 100 and less: 105 * 100 * 2.2e-16
            np.testing.assert_allclose(got[name], want[name], rtol=1e-11, atol=3e-12, err_msg=name)
    assert count(vmap_of_grad(matmul_fused), arrays) == 3


@pytest.mark.usefixtures("double")
def test_checkpoint_and_scan():
    A, Ws = draw((5, 6), "float64"), draw((4, 6, 6), "float64") * 0.4

    def loss(f, policy, A, Ws):
        step = policy(lambda x, w: (f(x, w, None, ("gelu",)), None))
        return jnp.sum(jnp.sin(jax.lax.scan(step, A, Ws)[0]))

    want = jax.jit(jax.grad(functools.partial(loss, unfused, lambda f: f), (0, 1)))(A, Ws)
    for policy in (lambda f: f, jax.checkpoint):
        got = jax.jit(jax.grad(functools.partial(loss, matmul_fused, policy), (0, 1)))(A, Ws)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)
