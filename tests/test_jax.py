"""matmul_fused.jax under jax.jit: the same results and the same sentences as outside, whatever the form of the call."""

import functools
import importlib.util
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing.formulas import ACTIVATIONS, GATED
from support import DTYPES, check, draw, python, same_bits

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from matmul_fused.jax import activations, functional, matmul_fused  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # jax 0.5
SPECS = [(name, *row.usual) if row.usual else name for name, row in {**ACTIVATIONS, **GATED}.items()]


def compiled(A, B, bias=None, activation=None, **keywords):
    """The call inside a jitted function whose arguments are the arrays."""
    arrays = {"A": A, "B": B, "bias": bias} | {name: keywords.pop(name, None) for name in ("C", "multiply")}
    with x64(A.dtype == np.float64 or keywords.get("out_dtype") == "float64"):
        run = jax.jit(lambda arrays: matmul_fused(**arrays, activation=activation, **keywords))
        return jax.tree.map(np.asarray, run(arrays))


def outside(A, B, bias=None, activation=None, **keywords):
    return mf.matmul_fused(A, B, bias, activation, **keywords)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    A, B, bias = draw((9, 33), dtype), draw((33, 20), dtype), draw((20,), dtype)
    got = compiled(A, B, bias, "gelu")
    assert got.dtype == A.dtype
    assert same_bits(got, outside(A, B, bias, "gelu"))
    check(got, A, B, bias, "gelu")


@pytest.mark.parametrize("activation", SPECS, ids=str)
def test_activations(activation):
    A, B, bias = draw((7, 11)), draw((11, 12)), draw((12,))
    assert same_bits(compiled(A, B, bias, activation), outside(A, B, bias, activation))


