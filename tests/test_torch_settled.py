"""A patched site that is decided is not asked about again: what a call of it costs, by what it calls."""

import copy

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import functional, measure, patch  # noqa: E402
from matmul_fused.torch.choice import Choice  # noqa: E402
from support import own_store  # noqa: E402

nn, forward_ad = torch.nn, torch.autograd.forward_ad
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Called(nn.Module):
    """An activation that is called, which needs a new forward."""

    def __init__(self):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(8, 12), nn.Dropout(0.5), nn.Linear(12, 8)

    def forward(self, x):
        return self.down(self.drop(nn.functional.gelu(self.up(x))))


FORMS = {"linear": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), "gate/up": Gated, "new forward": Called}


@pytest.fixture(params=["fused", "fused, as on a GPU", "left"])
def decided(request, monkeypatch, tmp_path):
    """What every measurement decides, and the questions that were asked: takes_ours, or takes_new."""
    own_store(tmp_path, monkeypatch)
    measure.forget()
    fused = request.param != "left"
    times = (0.001, 0.002) if fused else (0.002, 0.001)
    if "GPU" in request.param:
        monkeypatch.setattr(torch.Tensor, "is_cpu", False, raising=False)
    monkeypatch.setattr(measure, "_race", lambda *_: times)
    asked = []

    def counted(real):
        def ask(self, x, *more):
            asked.append(x)
            return real(self, x, *more)

        return ask

    monkeypatch.setattr(Choice, "takes_ours", counted(Choice.takes_ours))
    monkeypatch.setattr(Choice, "takes_new", counted(Choice.takes_new))
    yield fused, asked
    measure.forget()


@pytest.fixture(params=FORMS, ids=list(FORMS))
def pair(request):
    torch.manual_seed(0)
    made = FORMS[request.param]().eval()
    twin = copy.deepcopy(made)
    (record,) = patch(twin)
    assert record.fused
    return made, twin


def test_the_same_is_asked_once(decided, pair):
    made, twin = pair
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(twin(X), made(X))
        assert len(decided[1]) == 1
        for other in (X[:3], X.double(), X[:, None]):
            made.to(other.dtype), twin.to(other.dtype)
            before = len(decided[1])
            for _ in range(2):
                torch.testing.assert_close(twin(other), made(other))
            assert len(decided[1]) == before + 1


def test_gradients_and_autocast_are_asked_about(decided, pair):
    made, twin = pair
    with torch.no_grad():
        twin(X)
    grads = []
    for model in (made, twin):
        model(X).sum().backward()
        grads.append([part.grad for part in model.parameters()])
    torch.testing.assert_close(grads[0], grads[1])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert twin(X).dtype == torch.bfloat16
    assert len(decided[1]) == 3


def test_recorded_calls_settle_too(decided, pair):
    made, twin = pair
    kept = [made for part in twin.modules() for made in vars(part).values()]
    kept += [part for made in kept if isinstance(made, (list, tuple)) for part in made]
    kept += [part for made in kept if isinstance(made, tuple) for part in made]
    choice = next(made for made in kept if isinstance(made, Choice))
    for _ in range(2):
        made.zero_grad(), twin.zero_grad()
        for model in (made, twin):
            model(X).sum().backward()
        grads = ([part.grad for part in model.parameters()] for model in (made, twin))
        torch.testing.assert_close(*grads)
        assert choice.settled(X) is not None
    assert choice.settled(X.clone().requires_grad_()) is None
    with torch.no_grad():
        assert choice.settled(X) is None


def traced(model):
    return torch.jit.trace(model, X)(X + 1)


def dual(model):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(X, X))).tangent


def by_parameters(model):
    """Weights are a transform's, x is none of it."""
    call = torch.func.functional_call
    found = torch.func.grad(lambda weights: call(model, weights, (X,)).sum())(dict(model.named_parameters()))
    return list(found.values())


class Tensor(torch.Tensor):
    pass


