"""patch and unpatch: which sites of a model are fused, that its values and gradients stay, and what is left alone."""

import copy
import functools
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import (  # noqa: E402
    FusedLinear,
    Record,
    patching,
    report,
    rewriting,
    unpatch,
)

nn = torch.nn
patch = functools.partial(patching.patch, when="always")  # test_torch_measured has the other one
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Gated(nn.Module):
    """The MLP of Llama."""

    def __init__(self, act=nn.SiLU, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 12, bias=bias), nn.Linear(8, 12, bias=False)
        self.down_proj, self.act_fn = nn.Linear(12, 8, bias=bias), act()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Plain(nn.Module):
    def __init__(self, first=nn.Linear, act=nn.GELU):
        super().__init__()
        self.fc1, self.act, self.fc2, self.drop = first(8, 12), act(), nn.Linear(12, 8), nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(self.fc2(self.act(self.fc1(x))))


class Attention(Plain):
    def forward(self, x, mask=None):
        return super().forward(x)


class Branches(Plain):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class TwoUses(Plain):
    def forward(self, x):
        z = self.fc1(x)
        return self.fc2(self.act(z) + z)


class ByMode(Plain):
    def forward(self, x):
        z = self.fc1(x)
        return self.fc2(z if self.training else self.act(z))


class Keeps(Plain):
    def forward(self, x):
        self.seen = self.fc1(x)
        return self.fc2(self.act(self.seen))


class LoRA(nn.Module):
    """As peft wraps a layer."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.lora = base, nn.Linear(base.in_features, base.out_features, bias=False)

    @property
    def weight(self):
        return self.base_layer.weight

    @property
    def bias(self):
        return self.base_layer.bias

    def forward(self, x):
        return self.base_layer(x) + self.lora(x)


class Quantised(nn.Linear):
    """As quantisation libraries subclass a layer."""


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Plain(), Gated()).eval()


def check(made, x=X):
    """A patched copy gives the values and gradients of the model."""
    fused = copy.deepcopy(made)
    patch(fused)
    for mode in (False, True):
        for module in (made, fused):
            module.train(mode)
        torch.manual_seed(1)
        wanted = made(x)
        torch.manual_seed(1)
        got = fused(x)
        assert torch.allclose(got, wanted, atol=1e-5)
        ours = torch.autograd.grad(got.sum(), list(fused.parameters()))
        theirs = torch.autograd.grad(wanted.sum(), list(made.parameters()))
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))
    made.eval()
    fused.eval()
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(fused(x), made(x), atol=1e-5)
    return report(fused)


# --- what is fused ---


def test_sites():
    assert check(model()) == [
        Record("", "linear", "relu", True, "0 + 1"),
        Record("2", "linear", "gelu", True, "fc1 + act"),
        Record("3", "gate/up", "silu", True, "gate_proj + up_proj + act_fn"),
    ]


@pytest.mark.parametrize("act", [nn.SiLU, nn.GELU, lambda: nn.GELU("tanh"), nn.ReLU, nn.Sigmoid])
@pytest.mark.parametrize("bias", [False, True])
def test_gates(act, bias):
    (record,) = check(Gated(act, bias))
    assert record.fused
    assert record.form == "gate/up"


@pytest.mark.parametrize("act", [nn.Tanh, nn.Hardswish, lambda: nn.LeakyReLU(0.3), nn.ReLU6, nn.Mish])
def test_activations(act):
    (record,) = check(Plain(act=act))
    assert record.fused


class Called(nn.Module):
    """Activations as functions, and a forward that depends on the mode."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, hidden_states):
        h = self.fc1(hidden_states)
        h = self.fc2(nn.functional.dropout(h * torch.sigmoid(1.702 * h), 0.1, self.training))
        return nn.functional.gelu(h, approximate="tanh")


class Packed(nn.Module):
    """The MLP of Phi-3."""

    def __init__(self, act=nn.SiLU):
        super().__init__()
        self.gate_up_proj, self.down_proj, self.act = nn.Linear(8, 24, bias=False), nn.Linear(12, 8), act()

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * self.act(gate))


