"""FusedLinear and FusedMLP: nn.Linear's state_dict, and a prepacked weight that is never an old one."""

import copy
import io
import pickle

import pytest

import matmul_fused as mf

torch = pytest.importorskip("torch")

from torch.nn.utils import prune  # noqa: E402

from matmul_fused.torch import FusedLinear, FusedMLP, drop_packed, op, patch  # noqa: E402
from matmul_fused.torch.modules import Packed  # noqa: E402

nn, F = torch.nn, torch.nn.functional
X = torch.randn(64, 40, generator=torch.Generator().manual_seed(0))


def layer(activation="gelu", out=24, **keywords):
    torch.manual_seed(1)
    return FusedLinear(40, out, activation=activation, **keywords).eval()


def check(module, x=X):
    """The module gives what its present parameters say, and used the prepacked weight."""
    with torch.no_grad():
        got = module(x)
        wanted = F.gelu(F.linear(x.double(), module.weight.double(), module.bias.double()))
    assert got.dtype == x.dtype
    assert torch.allclose(got.double(), wanted, atol=1e-5 if x.dtype == torch.float32 else 2e-2)
    return module._packed._packed


def test_state_dict_is_that_of_linear():
    plain, fused = torch.nn.Linear(40, 24), layer()
    assert list(fused.state_dict()) == list(plain.state_dict())
    check(fused)
    assert list(fused.state_dict()) == list(plain.state_dict())
    fused.load_state_dict(plain.state_dict())
    plain.load_state_dict(fused.state_dict())
    assert "activation='gelu'" in repr(fused)


def test_the_weight_is_packed_once():
    fused = layer()
    packed = check(fused)
    assert type(packed) is mf.PackedMatrix
    assert check(fused) is packed


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.weight.detach().mul_(2),
        lambda m: m.load_state_dict(layer(None).state_dict() | {"weight": torch.ones(24, 40)}),
        lambda m: setattr(m, "weight", torch.nn.Parameter(torch.ones(24, 40))),
        lambda m: setattr(m.weight, "data", torch.ones(24, 40)),
        lambda m: torch.optim.SGD(m.parameters(), 0.5).step(),
        lambda m: m.to(torch.bfloat16).to(torch.float32),
        lambda m: torch.nn.init.normal_(m.weight),
    ],
    ids=["in place", "load_state_dict", "parameter", "data", "optimizer", "to", "init"],
)
def test_a_changed_weight_is_packed_again(change):
    fused = layer()
    packed = check(fused)
    fused.weight.grad = torch.ones(24, 40)
    change(fused)
    assert check(fused) is not packed


def test_memory_that_is_used_again_is_another_weight():
    fused = layer()
    for value in range(20):
        fused.weight.data = torch.empty(0)
        fused.weight.data = torch.full((24, 40), value / 100)
        check(fused)


def test_writes_that_torch_does_not_count_need_drop_packed():
    fused = layer()
    check(fused)
    fused.weight.data.mul_(2)
    fused.drop_packed()
    check(fused)


