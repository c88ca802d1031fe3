"""The torch.compile backend: which graphs are fused and which are left, values, gradients, autocast and timings."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import Record, measure, op, patching, report  # noqa: E402

nn, F = torch.nn, torch.nn.functional
I = 12  # noqa: E741  # columns of a hidden layer


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    measure.forget()
    patching._compiled.clear()
    patching._last = None  # a model that another file has patched, which may still live


def new_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def fast_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


class Layer(nn.Module):
    """down(act(fc(x))), with the activation as a function."""

    def __init__(self, act, bias=True):
        super().__init__()
        self.fc, self.down = nn.Linear(8, I, bias=bias), nn.Linear(I, 8)
        self.act = act

    def forward(self, x):
        return self.down(self.act(self.fc(x)))


class Gated(nn.Module):
    def __init__(self, act, turned=False, bias=False):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, I, bias=bias), nn.Linear(8, I, bias=False), nn.Linear(I, 8)
        self.act, self.turned = act, turned

    def forward(self, x):
        gate, up = self.act(self.gate(x)), self.up(x)
        return self.down(up * gate if self.turned else gate * up)


class Packed(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.gate_up, self.down = nn.Linear(8, 2 * I), nn.Linear(I, 8)
        self.cut = cut

    def forward(self, x):
        return self.down(self.cut(self.gate_up(x)))


def chunked(z):
    gate, up = z.chunk(2, dim=-1)
    return up * F.silu(gate)


def up_first(z):
    up, gate = torch.chunk(z, 2, -1)
    return F.gelu(gate) * up


def split(z):
    gate, up = z.split(I, dim=-1)
    return F.relu(gate) * up


def sliced(z):
    return new_gelu(z[..., :I]) * z[..., I:]


def interleaved(z):
    return F.silu(z[..., ::2]) * z[..., 1::2]


class Conv1D(nn.Module):
    """A linear layer whose weight is (K, N), as GPT-2 has it."""

    def __init__(self, k, n):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(k, n) / 4), nn.Parameter(torch.randn(n))

    def forward(self, x):
        shape = (*x.shape[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj, self.drop = Conv1D(8, I), Conv1D(I, 8), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.c_proj(new_gelu(self.c_fc(x))))


class Product(nn.Module):
    """x @ W.T, as Falcon spells it, and x @ W."""

    def __init__(self, bias):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(I, 8)), nn.Parameter(torch.randn(I, 8))
        self.bias = nn.Parameter(torch.randn(I)) if bias else None

    def forward(self, x):
        z = x @ self.first.T
        return F.gelu(z if self.bias is None else z + self.bias) @ self.second


class Residual(nn.Module):
    def __init__(self, add):
        super().__init__()
        self.fc, self.add = nn.Linear(8, 8), add

    def forward(self, x):
        return self.add(self.fc(x), x)


def run(module, x, when="always", **keywords):
    compiled = torch.compile(
        module, backend="matmul_fused", fullgraph=True, options={"when": when, "inner": "aot_eager"}
    )
    return compiled(x, **keywords)


def check(module, x=None):
    """Values and gradients in float64 are those of the module; its report."""
    torch.manual_seed(0)
    module = module.double().eval()
    x = torch.randn(2, 3, 8, dtype=torch.float64) if x is None else x
    for recorded in (False, True):
        with torch.set_grad_enabled(recorded):
            torch._dynamo.reset()
            wanted, got = module(x.clone()), run(module, x.clone())
            assert torch.allclose(got, wanted, rtol=1e-8, atol=1e-8)
    parameters = list(module.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(y.square().sum(), parameters) for y in (got, wanted)), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-7)
    return report()


# --- what is fused ---

ACTIVATIONS = {
    "gelu": (F.gelu, nn.GELU(), lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), nn.GELU("tanh"), new_gelu, fast_gelu),
    "relu": (F.relu, torch.relu, nn.ReLU(), nn.ReLU(inplace=True), lambda x: x.relu(), lambda x: x.clamp(min=0)),
    "tanh": (torch.tanh, F.tanh, nn.Tanh(), lambda x: x.tanh()),
    "sigmoid": (torch.sigmoid, nn.Sigmoid(), lambda x: x.sigmoid(), lambda x: 1 / (1 + torch.exp(-x))),
    "silu": (F.silu, nn.SiLU(), lambda x: x * torch.sigmoid(x), lambda x: x.sigmoid() * x),
    "quick_gelu": (lambda x: x * torch.sigmoid(1.702 * x),),
    "relu_squared": (lambda x: torch.square(F.relu(x)), lambda x: F.relu(x) ** 2),
    "gelu_10": (lambda x: torch.clip(F.gelu(x), -10, 10),),
    "mish": (F.mish, lambda x: x * torch.tanh(F.softplus(x))),
    "hardswish": (F.hardswish, lambda x: x * F.relu6(x + 3) / 6),
    "leaky_relu, 0.3": (lambda x: F.leaky_relu(x, 0.3), nn.LeakyReLU(0.3)),
    "clamp, 0, 6": (F.relu6, lambda x: torch.clamp(x, 0, 6)),
}
SPELLINGS = [(name, spelling) for name, spellings in ACTIVATIONS.items() for spelling in spellings]


@pytest.mark.parametrize(
    ("name", "act"), SPELLINGS, ids=[f"{name}-{place}" for place, (name, _) in enumerate(SPELLINGS)]
)
def test_activations(name, act):
    (record,) = check(Layer(act))
    assert (record.form, record.fused) == ("linear", True)
    assert record.activation in (name, {"clamp, 0, 6": "hardtanh, 0, 6"}.get(name))
    assert record.why.startswith("fc + ")


@pytest.mark.parametrize("act", [F.silu, nn.GELU(), new_gelu, torch.relu, torch.sigmoid])
@pytest.mark.parametrize("turned", [False, True])
def test_gate_and_up(act, turned):
    (record,) = check(Gated(act, turned, bias=turned))
    assert (record.form, record.fused) == ("gate/up", True)


@pytest.mark.parametrize("cut", [chunked, up_first, split, sliced, interleaved, F.glu])
def test_one_weight_for_gate_and_up(cut):
    (record,) = check(Packed(cut))
    assert (record.form, record.fused) == ("packed", True)


def test_conv1d_and_residual():
    assert check(GPT2()) == [
        Record("", "linear", "gelu_tanh", True, "c_fc + gelu_tanh"),
        Record("", "residual", "none", True, "c_proj + residual"),
    ]


@pytest.mark.parametrize("bias", [False, True])
def test_products(bias):
    (record,) = check(Product(bias))
    assert (record.form, record.activation, record.fused) == ("linear", "gelu", True)


@pytest.mark.parametrize("add", [torch.add, lambda a, b: b + a, lambda a, b: F.dropout(a, 0.1, False) + b])
def test_residuals(add):
    (record,) = check(Residual(add))
    assert (record.form, record.fused) == ("residual", True)


def test_dropout_that_drops_is_kept():
    module = GPT2().train()
    run(module, torch.randn(2, 3, 8))
    assert [record.form for record in report()] == ["linear"]


# --- what is left ---


def written(x):
    z = F.linear(x, torch.ones(8, 8))
    x.mul_(2)
    return torch.relu(z)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class TwoUses(Layer):
    def forward(self, x):
        z = self.fc(x)
        return self.down(self.act(z) + z)


@pytest.mark.parametrize(
    ("make", "activation", "why"),
    [
        (lambda: TwoUses(F.gelu), "gelu", "the result of the linear goes elsewhere, too"),
        (lambda: Layer(lambda x: torch.tanh(x) * 1.5), "tanh", None),
        (lambda: Layer(lambda x: F.softplus(x, beta=3.0)), "softplus", "it is no known one"),
        (lambda: Function(written), "relu", "something between writes to memory or changes a mode"),
        (lambda: Function(lambda x: F.silu(torch.bmm(x, torch.ones(2, 8, 4)))), "silu", "it follows bmm, no linear"),
        (lambda: Function(lambda x: F.relu(x + 1)), "relu", "it follows add, no linear"),
    ],
)
def test_left_alone(make, activation, why):
    torch.manual_seed(0)
    module, x = make(), torch.randn(2, 3, 8)
    assert torch.allclose(run(module, x.clone()), module(x.clone()), atol=1e-6)
    if why is None:  # a part of it is an activation
        assert report()[0].fused
        return
    (record,) = report()
    assert (record.activation, record.fused, record.why) == (activation, False, why)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.linear(x, torch.ones(8, 8)) + torch.ones(8),  # no residual, but a broadcast row
        lambda x: torch.add(F.linear(x, torch.ones(8, 8)), x, alpha=2),
        lambda x: F.linear(x, torch.ones(8, 8)) + x.double(),
        lambda x: x.clone().add_(F.linear(x, torch.ones(8, 8))),
        lambda x: F.linear(x.to(torch.complex64), torch.ones(8, 8, dtype=torch.complex64)).tanh().real,
        lambda x: F.silu(F.linear(x, torch.ones(8, 8))[..., 1:5]) * F.linear(x, torch.ones(4, 8)),
    ],
)
def test_values_stay_where_nothing_is_fused(function):
    x = torch.randn(2, 3, 8)
    assert torch.allclose(run(Function(function), x.clone()), function(x.clone()), atol=1e-5)
    assert not [record for record in report() if record.fused]


def test_never_reports_alone():
    run(Gated(F.silu), torch.randn(2, 8), "never")
    assert report() == [Record("", "gate/up", "silu", False, 'when is "never"')]


# --- the operator of a residual ---


@pytest.mark.parametrize("bias", [False, True])
def test_linear_add(bias):
    x, added = (torch.randn(3, 2, 4, dtype=torch.float64).transpose(0, 1).requires_grad_() for _ in range(2))
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    operands = (x, weight, torch.randn(4, dtype=torch.float64, requires_grad=True) if bias else None, added)
    torch.library.opcheck(op.linear_add, operands)
    assert torch.allclose(op.linear_add(*operands), F.linear(*operands[:3]) + added)
    assert torch.autograd.gradcheck(op.linear_add, operands)


@pytest.mark.parametrize("call", [op.linear, lambda *operands: op.linear_z(*operands)[0]])
def test_second_derivatives_of_the_operators(call):
    x, weight = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(lambda x, w: call(x, w, None, None, None, "gelu", [], None), (x, weight))


# --- with Inductor ---


def test_inductor_by_name_and_dynamic_rows():
    torch.manual_seed(0)
    module = nn.Sequential(GPT2(), Gated(F.silu)).eval()
    compiled = torch.compile(module, backend="matmul_fused", fullgraph=True, options={"when": "always"})
    with torch.no_grad():
        for rows in (5, 9, 11):  # from the second on the rows are a variable
            x = torch.randn(2, rows, 8)
            assert torch.allclose(compiled(x), module(x), atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert [(record.site, record.form) for record in report() if record.fused] == [
        ("0", "linear"),
        ("0", "residual"),
        ("1", "gate/up"),
    ]


def test_training_through_inductor():
    torch.manual_seed(0)
    module = nn.Sequential(Layer(new_gelu), Residual(torch.add), Gated(F.silu))
    twin, x = copy.deepcopy(module), torch.randn(6, 8)
    compiled = torch.compile(module, backend="matmul_fused", fullgraph=True, options={"when": "always"})
    for model in (compiled, twin):
        model(x).square().sum().backward()
    assert all(record.fused for record in report())
    for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [GPT2, lambda: Gated(F.silu), lambda: Packed(chunked), lambda: Layer(F.gelu)])
def test_autocast(make):
    """The dtype of the result and its precision are those of eager mode under autocast."""
    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(40, 3, 8)
    exact = copy.deepcopy(module).double()(x.double()).detach()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted, got = module(x), run(module, x)
    assert got.dtype == wanted.dtype
    errors = [float((y.double() - exact).square().mean().sqrt()) for y in (got, wanted)]
    assert errors[0] <= 1.1 * errors[1]
    assert report()
    assert report()[0].fused


# --- timings ---


@pytest.mark.parametrize(("times", "fused"), [((1e-5, 2e-5), True), ((2e-5, 1e-5), False)])
@pytest.mark.parametrize("recorded", [False, True])
def test_measured(monkeypatch, times, fused, recorded):
    calls = []

    def race(ours, theirs, *_):
        calls.append([ours(), theirs()])
        return times

    monkeypatch.setattr(measure, "_race", race)
    torch.manual_seed(0)
    module, x = nn.Sequential(*(Gated(new_gelu, bias=True) for _ in range(3))), torch.randn(16, 8)
    with torch.set_grad_enabled(recorded):
        assert torch.allclose(run(module, x, "measured"), module(x), atol=1e-5)
    assert [(record.fused, record.ours, record.theirs) for record in report()] == [(fused, *times)] * 3
    assert all(record.fused or record.why == "left: slower" for record in report())
    sites = 2 if recorded else 1  # equal sites share it; x of the first has no gradient
    assert len(calls) == sites + fused  # and the graph, where one of them won
    for ours, theirs in calls:  # both forms did the same, on the same operands
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("make", [GPT2, lambda: Product(True), lambda: Packed(sliced), lambda: Residual(torch.add)])
def test_every_form_can_be_measured(monkeypatch, make):
    def race(ours, theirs, *_):
        assert torch.allclose(ours()[0], theirs()[0], atol=1e-4, rtol=1e-4)
        return 1.0, 2.0

    monkeypatch.setattr(measure, "_race", race)
    with torch.no_grad():
        run(make().eval(), torch.randn(2, 4, 8), "measured")
    assert report()
    assert all(record.fused and record.ours == 1.0 for record in report())


def test_measured_is_the_default_and_times_really():
    compiled = torch.compile(Gated(F.silu), backend="matmul_fused", fullgraph=True, dynamic=True)
    x = torch.randn(7, 8)
    with torch.no_grad():
        compiled(x)
    (record,) = report()
    assert record.ours > 0
    assert record.theirs > 0


# --- reports and options ---


def test_a_frame_compiled_again_is_reported_once():
    module = Gated(F.silu)
    compiled = torch.compile(module, backend="matmul_fused", options={"when": "always", "inner": "eager"})
    for rows in (2, 3, 4):
        compiled(torch.randn(rows, 8))
    assert len(report()) == 1
    patching.patch(nn.Sequential(nn.Linear(8, 8)))
    assert report() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"when": "often"}, "when is 'often'; it must be one of 'measured', 'always', 'never'"),
        ({"inner": "eager", "max_autotune": True}, "options 'max_autotune' are Inductor's, but inner is 'eager'"),
    ],
)
def test_bad_options(options, said):
    compiled = torch.compile(Gated(F.silu), backend="matmul_fused", options=options)
    with pytest.raises(Exception, match=said):
        compiled(torch.randn(2, 8))
