"""matmul_fused.torch: linear and mlp in eager code, under autocast, in torch.compile, and what opcheck says."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused import _core
from matmul_fused.testing import assert_close, expect
from matmul_fused.testing.formulas import ACTIVATIONS, ALIASES, GATED, GATED_ALIASES
from support import python

torch = pytest.importorskip("torch")

from matmul_fused.torch import activations, linear, mlp, op  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
F = torch.nn.functional
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def draw(*shape, seed=0, dtype=torch.float32, grad=False):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    values = torch.randn(*shape, generator=generator, dtype=torch.float64) / 2
    return values.to(dtype).requires_grad_(grad)


def as_numpy(tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(pytest.importorskip("ml_dtypes").bfloat16)
    return tensor.numpy()


def check(got, x, weight, bias=None, activation=None, gate_layout=None):
    """got is what the call must give, within the derived bound."""
    B = tuple(as_numpy(part).T for part in weight) if isinstance(weight, tuple) else as_numpy(weight).T
    b = tuple(map(as_numpy, bias)) if isinstance(bias, tuple) else None if bias is None else as_numpy(bias)
    expected, _ = expect(as_numpy(x), B, b, activation, gate_layout=gate_layout)
    assert_close(as_numpy(got), expected, str(got.dtype).removeprefix("torch."))


@pytest.fixture(autouse=True)
def no_compiled_code():
    torch._dynamo.reset()


# --- eager ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["relu", ("leaky_relu", 0.2), None])
def test_linear(activation, dtype):
    x, weight, bias = draw(2, 5, 33, dtype=dtype), draw(17, 33, dtype=dtype), draw(17, dtype=dtype)
    for b in (bias, None):
        got = linear(x, weight, b, activation)
        assert got.shape == (2, 5, 17)
        assert got.dtype == dtype
        assert not got.requires_grad
        check(got, x, weight, b, activation)


@pytest.mark.parametrize("layout", [None, "halves", "halves_up_first", "interleaved"])
def test_gated_linear(layout):
    x, weight, bias = draw(5, 33), draw(18, 33), draw(18)
    got = linear(x, weight, bias, "swiglu", gate_layout=layout)
    assert got.shape == (5, 9)
    check(got, x, weight, bias, "swiglu", layout)


def test_a_pair_of_weights():
    x, weights, biases = draw(5, 33), (draw(9, 33), draw(9, 33, seed=1)), (draw(9), draw(9, seed=1))
    check(linear(x, weights, biases, "geglu"), x, weights, biases, "geglu")
    check(linear(x, weights, None, "geglu"), x, weights, None, "geglu")


def test_shapes_are_those_of_torch():
    for shape in ((7,), (0, 7), (3, 0, 7), (2, 3, 4, 7)):
        for weight in (draw(6, 7), draw(7)):
            x = draw(*shape)
            assert linear(x, weight).shape == F.linear(x, weight).shape
            assert linear(x, weight.requires_grad_()).shape == F.linear(x, weight).shape


def test_mlp():
    x, gate, up, down = draw(5, 16), draw(24, 16), draw(24, 16, seed=1), draw(16, 24)
    exact = F.linear(F.silu(F.linear(x.double(), gate.double())) * F.linear(x.double(), up.double()), down.double())
    for weights in ((gate, up), torch.cat((gate, up))):
        assert torch.allclose(mlp(x, weights, down, "swiglu").double(), exact, atol=1e-5)
    bias, other = draw(24), draw(16)
    plain = F.linear(F.gelu(F.linear(x.double(), gate.double(), bias.double())), down.double(), other.double())
    got = mlp(x, gate, down, "gelu", gate_up_bias=bias, down_bias=other)
    assert torch.allclose(got.double(), plain, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (lambda: (np.ones((2, 3), "f4"), draw(4, 3)), TypeError, "x is a numpy.ndarray; .* takes torch tensors"),
        (lambda: (draw(2, 3), [1.0]), TypeError, "weight is a list; .* takes torch tensors"),
        (lambda: (draw(2, 3), draw(4, 3), 1.5), TypeError, "bias is a float; .* takes torch tensors"),
        (lambda: (draw(2, 3), (draw(4, 3),), None, "swiglu"), ValueError, "B is a tuple of 1; a pair is"),
        (lambda: (draw(2, 3), draw(4, 3), None, "rellu"), ValueError, 'unknown activation "rellu"'),
        (lambda: (draw(2, 3, grad=True), draw(4, 3), None, "rellu"), ValueError, 'unknown activation "rellu"'),
        (lambda: (draw(2, 5), draw(4, 3)), ValueError, "do not match"),
        (lambda: (draw(2, 3), draw(4, 3).to_sparse()), TypeError, "is a sparse tensor; pass .to_dense"),
        (lambda: (draw(2, 3), draw(4, 3).double()), TypeError, "must have one dtype"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, error, says):
    with pytest.raises(error, match=says):
        linear(*arguments())


def test_an_error_says_which_argument_is_meant():
    with pytest.raises(ValueError, match=r"A \(2, 5\) and B \(3, 4\) do not match") as raised:
        linear(draw(2, 5), draw(4, 3))
    assert raised.value.__notes__ == ["in matmul_fused.torch.linear, A is x and B is weight.T"]


def test_the_entry_of_the_extension_takes_plain_tensors_and_leaves_the_rest():
    x, weight, bias = draw(5, 3), draw(8, 3), draw(8)
    pair = (weight, weight * 2)
    for w, b, activation in ((weight, bias, "swiglu"), (pair, (bias, bias), "swiglu"), (draw(3), None, None)):
        B = tuple(part.T for part in w) if isinstance(w, tuple) else w.t()
        assert torch.equal(_core._linear(x, w, b, activation), mf.matmul_fused(x, B, b, activation))
    wanting = draw(8, 3, grad=True)
    for arguments in (
        (x, wanting),
        (draw(5, 3, grad=True), weight),
        (x, (weight, wanting), None, "swiglu"),
        (x, draw(2, 8, 3)),
        (x, mf.prepack(weight.T)),
        (x, weight, 1.5),
        (x.numpy(), weight),
        (x, weight.numpy()),
    ):
        assert _core._linear(*arguments) is NotImplemented
    with torch.no_grad():
        assert torch.equal(_core._linear(x, wanting), mf.matmul_fused(x, wanting.T))


def test_meta_and_fake_tensors():
    got = linear(torch.empty(2, 3, device="meta"), torch.empty(4, 3, device="meta"), None, "relu")
    assert got.is_meta
    assert got.shape == (2, 4)
    with torch._subclasses.FakeTensorMode():
        got = linear(torch.empty(5, 3), torch.empty(8, 3), torch.empty(8), "swiglu")
        assert got.shape == (5, 4)
        with pytest.raises(RuntimeError, match=r"x has 4 columns, but weight is \(8, 3\)"):
            linear(torch.empty(5, 4), torch.empty(8, 3))


# --- names ---


def torch_callables():
    """(object, activation, layout) of the rows of csrc/binding/callables.def that are torch's."""
    text = (
        (ROOT / "csrc/binding/callables.def")
        .read_text()
        .replace(" F,", ' "torch.nn.functional",')
        .replace("(F,", '("torch.nn.functional",')
    )
    row = re.compile(r'^MMF_(FUNCTION|CLASS)\("(torch[\w.]*)", "(\w+)", "(\w+)", (\w+)', re.MULTILINE)
    for kind, module, name, activation, layout in row.findall(text):
        value = torch
        for part in [*module.split(".")[1:], name]:
            value = getattr(value, part)
        if kind == "CLASS":
            value = value(1.0, 2.0) if name == "Threshold" else value()
        yield value, activation, None if layout == "NONE" else layout.lower()