@pytest.mark.parametrize("bias", [torch.zeros(7), torch.zeros(12, dtype=torch.int32), 7j])
def test_a_straight_call_leaves_errors_to_linear(bias):
    """Which says what A and B are."""
    assert functional.straight(X, torch.zeros(12, 8), bias, None) is NotImplemented


OTHERS = {
    "jit": traced,
    "vmap": lambda model: torch.func.vmap(model)(X),
    "jacrev": lambda model: torch.func.jacrev(model)(X),
    "jvp": lambda model: torch.func.jvp(model, (X,), (X,))[1],
    "dual": dual,
    "parameters": by_parameters,
    "subclass": lambda model: model(X.as_subclass(Tensor)),
    "nested": lambda model: model(torch.nested.nested_tensor([X, X[:3]])).unbind()[1],
    "jagged": lambda model: model(torch.nested.nested_tensor([X, X[:3]], layout=torch.jagged)).values(),
    "sparse": lambda model: model(X.to_sparse()).to_dense(),
    "axes": lambda model: model(X.reshape(1, 1, 1, 1, 1, 1, 1, 5, 8)),
}


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*nested tensors.*:UserWarning")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
@pytest.mark.usefixtures("decided")
def test_what_ours_does_not_take(pair, call, grad):
    """Torch's form runs, whatever was decided for the same shape."""

    def result(model):
        try:
            return call(model)
        except (NotImplementedError, RuntimeError) as error:  # torch multiplies no sparse tensors elementwise, ...
            return f"{type(error)}"

    made, twin = pair
    for settled in (False, True):
        for recording in (False, True) if settled else ():
            with torch.set_grad_enabled(recording):
                twin(X)
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(result(twin), result(made))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_measured_under_autocast_is_what_runs(monkeypatch, tmp_path, pair, dtype):
    """On a GPU, too, where the kernel is called at once elsewhere."""
    own_store(tmp_path, monkeypatch)
    measure.forget()
    monkeypatch.setattr(torch.Tensor, "is_cpu", False, raising=False)
    dtypes, real = set(), functional._linear

    def seen(x, *more, **named):
        dtypes.add(x.dtype)
        return real(x, *more, **named)

    monkeypatch.setattr(functional, "_linear", seen)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert pair[1](X.to(dtype)).dtype == torch.bfloat16
    assert not dtypes


def test_copies_are_asked_anew(decided, pair):
    made, twin = pair
    with torch.no_grad():
        twin(X)
        torch.testing.assert_close(copy.deepcopy(twin)(X), made(X))
    assert len(decided[1]) == 2


def test_training_and_hooks_that_came_later(decided):
    """A new forward is one of eval mode, and calls no other child than its layers as the old one does."""
    torch.manual_seed(0)
    made = Called().eval()
    patch(made)
    with torch.no_grad():
        made(X)
        made.train()
        torch.manual_seed(1)
        dropped = made(X)
        torch.manual_seed(1)
        assert torch.equal(dropped, Called.forward(made, X))
        made.eval()
        wanted = Called.forward(made, X)
        seen = []
        made.drop.register_forward_hook(lambda *_: seen.append(1))
        torch.testing.assert_close(made(X), wanted)
        assert seen == [1]
        made.drop.train()
        torch.manual_seed(1)
        dropped = made(X)
        torch.manual_seed(1)
        torch.testing.assert_close(dropped, Called.forward(made, X))


def test_what_was_called_last_compiles_nothing_again(monkeypatch, pair):
    """Dynamo reads nothing that a call changes."""
    measure.forget()
    monkeypatch.setattr(measure, "_race", lambda *_: (0.001, 0.002))
    made, twin = pair
    with torch.no_grad():
        twin(X)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(twin, backend="eager", dynamic=False, fullgraph=True)
        torch.testing.assert_close(compiled(X), made(X))
        twin(X[:2])
        torch.testing.assert_close(compiled(X), made(X))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