class Llama(nn.Module):
    """gate/up of a patched model."""

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(40, 56), nn.Linear(40, 56), nn.Linear(56, 40)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Called(nn.Module):
    """A patched model with a new forward."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(40, 24)

    def forward(self, x):
        return F.gelu(self.fc(x))


def made(kind):
    """(a fused module that has packed its weights, a function that makes it torch's own)"""
    torch.manual_seed(3)
    module = kind().eval()
    if kind is layer:
        plain = nn.Sequential(nn.Linear(40, 24), nn.GELU())
        names = {"weight": "0.weight", "bias": "0.bias"}
    else:
        patch(module, "always")
        plain, names = kind(), {}
    with torch.no_grad():
        module(X)
    assert packed_in(module)

    def exact(x):
        plain.load_state_dict({names.get(name, name): value for name, value in module.state_dict().items()})
        return plain(x)

    return module, exact


def packed_in(module):
    kept = [value for part in module.modules() for value in vars(part).values() if type(value) is Packed]
    return [keeper for keeper in kept if keeper._packed is not None]


@pytest.mark.parametrize("kind", [layer, Llama, Called])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_of_a_fused_optimizer_is_noticed(kind, optimizer):
    """It writes without counting."""
    module, exact = made(kind)
    step = optimizer(module.parameters(), 0.5, fused=True)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    step.step()
    with torch.no_grad():
        assert torch.allclose(module(X), exact(X), atol=1e-4)


def test_an_optimizer_that_counts_packs_no_other_weight_again():
    module, _ = made(layer)
    packed = module._packed._packed
    other = nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    torch.optim.AdamW([other]).step()
    assert check(module) is packed

    class Own(torch.optim.Optimizer):
        def step(self):
            self.param_groups[0]["params"][0].data.mul_(2)

    Own([module.weight], {}).step()
    assert check(module) is not packed


@pytest.mark.parametrize("kind", [layer, Llama, Called])
def test_drop_packed_of_a_model(kind):
    module, exact = made(kind)
    for parameter in module.parameters():
        parameter.data.mul_(2)
    drop_packed(nn.Sequential(module))
    assert not packed_in(module)
    with torch.no_grad():
        assert torch.allclose(module(X), exact(X), atol=1e-4)


@pytest.mark.parametrize("kind", [layer, Llama, Called])
def test_no_packed_weight_is_kept_of_one_without_memory(kind):
    module, _ = made(kind)
    module.to("meta")
    with torch.no_grad():
        assert module(X.to("meta")).is_meta
    assert not packed_in(module)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace(_method)?. is deprecated")
@pytest.mark.parametrize("kind", [layer, Llama, Called])
def test_a_trace_has_no_packed_weight(kind):
    """It would hold what its example gave."""
    module, exact = made(kind)
    with torch.no_grad():
        traced = torch.jit.trace(module, X, check_trace=False)
        assert torch.allclose(traced(2 * X), exact(2 * X), atol=1e-4)


def test_training_keeps_no_packed_weight():
    fused = layer()
    check(fused)
    fused.train()
    assert fused._packed._packed is None
    fused(X).sum().backward()
    assert fused._packed._packed is None
    assert fused.weight.grad is not None
    fused.eval()
    assert fused(X).requires_grad
    assert fused._packed._packed is None
    check(fused)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_few_rows_of_16_bits_read_panels_only_if_they_hold_pairs(dtype):
    fused = layer().to(dtype)
    check(fused, X[:4].to(dtype))
    few = fused._packed.get(X[:4].to(dtype), fused.weight)
    packed = fused._packed.get(X.to(dtype), fused.weight)
    assert type(packed) is mf.PackedMatrix
    assert few is (packed if packed.layout == "pairs64" else None)


def test_prepack_can_be_turned_off():
    assert check(layer(prepack=False)) is None


def test_copies_and_pickles_pack_again():
    fused = layer()
    packed = check(fused)
    buffer = io.BytesIO()
    torch.save(fused, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), torch.load(buffer, weights_only=False)):
        assert other._packed._packed is None
        assert check(other) is not packed
    assert check(fused) is packed


def test_inference_tensors_and_autocast():
    with torch.inference_mode():
        fused = layer()  # its parameters count no versions
        assert fused(X).shape == (64, 24)
        assert fused._packed._packed is None
    fused = layer()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert fused(X).dtype == torch.bfloat16
    with torch.inference_mode():
        check(fused)


@pytest.mark.parametrize("layout", [None, "halves", "halves_up_first", "interleaved"])
def test_gated(layout):
    fused = layer("swiglu", gate_layout=layout)
    with torch.no_grad():
        got = fused(X)
        assert fused._packed._packed is not None
        assert torch.allclose(
            got, mf.matmul_fused(X, fused.weight.t(), fused.bias, "swiglu", gate_layout=layout), atol=1e-6
        )