def same_values(one, other, gated):
    x, weight = draw(5, 8), draw(12, 8)
    return torch.equal(linear(x, weight, None, one), linear(x, weight, None, other.spec, gate_layout=other.gate_layout))


def test_callables_are_those_of_the_extension():
    rows = list(torch_callables())
    assert len(rows) > 40
    for value, name, layout in rows:
        found = activations.resolve(value)
        assert found.gate_layout == layout
        assert found.gated == (name in GATED)
        assert same_values(value, found, found.gated)
    assert activations.resolve(torch.nn.LeakyReLU(0.25)) == ("leaky_relu", (0.25,), None)
    assert activations.resolve(torch.nn.GELU(approximate="tanh")) == ("gelu_tanh", (), None)
    with pytest.raises(ValueError, match="matmul_fused has it with 1 alone"):
        activations.resolve(torch.nn.Softplus(beta=2))


def test_names_are_those_of_the_extension():
    for name in (*mf.activations, *mf.gated_activations):
        row = ACTIVATIONS.get(name) or GATED.get(name)
        given = (name.upper(), *row.usual) if row and row.required else name.upper()
        if name == "silu_and_mul_with_clamp" or name == "situ_and_mul":
            given = (name, 4.0)
        found = activations.resolve(given)
        assert found.name == ALIASES.get(name, GATED_ALIASES.get(name, (name,))[0]) or name == "relu6"
        assert same_values(given, found, found.gated), name
    assert activations.resolve(("swiglu", 1.5)) == ("swiglu_clamped", (1.5, 1.0, 0.0), None)
    with pytest.raises(ValueError, match="threshold"):
        activations.resolve("threshold")


# --- autocast ---


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.float64])
def test_autocast_casts_as_linear_does(given):
    x, weight, bias = draw(5, 33, dtype=given), draw(9, 33, dtype=given), draw(9, dtype=given)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = F.linear(x, weight, bias)
        for grad in (False, True):
            got = linear(x, weight.requires_grad_(grad), bias)
            assert got.dtype == wanted.dtype
            assert got.requires_grad == grad
    weight.requires_grad_(False)
    check(got.detach(), *(t.to(wanted.dtype) for t in (x, weight, bias)))
    with torch.autocast("cpu", enabled=False):
        assert linear(x, weight, bias).dtype == given