SHAPES = [
    ((5, 7), (7, 6)),
    ((7,), (7, 6)),
    ((5, 7), (7,)),
    ((7,), (7,)),
    ((3, 5, 7), (7, 6)),
    ((5, 7), (3, 7, 6)),
    ((2, 1, 5, 7), (3, 7, 6)),
    ((7,), (3, 7, 6)),
    ((3, 5, 7), (7,)),
    ((0, 7), (7, 6)),
    ((5, 0), (0, 6)),
    ((2, 1, 1, 1, 1, 1, 5, 7), (1, 2, 1, 1, 1, 1, 7, 6)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes(shapes):
    A, B = map(draw, shapes)
    result = outside(A, B)
    assert same_bits(compiled(A, B), np.asarray(result))
    everything = draw(np.shape(result), seed=1)
    for bias in (everything, everything[..., :1] if everything.ndim else everything, draw(())):
        keywords = {"C": everything, "beta": 0.5, "multiply": everything, "alpha": -2}
        got = compiled(A, B, bias, "silu", **keywords)
        assert same_bits(got, np.asarray(outside(A, B, bias, "silu", **keywords)))


@pytest.mark.parametrize("layout", [None, "halves", "halves_up_first", "interleaved"])
def test_gate_layouts(layout):
    A, B, bias, C, multiply = draw((5, 7)), draw((7, 12)), draw((12,)), draw((5, 12)), draw((5, 6))
    keywords = {"gate_layout": layout, "C": C, "multiply": multiply}
    got = compiled(A, B, bias, "swiglu", **keywords)
    assert same_bits(got, outside(A, B, bias, "swiglu", **keywords))


def test_a_layout_by_the_name_of_the_activation():
    A, B = draw((5, 7)), draw((7, 12))
    for name in ("mul_and_silu", "swigluoai_and_mul", jax.nn.glu):
        assert same_bits(compiled(A, B, None, name), outside(A, B, None, name))
    with pytest.raises(ValueError, match="gate_layout halves_up_first by its name, but gate_layout is interleaved"):
        matmul_fused(A, B, None, "mul_and_silu", gate_layout="interleaved")


@pytest.mark.parametrize("bias", [None, (12, 12), 0.5, (0.25, 0.5)], ids=str)
def test_pairs(bias):
    A, gate, up = draw((5, 7)), draw((7, 12)), draw((7, 12), seed=1)
    if bias == (12, 12):
        bias = (draw((12,)), draw((12,), seed=1))
    C = draw((5, 24))
    assert same_bits(compiled(A, (gate, up), bias, "geglu", C=C), outside(A, (gate, up), bias, "geglu", C=C))


def test_functions_of_jax_name_activations():
    A, B = draw((5, 7)), draw((7, 6))
    assert same_bits(compiled(A, B, None, jax.nn.gelu), outside(A, B, None, "gelu_tanh"))
    assert same_bits(compiled(A, B, None, jnp.tanh), outside(A, B, None, "tanh"))


@pytest.mark.parametrize("number", [2, 0.1, np.float64(0.1), np.float32(0.1)], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers(dtype, number):
    A, B = draw((5, 7), dtype), draw((7, 6), dtype)
    keywords = {"C": number, "multiply": number}
    want = outside(A, B, number, **keywords)
    with x64(dtype == "float64"):
        run = jax.jit(lambda A, B: matmul_fused(A, B, number, **keywords))
        assert same_bits(np.asarray(run(A, B)), want)
        traced = jax.jit(lambda A, B, number: matmul_fused(A, B, number, C=number, multiply=number))
        assert same_bits(np.asarray(traced(A, B, float(number))), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_out_dtype_and_preactivation(dtype, out_dtype):
    A, B = draw((5, 7), dtype), draw((7, 6), dtype)
    z = np.empty((5, 6), draw((1,), out_dtype).dtype)
    want = outside(A, B, None, "tanh", out_dtype=out_dtype, preactivation=z)
    got, got_z = compiled(A, B, None, "tanh", out_dtype=out_dtype, preactivation=True)
    assert same_bits(got, want)
    assert same_bits(got_z, z)


def test_preactivation_of_a_gate():
    A, gate, up = draw((5, 7)), draw((7, 6)), draw((7, 6), seed=1)
    z = np.empty((5, 12), np.float32)
    want = outside(A, (gate, up), None, "swiglu", preactivation=z)
    got, got_z = compiled(A, (gate, up), None, "swiglu", preactivation=True)
    assert same_bits(got, want)
    assert same_bits(got_z, z)


# --- errors: the sentences of matmul_fused, while jax traces ---

BAD = {
    "inner": lambda f, A, B: f(A, A),
    "dtypes": lambda f, A, B: f(A, B.astype("float16")),
    "integers": lambda f, A, B: f(A.astype("int32"), B),
    "scalar A": lambda f, A, B: f(A[0, 0], B),
    "bias": lambda f, A, B: f(A, B, A[0]),
    "bias of more axes": lambda f, A, B: f(A, B, A[None]),
    "beta": lambda f, A, B: f(A, B, beta=2),
    "no gate": lambda f, A, B: f(A, B, None, "relu", gate_layout="halves"),
    "odd gate": lambda f, A, B: f(A, B[:, :5], None, "swiglu"),
    "layout": lambda f, A, B: f(A, B, None, "swiglu", gate_layout="thirds"),
    "pair": lambda f, A, B: f(A, (B, B), None, "relu"),
    "bias of a pair": lambda f, A, B: f(A, (B, B), B[0], "swiglu"),
    "triple": lambda f, A, B: f(A, (B, B, B), None, "swiglu"),
    "name": lambda f, A, B: f(A, B, None, "gelo"),
    "parameter": lambda f, A, B: f(A, B, None, ("elu", 1, 2)),
    "out_dtype": lambda f, A, B: f(A, B, out_dtype="int8"),
    "C": lambda f, A, B: f(A, B, C=A),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_are_those_of_the_call(name):
    A, B = draw((5, 7)), draw((7, 6))
    with pytest.raises((TypeError, ValueError)) as wanted:
        BAD[name](mf.matmul_fused, jnp.asarray(A), jnp.asarray(B))
    with pytest.raises(wanted.type, match=f"^{re.escape(str(wanted.value))}"):
        jax.jit(functools.partial(BAD[name], matmul_fused))(A, B)
    with pytest.raises(wanted.type, match=f"^{re.escape(str(wanted.value))}"):
        BAD[name](matmul_fused, jnp.asarray(A), jnp.asarray(B))


def test_errors_of_its_own():
    A, B = draw((5, 7)), draw((7, 6))
    with pytest.raises(TypeError, match=r"A is a list; matmul_fused\.jax takes arrays of jax or NumPy$"):
        matmul_fused(A.tolist(), B)
    with pytest.raises(TypeError, match=r"bias is a str; matmul_fused\.jax takes arrays of jax or NumPy and numbers"):
        matmul_fused(A, B, "relu")
    with pytest.raises(TypeError, match="alpha is traced by jax; it must be a Python number"):
        jax.jit(lambda alpha: matmul_fused(A, B, alpha=alpha))(2.0)
    with pytest.raises(TypeError, match="beta must be a number, got str"):
        matmul_fused(A, B, C=1, beta="2")
    with pytest.raises(TypeError, match=r"B is an array of key<\w+>, which are no numbers"):
        matmul_fused(A, jax.random.split(jax.random.key(0), 7))


# --- the handler: what reaches it from elsewhere ---

GOOD = {"operands": "A,B", "activation": "elu", "gate_layout": "", "alpha": 1.0, "beta": 0.0, "p0": 1.0}


def raw(*arrays, shape=(5, 6), dtype=jnp.float32, results=1, target=functional._TARGET, **changes):
    """The FFI call itself, with one attribute changed; None leaves it out."""
    out = (jax.ShapeDtypeStruct(shape, dtype),) * results
    attributes = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    numbers = {name: np.float64(value) if isinstance(value, float) else value for name, value in attributes.items()}
    return jax.ffi.ffi_call(target, out)(*arrays, **numbers)


MALFORMED = [
    ("operands", {"operands": "A"}),
    ("operands", {"operands": "A,B,bias"}),
    ("operands", {"operands": "B,A"}),
    ("operands", {"operands": "A,preactivation"}),
    ("operands", {"operands": "A,out"}),
    ("operands", {"operands": "x" * 64}),
    ("operands", {"operands": np.int64(3)}),
    ("activation", {"activation": "no such"}),
    ("activation", {"activation": None}),
    ("gate_layout", {"gate_layout": "thirds"}),
    ("alpha", {"alpha": None}),
    ("alpha", {"alpha": np.float32(1.5)}),
    ("beta", {"beta": "1"}),
    ("p0", {"p0": None}),
    ("results", {"results": 3}),
]


@pytest.mark.parametrize(("what", "changes"), MALFORMED, ids=str)
def test_malformed_calls_are_refused(what, changes):
    A, B = jnp.asarray(draw((5, 7))), jnp.asarray(draw((7, 6)))
    np.testing.assert_array_equal(raw(A, B)[0], outside(np.asarray(A), np.asarray(B), None, "elu"))
    with pytest.raises(Exception, match=f"has no {what} that this version knows; compile the program again"):
        jax.block_until_ready(raw(A, B, **changes))


def test_the_handler_checks_as_the_call_does():
    A, B = jnp.asarray(draw((5, 7))), jnp.asarray(draw((7, 6)))
    for pattern, call in {
        "out has shape": lambda: raw(A, B, shape=(5, 5)),
        "out has a dtype that matmul_fused has not": lambda: raw(A, B, dtype=jnp.int32),
        "B has a dtype that matmul_fused has not": lambda: raw(A, B.astype(jnp.int8)),
        "has no B that": lambda: raw(A, B[0]),
        "A and B must have one dtype": lambda: raw(A, B.astype(jnp.float16)),
        "its alpha": lambda: raw(A, B, activation="celu", p0=0.0),
    }.items():
        with pytest.raises(Exception, match=pattern):
            jax.block_until_ready(call())


def test_more_axes_than_there_are():
    f = functools.reduce(lambda f, _: jax.vmap(f), range(7), matmul_fused)
    A, B = np.ones((1,) * 7 + (2, 3), np.float32), np.ones((1,) * 7 + (3, 2), np.float32)
    with pytest.raises(Exception, match=r"A has 9 axes, those of jax\.vmap among them; at most 8 are supported"):
        jax.block_until_ready(f(A, B))


# --- around the call ---


def test_eager_calls_trace_once():
    A, B = jnp.asarray(draw((5, 7), seed=3)), jnp.asarray(draw((7, 6)))
    first = matmul_fused(A, B, None, ("elu", 0.75))
    before = functional._call._cache_size()
    again = matmul_fused(A, B, None, ("elu", 0.75))
    assert functional._call._cache_size() == before
    assert isinstance(again, jax.Array)
    assert same_bits(np.asarray(first), np.asarray(again))
    assert same_bits(np.asarray(again), outside(np.asarray(A), np.asarray(B), None, ("elu", 0.75)))


def test_scan_and_while():
    A, B = draw((5, 6)), draw((4, 6, 6)) * np.float32(0.3)

    @jax.jit
    def layers(A, B):
        return jax.lax.scan(lambda x, w: (matmul_fused(x, w, None, "tanh"), x), A, B)

    last, kept = layers(A, B)
    x = A
    for i, w in enumerate(B):
        assert same_bits(np.asarray(kept[i]), x)
        x = outside(x, w, None, "tanh")
    assert same_bits(np.asarray(last), x)
    looped = jax.lax.while_loop(
        lambda s: s[0] < 4, lambda s: (s[0] + 1, matmul_fused(s[1], jnp.asarray(B)[s[0]], None, "tanh")), (0, A)
    )[1]
    assert same_bits(np.asarray(looped), x)


def test_many_calls_at_a_time():
    """Handlers run on XLA's threads, and on those of callers."""
    A, B = draw((64, 96)), draw((8, 96, 80))
    run = jax.jit(lambda A, B: [matmul_fused(A, B[i], None, "gelu") for i in range(8)])
    want = [outside(A, B[i], None, "gelu") for i in range(8)]
    wrong = []

    def work():
        for _ in range(20):
            wrong.extend(i for i, y in enumerate(run(A, B)) if not same_bits(np.asarray(y), want[i]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_several_devices():
    """Sharded operands are gathered: right on every device; shard_map keeps the shards apart."""
    done = python(
        "-c",
        """
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from matmul_fused.jax import matmul_fused
import matmul_fused as mf
try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map
mesh = Mesh(np.array(jax.devices()), ("rows",))
rows = NamedSharding(mesh, P("rows"))
A, B = (np.random.default_rng(0).standard_normal(s).astype("f") for s in ((8, 7), (7, 6)))
a = jax.device_put(A, rows)
want = mf.matmul_fused(A, B, None, "gelu")
f = jax.jit(lambda a, b: matmul_fused(a, b, None, "gelu"))
y = f(a, B)
np.testing.assert_array_equal(y, want)
assert len(y.sharding.device_set) == 2
assert "all-gather" in f.lower(a, B).compile().as_text()
g = jax.jit(shard_map(lambda a, b: matmul_fused(a, b, None, "gelu"), mesh=mesh, in_specs=(P("rows"), P()),
                      out_specs=P("rows")))
np.testing.assert_allclose(g(a, B), want, rtol=1e-6, atol=1e-6)
assert "all-gather" not in g.lower(a, B).compile().as_text()
print("shards", y.sharding.is_fully_replicated)
""",
        environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"},
    )
    assert done.stdout.startswith("shards")


def test_every_activation_has_jaxs_form():
    assert set(activations.PLAIN) == set(ACTIVATIONS)
    assert set(activations.GATED) == set(GATED)


def test_package_without_jax(tmp_path):
    (tmp_path / "jax.py").write_text("raise ImportError('no jax')\n")
    code = "import matmul_fused as mf, sys\ntry:\n    import matmul_fused.jax\nexcept ImportError as e:\n    print(e)"
    done = python("-c", code, environment={"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "matmul_fused.jax needs jax, which is not installed; pip install 'jax>=0.5'\n"
    (tmp_path / "jax.py").write_text("__version__ = '0.4.30'\n")
    done = python("-c", code, environment={"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "matmul_fused.jax needs jax 0.5 or later; this is jax 0.4.30\n"


def test_the_page_runs():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools" / "readme.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    names = {"__name__": "__readme__"}
    for _, source in tool.blocks((ROOT / "docs" / "jax.md").read_text()):
        exec(compile(source, "docs/jax.md", "exec"), names)
    assert names["y"].shape == (8, 2048)
    assert names["dw"].shape == (512, 2048)
    assert names["z"].shape == (2, 8, 2048)


def test_the_example_runs():
    lines = python(ROOT / "examples" / "jax_jit.py").stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["fused", "plain"]
    first, last = map(float, re.search(r"loss (\S+), (\S+) after", lines[0]).groups())
    assert last < 0.8 * first
    difference = float(re.fullmatch(r"difference (\S+)", lines[2])[1])
    assert 0 <= difference < 1e-4