def test_from_linear_shares_the_parameters():
    plain = torch.nn.Linear(40, 24).eval()
    fused = FusedLinear.from_linear(plain, torch.nn.GELU())
    assert fused.weight is plain.weight
    assert fused.bias is plain.bias
    assert not fused.training
    check(fused)
    with pytest.raises(TypeError, match=r"linear is a FusedLinear; it must be a torch\.nn\.Linear"):
        FusedLinear.from_linear(fused)


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (nn.utils.weight_norm, ValueError, "linear has hooks or a forward of its own"),
        (nn.utils.parametrizations.weight_norm, TypeError, "linear is a ParametrizedLinear"),
        (lambda m: prune.l1_unstructured(m, "weight", 3), ValueError, "linear has hooks"),
        (lambda m: m.register_forward_hook(lambda *_: None), ValueError, "linear has hooks"),
        (lambda m: setattr(m, "forward", torch.relu), ValueError, "linear has hooks or a forward of its own"),
        (
            lambda m: (delattr(m, "weight"), setattr(m, "weight", torch.ones(24, 40))),
            TypeError,
            "weight and bias of linear are Parameter and Tensor; they must be plain parameters",
        ),
    ],
)
def test_from_linear_loses_nothing(change, error, said):
    linear = nn.Linear(40, 24)
    change(linear)
    with pytest.raises(error, match=said):
        FusedLinear.from_linear(linear)


def test_compiled():
    fused = layer()
    packed = check(fused)
    with torch.no_grad():
        compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
        assert torch.allclose(compiled(X), fused(X), atol=1e-6)
    assert check(fused) is packed


def test_meta_device():
    assert FusedLinear(40, 24, device="meta", activation="relu").eval()(X.to("meta")).shape == (64, 24)


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_weight_without_memory_is_refused():
    module = nn.Sequential(nn.Linear(40, 24), nn.ReLU()).eval()
    patch(module)
    module[0].weight = nn.Parameter(meta(24, 40))
    for x in (X, X[0]):
        with torch.no_grad(), pytest.raises(RuntimeError, match="x is on cpu, but weight on meta; move one"):
            module(x)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"bias": meta(23)}, r"bias is \(23,\), which does not broadcast to \(2, 3, 24\)"),
        ({"bias": meta(1, 2, 3, 24)}, r"bias is \(1, 2, 3, 24\), which does not broadcast"),
        ({"bias": meta(24, dtype=torch.int32)}, r"x is torch\.float32, but bias is torch\.int32; convert one"),
        ({"bias": torch.ones(24)}, "x is on meta, but bias on cpu; move one"),
        ({"up": meta(23, 40)}, r"weight is \(24, 40\), but up is \(23, 40\)"),
        ({"up": meta(24, 40), "up_bias": meta(48)}, r"up_bias is \(48,\), which does not broadcast"),
        ({"weight": meta(23, 40), "layout": "halves"}, "weight has 23 rows, a gated activation needs an even number"),
    ],
)
def test_calls_without_memory_are_checked(more, said):
    operands = {"x": meta(2, 3, 40), "weight": meta(24, 40), "bias": None, "up": None, "up_bias": None, "layout": None}
    *tensors, layout = (operands | more).values()
    name = "swiglu" if tensors[3] is not None or layout else "relu"
    for call in (op.linear, op.linear_z):
        with pytest.raises(RuntimeError, match=said):
            call(*tensors, name, [], layout)


def test_additions_without_memory_are_checked():
    assert op.linear_add(meta(2, 40), meta(24, 40), meta(24), meta(24)).shape == (2, 24)
    with pytest.raises(RuntimeError, match=r"added is \(3, 24\), which does not broadcast to \(2, 24\)"):
        op.linear_add(meta(2, 40), meta(24, 40), None, meta(3, 24))