def test_autocast_gradients_have_the_dtype_of_the_parameters():
    x, weight = draw(5, 33), draw(9, 33, grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        linear(x, weight, None, "gelu").sum().backward()
    assert weight.grad.dtype == torch.float32


# --- torch.compile and the registered operators ---


def arguments(x, weight, bias=None, activation="none", layout=None, up=None):
    return (x, weight, bias, up, None, activation, [], layout)


@pytest.mark.parametrize("operator", [op.linear, op.linear_z], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(operator, grad):
    for x, weight in (
        (draw(6, 7, grad=grad), draw(4, 7, grad=grad)),
        (draw(2, 3, 7), draw(4, 7)),
        (draw(7, 2, 3).permute(2, 1, 0).detach().requires_grad_(grad), draw(7, 4).t().detach().requires_grad_(grad)),
    ):
        for activation in ("relu", "gelu", "swiglu"):
            bias = draw(4).requires_grad_(grad)
            torch.library.opcheck(operator, arguments(x, weight, bias, activation))
    torch.library.opcheck(operator, arguments(draw(5, 7), draw(4, 7), None, "swiglu", up=draw(4, 7, seed=1)))


def test_names_carry_a_version():
    assert op.linear.name() == "matmul_fused::linear_v2"
    assert op.linear_z.name() == "matmul_fused::linear_z_v2"


@pytest.mark.parametrize("activation", [None, "gelu", ("leaky_relu", 0.2), F.silu, "relu", "swiglu"])
def test_compiled_without_a_graph_break(activation):
    def f(x, weight, bias):
        return linear(x, weight, bias, activation) * 2

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 8, 17):
        x, weight, bias = draw(rows, 33), draw(18, 33), draw(18)
        assert torch.equal(compiled(x, weight, bias), f(x, weight, bias))
        operands = [t.requires_grad_() for t in (x, weight, bias)]
        ours = torch.autograd.grad(compiled(*operands).sum(), operands)
        eager = torch.autograd.grad(f(*operands).sum(), operands)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, eager, strict=True))


def test_the_graph_has_one_operator_and_one_compilation_serves_all_rows():
    graphs = []

    def backend(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    compiled = torch.compile(lambda x, w: linear(x, w, None, "gelu"), backend=backend, fullgraph=True, dynamic=True)
    weight = draw(4, 7)
    for rows in (3, 9, 20):
        compiled(draw(rows, 7), weight)
    assert graphs == [["matmul_fused.linear_v2.default"]]


def test_compiled_by_inductor():
    x, weight, bias = draw(6, 33), draw(9, 33), draw(9)
    compiled = torch.compile(lambda *t: linear(*t, "gelu").relu(), fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Inductor about itself
        got = compiled(x, weight, bias)
    assert torch.equal(got, linear(x, weight, bias, "gelu").relu())


def test_compiled_autocast_and_mlp():
    x, gate, up, down = draw(5, 16), draw(24, 16), draw(24, 16, seed=1), draw(16, 24)
    compiled = torch.compile(mlp, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, (gate, up), down), mlp(x, (gate, up), down))
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.compile(lambda: mlp(x, (gate, up), down), backend="aot_eager", fullgraph=True)()
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, mlp(x, (gate, up), down))


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(draw(4, 7))

        def forward(self, x):
            return linear(x, self.weight, None, "gelu")

    module, rows = Module(), {0: torch.export.Dim("rows")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.export about itself
        exported = torch.export.export(module, (draw(5, 7),), dynamic_shapes={"x": rows}, strict=strict).module()
    for number in (2, 9):
        assert torch.equal(exported(draw(number, 7)), module(draw(number, 7)))


# --- the import ---


def test_torch_is_imported_with_matmul_fused_torch_alone():
    code = (
        "import sys, matmul_fused; print('torch' in sys.modules)\n"
        "import matmul_fused.torch; print('torch' in sys.modules)"
    )
    assert python("-c", code).stdout.split() == ["False", "True"]


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ("sys.modules['torch'] = None", "matmul_fused.torch needs torch, which is not installed; pip install"),
        (
            "t = sys.modules['torch'] = types.ModuleType('torch'); t.Tensor = object; t.__version__ = '2.9.1'",
            "matmul_fused.torch needs torch 2.10 or later; this is torch 2.9.1",
        ),
    ],
    ids=["absent", "old"],
)
def test_a_torch_that_will_not_do(before, says):
    done = python("-c", f"import sys, types; {before}; import matmul_fused.torch", check=False)
    assert done.returncode == 1
    assert says in done.stderr.splitlines()[-1]