class Dropped(Gated):
    """The MLP of T5: a dropout behind the product."""

    def forward(self, x):
        h = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(nn.functional.dropout(h, 0.1, self.training))


class Conv1D(nn.Module):
    """A layer with a weight (K, N), as GPT-2 has it."""

    def __init__(self, k, n):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(k, n) / 4), nn.Parameter(torch.randn(n))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


@pytest.fixture
def _conv1d(monkeypatch):
    monkeypatch.setitem(rewriting._KINDS, f"{__name__}.Conv1D", "conv1d")


def one_activation_twice():
    act = nn.ReLU()
    return nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8), act)


REWRITTEN = [
    (Called, [("linear", "quick_gelu"), ("linear", "gelu_tanh")]),
    (Packed, [("packed", "silu")]),
    (lambda: Packed(lambda: nn.GELU("tanh")), [("packed", "gelu_tanh")]),
    (lambda: Dropped(bias=True), [("gate/up", "silu")]),
    (lambda: Plain(Conv1D), [("linear", "gelu")]),
    (lambda: Gated(nn.Tanh), [("linear", "tanh")]),
    (one_activation_twice, [("linear", "relu"), ("linear", "relu")]),
]


@pytest.mark.usefixtures("_conv1d")
@pytest.mark.parametrize(("make", "forms"), REWRITTEN)
def test_rewritten_forwards(make, forms):
    torch.manual_seed(0)
    made = make().eval()
    keys = [vars(part).keys() for part in made.modules()]
    records = check(made)
    assert [(record.form, record.activation, record.fused) for record in records] == [(*form, True) for form in forms]
    wanted = made(X)
    patch(made)
    assert "forward" in vars(made)
    copied = copy.deepcopy(made)
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(made, backend="aot_eager", fullgraph=True)(X), wanted, atol=1e-5)
    for fused in (made, copied):
        unpatch(fused)
        assert torch.equal(fused(X), wanted)
    assert [vars(part).keys() for part in made.modules()] == keys
    patch(made)
    assert torch.allclose(pickle.loads(pickle.dumps(made))(X), wanted, atol=1e-5)


def test_a_rewritten_forward_takes_its_names():
    made = Called().eval()
    wanted = made(hidden_states=X)
    patch(made)
    assert torch.allclose(made(hidden_states=X), wanted, atol=1e-5)


def test_lora_behind_a_rewritten_forward_is_not_lost():
    made = Packed().eval()
    patch(made)
    made.gate_up_proj = LoRA(made.gate_up_proj)
    assert torch.equal(made(X), Packed.forward(made, X))


def test_the_model_is_the_same_objects():
    made = model()
    state, parameters = made.state_dict(), list(made.parameters())
    modules = dict(made.named_modules())
    patch(made)
    assert type(made[0]) is FusedLinear
    assert made[0] is modules["0"]
    assert isinstance(made[1], nn.Identity)
    assert made.state_dict().keys() == state.keys()
    assert all(a is b for a, b in zip(made.parameters(), parameters, strict=True))
    unpatch(made)
    assert dict(made.named_modules()) == modules
    assert [type(part) for part in made.modules()] == [type(part) for part in model().modules()]
    assert all(vars(a).keys() == vars(b).keys() for a, b in zip(made.modules(), model().modules(), strict=True))
    unpatch(made)
    assert torch.equal(made(X), model()(X))


def test_patching_again_starts_anew():
    made = model()
    first, second = patch(made), patch(made)
    assert first == second
    unpatch(made)
    assert type(made[0]) is nn.Linear


def test_unpatch_takes_over_the_mode():
    made = model()
    patch(made)
    made.train()
    unpatch(made)
    assert all(part.training for part in made.modules())