# --- FusedMLP ---


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["swiglu", "geglu_tanh", "gelu"])
def test_mlp(activation, bias):
    torch.manual_seed(2)
    module = FusedMLP(40, 56, activation=activation, bias=bias).eval()
    names = ("gate_proj", "up_proj", "down_proj") if activation != "gelu" else ("up_proj", "down_proj")
    kinds = ("weight", "bias") if bias else ("weight",)
    assert list(module.state_dict()) == [f"{name}.{kind}" for name in names for kind in kinds]
    act = {"swiglu": F.silu, "geglu_tanh": lambda g: F.gelu(g, approximate="tanh"), "gelu": F.gelu}[activation]
    double = copy.deepcopy(module).double()

    def exact(x):
        linear = {name: torch.nn.Module.get_submodule(double, name) for name in names}
        up, down = (lambda h, m=linear[n]: F.linear(h, m.weight, m.bias) for n in ("up_proj", "down_proj"))
        if activation == "gelu":
            return down(act(up(x)))
        gate = linear["gate_proj"]
        return down(act(F.linear(x, gate.weight, gate.bias)) * up(x))

    wanted = exact(X.double())
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(module(X).double(), wanted, atol=1e-5)
    got = torch.compile(module, backend="aot_eager", fullgraph=True)(X)
    assert torch.allclose(got.double(), wanted, atol=1e-5)
    ours = torch.autograd.grad(module.train()(X).sum(), list(module.parameters()))
    theirs = torch.autograd.grad(wanted.sum(), list(double.parameters()))
    assert all(torch.allclose(a.double(), b, rtol=1e-4, atol=1e-4) for a, b in zip(ours, theirs, strict=True))


def test_mlp_notices_changed_weights():
    module = FusedMLP(40, 56).eval()
    with torch.no_grad():
        module(X)
        packed = module._packed._packed
        assert module(X) is not None
        assert module._packed._packed is packed
        module.up_proj.weight.mul_(2)
        plain = FusedMLP(40, 56, prepack=False).eval()
        plain.load_state_dict(module.state_dict())
        assert torch.allclose(module(X), plain(X), atol=1e-5)
        assert module._packed._packed is not packed
    module.drop_packed()
    assert module._packed._packed is module.down_proj._packed._packed is None


def test_mlp_refuses_names_of_one_weight():
    with pytest.raises(ValueError, match="means one weight for gate and up; FusedMLP keeps them apart"):
        FusedMLP(40, 56, activation="silu_and_mul")


def test_mlp_runs_the_hooks_of_its_gate():
    """By which it may be sharded: before, x; behind, what both layers make."""
    module = FusedMLP(40, 56).eval()
    seen = []
    module.gate_proj.register_forward_pre_hook(lambda part, x: (2 * x[0],))
    module.gate_proj.register_forward_hook(lambda part, x, h: seen.append(h) or 3 * h)
    with torch.no_grad():
        got = module(X)
        hidden = F.silu(F.linear(2 * X, module.gate_proj.weight)) * F.linear(2 * X, module.up_proj.weight)
        assert torch.allclose(seen[0], hidden, atol=1e-5)
        assert torch.allclose(got, F.linear(3 * hidden, module.down_proj.weight), atol=1e-5)


class Lora(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize("name", ["gate_proj", "up_proj"])
def test_mlp_refuses_layers_that_add_something(name):
    module = FusedMLP(40, 56).eval()
    setattr(module, name, Lora(40, 56, bias=False))
    with pytest.raises(TypeError, match=r"Lora.*FusedMLP has no rule for other layers than torch's"):
        module(X)


def test_mlp_refuses_a_layer_without_its_activation():
    module = FusedMLP(40, 56, activation="gelu").eval()
    module.up_proj = nn.Linear(40, 56)
    with pytest.raises(TypeError, match="up_proj is a Linear; FusedMLP has no rule for other layers than FusedLinear"):
        module(X)


def test_mlp_takes_plain_layers_in_place_of_its_own():
    module = FusedMLP(40, 56).eval()
    with torch.no_grad():
        wanted = module(X)
        module.gate_proj.__class__ = torch.nn.Linear
        assert torch.equal(module(X), wanted)