def test_copies_and_pickles():
    made = model()
    wanted = made(X)
    patch(made)
    buffer = io.BytesIO()
    torch.save(made, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), torch.load(buffer, weights_only=False)):
        assert torch.allclose(other(X), wanted, atol=1e-5)
        unpatch(other)
        assert torch.equal(other(X), wanted)
        assert type(made[0]) is FusedLinear


def test_compiled():
    made = model()
    wanted = made(X)
    patch(made)
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(made, backend="aot_eager", fullgraph=True)(X), wanted, atol=1e-5)


def test_never_reports_alone():
    made = model()
    records = patch(made, when="never")
    assert [record.fused for record in records] == [False] * 3
    assert {record.why for record in records} == {'when is "never"'}
    assert type(made[0]) is nn.Linear


# --- what is left alone ---


def hooked():
    made = Plain()
    made.fc1.register_forward_hook(lambda *_: None)
    return made


def shared():
    first = Plain()
    return nn.Sequential(first, nn.Sequential(first.fc1, nn.Tanh()))


def wrapped():
    made = Plain()
    made.fc1 = LoRA(made.fc1)
    return made


def replaced():
    made = Plain()
    made.forward = lambda x: x
    return made


def subclass_weight():
    class Weight(nn.Parameter):
        pass

    made = Plain()
    made.fc1.weight = Weight(made.fc1.weight.detach())
    return made


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Plain(Quantised), "fc1 is a test_torch_patch.Quantised, not a torch.nn.Linear"),
        (wrapped, "fc1 is a test_torch_patch.LoRA, not a torch.nn.Linear"),
        (subclass_weight, "the weight of fc1 is a test_torch_patch.subclass_weight.<locals>.Weight"),
        (lambda: Plain().to(torch.float8_e4m3fn), "the weight of fc1 is torch.float8_e4m3fn"),
        (Keeps, "its forward sets attributes"),
        (Attention, "its forward takes more than one argument"),
        (Branches, "its forward cannot be traced: TraceError: symbolically traced variables cannot be used"),
        (TwoUses, "no linear goes to the activation alone"),
        (ByMode, "no linear goes to the activation alone"),
        (hooked, "fc1 has hooks"),
        (replaced, "it: its forward was replaced"),
        (shared, "fc1 is a part of several modules"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_left_alone(make, why):
    made = make()
    types = [type(part) for part in made.modules()]
    records = patch(made)
    assert [record.fused for record in records] == [False] * len(records)
    assert records[0].why.startswith(why)
    assert [type(part) for part in made.modules()] == types
    assert not hasattr(made, "seen")


@pytest.mark.parametrize("name", ["gate_proj", "up_proj"])
def test_lora_that_comes_later_is_not_lost(name):
    made = Gated().eval()
    patch(made)
    setattr(made, name, LoRA(getattr(made, name)))
    plain = copy.deepcopy(made)
    unpatch(plain)
    assert torch.equal(made(X), plain(X))


def test_a_model_half_patched_is_restored(monkeypatch):
    made = model()
    types, keys = [type(part) for part in made.modules()], [vars(part).keys() for part in made.modules()]
    real, calls = patching._fuse_linear, []

    def fails_the_second_time(module, site, choice):
        calls.append(site)
        real(module, site, choice)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(patching, "_fuse_linear", fails_the_second_time)
    with pytest.raises(KeyboardInterrupt):
        patch(made)
    assert [type(part) for part in made.modules()] == types
    assert [vars(part).keys() for part in made.modules()] == keys
    assert report(made) == []


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"model is a builtins\.int; it must be a torch\.nn\.Module"):
        patch(3)
    with pytest.raises(ValueError, match="when is 'often'; it must be one of 'measured', 'always', 'never'"):
        patch(model(), when="often")


def test_report():
    made = model()
    records = patch(made)
    assert report() == report(made) == records
    assert repr(records).splitlines()[0] == "matmul_fused.torch: 3 fused"
    assert "gate_proj + up_proj + act_fn" in str(records)
    unpatch(made)
    assert report(made) == []
